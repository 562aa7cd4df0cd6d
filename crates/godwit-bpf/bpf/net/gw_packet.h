/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A TCP segment as the programs see it: parsed once into a value, so that no
 * packet pointer outlives a helper call. Addresses are 16 bytes from then on:
 * IPv4 and IPv6 differ only where a header or a tuple is read or made.
 */
#ifndef GW_PACKET_H
#define GW_PACKET_H

#include "base/gw_maps.h"
#include "base/gw_marks.h"
#include "base/gw_net.h"
#include "base/gw_reason.h"

#define GW_L3 ETH_HLEN

/* NOP NOP TS(10): how Linux and most others lay it out in every segment. */
#define GW_TS_ALIGNED bpf_htonl(0x0101080a)

struct gw_pkt {
	struct gw_endpoint src;
	struct gw_endpoint dst;
	__u32 l4; /* offset of the TCP header */
	__u32 len; /* payload bytes */
	__u32 seq;
	__u32 ack;
	__u32 ts_val;
	__u32 ts_ecr;
	__u16 wnd;
	__u16 urgent; /* what the urgent pointer's place has */
	__u16 spare; /* IPv4 identification; last 16 bits of the flow label */
	__u8 flags;
	__u8 v6;
	__u8 hdr_len; /* of the TCP header, options included */
	__u8 ts_at; /* offset of TSval in the packet; 0: no time stamps */
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

static __always_inline __u16 gw_fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* What our kernel sends: the field has the sum of the pseudo header, a device does the rest. */
static __always_inline bool gw_csum_partial(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed) ==
	       GW_CHECKSUM_PARTIAL;
}

/* Does IP take the header (ip_rcv_core)? Of those without options. */
static __always_inline bool gw_is_ipv4_sound(const struct iphdr *ip)
{
	__u32 words[5];
	__u64 sum = 0;

	__builtin_memcpy(words, ip, sizeof(words));
	for (int i = 0; i < 5; i++)
		sum += words[i];
	return ip->version == 4 && gw_fold(sum) == 0xffff;
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
		p->spare = bpf_ntohs(ip.id);
		if (ip.protocol != IPPROTO_TCP)
			return GW_REASON_NOT_OURS;
		if (ip.frag_off & bpf_htons(0x3fff))
			return GW_REASON_FRAGMENT;
		if (ip.ihl != 5)
			return GW_REASON_IP_OPTIONS;
		if (!gw_is_ipv4_sound(&ip))
			return GW_REASON_BAD_HEADER;
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
	p->spare = ip6.flow_lbl[1] << 8 | ip6.flow_lbl[2];
	p->v6 = 1;
	/* RFC 4291 section 2.5.5.2: never on the wire; here it would be IPv4 */
	if (ip6.version != 6 || gw_is_mapped(p->src.addr) ||
	    gw_is_mapped(p->dst.addr))
		return GW_REASON_BAD_HEADER;
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
	p->urgent = bpf_ntohs(tcp.urg_ptr);
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

/* Window field for `room` bytes, rounded down: gw_twin_wnd() says why. */
static __always_inline __u16 gw_wnd_down(__u32 room, __u8 shift)
{
	__u32 wnd = room >> (shift & 15);

	return wnd > 0xffff ? 0xffff : wnd;
}

#endif /* GW_PACKET_H */
