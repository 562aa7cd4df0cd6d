/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Maps of a director, all written by user space but for the entries, and what it
 * must know before it is loaded. docs/director.md says what slots and entries are.
 */
#ifndef GW_DIRECTOR_H
#define GW_DIRECTOR_H

#include "base/gw_kernel.h"
#include "base/gw.h"
#include "base/gw_reason.h"

#define GW_MAX_BACKENDS 1024
#define GW_NOBODY 0 /* in a slot: no back-end, as long as nothing is written */
#define GW_NO_SERVICE (~0u) /* of an address: some port of it has one */
#define GW_NO_ENTRY (~0u) /* of a connection: it is where its slot says */
#define GW_NAME_LEN 32

const volatile __u32 gw_table_size = 65537; /* slots of a service */
const volatile __u64 gw_seed; /* of the hash of flows */

const volatile __u32 gw_is_shared; /* 1: other directors hear of entries */

/*
 * The interface's MAC address in the first six bytes, written and read in one piece:
 * user space changes it while frames come.
 */
volatile __u64 gw_self;

/* Whether a back-end lives, if it drains too, and where. */
enum gw_there {
	GW_THERE_NOT = 0,
	GW_THERE_ON_LINK = 1,
	GW_THERE_FAR = 2, /* behind a tunnel */
};

enum gw_backend_marks {
	/* the operator wants no new connections there */
	GW_BACKEND_DRAINED = 1 << 0,
	GW_BACKEND_FOLLOWED = 1 << 1, /* others may have what it had */
	GW_BACKEND_GONE = 1 << 2, /* and it has nothing itself */
	/* it says which connections it does not have (gw_asked.h) */
	GW_BACKEND_TELLS = 1 << 3,
};

/* A server behind the director. */
struct gw_backend {
	__u8 mac[6];
	__u8 there; /* enum gw_there */
	__u8 marks; /* enum gw_backend_marks */
	__u8 name[GW_NAME_LEN]; /* for the next director that runs here */
};

/* What a back-end has of a service. */
struct gw_post {
	__u32 service;
	__u32 backend;
};

/* How frames come to a back-end that is not on the link. */
struct gw_tunnel {
	__be32 from[4]; /* the director */
	__be32 to[4]; /* the back-end */
	__u32 vni;
	__u32 there; /* 1: there is one */
};

/* One slot. Written in one piece, and read in one. */
struct gw_slot {
	__u16 now; /* back-end of new connections + 1, or GW_NOBODY */
	__u16 base; /* of those that have no entry, likewise */
	__u16 mixed; /* 1: connections may have entries */
	__u16 pad;
};

/* What slots and entries go by; another one makes nothing of them. */
struct gw_basis {
	__u64 seed;
	__u32 table_size;
	__u32 written; /* 1: an earlier director has */
};

/* Who may say where connections are: a back-end, by its address on the link. */
struct gw_station {
	__u8 mac[6];
	__u16 pad;
};

/* Where one connection is whose slot does not say so. */
struct gw_entry {
	__u32 irs; /* of the client */
	__u32 backend;
};

/* To user space: what has become of the entry of a connection. */
struct gw_exception {
	struct gw_flow_key key;
	__u32 irs; /* of the client */
	__u32 backend; /* or GW_NO_ENTRY */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_SHARES * 4);
	__type(key, struct gw_endpoint); /* with port 0: an address as such */
	__type(value, __u32); /* number of the service, or GW_NO_SERVICE */
} gw_fronts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_basis);
} gw_basis SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65537);
	__type(key, __u32); /* service * gw_table_size + slot */
	__type(value, struct gw_slot);
} gw_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_BACKENDS);
	__type(key, __u32);
	__type(value, struct gw_backend);
} gw_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_BACKENDS);
	__type(key, __u32); /* as in gw_backends */
	__type(value, struct gw_tunnel);
} gw_tunnels SEC(".maps");

/* The number of who has it, if that is another one: it has taken it over. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_BACKENDS * 4);
	__type(key, struct gw_post);
	__type(value, __u32);
} gw_posts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1048576);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_entry);
} gw_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_BACKENDS * 2);
	__type(key, struct gw_station);
	__type(value, __u32); /* its number, if gw_backends says the same */
} gw_stations SEC(".maps");

/* Not pinned: whoever is started anew tells of all entries. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} gw_exceptions SEC(".maps");

const struct gw_exception *gw_export_exception __attribute__((unused));
const enum gw_backend_marks *gw_export_marks __attribute__((unused));
const enum gw_there *gw_export_there __attribute__((unused));
const enum gw_reason *gw_export_reason __attribute__((unused));

_Static_assert(sizeof(struct gw_backend) == 40, "shared with Rust");
_Static_assert(sizeof(struct gw_tunnel) == 40, "shared with Rust");
_Static_assert(sizeof(struct gw_post) == 8, "shared with Rust");
_Static_assert(sizeof(struct gw_basis) == 16, "shared with Rust");
_Static_assert(sizeof(struct gw_slot) == 8, "shared with Rust, one word");
_Static_assert(sizeof(struct gw_station) == 8, "shared with Rust");
_Static_assert(sizeof(struct gw_entry) == 8, "shared with Rust");
_Static_assert(sizeof(struct gw_exception) == 48, "shared with Rust");

#endif /* GW_DIRECTOR_H */
