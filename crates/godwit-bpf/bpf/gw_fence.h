/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fence (DESIGN section 3): an owner speaks only until the expiry of its share.
 * Whatever it has to say later, RST, ARP and neighbour discovery included, is
 * dropped on every way out of the node. Nobody needs to act for that: an agent
 * that hangs or has died can't prolong it, and a share whose fence was never
 * written may not speak at all.
 */
#ifndef GW_FENCE_H
#define GW_FENCE_H

#include "gw_flow.h"

/* Is the owner of this share silenced? */
static __always_inline bool gw_is_fenced(__u32 share)
{
	const struct gw_fence *f = bpf_map_lookup_elem(&gw_fences, &share);
	__u64 expiry;

	if (!f)
		return true;
	expiry = *(volatile const __u64 *)&f->expiry_ns;
	return expiry != GW_NO_EXPIRY && gw_now() >= expiry;
}

/* 0: done, 1: no such share or order. */
static __noinline int gw_obey_fence(const struct gw_fence_order *o)
{
	__u32 share = o->share;
	struct gw_fence *f = bpf_map_lookup_elem(&gw_fences, &share);

	if (!f)
		return 1;
	switch (o->kind) {
	case GW_FENCE_EXPIRE:
		*(volatile __u64 *)&f->expiry_ns = o->ns;
		return 0;
	default:
		return 1;
	}
}

#endif /* GW_FENCE_H */
