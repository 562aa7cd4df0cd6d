/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Service addresses exist on every server, but only the owner may name them on
 * the link (DESIGN section 3, "Addresses"). A non-owner's kernel still has to
 * resolve its clients for the twins: its requests go out in the node's own
 * name instead (RFC 826, RFC 4861).
 */
#ifndef GW_ADDRESS_H
#define GW_ADDRESS_H

#include "gw_flow.h"

#define GW_ARP_REQUEST 1
#define GW_ND_SOLICIT 135
#define GW_ND_ADVERT 136

struct gw_arp {
	__be16 hw, proto;
	__u8 hw_len, proto_len;
	__be16 op;
	__u8 sha[6];
	__u8 sip[4];
	__u8 tha[6];
	__u8 tip[4];
} __attribute__((packed));

struct gw_nd {
	__u8 type, code;
	__be16 check;
	__be32 flags;
	__be32 target[4];
};

/* Is it a service address that this node does not own? */
static __noinline bool gw_is_foreign(const __be32 *addr)
{
	struct gw_address a;
	struct gw_share *s;
	__u32 *index;

	__builtin_memcpy(a.addr, addr, sizeof(a.addr));
	index = bpf_map_lookup_elem(&gw_addresses, &a);
	if (!index)
		return false;
	s = gw_share_at(*index);
	return !s || s->role != GW_ROLE_OWNER;
}

static __always_inline bool gw_is_foreign_v4(const __u8 *ip)
{
	__be32 addr[4], v4;

	__builtin_memcpy(&v4, ip, 4);
	gw_map_v4(addr, v4);
	return gw_is_foreign(addr);
}

static __noinline int gw_arp_out(struct __sk_buff *skb)
{
	struct gw_arp arp;
	__be32 own = gw_node_v4;

	if (bpf_skb_load_bytes(skb, GW_L3, &arp, sizeof(arp)))
		return gw_verdict(GW_REASON_TRUNCATED, GW_PASS);
	if (arp.hw_len != 6 || arp.proto_len != 4 || !gw_is_foreign_v4(arp.sip))
		return gw_verdict(GW_REASON_NOT_IP, GW_PASS);
	if (arp.op != bpf_htons(GW_ARP_REQUEST) || !own ||
	    gw_is_foreign_v4(arp.tip))
		return gw_verdict(GW_REASON_ARP_NOT_OWNED, GW_DROP);
	if (bpf_skb_store_bytes(skb, GW_L3 + offsetof(struct gw_arp, sip), &own,
				4, 0))
		return gw_verdict(GW_REASON_ARP_NOT_OWNED, GW_DROP);
	return gw_verdict(GW_REASON_ARP_RENAMED, GW_PASS);
}

/* A solicitation in a service's name: the node's own address instead. */
static __always_inline int gw_nd_rename(struct __sk_buff *skb,
					const struct gw_pkt *p)
{
	__u32 check =
		GW_L3 + sizeof(struct ipv6hdr) + offsetof(struct gw_nd, check);
	__be32 own[4];
	__s64 diff;

	for (int i = 0; i < 4; i++)
		own[i] = gw_node_v6[i];
	if (!own[0])
		return gw_verdict(GW_REASON_ND_NOT_OWNED, GW_DROP);
	diff = bpf_csum_diff((__be32 *)p->src.addr, 16, own, 16, 0);
	if (bpf_l4_csum_replace(skb, check, 0, diff, BPF_F_PSEUDO_HDR) ||
	    bpf_skb_store_bytes(skb, GW_L3 + offsetof(struct ipv6hdr, saddr),
				own, 16, 0))
		return gw_verdict(GW_REASON_ND_NOT_OWNED, GW_DROP);
	return gw_verdict(GW_REASON_ND_RENAMED, GW_PASS);
}

/* ICMPv6 out of a server; only neighbour discovery is looked at. */
static __noinline int gw_nd_out(struct __sk_buff *skb, const struct gw_pkt *p)
{
	struct gw_nd nd;

	if (bpf_skb_load_bytes(skb, GW_L3 + sizeof(struct ipv6hdr), &nd,
			       sizeof(nd)))
		return -1;
	if (nd.type != GW_ND_SOLICIT && nd.type != GW_ND_ADVERT)
		return -1;
	if (gw_is_foreign(nd.target))
		return gw_verdict(GW_REASON_ND_NOT_OWNED, GW_DROP);
	if (nd.type == GW_ND_SOLICIT && gw_is_foreign(p->src.addr))
		return gw_nd_rename(skb, p);
	return -1;
}

/*
 * What is left of a packet that is not TCP of a service: it may not speak in
 * the name of a service address that this node does not own.
 */
static __noinline int gw_other_out(struct __sk_buff *skb, struct gw_pkt *p,
				   int reason)
{
	__u8 next = 0;

	if (reason == GW_REASON_NOT_IP) {
		if (skb->protocol == bpf_htons(ETH_P_ARP))
			return gw_arp_out(skb);
		return gw_verdict(reason, GW_PASS);
	}
	if (reason == GW_REASON_TRUNCATED)
		return gw_verdict(reason, GW_PASS);
	if (p->v6 &&
	    !bpf_skb_load_bytes(skb, GW_L3 + offsetof(struct ipv6hdr, nexthdr),
				&next, 1) &&
	    next == IPPROTO_ICMPV6) {
		int verdict = gw_nd_out(skb, p);

		if (verdict != -1)
			return verdict;
	}
	if (gw_is_foreign(p->src.addr))
		return gw_verdict(GW_REASON_ADDRESS_NOT_OWNED, GW_DROP);
	return gw_verdict(reason, GW_PASS);
}

#endif /* GW_ADDRESS_H */
