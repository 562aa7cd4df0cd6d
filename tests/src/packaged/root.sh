#!/bin/sh
# root.sh FOLDER: has this machine's root, with what is written to it kept in memory, as the root
# of a machine of a test, until it is killed. FOLDER is the test's, and what stands in the
# place of systemd is in it.
set -eu
mount -t tmpfs tmpfs /mnt
mkdir /mnt/written /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/written,workdir=/mnt/work /mnt/root
root=/mnt/root
for folder in /dev /proc /sys "$1"; do
	mount --rbind "$folder" "$root$folder"
done
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/run/systemd/system"
# Where services must not start, as in a container, this says so.
rm -f "$root/usr/sbin/policy-rc.d"
install -m 755 "$1/systemctl.sh" "$root/usr/bin/systemctl"
echo "is up"
exec chroot "$root" sleep infinity
