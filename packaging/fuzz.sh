#!/bin/sh
# Fuzzes every decoder for so many seconds each, on the stable toolchain. With
# `check` the targets are only compiled, without the fuzzer itself.
set -eu
seconds=${1:-60}
cd "$(dirname "$0")/../fuzz"
if [ "$seconds" = check ]; then
	export RUSTFLAGS="--cfg fuzzing -D warnings" CUSTOM_LIBFUZZER_PATH=/dev/null
	exec cargo check --locked
fi
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
cargo build --release --target "$host"
for source in fuzz_targets/*.rs; do
	target=$(basename "$source" .rs)
	echo "== $target"
	mkdir -p "corpus/$target"
	"${CARGO_TARGET_DIR:-target}/$host/release/$target" -max_total_time="$seconds" -timeout=5 "corpus/$target"
done
