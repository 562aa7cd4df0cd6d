/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A TCP segment as the programs see it: parsed once into a value, so that no
 * packet pointer outlives a helper call. IPv4 and IPv6 differ only here and in
 * gw_craft.h; addresses are 16 bytes from then on.
 */
#ifndef GW_PACKET_H
#define GW_PACKET_H

#include "gw_maps.h"
#include "gw_reason.h"

#define GW_L3 ETH_HLEN
#define GW_TCP_FIN 0x01
#define GW_TCP_SYN 0x02
#define GW_TCP_RST 0x04
#define GW_TCP_PSH 0x08
#define GW_TCP_ACK 0x10
#define GW_TCP_ECE 0x40
#define GW_TCP_CWR 0x80

/* NOP NOP TS(10): how Linux and most others lay it out in every segment. */
#define GW_TS_ALIGNED bpf_htonl(0x0101080a)

struct gw_pkt {
	struct gw_endpoint src;
	struct gw_endpoint dst;
	__u32 l4; /* offset of the TCP header */
	__u32 hdr_len; /* of the TCP header, options included */
	__u32 len; /* payload bytes */
	__u32 seq;
	__u32 ack;
	__u32 ts_at; /* offset of TSval in the packet; 0: no time stamps */
	__u32 ts_val;
	__u32 ts_ecr;
	__u16 wnd;
	__u8 flags;
	__u8 v6;
	__u8 smac[6];
	__u8 dmac[6];
};

/* End of the sequence space that the segment takes, SYN and FIN counted. */
static __always_inline __u32 gw_seg_end(const struct gw_pkt *p)
{
	return p->seq + p->len + !!(p->flags & GW_TCP_SYN) +
	       !!(p->flags & GW_TCP_FIN);
}

static __always_inline bool gw_is_pure_ack(const struct gw_pkt *p)
{
	return !p->len && !(p->flags & (GW_TCP_SYN | GW_TCP_FIN | GW_TCP_RST));
}

static __always_inline bool gw_mac_equal(const __u8 *a, const __u8 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] &&
	       a[4] == b[4] && a[5] == b[5];
}

static __always_inline void gw_map_v4(__be32 *addr, __be32 v4)
{
	addr[0] = 0;
	addr[1] = 0;
	addr[2] = bpf_htonl(0xffff);
	addr[3] = v4;
}

/* Fills the addresses and the place of the TCP header; 0 or a reason. */
static __always_inline int gw_parse_l3(struct __sk_buff *skb, struct gw_pkt *p,
				       __u16 proto, __u32 *end)
{
	if (proto == ETH_P_IP) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, GW_L3, &ip, sizeof(ip)))
			return GW_REASON_TRUNCATED;
		gw_map_v4(p->src.addr, ip.saddr);
		gw_map_v4(p->dst.addr, ip.daddr);
		if (ip.protocol != IPPROTO_TCP)
			return GW_REASON_NOT_OURS;
		if (ip.frag_off & bpf_htons(0x3fff))
			return GW_REASON_FRAGMENT;
		if (ip.ihl != 5)
			return GW_REASON_IP_OPTIONS;
		p->l4 = GW_L3 + sizeof(ip);
		*end = GW_L3 + bpf_ntohs(ip.tot_len);
		/* BIG TCP: a merged packet over 64 KiB says 0 */
		if (!ip.tot_len)
			*end = skb->len;
		return 0;
	}
	struct ipv6hdr ip6;

	if (bpf_skb_load_bytes(skb, GW_L3, &ip6, sizeof(ip6)))
		return GW_REASON_TRUNCATED;
	__builtin_memcpy(p->src.addr, &ip6.saddr, 16);
	__builtin_memcpy(p->dst.addr, &ip6.daddr, 16);
	p->v6 = 1;
	if (ip6.nexthdr == IPPROTO_FRAGMENT)
		return GW_REASON_FRAGMENT;
	if (ip6.nexthdr == IPPROTO_HOPOPTS || ip6.nexthdr == IPPROTO_ROUTING ||
	    ip6.nexthdr == IPPROTO_DSTOPTS)
		return GW_REASON_IP_OPTIONS;
	if (ip6.nexthdr != IPPROTO_TCP)
		return GW_REASON_NOT_OURS;
	p->l4 = GW_L3 + sizeof(ip6);
	*end = p->l4 + bpf_ntohs(ip6.payload_len);
	if (!ip6.payload_len)
		*end = skb->len;
	return 0;
}

/*
 * Parses an Ethernet frame. 0: a whole TCP header was read. Otherwise the
 * reason why not; with FRAGMENT, IP_OPTIONS, NOT_OURS and BAD_HEADER the
 * addresses are valid, so that the caller can still tell whose packet it is.
 */
static __noinline int gw_parse(struct __sk_buff *skb, struct gw_pkt *p)
{
	__be32 ts[3];
	struct tcphdr tcp;
	struct ethhdr eth;
	__u32 end;
	__u16 proto;
	int err;

	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return GW_REASON_NOT_IP;
	__builtin_memcpy(p->smac, eth.h_source, 6);
	__builtin_memcpy(p->dmac, eth.h_dest, 6);
	proto = bpf_ntohs(eth.h_proto);
	if (proto != ETH_P_IP && proto != ETH_P_IPV6)
		return GW_REASON_NOT_IP;
	err = gw_parse_l3(skb, p, proto, &end);
	if (err)
		return err;
	if (bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)))
		return GW_REASON_BAD_HEADER;
	p->hdr_len = tcp.doff * 4;
	if (p->hdr_len < sizeof(tcp) || p->l4 + p->hdr_len > end ||
	    end > skb->len)
		return GW_REASON_BAD_HEADER;
	p->src.port = tcp.source;
	p->dst.port = tcp.dest;
	p->seq = bpf_ntohl(tcp.seq);
	p->ack = bpf_ntohl(tcp.ack_seq);
	p->wnd = bpf_ntohs(tcp.window);
	p->flags = ((__u8 *)&tcp)[13];
	p->len = end - p->l4 - p->hdr_len;
	if (p->hdr_len >= 32 &&
	    !bpf_skb_load_bytes(skb, p->l4 + 20, ts, sizeof(ts)) &&
	    ts[0] == GW_TS_ALIGNED) {
		p->ts_at = p->l4 + 24;
		p->ts_val = bpf_ntohl(ts[1]);
		p->ts_ecr = bpf_ntohl(ts[2]);
	}
	return 0;
}

/*
 * Field edits. bpf_l4_csum_replace without a pseudo-header flag does the right
 * thing for full, partial and already verified checksums alike: what the edit
 * adds to the sum the checksum field takes away.
 */
static __always_inline int gw_edit32(struct __sk_buff *skb, struct gw_pkt *p,
				     __u32 at, __u32 from, __u32 to)
{
	__be32 old = bpf_htonl(from), new = bpf_htonl(to);

	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, p->l4 + offsetof(struct tcphdr, check),
				old, new, 4))
		return -1;
	return bpf_skb_store_bytes(skb, at, &new, 4, 0);
}

static __always_inline int gw_edit16(struct __sk_buff *skb, struct gw_pkt *p,
				     __u32 at, __u16 from, __u16 to)
{
	__be16 old = bpf_htons(from), new = bpf_htons(to);

	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, p->l4 + offsetof(struct tcphdr, check),
				old, new, 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &new, 2, 0);
}

static __noinline int gw_set_seq(struct __sk_buff *skb, struct gw_pkt *p,
				 __u32 seq)
{
	int err = gw_edit32(skb, p, p->l4 + offsetof(struct tcphdr, seq),
			    p->seq, seq);

	p->seq = seq;
	return err;
}

static __noinline int gw_set_ack(struct __sk_buff *skb, struct gw_pkt *p,
				 __u32 ack)
{
	int err = gw_edit32(skb, p, p->l4 + offsetof(struct tcphdr, ack_seq),
			    p->ack, ack);

	p->ack = ack;
	return err;
}

static __noinline int gw_set_wnd(struct __sk_buff *skb, struct gw_pkt *p,
				 __u16 wnd)
{
	int err = gw_edit16(skb, p, p->l4 + offsetof(struct tcphdr, window),
			    p->wnd, wnd);

	p->wnd = wnd;
	return err;
}

static __noinline int gw_set_ts_val(struct __sk_buff *skb, struct gw_pkt *p,
				    __u32 ts_val)
{
	int err;

	if (!p->ts_at)
		return 0;
	err = gw_edit32(skb, p, p->ts_at, p->ts_val, ts_val);
	p->ts_val = ts_val;
	return err;
}

static __noinline int gw_set_ts_ecr(struct __sk_buff *skb, struct gw_pkt *p,
				    __u32 ts_ecr)
{
	int err;

	if (!p->ts_at)
		return 0;
	err = gw_edit32(skb, p, p->ts_at + 4, p->ts_ecr, ts_ecr);
	p->ts_ecr = ts_ecr;
	return err;
}

static __noinline int gw_set_flags(struct __sk_buff *skb, struct gw_pkt *p,
				   __u8 flags)
{
	__u32 at = p->l4 + 12;
	__be16 word;
	__u16 from;

	/* the other byte holds the data offset and, with AccECN, a flag */
	if (bpf_skb_load_bytes(skb, at, &word, sizeof(word)))
		return -1;
	from = bpf_ntohs(word);
	p->flags = flags;
	return gw_edit16(skb, p, at, from, (from & 0xff00) | flags);
}

static __always_inline void gw_set_macs(struct __sk_buff *skb, const __u8 *dst,
					const __u8 *src)
{
	__u8 macs[12];

	__builtin_memcpy(macs, dst, 6);
	__builtin_memcpy(macs + 6, src, 6);
	bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/* A copy of our own MAC: .rodata can't be handed to a helper as it is. */
static __always_inline void gw_self(__u8 *mac)
{
	for (int i = 0; i < 6; i++)
		mac[i] = gw_self_mac[i];
}

/* Window field for `room` bytes, rounded down: KERNEL note in gw_shadow.h. */
static __always_inline __u16 gw_wnd_down(__u32 room, __u8 shift)
{
	__u32 wnd = room >> (shift & 15);

	return wnd > 0xffff ? 0xffff : wnd;
}

#endif /* GW_PACKET_H */
