#!/bin/sh
# Installs into a folder and makes a server of what is there, as docs/libgodwit.md says:
# with the shared library and with the static one. Both have to stream. Installs below another
# prefix, too: nothing names the first one there.
set -eu
cd "$(dirname "$0")/.."
root=$(mktemp -d)
other=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$root" "$other"' EXIT
make --no-print-directory install DESTDIR="$root" PREFIX=/usr
make --no-print-directory lay lay-library DESTDIR="$other" PREFIX=/opt/godwit
"$root/usr/bin/godwit" --version
"$root/usr/bin/godwit" demo --help | grep -q "godwit-lab demo"
"$root/usr/bin/godwit" pki init --dir "$root/pki"
"$root/usr/bin/godwit" pki issue --dir "$root/pki" --name a

# A node renews its certificate from the authority's program.
"$root/usr/bin/godwit" pki issue --dir "$root/pki" --name a --out "$root/a"
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
"$root/usr/bin/godwit-pki" serve --dir "$root/pki" --listen "127.0.0.1:$port" &
server=$!
for attempt in $(seq 100); do
	sleep 0.1
	"$root/usr/bin/godwit-pki" renew --from "127.0.0.1:$port" --dir "$root/a" && break
	[ "$attempt" -lt 100 ]
done
kill "$server"
server=
echo "renew: has a short life"

# units <root> <prefix>: units name a program and documents that were installed.
units() {
	for unit in "$1$2"/lib/systemd/system/godwit*.service "$1$2"/lib/systemd/system/godwit*.timer; do
		for path in $(sed -n 's|^Exec[A-Za-z]*=\([^ ]*\).*|\1|p; s|^Documentation=file:||p' "$unit"); do
			[ -e "$1$path" ] && [ "${path#"$2/"}" != "$path" ] || {
				echo "$unit names $path, which is not installed" >&2
				exit 1
			}
		done
	done
}
units "$root" /usr
units "$other" /opt/godwit
if grep -rnIE '/usr/(local/)?(bin/godwit|lib/(pkgconfig|libgodwit|systemd)|share/(doc|man)|libexec|include/?([" ]|$))' "$other"; then
	echo "installed below /opt/godwit, it names another place" >&2
	exit 1
fi
echo "units: name what is installed, with either prefix"

# Links in documents lead to what is installed.
python3 - "$root/usr/share/doc/godwit" <<-'END'
	import pathlib, re, sys

	documents = list(pathlib.Path(sys.argv[1]).rglob("*.md"))
	links = [
	    (document, link)
	    for document in documents
	    for link in re.findall(r"\]\(([^)#\s]+)", document.read_text())
	    if "://" not in link
	]
	broken = [f"{document}: {link}" for document, link in links if not (document.parent / link).exists()]
	assert len(links) > 100 and not broken, "\n".join(broken)
	print(f"documents: {len(links)} links lead to what is installed")
END

packaging/check-manual.sh "$root/usr"

# Only what was installed is found, and found there.
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$root/usr/lib/pkgconfig"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
# shellcheck disable=SC2046 # lists of words
{
	cc apps/stream.c $(pkg-config --cflags --libs godwit) -lpthread -o "$root/shared"
	cc apps/stream.c $(pkg-config --cflags godwit) "$root/usr/lib/libgodwit.a" \
		-lpthread -ldl -lm -o "$root/static"
}
for name in shared static; do
	port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
	LD_LIBRARY_PATH="$root/usr/lib" "$root/$name" 127.0.0.1 "$port" &
	server=$!
	python3 - "$port" <<-'END'
		import socket, sys, time

		for attempt in range(500):
		    try:
		        client = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
		        break
		    except ConnectionRefusedError:
		        time.sleep(0.02)
		client.sendall(b"30000\n")
		heard = b"".join(iter(lambda: client.recv(65536), b""))
		assert len(heard) == 30000, len(heard)
	END
	kill "$server"
	server=
	echo "$name: streams"
done
