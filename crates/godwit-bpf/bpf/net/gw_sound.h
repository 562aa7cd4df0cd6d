/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Is a segment one that TCP takes, as far as its checksum tells (RFC 9293
 * section 3.1)? The hooks see a segment before TCP does. What TCP drops must
 * change nothing here: no books, no log, no flow, and nothing of it goes to
 * another server.
 *
 * For nearly every segment a bit of the packet tells: the device or the kernel
 * (GRO) has verified the sum, or the segment never was on a wire. What is left
 * are devices that verify nothing, and segments with a wrong sum.
 */
#ifndef GW_SOUND_H
#define GW_SOUND_H

#include "net/gw_craft.h"

#define GW_SUM_CHUNK 512
/* A segment that nothing has verified was not merged: 64 KiB at most. */
#define GW_SUM_CHUNKS (65536 / GW_SUM_CHUNK + 1)

struct gw_sum_room {
	__u8 bytes[GW_SUM_CHUNK];
};

/* Belongs to softirqs, as gw_scratch does. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_sum_room);
} gw_sum_scratch SEC(".maps");

struct gw_sum {
	struct __sk_buff *skb;
	struct gw_sum_room *room;
	__u32 at; /* in the packet */
	__u32 left;
	__u64 sum;
};

/* Adds up to a chunk; 1 ends the loop. */
static long gw_sum_step(__u32 n, struct gw_sum *s)
{
	struct gw_sum_room *room = s->room;
	__u32 len = s->left;

	if (!len)
		return 1;
	if (len < GW_SUM_CHUNK)
		__builtin_memset(room, 0, sizeof(*room));
	else
		len = GW_SUM_CHUNK;
	/* clang-14 keeps another register than the one it has compared */
	asm volatile("" : "+r"(len));
	if (!len || len > GW_SUM_CHUNK ||
	    bpf_skb_load_bytes(s->skb, s->at, room, len))
		return 1;
	/* a chunk has an even length, so sums of chunks add up */
	s->sum = bpf_csum_diff(NULL, 0, (__be32 *)room, sizeof(*room), s->sum);
	s->at += len;
	s->left -= len;
	return 0;
}

/* The sum of the pseudo header; ::ffff:a.b.c.d sums to what a.b.c.d does. */
static __always_inline __u64 gw_pseudo_sum(const struct gw_pkt *p, __u32 len)
{
	struct gw_endpoint src = p->src, dst = p->dst;
	__u64 sum = bpf_htons(len) + bpf_htons(IPPROTO_TCP);

	sum = bpf_csum_diff(NULL, 0, (__be32 *)src.addr, 16, sum);
	return bpf_csum_diff(NULL, 0, (__be32 *)dst.addr, 16, sum);
}

/* Sums the segment up, as the kernel will do once more: 1 if it is right. */
static __noinline int gw_sum_segment(struct __sk_buff *skb,
				     const struct gw_pkt *p)
{
	__u32 zero = 0, len = p->hdr_len + p->len;
	struct gw_sum s = { .skb = skb, .at = p->l4, .left = len };

	s.room = bpf_map_lookup_elem(&gw_sum_scratch, &zero);
	if (!s.room)
		return 0;
	s.sum = gw_pseudo_sum(p, len);
	bpf_loop(GW_SUM_CHUNKS, gw_sum_step, &s, 0);
	return !s.left && gw_fold(s.sum) == 0xffff;
}

/*
 * The device has summed up all behind the link header (CHECKSUM_COMPLETE). An
 * IPv4 header adds nothing to that: its own checksum sees to it.
 */
static __always_inline bool gw_is_complete_sum(struct __sk_buff *skb,
					       const struct gw_pkt *p,
					       __u32 device_sum)
{
	__u64 sum = gw_pseudo_sum(p, p->hdr_len + p->len);
	struct ipv6hdr ip6;

	if (skb->len != p->l4 + p->hdr_len + p->len)
		return false;
	sum += device_sum;
	if (p->v6) {
		if (bpf_skb_load_bytes(skb, GW_L3, &ip6, sizeof(ip6)))
			return false;
		sum += (__u32)~bpf_csum_diff(NULL, 0, (__be32 *)&ip6,
					     sizeof(ip6), 0);
	}
	return gw_fold(sum) == 0xffff;
}

/*
 * 1: TCP will not refuse it for its checksum. Verified once: as a global
 * function, not with each of its callers.
 */
__noinline int gw_is_sound(struct __sk_buff *skb, const struct gw_pkt *p)
{
	struct sk_buff *kernel_skb;
	__u32 summed;

	if (!p)
		return 0;
	kernel_skb = bpf_cast_to_kern_ctx(skb);
	summed = BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed);
	if (summed == GW_CHECKSUM_PARTIAL || summed == GW_CHECKSUM_UNNECESSARY)
		return 1;
	if (summed == GW_CHECKSUM_COMPLETE &&
	    gw_is_complete_sum(skb, p, kernel_skb->csum))
		return 1;
	return gw_sum_segment(skb, p);
}

#endif /* GW_SOUND_H */
