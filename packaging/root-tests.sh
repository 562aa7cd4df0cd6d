#!/bin/bash
# Tests that make network namespaces: root-tests.sh short, long, or all of them.
# In each: those of the data path's hooks, which measure no time (long: beside two that take
# a minute); the others two at a time, the longest first; and alone those that run other
# tests' programs. What failed then runs again with the machine for itself, up to three
# times: beside another lab, or on a machine whose host takes the CPU away for 30 ms, a
# failure detector is right to see a failure. Each of that is said; three failures alone
# fail the run.
set -u
cd "$(dirname "$0")/.."
part=${1:-all}
case $part in short | long | all) ;; *)
	echo "usage: $0 [short|long|all]" >&2
	exit 2
	;;
esac
if [ "$(id -u)" -ne 0 ]; then
	echo "skipped: tests in network namespaces need root (sudo make test)"
	exit 0
fi
export GODWIT_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/godwit"

# Pass beside the hooks: they wait most of the time.
beside="slow dead_member"
# By themselves.
alone="commands"
# More than half a minute each: what `make test-long` runs. Longest first, so that no lane is
# left with one of them at the end.
long="steps process_exit director surroundings_link surroundings_neighbours standstill
reconfigure_ring sequence queued reconfigure process_child faults eager one_address
surroundings_host package ring_requests unread handoff partitions lifecycle tap_loss reprotect
unreachable leased_pause"

# Each test of a hook loads programs, whose descriptors its process keeps to its end: too many
# for one process. These run in one of their own, in the long part.
apart="director:: forged:: handoff:: moves:: proof:: ring:: spoofed:: steer:: transfer:: vouched::"

# run WORDS OF CARGO TEST ...
run() {
	cargo test --release --locked --no-fail-fast "$@"
}

# lane TARGET LOG [THREADS]: one file of tests, whose output appears when it has ended.
lane() {
	local began=$SECONDS
	run -p godwit-tests --test "$1" -- --test-threads="${3:-1}" >"$2" 2>&1 </dev/null ||
		echo failed >>"$2"
	cat "$2"
	echo "$1: $((SECONDS - began)) s"
}

# Reads what cargo printed. One line per test that failed: the words that name its
# target, and its name behind a "|" (none if the target died before it said which).
failures() {
	awk '
		/^ +Running / { n = 0; listed = 0 }
		/^failures:$/ { listed = 1; n = 0 }
		/^test result:/ { listed = 0 }
		listed && /^    [a-z0-9_:]+$/ { names[n++] = $1 }
		match($0, /to rerun pass `[^`]*`/) {
			target = substr($0, RSTART + 15, RLENGTH - 16)
			if (n == 0) print target "|"
			for (i = 0; i < n; i++) print target "|" names[i]
			n = 0
		}' "$@"
}

# except FROM WHAT: words of one list that are not in the other.
except() {
	local word
	for word in $1; do
		[[ " ${2//[$'\n\t']/ } " == *" $word "* ]] || echo "$word"
	done
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Nothing is compiled beside what measures time.
run -p godwit-bpf -p godwit-lab -p godwit-sock -p godwit-tests --lib --tests --no-run || exit 1

all=$(cd tests/tests && for file in *.rs; do echo "${file%.rs}"; done)
together=$(except "$all" "$long $beside $alone")
missing=$(except "$long $beside $alone" "$all")
if [ -n "$missing" ]; then
	echo "root-tests.sh: there is no test named" $missing >&2
	exit 1
fi

# two_lanes NAMES...: two files of tests at a time.
two_lanes() {
	printf '%s\n' "$@" | xargs -P 2 -I{} bash -c 'lane {} "$logs/{}"'
}

# note_failure LOG COMMAND...: its output appears, and is kept.
note_failure() {
	local log=$logs/$1
	shift
	{ "$@" 2>&1 || echo failed; } | tee "$log"
}

short_part() {
	# shellcheck disable=SC2046,SC2086 # lists of words
	note_failure hooks run -p godwit-bpf --lib --tests -- $(printf -- '--skip %s ' $apart)
	# shellcheck disable=SC2086 # a list of words
	two_lanes $together
	note_failure lab run -p godwit-lab --test '*' -- --test-threads=1
	note_failure sock run -p godwit-sock --lib --tests -- --test-threads=1
	note_failure lib run -p godwit-tests --lib
}

long_part() {
	for name in $beside; do lane "$name" "$logs/$name" 3; done >"$logs/.beside" &
	local waiting=$!
	# shellcheck disable=SC2086 # a list of words
	note_failure hooks_apart run -p godwit-bpf --test hooks -- $apart
	wait "$waiting"
	cat "$logs/.beside"
	# shellcheck disable=SC2086 # a list of words
	two_lanes $long
	for name in $alone; do lane "$name" "$logs/$name"; done
}

export -f lane run
export logs

[ "$part" = long ] || short_part
[ "$part" = short ] || long_part

grep -qx failed "$logs"/* || exit 0

# What failed without a name of its target was not compiled.
failed=$(failures "$logs"/*)
[ -n "$failed" ] || exit 1
echo "$failed" | while IFS='|' read -r target name; do
	echo "once more: $target ${name:-, all of it}"
	# shellcheck disable=SC2086 # lists of words
	again() { run $target -- --test-threads=1 ${name:+--exact "$name"} </dev/null; }
	if again; then
		echo "$target $name: failed beside others, passes alone"
	elif again || again; then
		echo "FLAKY: $target $name failed alone and then passed"
	else
		exit 1
	fi
done
