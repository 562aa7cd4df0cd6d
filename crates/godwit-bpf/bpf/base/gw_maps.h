/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps and load-time settings. All maps are pinned: an agent may restart. */
#ifndef GW_MAPS_H
#define GW_MAPS_H

#include "base/gw_kernel.h"
#include "base/gw.h"
#include "base/gw_reason.h"

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

#endif /* GW_MAPS_H */
