/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Segments of clients that have not heard yet who owns their service, and go on to it. */
#ifndef GW_PASS_H
#define GW_PASS_H

#include "gw_hops.h"
#include "gw_ward.h"

/*
 * A client that has not heard yet where its service is: an owner that has
 * stepped down hands its segments on, or the client would have to repeat them
 * after 200 ms. Never what the peer hands on itself: that would be a circle.
 */
static __noinline int gw_forward(struct __sk_buff *skb, const struct gw_pkt *p,
				 const struct gw_share *s)
{
	__u8 self[6], peer[6];

	__builtin_memcpy(peer, s->peer_mac, 6);
	if (gw_is_multicast(s) || gw_mac_equal(p->smac, peer) ||
	    gw_mac_equal(p->dmac, peer) ||
	    !(peer[0] | peer[1] | peer[2] | peer[3] | peer[4] | peer[5]))
		return gw_verdict(GW_REASON_NOT_OWNER, GW_DROP);
	if (gw_spend_hop(skb, p))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	gw_self(self);
	gw_set_macs(skb, peer, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_FORWARDED);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * A client that has not heard yet that its owner is the standby now. The new
 * owner is to have the segment, and so are we; it need not come back to us.
 */
static __noinline bool gw_hand_on(struct __sk_buff *skb, struct gw_pkt *p,
				  const struct gw_share *s)
{
	__u32 mark = skb->mark;
	__u8 self[6], peer[6];

	__builtin_memcpy(peer, s->peer_mac, 6);
	if (!s->turn || gw_is_multicast(s) ||
	    !(peer[0] | peer[1] | peer[2] | peer[3] | peer[4] | peer[5]))
		return false;
	gw_self(self);
	gw_set_macs(skb, peer, self);
	skb->mark = GW_MARK_SPOKEN;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = mark;
	gw_set_macs(skb, p->dmac, p->smac);
	gw_count(GW_REASON_HANDED_ON);
	return true;
}

/* A director that has not heard yet who owns the connection, or its share. */
static __noinline int gw_forward_front(struct __sk_buff *skb,
				       const struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_share *s)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	bool syn = (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) == GW_TCP_SYN;
	struct gw_lead lead = { .irs = p->seq };

	if (!gw_is_node(s->peer_mac) || !(s->front & GW_FRONT_TOLD) ||
	    gw_is_mate(p->smac))
		return gw_forward(skb, p, s);
	__builtin_memcpy(lead.at, s->peer_mac, 6);
	if (syn && gw_is_of_pair(key))
		return gw_send_on_and_tell(skb, p, key, s->peer_mac, &lead);
	if (!f || gw_is_over(f) ||
	    !gw_is_to_be_told(s, f->client.heard_ns, gw_now()))
		return gw_forward(skb, p, s);
	if (gw_is_home(key, f->share))
		gw_self(lead.at);
	lead.irs = f->irs;
	return gw_send_on_and_tell(skb, p, key, s->peer_mac, &lead);
}

#endif /* GW_PASS_H */
