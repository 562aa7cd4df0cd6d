#!/bin/sh
# Tests that make network namespaces. One at a time: they measure time.
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
	echo "skipped: tests in network namespaces need root (sudo make test)"
	exit 0
fi
export GODWIT_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/godwit"
exec cargo test --release --locked -p godwit-bpf -p godwit-sock -p godwit-lab -p godwit-tests --tests -- --test-threads=1
