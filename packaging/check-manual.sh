#!/bin/bash
# check-manual.sh PREFIX: what the installed programs say with --help is in their manual pages
# and in the completions of shells; and man, bash, zsh and fish can read those.
set -eu
programs=$1/bin
share=$1/share

# below <words>: commands of a program that --help lists.
below() {
	"$programs/godwit" "$@" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | grep -vx help
}

# plain <file>: without what roff and shells escape.
plain() {
	sed 's/\\f[A-Z]/ /g; s/\\//g' "$1"
}

# has <file> <option>
has() {
	# Fish has them as `-l config`.
	plain "$1" | grep -qE -e "(-l ${2#--}|$2)([^a-z-]|$)" || {
		echo "$1 lacks $2" >&2
		exit 1
	}
}

# compare <words>: options of a command are in its page and in each completion.
count=0
compare() {
	local page option file name=godwit
	[ $# -eq 0 ] || name=$(printf 'godwit%s' "$(printf -- '-%s' "$@")")
	page=$share/man/man8/$name.8
	for option in $("$programs/godwit" "$@" --help | grep -oE -e '--[a-z][a-z-]+' | sort -u); do
		for file in "$page" "$share/bash-completion/completions/godwit" \
			"$share/zsh/site-functions/_godwit" "$share/fish/vendor_completions.d/godwit.fish"; do
			has "$file" "$option"
		done
		count=$((count + 1))
	done
}

compare
for command in $(below); do
	compare "$command"
done
for command in $(below pki); do
	compare pki "$command"
done
[ "$count" -gt 80 ]
echo "manual: $count options of commands, each in its page and in three completions"

# The shells. What bash offers is looked at, for the others that they understand it.
offered=$(bash -c 'source "$1/bash-completion/completions/godwit"
	COMP_WORDS=(godwit pki re) COMP_CWORD=2
	_godwit godwit re pki
	echo "${COMPREPLY[*]}"' bash "$share")
[ "$offered" = "revoke renew" ] || {
	echo "bash offers '$offered' for godwit pki re" >&2
	exit 1
}
for file in "$share"/bash-completion/completions/*; do bash -n "$file"; done
for shell in zsh fish; do
	command -v $shell >/dev/null || {
		echo "skipped: $shell is not installed"
		continue
	}
	for file in "$share"/zsh/site-functions/* "$share"/fish/vendor_completions.d/*; do
		case $file in */$shell/*) $shell -n "$file" ;; esac
	done
done
if ! command -v mandoc >/dev/null; then
	echo "skipped: no mandoc to read the manual pages"
	exit 0
fi
mandoc -T lint -W warning "$share"/man/man8/*
echo "manual: mandoc finds nothing wrong"
