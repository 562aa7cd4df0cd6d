/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fence (docs/design.md): an owner speaks only until the expiry of its share.
 * Whatever it has to say later, RST, ARP and neighbour discovery included, is
 * dropped on every way out of the node. Nobody needs to act for that: an agent
 * that hangs or has died can't prolong it, and a share whose fence was never
 * written may not speak at all.
 *
 * Below that a share, or the flows of one process, may be silent for a while
 * because the server has died (gw_exit.h): FIN and RST of its kernel must not
 * reach a client whose connection goes on elsewhere. The agent ends that
 * silence; should it be gone too, it ends by itself.
 */
#ifndef GW_FENCE_H
#define GW_FENCE_H

#include "flow/gw_flow.h"
#include "base/gw_mutant.h"

/*
 * Is a silence that began at `since` in force? The agent waits for `hold_ns`;
 * half of that more is for an agent that is not there.
 */
static __always_inline bool gw_is_held(const struct gw_fence *f, __u64 since)
{
	return since && gw_now() - since < f->hold_ns + f->hold_ns / 2;
}

/* Why the owner of this share may not speak; 0 if it may. */
static __always_inline int gw_silenced(__u32 share)
{
	struct gw_fence *f = bpf_map_lookup_elem(&gw_fences, &share);
	__u64 expiry, released;

	if (!f)
		return GW_REASON_FENCED;
	expiry = *(volatile __u64 *)&f->expiry_ns;
	if (GW_MUTANT != GW_MUTANT_NO_FENCE && expiry != GW_NO_EXPIRY &&
	    gw_now() >= expiry)
		return GW_REASON_FENCED;
	released = *(volatile __u64 *)&f->released_ns;
	if (!released)
		return 0;
	if (gw_is_held(f, released))
		return GW_REASON_RELEASED;
	if (__sync_val_compare_and_swap(&f->released_ns, released, 0) ==
	    released)
		gw_count(GW_REASON_NO_TAKER);
	return 0;
}

/* Is the flow's process dead, and the flow waiting for another node? */
static __always_inline bool gw_is_orphaned(struct gw_flow *flow)
{
	const struct gw_fence *f;
	__u32 share = flow->share;

	if (!(flow->flags & GW_FLOW_ORPHANED))
		return false;
	f = bpf_map_lookup_elem(&gw_fences, &share);
	if (f && gw_is_held(f, *(volatile const __u64 *)&f->died_ns))
		return true;
	gw_unflag(flow, GW_FLOW_ORPHANED);
	gw_count(GW_REASON_NO_TAKER);
	return false;
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
	case GW_FENCE_HOLD:
		*(volatile __u64 *)&f->hold_ns = o->ns;
		return 0;
	case GW_FENCE_RELEASE:
		*(volatile __u64 *)&f->released_ns = gw_now();
		return 0;
	case GW_FENCE_OPEN:
		*(volatile __u64 *)&f->died_ns = 0;
		*(volatile __u64 *)&f->released_ns = 0;
		return 0;
	default:
		return 1;
	}
}

#endif /* GW_FENCE_H */
