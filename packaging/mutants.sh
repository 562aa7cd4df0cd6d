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
whole=$(mktemp -d)
log=$whole/log
# A broken build must not lie about: the whole one is put back.
trap 'rm -f "$target/release/godwit"; cp "$whole/godwit" "$target/release/"; rm -rf "$whole"' EXIT
cp "$target/release/godwit" "$target/release/godwit-pki" "$target/release/godwit-lab" "$whole"

# No environment breaks a build for use.
if MUTANT=no-gate cargo build --locked --release -p godwit 2>"$log"; then
	echo "MUTANT in the environment was obeyed"
	exit 1
fi
grep -q "needs the feature" "$log"

# The faults that need what is missing; with all of them it takes longer. On a
# busy machine they may come too late to hit what they are meant for: once more,
# with another seed.
catch() { # MUTANT FAULTS [OPTION]
	MUTANT=$1 cargo build --locked --release -p godwit --features mutants
	for seed in 7 8; do
		GODWIT_BIN="$target/release/godwit" "$whole/godwit" chaos ${3:-} \
			--seconds 50 --seed "$seed" --faults "$2" --until-violation >"$log" || true
		if tail -n 1 "$log" | grep -q ' [1-9][0-9]* violations$'; then
			echo "$1${3:+ $3}: caught: $(grep -m 1 '^violation' "$log")"
			return
		fi
		cat "$log"
	done
	echo "$1${3:+ $3}: NOT CAUGHT"
	exit 1
}
catch no-fence agent.stopped.owner
catch no-fence agent.stopped,node.stopped --ring
catch no-gate tap.lossy.dark
catch no-proof words --hostile
catch no-timestamp-offset server.killed.owner,dark.owner
