/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Segments of clients that have not heard yet who owns their service, and go on to it. */
#ifndef GW_PASS_H
#define GW_PASS_H

#include "net/gw_hops.h"
#include "request/gw_ward.h"

/* To the peer of the share, unless that has sent it: it would go round in a circle. */
static __noinline int gw_send_to_peer(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_share *s,
				      enum gw_reason reason)
{
	__u8 peer[6];

	__builtin_memcpy(peer, s->peer_mac, 6);
	if (gw_is_multicast(s) || gw_mac_equal(p->smac, peer) ||
	    gw_mac_equal(p->dmac, peer) || !gw_is_node(peer))
		return gw_verdict(s->role == GW_ROLE_SHADOW ?
					  GW_REASON_NOT_FROM_OWNER :
					  GW_REASON_NOT_OWNER,
				  GW_DROP);
	if (gw_spend_hop(skb, p, GW_HOPS_SHARE))
		return gw_verdict(GW_REASON_HOPS, GW_DROP);
	return gw_send_to(skb, peer, reason);
}

/*
 * A client that has not heard yet where its service is: an owner that has
 * stepped down hands its segments on, or the client would have to repeat them
 * after 200 ms.
 */
static __always_inline int gw_forward(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_share *s)
{
	return gw_send_to_peer(skb, p, s, GW_REASON_FORWARDED);
}

/*
 * A client that has not heard yet that its owner is the standby now. It may as well be
 * anybody else: the new owner is to have the segment and, if it believes it, mirrors it.
 */
static __always_inline int gw_hand_on(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_share *s)
{
	if (!s->turn)
		return gw_verdict(GW_REASON_NOT_FROM_OWNER, GW_DROP);
	return gw_send_to_peer(skb, p, s, GW_REASON_HANDED_ON);
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
	if (!syn || !gw_is_of_pair(key)) {
		if (!f || gw_is_over(f) ||
		    !gw_is_to_be_told(s, f->client.heard_ns, gw_now()))
			return gw_forward(skb, p, s);
		if (gw_is_home(key, f->share))
			gw_self(lead.at);
		lead.irs = f->irs;
	}
	if (gw_spend_hop(skb, p, GW_HOPS_SHARE))
		return gw_verdict(GW_REASON_HOPS, GW_DROP);
	return gw_send_on_and_tell(skb, p, key, s->peer_mac, &lead);
}

#endif /* GW_PASS_H */
