#!/bin/sh
# Runs a command, once more if it fails, and says which it was. For what runs real
# processes: a host that takes the processors away can break what was right to be called
# too slow a moment later. What fails twice is no accident.
"$@" && exit
"$@" || exit
echo "FLAKY: '$*' failed and then passed"
