#!/bin/sh
# Builds that lack one mechanism each (crates/godwit-bpf/build.rs): a chaos run
# must find out within 60 s, or it proves nothing. Clients and checks are those
# of the release build; the agents are the mutant's.
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "skipped: chaos in network namespaces needs root (sudo make mutants)"
	exit 0
fi
target="${CARGO_TARGET_DIR:-$PWD/target}"
log=$(mktemp)
# A broken build must not lie about.
trap 'rm -f "$log" "$target/debug/godwit"' EXIT

# The faults that need what is missing; with all of them it takes longer.
catch() {
	MUTANT=$1 cargo build --locked -p godwit
	GODWIT_BIN="$target/debug/godwit" "$target/release/godwit" chaos \
		--seconds 50 --seed 7 --faults "$2" --until-violation >"$log" || true
	if tail -n 1 "$log" | grep -q ' [1-9][0-9]* violations$'; then
		echo "$1: caught: $(grep -m 1 '^violation' "$log")"
	else
		cat "$log"
		echo "$1: NOT CAUGHT"
		exit 1
	fi
}
catch no-fence agent.stopped.owner
catch no-gate tap.lossy.dark
catch no-timestamp-offset server.killed.owner,dark.owner
