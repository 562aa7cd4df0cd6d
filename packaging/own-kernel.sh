#!/bin/sh
# Installs an emulator and fetches a stock Debian kernel for machines with a
# kernel of their own (tests only): 6.12, the LTS of Debian 13, from
# bookworm-backports. Signatures are checked by apt; the kernel is not installed
# and the system's own sources stay as they are. Result: vmlinuz and a few modules
# in <folder>, by default target/own-kernel.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-${CARGO_TARGET_DIR:-target}/own-kernel}
[ -f "$folder/vmlinuz" ] && exit 0

export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends qemu-system-x86 busybox-static cpio xz-utils binutils

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
	"http://deb.debian.org/debian bookworm-backports main" >"$work/sources.list"
apt() {
	apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
}
apt update
name=$(apt-cache -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" \
	-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
	depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*-cloud-amd64\)$/\1/p' | head -n 1)
(cd "$work" && apt download "$name")
dpkg-deb -x "$work/$name"_*.deb "$work/root"

mkdir -p "$folder/modules"
: >"$folder/modules/order"
# In the order in which they need each other.
for module in failover net_failover virtio_net inet_diag tcp_diag tcp_bbr; do
	file=$(find "$work/root" -name "$module.ko*")
	case $file in
	*.xz) xz -dc "$file" >"$folder/modules/$module.ko" ;;
	*) cp "$file" "$folder/modules/$module.ko" ;;
	esac
	echo "$module.ko" >>"$folder/modules/order"
done
# Last: it says that all of it is there.
cp "$work"/root/boot/vmlinuz-* "$folder/vmlinuz"
