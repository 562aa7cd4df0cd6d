/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which stay of a standby a twin's ACK belongs to. A connection may have one twin
 * after the other, and what the last one had the next may still lack: its ACK,
 * late in a queue, must not count. The number goes where TCP has the urgent
 * pointer, which means nothing without URG (RFC 9293 section 3.1). Within one stay a
 * flow may have several twins, too: those that were given up are mute (gw_suppress.h),
 * and the next one comes a second later.
 */
#ifndef GW_STAY_H
#define GW_STAY_H

#include "gw_edit.h"
#include "gw_flow.h"

/* Never 0: that is what a node says that does not know of this. */
static __always_inline __u16 gw_stay(const struct gw_flow *f)
{
	return f->generation ? (f->generation - 1) % 0xffff + 1 : 0;
}

static __noinline int gw_set_stay(struct __sk_buff *skb, struct gw_pkt *p,
				  __u16 stay)
{
	__u32 at = p->l4 + offsetof(struct tcphdr, urg_ptr);
	__be16 was;

	if (bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return -1;
	return gw_edit16(skb, p, at, bpf_ntohs(was), stay);
}

/* Is this a word of the twin that the flow has now? */
static __noinline bool gw_is_of_stay(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow *f)
{
	__be16 stay;

	if (bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcphdr, urg_ptr),
			       &stay, sizeof(stay)))
		return false;
	return !stay || bpf_ntohs(stay) == gw_stay(f);
}

#endif /* GW_STAY_H */
