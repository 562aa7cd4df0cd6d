/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps and load-time settings. All maps are pinned: an agent may restart. */
#ifndef GW_MAPS_H
#define GW_MAPS_H

#include "gw_kernel.h"
#include "gw.h"
#include "gw_reason.h"

/*
 * Segments that Godwit itself puts on the wire or into the stack. The marks
 * need CAP_NET_RAW or CAP_NET_ADMIN to set on a socket (SECURITY.md).
 */
#define GW_MARK_SPOKEN 0x67770001u /* egress: final, let out as it is */
#define GW_MARK_REFLECT 0x67770002u /* ingress: made by us, for our kernel */
#define GW_MARK_INJECT 0x67770003u /* egress: from the agent, turn to ingress */
#define GW_MARK_DISCARD \
	0x67770004u /* ingress: the kernel is to think it left */
#define GW_MARK_REPLAY 0x67770005u /* a client's input, for a new twin */
#define GW_MARK_AGAIN 0x67770006u /* ingress: what was in its way is gone */
#define GW_MARK_TOLD 0x67770007u /* ingress: a director knows where it begins */
#define GW_MARK_SLIP 0x67770008u /* ingress: another server's, with a slip */

/* egress: a twin's ACK for its owner, final, and with its tag if that one has a key */
#define GW_MARK_PROVED 0x6777000bu
/* ingress: a SYN about which a director asks; gw_asked.h */
#define GW_MARK_ASKED 0x6777000au
/* egress, then ingress: from the agent, an answer to our own question */
#define GW_MARK_SETTLED 0x67770009u

/* Longest time without a twin before a new flow is given up as unprotected. */
#define GW_START_LIMIT_NS 30000000ull
#define GW_START_RETRY_NS 5000000ull
/* An ended flow stays this long, for segments that are late. */
#define GW_LINGER_NS 3000000000ull

const volatile __u64 gw_netns_cookie; /* of this node's services */
/* What may change while the programs are in the path; the agent writes. */
volatile __u64 gw_self_mac; /* six bytes; a word, so that it is read whole */
volatile __be32 gw_node_v4; /* this node's own address; 0: none */
volatile __be32 gw_node_v6[4]; /* the first word is 0 while it is written */
volatile __u64 gw_moving_until; /* CLOCK_BOOTTIME; 0: no program moves */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_SHARES * 4);
	__type(key, struct gw_endpoint);
	__type(value, __u32); /* index into gw_shares */
} gw_services SEC(".maps");

/*
 * Of servers that each have connections behind a director and stand by for each other's:
 * the share that an endpoint has here besides its own, see gw_ward.h.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_SHARES * 4);
	__type(key, struct gw_endpoint);
	__type(value, __u32); /* index into gw_shares */
} gw_wards SEC(".maps");

struct gw_address {
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MAX_SHARES * 4);
	__type(key, struct gw_address);
	__type(value, __u32); /* index into gw_shares of its first service */
} gw_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_share);
} gw_shares SEC(".maps");

/* Of each index into gw_shares the number of the share's name; 0: it is free. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, __u32);
} gw_share_ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_fence);
} gw_fences SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_flow);
} gw_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_handoff);
} gw_handoffs SEC(".maps");

/* At most as many as an agent takes at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 256);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_newborn);
} gw_newborns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_verify);
} gw_verifies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_output);
} gw_outputs SEC(".maps");

/*
 * A flow under construction: too big for the stack. Words, because the kernel
 * allows no timer in a per-CPU map, and gw_flow begins with one.
 */
struct gw_flow_words {
	__u64 words[sizeof(struct gw_flow) / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_flow_words);
} gw_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_half_open);
} gw_half_open SEC(".maps");

/* To which share a connection belonged that has been forgotten here: gw_ward.h */
struct gw_forgotten {
	__u64 ns;
	__u32 share;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_forgotten);
} gw_forgotten SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} gw_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 14);
} gw_exits SEC(".maps");

/* What a process that ends held of each share; all 0 between two of them. */
struct gw_tally {
	__u32 flows;
	__u32 kept;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_tally);
} gw_tallies SEC(".maps");

/* Who has sent the last signal that may end a process. */
enum gw_sender {
	GW_SENDER_OTHER = 0, /* or the kernel on behalf of somebody else */
	GW_SENDER_ITSELF = 1, /* a fault, abort(3) */
	GW_SENDER_PARENT = 2,
	GW_SENDER_MANAGER =
		3, /* a process that holds the listener of a service */
};

/* A process that was sent such a signal, or has begun to die of one. */
struct gw_ending {
	__u64 born; /* CLOCK_BOOTTIME; tells it from a later one of its number */
	__u32 signal;
	__u32 sender; /* enum gw_sender */
	__u32 dying;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* its number (tgid) */
	__type(value, struct gw_ending);
} gw_endings SEC(".maps");

#define GW_LAST_EXITS 64

/* When the processes that ended last were born, by their number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LAST_EXITS);
	__type(key, __u32);
	__type(value, __u64);
} gw_last_exits SEC(".maps");

/*
 * Types that no map holds, kept in BTF for user space by a pointer to each:
 * the skeleton and the names of reasons are made from there.
 */
const enum gw_event_kind *gw_export_event_kind __attribute__((unused));
const enum gw_exit_flags *gw_export_exit_flags __attribute__((unused));
const struct gw_exit *gw_export_exit __attribute__((unused));
const struct gw_event *gw_export_event __attribute__((unused));
const struct gw_order *gw_export_order __attribute__((unused));
const struct gw_fence_order *gw_export_fence_order __attribute__((unused));
const enum gw_fence_order_kind *gw_export_fence_kind __attribute__((unused));
const enum gw_flow_flags *gw_export_flags __attribute__((unused));
const enum gw_order_kind *gw_export_order_kind __attribute__((unused));
const enum gw_phase *gw_export_phase __attribute__((unused));
const enum gw_log_mode *gw_export_log_mode __attribute__((unused));
const enum gw_log_state *gw_export_log_state __attribute__((unused));
const struct gw_install *gw_export_install __attribute__((unused));
const enum gw_handoff_mode *gw_export_handoff_mode __attribute__((unused));
const enum gw_handoff_place *gw_export_handoff_place __attribute__((unused));
const enum gw_moves *gw_export_moves __attribute__((unused));
const enum gw_front *gw_export_front __attribute__((unused));
const enum gw_reason *gw_export_reason __attribute__((unused));

/* Serial arithmetic, RFC 9293 section 3.4. */
static __always_inline bool gw_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline bool gw_after(__u32 a, __u32 b)
{
	return gw_before(b, a);
}

static __always_inline __u32 gw_min_seq(__u32 a, __u32 b)
{
	return gw_before(a, b) ? a : b;
}

static __always_inline __u32 gw_max_seq(__u32 a, __u32 b)
{
	return gw_before(a, b) ? b : a;
}

static __always_inline __u64 gw_min_ns(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/*
 * Moves a sequence field forward, never back, whichever CPU comes first: a
 * stale write would make the gate wait for bytes that nobody will send again.
 */
static __always_inline void gw_advance(__u32 *field, __u32 value)
{
	for (int i = 0; i < 8; i++) {
		__u32 seen = *(volatile __u32 *)field;

		if (!gw_after(value, seen))
			return;
		if (__sync_val_compare_and_swap(field, seen, value) == seen)
			return;
	}
}

/* CLOCK_BOOTTIME: goes on while the host is suspended, as a lease must. */
static __always_inline __u64 gw_now(void)
{
	return bpf_ktime_get_boot_ns();
}

#endif /* GW_MAPS_H */
