#!/bin/sh
# Builds an earlier revision for the upgrade test, in a folder of its own; prints
# the path of its godwit.
set -eu
cd "$(dirname "$0")/.."
revision=$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
git -c advice.detachedHead=false worktree add --force --detach "$folder/source" "$revision" >&2
trap 'git worktree remove --force "$folder/source"' EXIT
(cd "$folder/source" && CARGO_TARGET_DIR="$folder" cargo build --release --locked >&2)
echo "$folder/release/godwit"
