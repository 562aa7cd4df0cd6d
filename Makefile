# The front door. Anything with logic lives in Rust (crates/godwit-lab).
SHELL := /bin/bash

# Under sudo the toolchain is the user's who called it.
CALLER_HOME := $(shell getent passwd $${SUDO_USER:-$$(id -un)} | cut -d: -f6)
export PATH := $(PATH):$(CALLER_HOME)/.cargo/bin
export RUSTUP_HOME ?= $(CALLER_HOME)/.rustup
export CARGO_HOME ?= $(CALLER_HOME)/.cargo

CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
C_FILES := $(wildcard crates/godwit-bpf/bpf/*.[ch] crates/godwit-bpf/bpf/*/*.h crates/godwit-bpf/include/*.h crates/godwit-bpf/tests/*.c examples/policies/*.[ch] crates/godwit-capi/include/*.h crates/godwit-capi/tests/c/*.c apps/*.[ch])

PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MAJOR := $(firstword $(subst ., ,$(VERSION)))
APPS := stream http
UNITS := godwit.service godwit-witness.service godwit-director.service godwit-pki.service godwit-renew.service godwit-renew.timer
# Packages whose tests need no privileges. What is sans-IO runs with its assertions,
# as in the simulation; the others with the profile of the release, so that nothing
# is compiled for a third one.
CORE := godwit-wire godwit-core
UNIT := godwit-pki godwit-agent godwit-app godwit-capi godwit godwit-manual

# Where the programs are that are installed.
PROGRAMS ?= $(TARGET)/release

.PHONY: help setup build apps install lay lay-library deb demo test test-long unit install-test deb-test sim root-test root-test-long check sbom bench chaos mutants own-kernel upgrade fuzz format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## install Debian packages that build and tests need (root)
	packaging/setup.sh $(if $(filter test-long,$(MAKECMDGOALS)),checks)

build: ## release build: target/release/godwit, godwit-pki and godwit-lab, libgodwit and the servers in apps/
	$(CARGO) build --release --locked -p godwit -p godwit-pki -p godwit-capi -p godwit-lab -p godwit-manual
	$(MAKE) --no-print-directory apps

# With the static library: they run anywhere. Users say `pkg-config --libs godwit`.
apps: $(APPS:%=$(TARGET)/release/apps/%)

$(TARGET)/release/apps/%: apps/%.c apps/listen.h crates/godwit-capi/include/godwit.h $(TARGET)/release/libgodwit.a
	mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Icrates/godwit-capi/include -o $@ $< $(TARGET)/release/libgodwit.a -lpthread -ldl -lm

install: build ## with DESTDIR=D PREFIX=/usr: headers, libgodwit and godwit.pc; the command, its units, manual and documents
	$(MAKE) --no-print-directory lay lay-library

MANUAL_DATE ?= $(shell git log -1 --format=%cs 2>/dev/null || date +%F)
# Paths in what is laid are those of PREFIX.
PLACED := s|/usr/bin/godwit|$(PREFIX)/bin/godwit|g; s|/usr/share/|$(PREFIX)/share/|g; s|/usr/local/include|$(PREFIX)/include|g
# With all that they link to.
DOCUMENTS := README.md ARCHITECTURE.md CHANGELOG.md SECURITY.md $(wildcard docs/*.md docs/*.svg docs/adr/*.md) \
	packaging/godwit.toml packaging/nginx-drain.conf $(UNITS:%=packaging/%) \
	$(wildcard apps/*.[ch] apps/*.py examples/policies/*.[ch]) bench/README.md bench/migrate.jsonl

# What is not a library, from PROGRAMS.
lay:
	install -D -m 755 $(PROGRAMS)/godwit $(DESTDIR)$(PREFIX)/bin/godwit
	install -D -m 755 $(PROGRAMS)/godwit-pki $(DESTDIR)$(PREFIX)/bin/godwit-pki
	install -D -m 755 $(PROGRAMS)/godwit-lab $(DESTDIR)$(PREFIX)/libexec/godwit/godwit-lab
	install -D -m 644 crates/godwit-bpf/include/godwit_policy.h $(DESTDIR)$(PREFIX)/include/godwit_policy.h
	for file in $(DOCUMENTS); do \
		mkdir -p $(DESTDIR)$(PREFIX)/share/doc/godwit/$$(dirname $$file); \
		sed '$(PLACED)' $$file > $(DESTDIR)$(PREFIX)/share/doc/godwit/$$file; \
	done
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system $(UNITS:%=$(DESTDIR)$(PREFIX)/share/doc/godwit/packaging/%)
	$(PROGRAMS)/godwit-manual $(DESTDIR)$(PREFIX)/share $(MANUAL_DATE)

lay-library:
	install -D -m 644 crates/godwit-capi/include/godwit.h $(DESTDIR)$(PREFIX)/include/godwit.h
	install -D -m 755 $(PROGRAMS)/libgodwit.so $(DESTDIR)$(PREFIX)/lib/libgodwit.so.$(VERSION)
	ln -sf libgodwit.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libgodwit.so.$(MAJOR)
	ln -sf libgodwit.so.$(MAJOR) $(DESTDIR)$(PREFIX)/lib/libgodwit.so
	install -D -m 644 $(PROGRAMS)/libgodwit.a $(DESTDIR)$(PREFIX)/lib/libgodwit.a
	mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/godwit-capi/godwit.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/godwit.pc

# Nothing in what is built names a folder of this machine.
FORGET := --remap-path-prefix=$(CURDIR)=/usr/src/godwit --remap-path-prefix=$(abspath $(TARGET))=/usr/src/godwit/target \
	--remap-path-prefix=$(CARGO_HOME)=/usr/src/cargo
FORGET_C := -ffile-prefix-map=$(CURDIR)=/usr/src/godwit -ffile-prefix-map=$(abspath $(TARGET))=/usr/src/godwit/target \
	-ffile-prefix-map=$(CARGO_HOME)=/usr/src/cargo

deb: ## a Debian package, the same wherever it is made of the same sources: target/godwit_VERSION_ARCHITECTURE.deb
	RUSTFLAGS="$(FORGET)" CFLAGS="$(FORGET_C)" CARGO_INCREMENTAL=0 \
		$(CARGO) build --release --locked --target-dir $(TARGET)/deb -p godwit -p godwit-pki -p godwit-lab -p godwit-manual
	packaging/deb.sh $(TARGET)/deb/release $(TARGET)

demo: setup build ## a download crosses the death of its server; or NAME=move, kill, migrate, handoff (root)
	$(TARGET)/release/godwit demo $(or $(NAME),shadow)

test: setup build unit sim root-test ## what a change must pass, within half an hour with the build (root for the lab)

test-long: setup build install-test deb-test root-test-long ## the tests that take long; CI runs both, check, chaos and mutants (root)

unit: build ## tests without privileges
	$(CARGO) test --locked --profile sim $(CORE:%=-p %)
	packaging/twice.sh $(CARGO) test --locked --release $(UNIT:%=-p %)
	packaging/twice.sh $(CARGO) test --locked --release -p godwit-lab --lib

install-test: build ## a server is made of what make install leaves, and its manual has every option
	packaging/check-install.sh

deb-test: build ## the Debian package is the same twice, and lintian finds nothing wrong
	packaging/check-deb.sh $(TARGET)/release

sim: ## clusters on a virtual clock, a million faults; or SECONDS=600 SEED=7
	$(CARGO) test --locked --profile sim -p godwit-sim
	$(CARGO) run --locked --profile sim -p godwit-sim -- --exhaustive
	$(CARGO) run --locked --profile sim -p godwit-sim -- --seed $(or $(SEED),1) $(if $(SECONDS),--seconds $(SECONDS))

root-test: build ## tests in network namespaces (root)
	packaging/root-tests.sh short

root-test-long: build ## tests in network namespaces of more than half a minute each (root)
	packaging/root-tests.sh long

check: ## format, lints, documentation, fuzz targets, systemd units, licences, C format
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --no-deps --document-private-items
	packaging/fuzz.sh check
	packaging/check-units.sh
	python3 -B -m doctest packaging/supply.py
	packaging/supply.py check
	clang-format-14 --dry-run --Werror $(C_FILES)

sbom: ## what the programs are built from: target/godwit.cdx.json (CycloneDX)
	packaging/supply.py sbom

format: ## format everything
	$(CARGO) fmt
	clang-format-14 -i $(C_FILES)

bench: setup build ## measure against plain TCP (root); results to docs/benchmarks.md by hand
	$(TARGET)/release/godwit bench standby

chaos: setup build ## break it at random: SECONDS=40 SEED=7; RING=1: three servers and directors; HOSTILE=1: a stranger (root)
	$(TARGET)/release/godwit chaos $(if $(RING),--ring) $(if $(HOSTILE),--hostile) --seconds $(or $(SECONDS),40) --seed $(or $(SEED),7)

mutants: setup build ## chaos must find what is missing in a broken build (root)
	packaging/mutants.sh

own-kernel: setup build ## machines with kernels of their own (QEMU, User-mode Linux): silent deaths, stopped clocks (root)
	packaging/own-kernel.sh $(TARGET)/own-kernel
	GODWIT_BIN=$(abspath $(TARGET)/release/godwit) $(CARGO) test --release --locked -p godwit-tests --test own_kernel -- --test-threads=1 --nocapture

upgrade: setup build ## two servers go from an earlier version to this one, by hand and by package: FROM=REVISION (root)
	GODWIT_PREVIOUS=$$(packaging/previous.sh $(or $(FROM),HEAD~1) $(TARGET)/previous | tail -n 1) \
	GODWIT_BIN=$(abspath $(TARGET)/release/godwit) $(CARGO) test --release --locked -p godwit-tests --test upgrade --test package -- --test-threads=1 --nocapture

fuzz: ## each decoder for 60 s
	packaging/fuzz.sh 60

clean: ## remove what was built
	$(CARGO) clean
