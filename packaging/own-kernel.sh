#!/bin/sh
# Installs an emulator and fetches stock Debian kernels for machines with a kernel
# of their own (tests only): 6.12, the LTS of Debian 13, from bookworm-backports,
# and 6.1, that of Debian 12, which is too old for Godwit. Signatures are checked
# by apt; nothing of them is installed and the system's own sources stay as they
# are. For clients and witnesses also User-mode Linux, a kernel that is a process,
# from sid: that of Debian 12 and 13 can't save the registers of newer processors
# (AMX). For a server that systemd runs: Debian 12 with systemd and nginx, an archive
# of their packages' files. Result: vmlinuz, a few modules and system.cpio in <folder>,
# vmlinuz and modules in <folder>/old, a program in <folder>/user-mode; <folder> is
# target/own-kernel by default. What is there stays; without User-mode Linux or
# system.cpio their tests are skipped.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-${CARGO_TARGET_DIR:-target}/own-kernel}
[ -f "$folder/old/vmlinuz" ] && [ -f "$folder/vmlinuz" ] &&
	[ -f "$folder/user-mode/linux" ] && [ -f "$folder/system.cpio" ] && exit 0

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

# fetch_system <suite> <folder>: all that systemd and nginx depend on, unpacked and
# not installed: what installation would have written is what is written here. The
# kernel's modules, a package or a person are not there to need the rest.
fetch_system() {
	mkdir -p "$2" && to=$(cd "$2" && pwd) && from "$1" && : >"$work/status" || return
	apt get install --download-only -y --no-install-recommends -o Dir::State::status="$work/status" \
		systemd nginx base-files base-passwd coreutils dash dpkg grep libc-bin mount sed util-linux || return
	for package in "$work"/cache/archives/*.deb; do
		case ${package##*/} in perl-base_* | debconf_*) continue ;; esac
		dpkg-deb -x "$package" "$work/root" || return
	done
	root=$work/root
	rm -rf "$root"/usr/share/doc "$root"/usr/share/locale "$root"/usr/share/man \
		"$root"/usr/share/info "$root"/usr/share/zoneinfo "$root"/usr/share/bash-completion \
		"$root"/usr/share/perl5 "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/lib/udev
	cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd" &&
		cp "$root/usr/share/base-passwd/group.master" "$root/etc/group" &&
		ln -s ../sites-available/default "$root/etc/nginx/sites-enabled/default" &&
		ln -sf multi-user.target "$root/lib/systemd/system/default.target" &&
		# With a name of its own it does not take this for its first boot.
		echo 00000000000000000000000000000001 >"$root/etc/machine-id" || return
	# Nobody logs in.
	for unit in getty.target systemd-logind.service; do
		ln -s /dev/null "$root/etc/systemd/system/$unit" || return
	done
	(cd "$root" && find . | cpio --create --format=newc --quiet) >"$work/system.cpio" &&
		mv "$work/system.cpio" "$to/system.cpio"
}

[ -f "$folder/vmlinuz" ] || fetch bookworm-backports "$folder"
[ -f "$folder/old/vmlinuz" ] || fetch bookworm "$folder/old"
[ -f "$folder/user-mode/linux" ] || fetch_user_mode sid "$folder/user-mode" ||
	echo "no User-mode Linux: tests with it will be skipped" >&2
[ -f "$folder/system.cpio" ] || fetch_system bookworm "$folder" ||
	echo "no Debian with systemd: tests with it will be skipped" >&2
