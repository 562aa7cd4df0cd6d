/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Turns the packet at hand into a bare segment of the same flow: the client's
 * ACK for what a twin "sent", a report for the owner, a RST for a stale twin.
 */
#ifndef GW_CRAFT_H
#define GW_CRAFT_H

#include "net/gw_packet.h"

struct gw_bare {
	__u32 seq;
	__u32 ack;
	__u32 ts_val;
	__u32 ts_ecr;
	__u16 wnd;
	__u8 flags;
	__u8 ts; /* with time stamps */
	__u16 urg; /* gw_stay.h */
	__u16 spare; /* gw_tag.h */
};

struct gw_bare_tcp {
	struct tcphdr tcp;
	__be32 ts[3];
};

static __always_inline int gw_craft_l3(struct __sk_buff *skb,
				       const struct gw_pkt *p,
				       const struct gw_endpoint *src,
				       const struct gw_endpoint *dst,
				       __u32 tcp_len, __u16 spare)
{
	if (p->v6) {
		struct ipv6hdr ip6 = {
			.version = 6,
			.nexthdr = IPPROTO_TCP,
			.hop_limit = 64,
			.payload_len = bpf_htons(tcp_len),
			.flow_lbl = { 0, spare >> 8, spare & 0xff },
		};

		__builtin_memcpy(&ip6.saddr, src->addr, 16);
		__builtin_memcpy(&ip6.daddr, dst->addr, 16);
		return bpf_skb_store_bytes(skb, GW_L3, &ip6, sizeof(ip6),
					   BPF_F_RECOMPUTE_CSUM);
	}
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.ttl = 64,
		.protocol = IPPROTO_TCP,
		.id = bpf_htons(spare),
		.frag_off = bpf_htons(0x4000),
		.tot_len = bpf_htons(sizeof(ip) + tcp_len),
		.saddr = src->addr[3],
		.daddr = dst->addr[3],
	};

	ip.check =
		~gw_fold(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
	return bpf_skb_store_bytes(skb, GW_L3, &ip, sizeof(ip),
				   BPF_F_RECOMPUTE_CSUM);
}

/*
 * The packet becomes a segment without payload from `src` to `dst`; 0 or -1.
 * Moves the packet: what `p` says of it is void afterwards. Checksum: the
 * kernel's own output is CHECKSUM_PARTIAL, where the field holds the sum of
 * the pseudo header and the device does the rest.
 */
static __noinline int gw_craft(struct __sk_buff *skb, struct gw_pkt *p,
			       const struct gw_endpoint *src,
			       const struct gw_endpoint *dst,
			       const struct gw_bare *b)
{
	struct gw_bare_tcp h = {};
	__u32 tcp_len = sizeof(h.tcp) + (b->ts ? sizeof(h.ts) : 0);
	__u64 sum;

	if (bpf_skb_change_tail(skb, p->l4 + tcp_len, 0))
		return -1;
	h.tcp.source = src->port;
	h.tcp.dest = dst->port;
	h.tcp.seq = bpf_htonl(b->seq);
	h.tcp.ack_seq = bpf_htonl(b->ack);
	h.tcp.doff = tcp_len / 4;
	((__u8 *)&h.tcp)[13] = b->flags;
	h.tcp.window = bpf_htons(b->wnd);
	h.tcp.urg_ptr = bpf_htons(b->urg);
	h.ts[0] = GW_TS_ALIGNED;
	h.ts[1] = bpf_htonl(b->ts_val);
	h.ts[2] = bpf_htonl(b->ts_ecr);

	/* ::ffff:a.b.c.d sums to what a.b.c.d does: 0xffff counts as nothing */
	sum = bpf_htons(tcp_len) + bpf_htons(IPPROTO_TCP);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)src->addr, 16, sum);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)dst->addr, 16, sum);
	if (gw_csum_partial(skb)) {
		h.tcp.check = gw_fold(sum);
	} else {
		if (b->ts)
			sum = bpf_csum_diff(NULL, 0, (__be32 *)&h, 32, sum);
		else
			sum = bpf_csum_diff(NULL, 0, (__be32 *)&h, 20, sum);
		h.tcp.check = ~gw_fold(sum);
	}
	if (gw_craft_l3(skb, p, src, dst, tcp_len, b->spare))
		return -1;
	if (b->ts)
		return bpf_skb_store_bytes(skb, p->l4, &h, 32,
					   BPF_F_RECOMPUTE_CSUM);
	return bpf_skb_store_bytes(skb, p->l4, &h, 20, BPF_F_RECOMPUTE_CSUM);
}

/*
 * Our kernel is to believe that it has sent this. TCX_DROP would tell it
 * otherwise and tcx has no "stolen" verdict (it is taken as TCX_NEXT), so the
 * segment is turned round and dropped on the way in.
 */
static __always_inline int gw_swallow(struct __sk_buff *skb)
{
	skb->mark = GW_MARK_DISCARD;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

#endif /* GW_CRAFT_H */
