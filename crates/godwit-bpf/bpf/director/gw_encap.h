/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A director's frame for a back-end that is not on the link: into a tunnel (gw_tunnel.h),
 * and to the router that is on the way.
 */
#ifndef GW_ENCAP_H
#define GW_ENCAP_H

#include "director/gw_director.h"
#include "net/gw_note.h"
#include "net/gw_tunnel.h"

/* Where a frame goes that is to be sent. */
struct gw_way {
	__u32 backend; /* its number */
	__u32 slot; /* of the flow: frames of one flow take one path (RFC 7348) */
	__u8 mac[6]; /* of the back-end, or of the router before it */
	__u16 end; /* of the packet in the frame: a proof is behind it */
	struct gw_query_proof proof; /* of a question (gw_query.h) */
};

/* The tunnel of a back-end; NULL: it is on the link. */
static __always_inline const struct gw_tunnel *gw_tunnel_of(__u32 backend)
{
	const struct gw_tunnel *t = bpf_map_lookup_elem(&gw_tunnels, &backend);

	return t && t->there ? t : NULL;
}

static __always_inline bool gw_is_v6(const struct gw_tunnel *t)
{
	return !gw_is_mapped(t->to);
}

static __always_inline __u16 gw_header_sum(const struct iphdr *ip)
{
	const __u16 *word = (const void *)ip;
	__u32 sum = 0;

	for (int i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static __always_inline void gw_fill_udp(struct udphdr *udp,
					struct gw_vxlan *vxlan,
					const struct gw_tunnel *t, __u32 slot,
					__u32 len)
{
	*udp = (struct udphdr){
		.source = bpf_htons(49152 | (slot & 0x3fff)),
		.dest = bpf_htons(GW_VXLAN_PORT),
		.len = bpf_htons(sizeof(*udp) + sizeof(*vxlan) + len),
	};
	vxlan->flags = bpf_htonl(GW_VXLAN_FLAGS);
	vxlan->vni = bpf_htonl(t->vni << 8);
}

/* `len` bytes of frame follow. */
static __always_inline void gw_fill_outer_v4(struct gw_outer_v4 *o,
					     const struct gw_tunnel *t,
					     __u32 slot, __u32 len)
{
	o->ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(*o) + len),
		.frag_off = bpf_htons(0x4000), /* DF */
		.ttl = GW_TUNNEL_TTL,
		.protocol = IPPROTO_UDP,
		.saddr = t->from[3],
		.daddr = t->to[3],
	};
	o->ip.check = gw_header_sum(&o->ip);
	gw_fill_udp(&o->udp, &o->vxlan, t, slot, len);
}

static __always_inline void gw_fill_outer_v6(struct gw_outer_v6 *o,
					     const struct gw_tunnel *t,
					     __u32 slot, __u32 len)
{
	o->ip = (struct ipv6hdr){
		.version = 6,
		.payload_len =
			bpf_htons(sizeof(o->udp) + sizeof(o->vxlan) + len),
		.nexthdr = IPPROTO_UDP,
		.hop_limit = GW_TUNNEL_TTL,
	};
	__builtin_memcpy(&o->ip.saddr, t->from, 16);
	__builtin_memcpy(&o->ip.daddr, t->to, 16);
	gw_fill_udp(&o->udp, &o->vxlan, t, slot, len);
}

static __always_inline void gw_fill_link(struct ethhdr *eth, const __u8 *to,
					 const __u8 *from, bool v6)
{
	__builtin_memcpy(eth->h_dest, to, 6);
	__builtin_memcpy(eth->h_source, from, 6);
	eth->h_proto = bpf_htons(v6 ? ETH_P_IPV6 : ETH_P_IP);
}

/* For XDP. 0, or a reason. */
static __noinline int gw_encap_xdp(struct xdp_md *ctx, const struct gw_way *way,
				   const struct gw_tunnel *t)
{
	__u32 len = bpf_xdp_get_buff_len(ctx);
	/* all of it: the helper would count what is in the first buffer */
	__u32 mtu = len - ETH_HLEN;
	bool v6 = gw_is_v6(t);
	int grow = ETH_HLEN + (v6 ? sizeof(struct gw_outer_v6) :
				    sizeof(struct gw_outer_v4));
	__u64 self = gw_self;
	struct ethhdr *eth;
	void *end;

	if (bpf_check_mtu(ctx, 0, &mtu, grow, 0))
		return GW_REASON_TUNNEL_FULL;
	if (bpf_xdp_adjust_head(ctx, -grow))
		return GW_REASON_TUNNEL_FAILED;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (v6) {
		struct gw_outer_v6 *o = (void *)(eth + 1);

		if ((void *)(o + 1) > end)
			return GW_REASON_TUNNEL_FAILED;
		gw_fill_outer_v6(o, t, way->slot, len);
	} else {
		struct gw_outer_v4 *o = (void *)(eth + 1);

		if ((void *)(o + 1) > end)
			return GW_REASON_TUNNEL_FAILED;
		gw_fill_outer_v4(o, t, way->slot, len);
	}
	gw_fill_link(eth, way->mac, (const __u8 *)&self, v6);
	return 0;
}

/* The length of a piece of a segment that is to be cut, without the link's header. */
static __always_inline __u32 gw_piece_len(struct __sk_buff *skb,
					  const struct ethhdr *eth)
{
	__u32 len = eth->h_proto == bpf_htons(ETH_P_IP) ?
			    sizeof(struct iphdr) :
			    sizeof(struct ipv6hdr);
	struct tcphdr tcp = {};

	/* what can't be read is not there: then it is short enough */
	bpf_skb_load_bytes(skb, ETH_HLEN + len, &tcp, sizeof(tcp));
	return len + tcp.doff * 4 + skb->gso_size;
}

/* For tcx. 0, or a reason. */
static __noinline int gw_encap_tc(struct __sk_buff *skb,
				  const struct gw_way *way,
				  const struct gw_tunnel *t)
{
	bool v6 = gw_is_v6(t);
	__u32 outer =
		v6 ? sizeof(struct gw_outer_v6) : sizeof(struct gw_outer_v4);
	__u32 grow = outer + ETH_HLEN, len = skb->len, mtu = 0;
	__u64 flags = BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) |
		      BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
	union {
		struct gw_outer_v4 v4;
		struct gw_outer_v6 v6;
	} o;
	__u64 self = gw_self;
	struct ethhdr eth;

	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return GW_REASON_TUNNEL_FAILED;
	/* of one that is to be cut the helper says nothing: its pieces count */
	if (bpf_check_mtu(skb, 0, &mtu, grow, 0) ||
	    (skb->gso_size && gw_piece_len(skb, &eth) + grow > mtu))
		return GW_REASON_TUNNEL_FULL;
	flags |= v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 :
		      BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (bpf_skb_adjust_room(skb, grow, BPF_ADJ_ROOM_MAC, flags))
		return GW_REASON_TUNNEL_FAILED;
	if (v6)
		gw_fill_outer_v6(&o.v6, t, way->slot, len);
	else
		gw_fill_outer_v4(&o.v4, t, way->slot, len);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &o, outer, 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + outer, &eth, sizeof(eth), 0))
		return GW_REASON_TUNNEL_FAILED;
	gw_fill_link(&eth, way->mac, (const __u8 *)&self, v6);
	return bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0) ?
		       GW_REASON_TUNNEL_FAILED :
		       0;
}

#endif /* GW_ENCAP_H */
