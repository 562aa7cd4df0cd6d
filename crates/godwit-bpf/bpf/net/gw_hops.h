/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How often a client's segment is sent on from server to server. Servers may believe in a
 * circle that the next one has its connection, or its share: their files may differ, or one
 * may not have heard yet. Nobody can tell from a frame who has sent it, so its TTL or hop
 * limit says it. The first server that sends it on leaves it no more than GW_HOPS_MOST, each
 * next one takes some away, as a router does (RFC 1812 section 5.3.1, RFC 8200 section 3).
 * What a client sends arrives with more: systems begin with 64 at least, and ways are
 * shorter. What arrives with less all the same is sent on a few times, too.
 */
#ifndef GW_HOPS_H
#define GW_HOPS_H

#include "net/gw_packet.h"

#define GW_HOPS_MOST 32
/* What it costs to send a segment on for its share that came with few hops. */
#define GW_HOPS_STEP 8

/* What a segment is sent on for. */
enum gw_hops_for {
	/* its connection: those that have gone on from server to server are a long chain */
	GW_HOPS_FLOW,
	/* its share, which one server has: once, and once more */
	GW_HOPS_SHARE,
};

_Static_assert(GW_HOPS_MOST % GW_HOPS_STEP == 0, "four times at most");

/* What is left of so many when it is sent on; 0: it is not. */
static __always_inline __u8 gw_hops_left(__u8 hops, enum gw_hops_for what)
{
	if (hops > GW_HOPS_MOST)
		return GW_HOPS_MOST;
	if (what == GW_HOPS_FLOW || hops == GW_HOPS_MOST)
		return hops ? hops - 1 : 0;
	/* it has been sent on for its share twice */
	if (hops == GW_HOPS_MOST - 1)
		return 0;
	return hops > GW_HOPS_STEP ? hops - GW_HOPS_STEP : 0;
}

/* 0, or -1: it has been sent on too often, or could not be changed. Verified once. */
__noinline int gw_spend_hop(struct __sk_buff *skb, const struct gw_pkt *p,
			    enum gw_hops_for what)
{
	__u8 hops, left;
	__u32 at;

	if (!p)
		return -1;
	at = ETH_HLEN + (p->v6 ? offsetof(struct ipv6hdr, hop_limit) :
				 offsetof(struct iphdr, ttl));
	if (bpf_skb_load_bytes(skb, at, &hops, 1))
		return -1;
	left = gw_hops_left(hops, what);
	if (!left)
		return -1;
	if (p->v6)
		return bpf_skb_store_bytes(skb, at, &left, 1,
					   BPF_F_RECOMPUTE_CSUM);
	/* the upper half of a word of the header's sum */
	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check),
				bpf_htons(hops << 8), bpf_htons(left << 8), 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &left, 1, 0);
}

/* Has no server sent it on? What an owner mirrors has the hops that it came with. */
static __always_inline bool gw_is_first_hand(struct __sk_buff *skb,
					     const struct gw_pkt *p)
{
	__u32 at = ETH_HLEN + (p->v6 ? offsetof(struct ipv6hdr, hop_limit) :
				       offsetof(struct iphdr, ttl));
	__u8 hops;

	return !bpf_skb_load_bytes(skb, at, &hops, 1) && hops > GW_HOPS_MOST;
}

#endif /* GW_HOPS_H */
