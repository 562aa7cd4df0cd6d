/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A client's segment that a server sends on, for the connection has gone, has one hop less
 * to live if another server has sent it here, as at a router (RFC 1812 section 5.3.1,
 * RFC 8200 section 3): should each of them believe that it is at the next one, no segment
 * goes round for ever. The first who sends it on leaves it as it came. Servers whose
 * requests have no rules know no others, and hand nothing over.
 */
#ifndef GW_HOPS_H
#define GW_HOPS_H

#include "gw_packet.h"
#include "gw_rules.h"

/* 0, or -1: it has been sent round until nothing was left, or could not be changed. */
static __noinline int gw_spend_hop(struct __sk_buff *skb,
				   const struct gw_pkt *p)
{
	__u32 at = ETH_HLEN + (p->v6 ? offsetof(struct ipv6hdr, hop_limit) :
				       offsetof(struct iphdr, ttl));
	__u8 hops, left;

	if (!gw_is_mate(p->smac))
		return 0;
	if (bpf_skb_load_bytes(skb, at, &hops, 1) || hops <= 1)
		return -1;
	left = hops - 1;
	/* the upper half of a word of the header's sum */
	if (!p->v6 &&
	    bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check),
				bpf_htons(hops << 8), bpf_htons(left << 8), 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &left, 1, 0);
}

#endif /* GW_HOPS_H */
