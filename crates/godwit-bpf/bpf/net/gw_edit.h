/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Changes to single fields of a parsed segment, its checksum kept right. Each
 * keeps what gw_pkt says of the packet true, and returns 0 or a negative error.
 */
#ifndef GW_EDIT_H
#define GW_EDIT_H

#include "net/gw_packet.h"

/*
 * bpf_l4_csum_replace without a pseudo-header flag does the right
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

/* What is in front of a segment's options. */
struct gw_head4 {
	struct iphdr ip;
	struct tcphdr tcp;
};

struct gw_head6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
};

/* The fields that gw_rewrite() writes, and the sum. RFC 1624 section 3. */
static __always_inline void gw_rewrite_tcp(struct tcphdr *tcp,
					   const struct gw_pkt *p, bool partial)
{
	__u64 sum = (__u16)~tcp->check;
	__u32 was[5], now[5];

	__builtin_memcpy(was, tcp, sizeof(was));
	tcp->seq = bpf_htonl(p->seq);
	tcp->ack_seq = bpf_htonl(p->ack);
	((__u8 *)tcp)[13] = p->flags;
	tcp->window = bpf_htons(p->wnd);
	tcp->urg_ptr = bpf_htons(p->urgent);
	if (partial)
		return;
	__builtin_memcpy(now, tcp, sizeof(now));
	for (int i = 0; i < 5; i++)
		sum += (__u64)(__u32)~was[i] + now[i];
	tcp->check = ~gw_fold(sum);
}

/*
 * The segment gets the numbers, flags, window, urgent pointer and spare bits that `p` has, all in
 * one read and one write: each field for itself takes two calls of the kernel, and with four
 * fields that is most of what a segment takes here. 0 or -1.
 */
__noinline int gw_rewrite(struct __sk_buff *skb, const struct gw_pkt *p)
{
	bool partial = gw_csum_partial(skb);
	struct gw_head6 h6;
	struct gw_head4 h4;

	if (!p)
		return -1;
	if (p->v6) {
		if (bpf_skb_load_bytes(skb, GW_L3, &h6, sizeof(h6)))
			return -1;
		h6.ip.flow_lbl[1] = p->spare >> 8;
		h6.ip.flow_lbl[2] = p->spare;
		gw_rewrite_tcp(&h6.tcp, p, partial);
		/* the header has no sum of its own, so a device's may change */
		return bpf_skb_store_bytes(skb, GW_L3, &h6, sizeof(h6),
					   BPF_F_RECOMPUTE_CSUM);
	}
	if (bpf_skb_load_bytes(skb, GW_L3, &h4, sizeof(h4)))
		return -1;
	h4.ip.check = ~gw_fold((__u64)(__u16)~h4.ip.check + (__u16)~h4.ip.id +
			       bpf_htons(p->spare));
	h4.ip.id = bpf_htons(p->spare);
	gw_rewrite_tcp(&h4.tcp, p, partial);
	return bpf_skb_store_bytes(skb, GW_L3, &h4, sizeof(h4), 0);
}

static __always_inline void gw_set_macs(struct __sk_buff *skb, const __u8 *dst,
					const __u8 *src)
{
	__u8 macs[12];

	__builtin_memcpy(macs, dst, 6);
	__builtin_memcpy(macs + 6, src, 6);
	bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/* A copy of our own MAC, which may change at any time. */
static __always_inline void gw_self(__u8 *mac)
{
	__u64 word = gw_self_mac;

	__builtin_memcpy(mac, &word, 6);
}

/*
 * From here on the frame is ours, to the station with that MAC: with the client's as its
 * source a switch would learn that the client is behind us. The gate lets it out as it is.
 */
static __always_inline void gw_address_to(struct __sk_buff *skb,
					  const __u8 *mac)
{
	__u8 self[6];

	gw_self(self);
	gw_set_macs(skb, mac, self);
	skb->mark = GW_MARK_SPOKEN;
}

/* Sends the frame to that station in our name, and counts why. */
static __always_inline int gw_send_to(struct __sk_buff *skb, const __u8 *mac,
				      __u32 reason)
{
	gw_address_to(skb, mac);
	gw_count(reason);
	return bpf_redirect(skb->ifindex, 0);
}

#endif /* GW_EDIT_H */
