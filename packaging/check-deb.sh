#!/bin/sh
# The Debian package of the programs that are built: made twice it is the same, whoever makes it
# where, and lintian finds nothing wrong with it. That it installs is `tests/tests/package.rs`.
set -eu
cd "$(dirname "$0")/.."
programs=${1:-${CARGO_TARGET_DIR:-target}/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DEB_LEVEL=1

first=$(packaging/deb.sh "$programs" "$work/first" | tail -n 1)
mkdir "$work/elsewhere"
second=$(
	umask 077
	TMPDIR=$work/elsewhere TZ=Australia/Hobart LC_ALL=C packaging/deb.sh "$programs" "$work/second" | tail -n 1
)
cmp "$first" "$second"
echo "package: made twice it is the same"

# Who has what is in it may not be who has made it.
if dpkg-deb --contents "$first" | grep -v ' root/root '; then
	echo "of somebody else than root" >&2
	exit 1
fi

if ! command -v lintian >/dev/null; then
	echo "skipped: no lintian (Debian package lintian)"
	exit 0
fi
lintian --allow-root --fail-on error,warning "$first"
echo "package: lintian finds nothing wrong"
