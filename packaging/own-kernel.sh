#!/bin/sh
# Installs an emulator and fetches stock Debian kernels for machines with a kernel
# of their own (tests only): 6.12, the LTS of Debian 13, from bookworm-backports,
# and 6.1, that of Debian 12, which is too old for Godwit. Signatures are checked
# by apt; nothing of them is installed and the system's own sources stay as they
# are. Result: vmlinuz and a few modules in <folder> and in <folder>/old; <folder>
# is target/own-kernel by default.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-${CARGO_TARGET_DIR:-target}/own-kernel}
[ -f "$folder/old/vmlinuz" ] && [ -f "$folder/vmlinuz" ] && exit 0

export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends qemu-system-x86 busybox-static cpio xz-utils binutils

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch <suite> <folder>: the newest cloud kernel of a suite.
fetch() {
	rm -rf "$work"/*
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$2/modules"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
		"http://deb.debian.org/debian $1 main" >"$work/sources.list"
	set -- "$2" -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" \
		-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
	to=$1
	shift
	apt-get -qq -o APT::Sandbox::User=root "$@" update
	name=$(apt-cache "$@" depends linux-image-cloud-amd64 |
		sed -n 's/^ *Depends: \(linux-image-.*-cloud-amd64\)$/\1/p' | head -n 1)
	(cd "$work" && apt-get -qq -o APT::Sandbox::User=root "$@" download "$name")
	dpkg-deb -x "$work/$name"_*.deb "$work/root"
	: >"$to/modules/order"
	# In the order in which they need each other; what there is no file of is
	# part of the kernel.
	for module in virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci \
		failover net_failover virtio_net inet_diag tcp_diag tcp_bbr; do
		file=$(find "$work/root" -name "$module.ko*")
		[ -n "$file" ] || continue
		case $file in
		*.xz) xz -dc "$file" >"$to/modules/$module.ko" ;;
		*) cp "$file" "$to/modules/$module.ko" ;;
		esac
		echo "$module.ko" >>"$to/modules/order"
	done
	# Last: it says that all of it is there.
	cp "$work"/root/boot/vmlinuz-* "$to/vmlinuz"
}

fetch bookworm-backports "$folder"
fetch bookworm "$folder/old"
