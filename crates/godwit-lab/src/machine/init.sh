#!/bin/sh
# The whole system of a machine with a kernel of its own. What begins with GW_
# comes from the kernel's command line; what this prints goes to the console.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tracefs trace /sys/kernel/tracing
for module in $(cat /modules/order); do
	insmod "/modules/$module" || echo "no module $module"
done
# Addresses are unique by construction: no waiting for DAD. Devices that are there
# have a word of their own; until DAD is over, an early client would call from ::1.
for device in /proc/sys/net/ipv6/conf/*; do
	echo 0 >"$device/accept_dad"
done
# User-mode Linux has names of its own.
for number in 0 1; do
	[ -d "/sys/class/net/vec$number" ] && ip link set "vec$number" name "eth$number"
done
ip link set lo up
ip address add "$GW_DATA_V4/24" dev eth0
ip address add "$GW_DATA_V6/64" dev eth0
ip link set eth0 up
if [ -n "$GW_CONTROL_V4" ]; then
	ip address add "$GW_CONTROL_V4/24" dev eth1
	ip link set eth1 up
fi
# A shell for the lab.
nc -ll -p 7 -e sh &
# What it mounts itself may be there already.
[ "$GW_ROLE" = system ] && exec /lib/systemd/systemd
[ "$GW_ROLE" = agent ] && /bin/godwit-lab app serve 0.0.0.0:80 [::]:80 &
if [ "$GW_ROLE" != client ]; then
	/bin/godwit "$GW_ROLE" --config "$GW_CONFIG"
	echo "the agent ended: $?"
fi
# Without its first process a kernel panics, which would hide the reason.
exec sleep 1000000
