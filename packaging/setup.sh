#!/bin/sh
# Installs the Debian packages that building and testing need; with the argument `checks` also
# those that judge what is packaged. Idempotent; without root it only says what is missing.
set -eu

packages="gcc g++ libc6-dev make dpkg-dev pkg-config libelf-dev zlib1g-dev clang-14 clang-format-14
iproute2 ethtool nftables iptables tcpdump nginx apache2-bin curl wrk nghttp2-client httperf haproxy redis-server redis-tools e2fsprogs
valgrind python3 python3-pip"
[ "${1:-}" != checks ] || packages="$packages lintian mandoc zsh fish"

missing=""
for package in $packages; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
		missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
	echo "missing packages, run as root to install them:$missing" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# Servers are for the lab's namespaces: Debian must not start them here.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d.godwit
chmod +x /usr/sbin/policy-rc.d.godwit
[ -e /usr/sbin/policy-rc.d ] || { mv /usr/sbin/policy-rc.d.godwit /usr/sbin/policy-rc.d && trap 'rm -f /usr/sbin/policy-rc.d' EXIT; }
rm -f /usr/sbin/policy-rc.d.godwit
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing
