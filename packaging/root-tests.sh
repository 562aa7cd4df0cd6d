#!/bin/bash
# Tests that make network namespaces, in three parts: those of the data path's hooks, which
# measure no time, beside two that take a minute; the others two at a time, the longest
# first; and alone those that run other tests' programs. What failed then runs again with
# the machine for itself, up to three times: beside another lab, or on a machine whose host
# takes the CPU away for 30 ms, a failure detector is right to see a failure. Each of that is
# said; three failures alone fail the run.
set -u
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "skipped: tests in network namespaces need root (sudo make test)"
	exit 0
fi
export GODWIT_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/godwit"

# Pass beside the hooks: they wait most of the time.
beside="slow dead_member"
# By themselves.
alone="commands"
# Longest first, so that no lane is left with one of them at the end.
long="steps process_exit director surroundings_link surroundings_neighbours ring_requests
reconfigure_ring queued reconfigure lifecycle handoff reprotect eager moves unread faults"

# Each test of a hook loads programs, whose descriptors its process keeps to its end: too many
# for one process.
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
together=$(except "$long $(except "$all" "$long")" "$beside $alone")

for name in $beside; do lane "$name" "$logs/$name" 3; done >"$logs/.beside" &
# shellcheck disable=SC2046,SC2086 # lists of words
{ run -p godwit-bpf --lib --tests -- $(printf -- '--skip %s ' $apart) 2>&1 || echo failed; } |
	tee "$logs/hooks"
# shellcheck disable=SC2086 # a list of words
{ run -p godwit-bpf --test hooks -- $apart 2>&1 || echo failed; } | tee "$logs/hooks_apart"
wait "$!"
cat "$logs/.beside"

export -f lane run
export logs
# shellcheck disable=SC2086 # a list of words
printf '%s\n' $together | xargs -P 2 -I{} bash -c 'lane {} "$logs/{}"'

{ run -p godwit-lab --test '*' -- --test-threads=1 2>&1 || echo failed; } | tee "$logs/lab"
{ run -p godwit-sock --lib --tests -- --test-threads=1 2>&1 || echo failed; } | tee "$logs/sock"
{ run -p godwit-tests --lib 2>&1 || echo failed; } | tee "$logs/lib"
for name in $alone; do lane "$name" "$logs/$name"; done

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
