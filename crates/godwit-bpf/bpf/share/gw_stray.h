/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Segments of a service that come or leave by another interface than the service's: a
 * router, a client's own entry or a route of this machine leads around tap and gate. The
 * agent reads which interface it is, and says so.
 */
#ifndef GW_STRAY_H
#define GW_STRAY_H

#include "base/gw_clock.h"

/* When the last one came or left by an interface; CLOCK_BOOTTIME, 0: none did. */
struct gw_stray {
	__u64 passed_ns; /* of a connection that Godwit does not know */
	__u64 dropped_ns; /* of a flow, or of a service that is owned elsewhere */
};
_Static_assert(sizeof(struct gw_stray) == 16, "shared with Rust");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32); /* index of the interface */
	__type(value, struct gw_stray);
} gw_strays SEC(".maps");

/* Takes note of one, and gives the verdict for it. */
static __noinline int gw_strayed(struct __sk_buff *skb, int verdict)
{
	__u32 ifindex = skb->ifindex;
	struct gw_stray *known = bpf_map_lookup_elem(&gw_strays, &ifindex);

	if (!known) {
		struct gw_stray first = {};

		bpf_map_update_elem(&gw_strays, &ifindex, &first, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&gw_strays, &ifindex);
	}
	if (known && verdict == GW_PASS)
		known->passed_ns = gw_now();
	else if (known)
		known->dropped_ns = gw_now();
	return verdict;
}

#endif /* GW_STRAY_H */
