/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Service addresses exist on every server, but only the owner may name them on
 * the link (docs/design.md, "Addresses"). A non-owner's kernel still has to
 * resolve its clients for the twins: its requests go out in the node's own
 * name instead (RFC 826, RFC 4861).
 */
#ifndef GW_ADDRESS_H
#define GW_ADDRESS_H

#include "share/gw_fence.h"

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

static __noinline __u32 *gw_index_of_address(const __be32 *addr)
{
	struct gw_address a;

	__builtin_memcpy(a.addr, addr, sizeof(a.addr));
	return bpf_map_lookup_elem(&gw_addresses, &a);
}

static __always_inline struct gw_share *gw_share_of_address(const __be32 *addr)
{
	__u32 *index = gw_index_of_address(addr);

	return index ? gw_share_at(*index) : NULL;
}

/* Why this node may not name a service address that it owns; 0 if it may. */
static __noinline int gw_silenced_address(const __be32 *addr)
{
	__u32 *index = gw_index_of_address(addr);
	struct gw_share *s;

	if (!index)
		return 0;
	s = gw_share_at(*index);
	if (!s || s->role != GW_ROLE_OWNER)
		return 0;
	return gw_silenced(*index);
}

/*
 * Is it a service address that this node does not answer for? Another one owns it,
 * or new connections come to another one.
 */
static __always_inline bool gw_is_foreign(const __be32 *addr)
{
	struct gw_share *s = gw_share_of_address(addr);

	return s && (s->role != GW_ROLE_OWNER || s->moves == GW_MOVES_GUEST ||
		     (s->front & GW_FRONT_THERE));
}

/*
 * An owned service address with a multicast tap: on the link it goes by the
 * group's MAC, or the client's segments would reach the owner alone.
 */
static __always_inline bool gw_group_of(const __be32 *addr, __u8 *mac)
{
	struct gw_share *s = gw_share_of_address(addr);

	if (!s || s->role != GW_ROLE_OWNER || !gw_is_multicast(s))
		return false;
	__builtin_memcpy(mac, s->service_mac, 6);
	return true;
}

static __always_inline void gw_map_arp(__be32 *addr, const __u8 *ip)
{
	__be32 v4;

	__builtin_memcpy(&v4, ip, 4);
	gw_map_v4(addr, v4);
}

/* ARP in the name of a service that we own. */
static __noinline int gw_arp_group(struct __sk_buff *skb, const __be32 *sender)
{
	__u8 mac[6];

	if (gw_group_of(sender, mac) &&
	    bpf_skb_store_bytes(skb, GW_L3 + offsetof(struct gw_arp, sha), mac,
				6, 0))
		return gw_verdict(GW_REASON_ARP_NOT_OWNED, GW_DROP);
	return gw_verdict(GW_REASON_NOT_IP, GW_PASS);
}

static __noinline int gw_arp_out(struct __sk_buff *skb)
{
	__be32 own = gw_node_v4, sender[4], target[4];
	struct gw_arp arp;

	if (bpf_skb_load_bytes(skb, GW_L3, &arp, sizeof(arp)))
		return gw_verdict(GW_REASON_TRUNCATED, GW_PASS);
	if (arp.hw_len != 6 || arp.proto_len != 4)
		return gw_verdict(GW_REASON_NOT_IP, GW_PASS);
	gw_map_arp(sender, arp.sip);
	gw_map_arp(target, arp.tip);
	if (!gw_is_foreign(sender))
		return gw_arp_group(skb, sender);
	if (arp.op != bpf_htons(GW_ARP_REQUEST) || !own ||
	    gw_is_foreign(target))
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

/* Source or target link-layer address option, RFC 4861 section 4.6.1. */
struct gw_nd_lladdr {
	__u8 type, len;
	__u8 mac[6];
};

/* Neighbour discovery in the name of a service that we own. */
static __noinline int gw_nd_group(struct __sk_buff *skb, const __be32 *addr)
{
	__u32 icmp = GW_L3 + sizeof(struct ipv6hdr);
	__u32 at = icmp + sizeof(struct gw_nd);
	struct gw_nd_lladdr was, now;
	__s64 diff;

	if (bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return GW_UNDECIDED;
	now = was;
	if (was.len != 1 || !gw_group_of(addr, now.mac))
		return GW_UNDECIDED;
	diff = bpf_csum_diff((__be32 *)&was, sizeof(was), (__be32 *)&now,
			     sizeof(now), 0);
	if (bpf_l4_csum_replace(skb, icmp + offsetof(struct gw_nd, check), 0,
				diff, 0) ||
	    bpf_skb_store_bytes(skb, at, &now, sizeof(now), 0))
		return gw_verdict(GW_REASON_ND_NOT_OWNED, GW_DROP);
	return GW_UNDECIDED;
}

/* ICMPv6 out of a server; only neighbour discovery is looked at. */
static __noinline int gw_nd_out(struct __sk_buff *skb, const struct gw_pkt *p)
{
	struct gw_nd nd;

	if (bpf_skb_load_bytes(skb, GW_L3 + sizeof(struct ipv6hdr), &nd,
			       sizeof(nd)))
		return GW_UNDECIDED;
	if (nd.type != GW_ND_SOLICIT && nd.type != GW_ND_ADVERT)
		return GW_UNDECIDED;
	if (gw_is_foreign(nd.target))
		return gw_verdict(GW_REASON_ND_NOT_OWNED, GW_DROP);
	if (nd.type == GW_ND_SOLICIT && gw_is_foreign(p->src.addr))
		return gw_nd_rename(skb, p);
	return gw_nd_group(skb,
			   nd.type == GW_ND_ADVERT ? nd.target : p->src.addr);
}

/* Does the device send packets without an Ethernet header (tun, WireGuard)? */
static __always_inline bool gw_is_bare_l3(struct __sk_buff *skb)
{
	__be16 proto;

	if (skb->protocol != bpf_htons(ETH_P_IP) &&
	    skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	return bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &proto,
				  sizeof(proto)) ||
	       proto != skb->protocol;
}

/* Nothing in a service's name leaves by such a device. */
static __noinline int gw_guard_l3(struct __sk_buff *skb)
{
	__be32 addr[4] = {}, v4 = 0;

	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes_relative(
			    skb, offsetof(struct ipv6hdr, saddr), addr,
			    sizeof(addr), BPF_HDR_START_NET))
			return gw_verdict(GW_REASON_TRUNCATED, GW_PASS);
	} else {
		if (bpf_skb_load_bytes_relative(
			    skb, offsetof(struct iphdr, saddr), &v4, sizeof(v4),
			    BPF_HDR_START_NET))
			return gw_verdict(GW_REASON_TRUNCATED, GW_PASS);
		gw_map_v4(addr, v4);
	}
	if (gw_share_of_address(addr))
		return gw_verdict(GW_REASON_WRONG_INTERFACE, GW_DROP);
	return gw_verdict(GW_REASON_NOT_OURS, GW_PASS);
}

/* The next header of an IPv6 packet; 0 for others. */
static __always_inline __u8 gw_next_header(struct __sk_buff *skb,
					   const struct gw_pkt *p)
{
	__u8 next = 0;

	if (p->v6)
		bpf_skb_load_bytes(skb,
				   GW_L3 + offsetof(struct ipv6hdr, nexthdr),
				   &next, 1);
	return next;
}

/*
 * Why a packet that is not TCP of a service may not leave, for it names an
 * address whose owner is silenced: as its source, in ARP, or in neighbour
 * discovery. 0 if it may.
 */
static __noinline int gw_names_silenced(struct __sk_buff *skb,
					const struct gw_pkt *p, int reason)
{
	__be32 sender[4];
	struct gw_arp arp;
	struct gw_nd nd;

	if (reason == GW_REASON_NOT_IP) {
		if (skb->protocol != bpf_htons(ETH_P_ARP) ||
		    bpf_skb_load_bytes(skb, GW_L3, &arp, sizeof(arp)))
			return 0;
		gw_map_arp(sender, arp.sip);
		return gw_silenced_address(sender);
	}
	if (reason == GW_REASON_TRUNCATED)
		return 0;
	if (gw_next_header(skb, p) == IPPROTO_ICMPV6 &&
	    !bpf_skb_load_bytes(skb, GW_L3 + sizeof(struct ipv6hdr), &nd,
				sizeof(nd)) &&
	    nd.type == GW_ND_ADVERT) {
		int why = gw_silenced_address(nd.target);

		if (why)
			return why;
	}
	return gw_silenced_address(p->src.addr);
}

/*
 * Does a frame say where a service address is (ARP, or a neighbour advertisement)? On
 * another link than the service's nobody is to believe that it is there: connections by
 * that way would not pass the gate.
 */
static __noinline bool gw_tells_service(struct __sk_buff *skb,
					const struct gw_pkt *p, int reason)
{
	__be32 sender[4];
	struct gw_arp arp;
	struct gw_nd nd;

	if (reason == GW_REASON_NOT_IP) {
		if (skb->protocol != bpf_htons(ETH_P_ARP) ||
		    bpf_skb_load_bytes(skb, GW_L3, &arp, sizeof(arp)))
			return false;
		gw_map_arp(sender, arp.sip);
		return gw_index_of_address(sender);
	}
	if (reason == GW_REASON_TRUNCATED ||
	    gw_next_header(skb, p) != IPPROTO_ICMPV6 ||
	    bpf_skb_load_bytes(skb, GW_L3 + sizeof(struct ipv6hdr), &nd,
			       sizeof(nd)) ||
	    nd.type != GW_ND_ADVERT)
		return false;
	return gw_index_of_address(nd.target);
}

/*
 * Such a frame does not leave. A question for somebody else does, in nobody's name (RFC
 * 5227, section 2.1.1): who serves a client by that link has to find it.
 */
static __noinline int gw_told_elsewhere(struct __sk_buff *skb)
{
	__be32 nobody = 0;
	struct gw_arp arp;

	if (skb->protocol == bpf_htons(ETH_P_ARP) &&
	    !bpf_skb_load_bytes(skb, GW_L3, &arp, sizeof(arp)) &&
	    arp.op == bpf_htons(GW_ARP_REQUEST) &&
	    __builtin_memcmp(arp.sip, arp.tip, 4) &&
	    !bpf_skb_store_bytes(skb, GW_L3 + offsetof(struct gw_arp, sip),
				 &nobody, 4, 0))
		return gw_verdict(GW_REASON_ARP_RENAMED, GW_PASS);
	return gw_verdict(GW_REASON_TOLD_ELSEWHERE, GW_DROP);
}

/*
 * What is left of a packet that is not TCP of a service: it may not speak in
 * the name of a service address that this node does not own.
 */
static __noinline int gw_other_out(struct __sk_buff *skb, struct gw_pkt *p,
				   int reason)
{
	int why = gw_names_silenced(skb, p, reason);

	if (why)
		return gw_verdict(why, GW_DROP);
	if (reason == GW_REASON_NOT_IP) {
		if (skb->protocol == bpf_htons(ETH_P_ARP))
			return gw_arp_out(skb);
		return gw_verdict(reason, GW_PASS);
	}
	if (reason == GW_REASON_TRUNCATED)
		return gw_verdict(reason, GW_PASS);
	if (gw_next_header(skb, p) == IPPROTO_ICMPV6) {
		int verdict = gw_nd_out(skb, p);

		if (verdict != GW_UNDECIDED)
			return verdict;
	}
	if (gw_is_foreign(p->src.addr))
		return gw_verdict(GW_REASON_ADDRESS_NOT_OWNED, GW_DROP);
	return gw_verdict(reason, GW_PASS);
}

#endif /* GW_ADDRESS_H */
