/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How a program moves to the head of its tcx chain. It can't be in the chain twice, so the
 * agent takes four steps:
 *
 *   1. `vacant` is attached at the head
 *   2. `closed_tap`, `closed_untunnel` or `closed_gate` replaces the program at the old place:
 *      it drops frames until gw_moving_until
 *   3. the program replaces `vacant`
 *   4. the old place is detached
 *
 * An agent that is killed after step 2 takes the head's link with it. Once gw_moving_until has
 * passed, the program at the old place calls the real one.
 */
#ifndef GW_MOVING_H
#define GW_MOVING_H

#include "base/gw_clock.h"
#include "base/gw_net.h"

/* Programs to call from the old places. Pinned, or they would end with the agent. */
#define GW_PLACE_TAP 0
#define GW_PLACE_UNTUNNEL 1
#define GW_PLACE_GATE 0

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} gw_ingress_places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gw_egress_places SEC(".maps");

static __always_inline bool gw_is_moving(void)
{
	return gw_now() < gw_moving_until;
}

SEC("tcx/ingress")
int vacant(struct __sk_buff *skb)
{
	return GW_PASS;
}

SEC("tcx/ingress")
int closed_tap(struct __sk_buff *skb)
{
	if (!gw_is_moving())
		bpf_tail_call(skb, &gw_ingress_places, GW_PLACE_TAP);
	return gw_verdict(GW_REASON_MOVING, GW_DROP);
}

SEC("tcx/ingress")
int closed_untunnel(struct __sk_buff *skb)
{
	if (!gw_is_moving())
		bpf_tail_call(skb, &gw_ingress_places, GW_PLACE_UNTUNNEL);
	return gw_verdict(GW_REASON_MOVING, GW_DROP);
}

SEC("tcx/egress")
int closed_gate(struct __sk_buff *skb)
{
	if (!gw_is_moving())
		bpf_tail_call(skb, &gw_egress_places, GW_PLACE_GATE);
	return gw_verdict(GW_REASON_MOVING, GW_DROP);
}

#endif /* GW_MOVING_H */
