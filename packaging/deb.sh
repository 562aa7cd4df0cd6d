#!/bin/sh
# Makes a Debian package of programs that are built:
#   packaging/deb.sh FOLDER OUT
# FOLDER has them (target/release), OUT is the folder for godwit_VERSION_ARCHITECTURE.deb,
# whose path is printed last. The same programs make the same package, bit for bit. The library
# and its header are not in it: servers that carry their state link with it where they are built.
#   DEB_VERSION        another version than that of Cargo.toml
#   DEB_LEVEL          of xz, 0 to 9 (6)
#   SOURCE_DATE_EPOCH  the time of all files, by default that of the last commit, or where
#                      git does not say it of CHANGELOG.md
set -eu
umask 022
cd "$(dirname "$0")/.."
programs=$(cd "$1" && pwd)
out=$(mkdir -p "$2" && cd "$2" && pwd)
version=${DEB_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)}
architecture=$(dpkg --print-architecture)
[ -n "${SOURCE_DATE_EPOCH:-}" ] || SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
	SOURCE_DATE_EPOCH=$(stat --format=%Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
export LC_ALL=C.UTF-8 TZ=UTC0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
documents=$root/usr/share/doc/godwit
make --silent --no-print-directory lay DESTDIR="$root" PREFIX=/usr PROGRAMS="$programs" \
	MANUAL_DATE="$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"

# Where Debian looks.
mkdir -p "$root/lib" "$root/etc/godwit"
mv "$root/usr/lib/systemd" "$root/lib/systemd"
rmdir "$root/usr/lib"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
cp packaging/godwit.toml "$root/etc/godwit/godwit.toml"
mkdir -p "$root/usr/share/lintian/overrides"
cp packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/godwit"
# A program's build id is made of names, too, that depend on the folder of the build and are
# stripped: here it is one of what is left. The note's header has 16 bytes.
note=.note.gnu.build-id
for program in "$root"/usr/bin/* "$root"/usr/libexec/godwit/*; do
	strip --strip-unneeded --remove-section=.comment "$program"
	objcopy --dump-section "$note=$work/note" "$program" "$work/same"
	strip --remove-section="$note" "$program" -o "$work/without"
	{
		head -c 16 "$work/note"
		python3 -c 'import hashlib, sys
sys.stdout.buffer.write(hashlib.sha1(open(sys.argv[1], "rb").read()).digest())' "$work/without"
	} >"$work/id"
	objcopy --update-section "$note=$work/id" "$program"
done

# What it is made of, and under which licences.
packaging/supply.py sbom "$documents/godwit.cdx.json" >/dev/null
packaging/supply.py texts "$documents/libraries" >/dev/null
# indented <file>: as a paragraph of the file `copyright` has it.
indented() {
	sed 's/^$/./; s/^/ /' "$1"
}
{
	cat packaging/debian/copyright
	echo "License: MIT" && indented LICENSE-MIT
	printf '\nLicense: BSD-2-Clause\n' && sed '1,/BSD-2-Clause/d; 1,/^$/d' LICENSE-BPF >"$work/bsd" &&
		indented "$work/bsd"
} >"$documents/copyright"
maintainer=$(sed -n 's/^Maintainer: //p' packaging/debian/control)
cat >"$documents/changelog" <<-END
	godwit ($version) unstable; urgency=medium

	  * What has changed is in CHANGELOG.md beside this file.

	 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
gzip -9n "$documents/changelog" "$documents/libraries" "$root"/usr/share/man/man8/*

# What the programs link with; it reads no other file than this one.
mkdir -p "$work/debian" "$root/DEBIAN"
printf 'Source: godwit\n\nPackage: godwit\nArchitecture: any\n' >"$work/debian/control"
needs=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/* root/usr/libexec/godwit/* |
	sed -n 's/^shlibs:Depends=//p')
# As dpkg-gencontrol counts, whatever the file system's blocks: KiB of files, 1 of all else.
size=$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
	awk '{ sum += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print sum }')
sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@NEEDS@/$needs/; s/@SIZE@/$size/" \
	packaging/debian/control >"$root/DEBIAN/control"
install -m 755 -t "$root/DEBIAN" packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
echo /etc/godwit/godwit.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z |
	xargs -0 md5sum) >"$root/DEBIAN/md5sums"

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
# xz cuts what it compresses into parts for its threads.
export DPKG_DEB_THREADS_MAX=1
dpkg-deb --root-owner-group -Zxz -z"${DEB_LEVEL:-6}" --build "$root" "$out/godwit_${version}_$architecture.deb" >&2
echo "$out/godwit_${version}_$architecture.deb"
