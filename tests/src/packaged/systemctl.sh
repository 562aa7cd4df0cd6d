#!/bin/sh
# In the place of systemd's, in the root of a machine of a test: starts what a unit of the
# package says, and ends it with the signals that the unit says.
set -eu

# of <key> <unit>: its value in the unit.
of() {
	sed -n "s/^$1=//p" "/lib/systemd/system/$2" | tail -n 1
}

# runs <unit>: a process that has died and that nobody has asked for is none.
runs() {
	grep -q '^State:[[:space:]]*[^ZX]' "/proc/$(cat "/run/$1.pid" 2>/dev/null)/status" 2>/dev/null
}

start() {
	runs "$1" && return
	mkdir -p "/run/$(of RuntimeDirectory "$1")"
	# shellcheck disable=SC2046 # a list of words
	setsid $(of ExecStart "$1") >>"/run/$1.log" 2>&1 </dev/null &
	echo $! >"/run/$1.pid"
}

# end <unit> <signal>
end() {
	runs "$1" || return 0
	signal=${2:-SIGTERM}
	kill -s "${signal#SIG}" "$(cat "/run/$1.pid")"
	for _ in $(seq 500); do
		runs "$1" || return 0
		sleep 0.01
	done
	echo "$1 does not end" >&2
	exit 1
}

action=
for word; do
	case $word in
	--*) ;;
	daemon-reload) exit 0 ;;
	*.service)
		case $action in
		is-active) runs "$word" || exit 3 ;;
		start) start "$word" ;;
		stop) end "$word" "$(of KillSignal "$word")" ;;
		restart | try-restart)
			[ "$action" = restart ] || runs "$word" || continue
			end "$word" "$(of RestartKillSignal "$word")"
			start "$word"
			;;
		esac
		;;
	*.timer) [ "$action" != is-active ] || exit 3 ;;
	*) action=$word ;;
	esac
done
