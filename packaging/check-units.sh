#!/bin/sh
# Has systemd read what is for it: the units, and the drop-in together with the unit
# of Debian's nginx. Says why if it can't.
set -eu
cd "$(dirname "$0")"
if ! command -v systemd-analyze >/dev/null; then
	echo "skipped: no systemd-analyze (Debian package systemd)"
	exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# verify <unit>: what systemd says of our files is an error, also what it would ignore.
verify() {
	said=$(SYSTEMD_UNIT_PATH="$work:" systemd-analyze verify "$work/$1" 2>&1) || {
		echo "$said" >&2
		return 1
	}
	! echo "$said" | grep -F "$work" >&2
}

# A program that is not installed yet would be all that is wrong.
for unit in godwit.service godwit-witness.service godwit-director.service; do
	sed 's|/usr/bin/godwit|/bin/true|' "$unit" >"$work/$unit"
	verify "$unit"
done

nginx=/lib/systemd/system/nginx.service
if [ ! -f "$nginx" ]; then
	echo "skipped: the drop-in, for there is no $nginx (Debian package nginx)"
	exit 0
fi
cp "$nginx" "$work"
mkdir "$work/nginx.service.d"
sed 's|/usr/bin/godwit|/bin/true|' nginx-drain.conf >"$work/nginx.service.d/godwit.conf"
verify nginx.service
