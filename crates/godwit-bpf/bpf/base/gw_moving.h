/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A program that goes to the head of its chain can't be in it twice: `vacant` keeps the
 * new place until it comes, one of those below has the old one until it is there. An agent
 * that is killed meanwhile takes the new place with it. Then the old one is what it was:
 * the program itself is called from here, as soon as the time for the move is over.
 */
#ifndef GW_MOVING_H
#define GW_MOVING_H

#include "base/gw_clock.h"
#include "base/gw_net.h"

/* Programs that are called by the way of frames; pinned, or they would end with the agent. */
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
