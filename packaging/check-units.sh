#!/bin/sh
# Has systemd read what is for it: the units, and the drop-in together with the unit
# of Debian's nginx. Says why if it can't. What `systemd-analyze security` finds exposed of
# a unit must not become more: 10 is everything.
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

# exposed <unit> <tenths>: no more than so much is.
exposed() {
	# Debian 12 has 252; before 250 it asks a running systemd.
	systemd-analyze security --help | grep -q -e --offline || {
		echo "skipped: what $1 leaves exposed, for this systemd-analyze can't say it"
		return
	}
	said=$(systemd-analyze security --no-pager --offline=true --threshold="$2" "$work/$1" 2>&1) || {
		echo "$said" | grep -v '✓' >&2
		echo "$1 leaves more exposed than $2 tenths" >&2
		return 1
	}
	echo "$said" | sed -n 's/.*Overall/overall/p'
}

# A program that is not installed yet would be all that is wrong.
while read -r unit tenths; do
	sed 's|/usr/bin/godwit[a-z-]*|/bin/true|' "$unit" >"$work/$unit"
	verify "$unit"
	exposed "$unit" "$tenths"
done <<-END
	godwit.service 30
	godwit-director.service 27
	godwit-witness.service 21
	godwit-pki.service 20
	godwit-renew.service 20
END
cp godwit-renew.timer "$work"
verify godwit-renew.timer

nginx=/lib/systemd/system/nginx.service
if [ ! -f "$nginx" ]; then
	echo "skipped: the drop-in, for there is no $nginx (Debian package nginx)"
	exit 0
fi
cp "$nginx" "$work"
mkdir "$work/nginx.service.d"
sed 's|/usr/bin/godwit|/bin/true|' nginx-drain.conf >"$work/nginx.service.d/godwit.conf"
verify nginx.service
