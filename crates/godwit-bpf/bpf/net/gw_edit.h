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
