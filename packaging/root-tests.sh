#!/bin/sh
# Tests that make network namespaces. One at a time: they measure time. Only the
# minutes in `slow` and `dead_member` pass beside the tests of the data path's hooks, which
# measure none (`dead_member` compares with a server that nobody protects). A test that
# fails is run up to twice more, by itself, and said to be flaky if it passes then: on a
# machine whose host takes the CPU away for 30 ms a failure detector is right to see a
# failure. Three failures fail the run.
set -u
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "skipped: tests in network namespaces need root (sudo make test)"
	exit 0
fi
export GODWIT_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/godwit"
hooks="-p godwit-bpf --lib --tests"
lab="-p godwit-lab --test *"
rest="-p godwit-sock -p godwit-tests --lib --tests"
silence=a_minute_of_keep_alives_and_window_probes_does_no_harm
dead=a_dead_member

# run WORDS OF CARGO TEST ...
run() {
	cargo test --release --locked --no-fail-fast "$@"
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

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
set -f # the words above are split, and match no files
# shellcheck disable=SC2086
{
	# Nothing is compiled beside what measures time.
	for words in "$hooks" "$lab" "$rest"; do
		run $words --no-run || exit 1
	done
	run -p godwit-tests --test slow --test dead_member >"$logs/slow" 2>&1 &
	{ run $hooks 2>&1 || echo failed; } | tee "$logs/hooks"
	wait "$!" || echo failed >>"$logs/slow"
	cat "$logs/slow"
	{ run $lab -- --test-threads=1 2>&1 || echo failed; } | tee "$logs/lab"
	{ run $rest -- --test-threads=1 --skip "$silence" --skip "$dead" 2>&1 || echo failed; } | tee "$logs/rest"
}
set +f
grep -qx failed "$logs"/* || exit 0

# What failed without a name of its target was not compiled.
failed=$(failures "$logs"/*)
[ -n "$failed" ] || exit 1
echo "$failed" | while IFS='|' read -r target name; do
	echo "once more: $target ${name:-, all of it}"
	# shellcheck disable=SC2086 # lists of words
	again() { run $target -- --test-threads=1 ${name:+--exact "$name"} </dev/null; }
	again || again || exit 1
	echo "FLAKY: $target $name failed and then passed"
done
