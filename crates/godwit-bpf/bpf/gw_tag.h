/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Proof that a frame is of the server whose address it has. Whoever is on the link can send
 * frames with a server's MAC address; a tag can be made only by who was told the key, over the
 * agents' authenticated link (docs/data-path.md, "Tags").
 *
 * Where a tag (gw_key.h) is:
 *
 *   note     8 bytes behind it (gw_note.h), and of a probe behind its number (gw_path.h)
 *   slip     8 bytes behind it (gw_slip.h), over it, the addresses and the segment's numbers
 *   segment  of twin or owner, and canary: 4 bytes, where the urgent pointer is and in the IPv4
 *            identification or the last 16 bits of the IPv6 flow label, which nobody needs
 *            between two servers on a link. Nothing gets longer by it. The urgent pointer's
 *            place has the stay's number (gw_stay.h), and half of the tag added to that
 */
#ifndef GW_TAG_H
#define GW_TAG_H

#include "gw_edit.h"
#include "gw_key.h"

/* Whose segment it is, into words from `at` on; gives how many there are then. */
static __always_inline __u32 gw_tag_ends(struct gw_tagged *t, __u32 at,
					 const struct gw_pkt *p)
{
	if (!p->v6) {
		t->words[at] = gw_tag_word(p->src.addr[3], p->dst.addr[3]);
		return at + 1;
	}
	t->words[at] = gw_tag_word(p->src.addr[0], p->src.addr[1]);
	t->words[at + 1] = gw_tag_word(p->src.addr[2], p->src.addr[3]);
	t->words[at + 2] = gw_tag_word(p->dst.addr[0], p->dst.addr[1]);
	t->words[at + 3] = gw_tag_word(p->dst.addr[2], p->dst.addr[3]);
	return at + 4;
}

/* What begins all that is tagged: no two kinds of it can be taken for each other. */
static __always_inline void gw_tag_numbers(struct gw_tagged *t, __u8 kind,
					   const struct gw_pkt *p)
{
	t->words[0] = (__u64)bpf_ntohs(p->src.port) << 48 |
		      (__u64)bpf_ntohs(p->dst.port) << 32 |
		      (__u64)p->wnd << 16 | (__u64)p->flags << 8 |
		      (kind | !!p->v6);
	t->words[1] = (__u64)p->seq << 32 | p->ack;
}

/* The words of a segment without payload; how many. */
static __always_inline __u32 gw_tag_segment(struct gw_tagged *t,
					    const struct gw_pkt *p)
{
	gw_tag_numbers(t, GW_TAG_SEGMENT, p);
	t->words[2] = (__u64)p->ts_val << 32 | p->ts_ecr;
	return gw_tag_ends(t, 3, p);
}

/* Where the half of a segment's tag is that is in its IP header. */
static __always_inline __u32 gw_tag_place(const struct gw_pkt *p)
{
	return p->v6 ? GW_L3 + 2 : GW_L3 + 4;
}

/* Writes that half; 0 or -1. */
static __always_inline int gw_set_half(struct __sk_buff *skb,
				       const struct gw_pkt *p, __u16 half)
{
	__u32 at = gw_tag_place(p);
	__be16 was, now = bpf_htons(half);

	if (bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return -1;
	if (was == now)
		return 0;
	if (!p->v6 && bpf_l3_csum_replace(skb, GW_L3 + 10, was, now, 2))
		return -1;
	/* the header of IPv6 has no sum of its own, so a device's may change */
	return bpf_skb_store_bytes(skb, at, &now, sizeof(now),
				   p->v6 ? BPF_F_RECOMPUTE_CSUM : 0);
}

static __always_inline int gw_load_urgent(struct __sk_buff *skb,
					  const struct gw_pkt *p, __u16 *urgent)
{
	__be16 raw;

	if (bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcphdr, urg_ptr),
			       &raw, sizeof(raw)))
		return -1;
	*urgent = bpf_ntohs(raw);
	return 0;
}

static __always_inline int gw_store_urgent(struct __sk_buff *skb,
					   struct gw_pkt *p, __u16 urgent)
{
	__u16 was;

	if (gw_load_urgent(skb, p, &was))
		return -1;
	return gw_edit16(skb, p, p->l4 + offsetof(struct tcphdr, urg_ptr), was,
			 urgent);
}

/* Has it a tag? Of one with payload a device may make several. */
static __always_inline bool gw_is_tagged(const struct gw_pkt *p)
{
	return !p->len || (p->flags & (GW_TCP_SYN | GW_TCP_RST));
}

/*
 * A segment for a server is about to leave: it gets its tag, if that one's flags are all of
 * `need` (enum gw_trust_flags). 0 or -1.
 */
__noinline int gw_put_tag_for(struct __sk_buff *skb, struct gw_pkt *p,
			      const struct gw_mate_mac *to, __u32 need)
{
	__u32 zero = 0, count;
	struct gw_tagged *t = bpf_map_lookup_elem(&gw_tag_scratch, &zero);
	const struct gw_trust *k;
	__u16 stay;
	__u64 tag;

	if (!p || !to || !t)
		return -1;
	k = bpf_map_lookup_elem(&gw_trusts, to);
	if (!k || (k->flags & need) != need || !gw_is_tagged(p))
		return 0;
	if (gw_load_urgent(skb, p, &stay))
		return -1;
	count = gw_tag_segment(t, p);
	tag = gw_siphash(t, count, k->out[0], k->out[1]);
	if (gw_store_urgent(skb, p, stay ^ (__u16)tag))
		return -1;
	return gw_set_half(skb, p, tag >> 16);
}

/* A segment in a service's name, to the server with the address `dmac`. */
static __always_inline int gw_put_tag(struct __sk_buff *skb, struct gw_pkt *p)
{
	struct gw_mate_mac to = {};

	__builtin_memcpy(to.mac, p->dmac, 6);
	return gw_put_tag_for(skb, p, &to, GW_TRUST_OUT);
}

/*
 * Is a segment of the server whose address it has? Says enum gw_belief, or the reason why not;
 * without a tag it is, if that one's flags have not `demanded`.
 */
__noinline int gw_believe_if(struct __sk_buff *skb, const struct gw_pkt *p,
			     __u32 stay, __u32 demanded)
{
	__u32 zero = 0, count;
	struct gw_tagged *t = bpf_map_lookup_elem(&gw_tag_scratch, &zero);
	const struct gw_trust *k;
	__u16 urgent, half;
	__be16 raw;
	__u64 tag;

	if (!p || !t)
		return GW_REASON_TAG_WRONG;
	k = gw_trust_of(p->smac);
	if (!k || !(k->flags & GW_TRUST_IN) || !gw_is_tagged(p))
		return GW_BELIEF_NONE;
	if (gw_load_urgent(skb, p, &urgent) ||
	    bpf_skb_load_bytes(skb, gw_tag_place(p), &raw, sizeof(raw)))
		return GW_REASON_TAG_WRONG;
	half = bpf_ntohs(raw);
	count = gw_tag_segment(t, p);
	for (int i = 0; i < GW_TRUST_KEYS && gw_has_key(k, i); i++) {
		tag = gw_siphash(t, count, k->believed[i][0],
				 k->believed[i][1]);
		if ((__u16)(tag >> 16) != half)
			continue;
		return (urgent ^ (__u16)tag) == stay ? GW_BELIEF_PROVED :
						       GW_BELIEF_STAY;
	}
	if (!(k->flags & demanded))
		return GW_BELIEF_NONE;
	return !urgent || urgent == stay ? GW_REASON_TAG_MISSING :
					   GW_REASON_TAG_WRONG;
}

/* The same of one in a service's name. */
static __always_inline int gw_believe(struct __sk_buff *skb,
				      const struct gw_pkt *p, __u32 stay)
{
	return gw_believe_if(skb, p, stay, GW_TRUST_DEMANDED);
}

/* A canary, or what is said of one, to the server with that address. */
static __always_inline int gw_put_canary_tag(struct __sk_buff *skb,
					     struct gw_pkt *p, const __u8 *mac)
{
	struct gw_mate_mac to = {};

	__builtin_memcpy(to.mac, mac, 6);
	return gw_put_tag_for(skb, p, &to, GW_TRUST_OUT | GW_TRUST_ALL);
}

/* The same as it comes: 0, or the reason why it is none. */
static __always_inline int gw_check_canary(struct __sk_buff *skb,
					   const struct gw_pkt *p)
{
	int belief = gw_believe_if(skb, p, 0, GW_TRUST_ALL_DEMANDED);

	if (belief == GW_BELIEF_NONE)
		return 0;
	return belief == GW_BELIEF_STAY ? GW_REASON_TAG_WRONG : belief;
}

#endif /* GW_TAG_H */
