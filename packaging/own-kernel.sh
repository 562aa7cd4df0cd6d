#!/bin/sh
# Installs an emulator and fetches stock Debian kernels for machines with a kernel
# of their own (tests only): 6.12, the LTS of Debian 13, from bookworm-backports,
# and 6.1, that of Debian 12, which is too old for Godwit. Signatures are checked
# by apt; nothing of them is installed and the system's own sources stay as they
# are. For clients and witnesses also User-mode Linux, a kernel that is a process,
# from sid: that of Debian 12 and 13 can't save the registers of newer processors
# (AMX). Result: vmlinuz and a few modules in <folder> and in <folder>/old, a program
# in <folder>/user-mode; <folder> is target/own-kernel by default. What is there
# stays; without User-mode Linux its tests are skipped.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-${CARGO_TARGET_DIR:-target}/own-kernel}
[ -f "$folder/old/vmlinuz" ] && [ -f "$folder/vmlinuz" ] &&
	[ -f "$folder/user-mode/linux" ] && exit 0

export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends qemu-system-x86 busybox-static cpio xz-utils binutils patchelf

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# from <suite>: the packages of a suite, and nothing else, for `apt`.
from() {
	rm -rf "$work"/*
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
		"http://deb.debian.org/debian $1 main" >"$work/sources.list"
	apt get update
}

# apt <get|cache> <argument...>
apt() {
	tool=apt-$1
	shift
	(cd "$work" && "$tool" -qq -o APT::Sandbox::User=root -o Dir::State::lists="$work/lists" \
		-o Dir::Cache="$work/cache" -o Dir::Etc::sourcelist="$work/sources.list" \
		-o Dir::Etc::sourceparts=/dev/null "$@")
}

# fetch <suite> <folder>: the newest cloud kernel of a suite.
fetch() {
	to=$2
	mkdir -p "$to/modules"
	from "$1"
	name=$(apt cache depends linux-image-cloud-amd64 |
		sed -n 's/^ *Depends: \(linux-image-.*-cloud-amd64\)$/\1/p' | head -n 1)
	apt get download "$name"
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

# fetch_user_mode <suite> <folder>: its C library is newer than this system's.
fetch_user_mode() {
	libraries=usr/lib/x86_64-linux-gnu
	mkdir -p "$2/modules" && to=$(cd "$2" && pwd) && : >"$to/modules/order" &&
		from "$1" && apt get download user-mode-linux libc6 || return
	for package in "$work"/*.deb; do
		dpkg-deb -x "$package" "$work/root" || return
	done
	loader=ld-linux-x86-64.so.2
	cp "$work/root/$libraries/libc.so.6" "$work/root/$libraries/$loader" "$to" &&
		patchelf --set-interpreter "$to/$loader" --set-rpath "$to" "$work/root/usr/bin/linux.uml" &&
		cp "$work/root/usr/bin/linux.uml" "$to/linux"
}

[ -f "$folder/vmlinuz" ] || fetch bookworm-backports "$folder"
[ -f "$folder/old/vmlinuz" ] || fetch bookworm "$folder/old"
[ -f "$folder/user-mode/linux" ] || fetch_user_mode sid "$folder/user-mode" ||
	echo "no User-mode Linux: tests with it will be skipped" >&2
