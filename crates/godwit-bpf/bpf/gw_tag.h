/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Proof that a frame is of the server whose address it has. Whoever is on the link can send
 * frames with a server's MAC address; a tag can be made only by who was told the key, over the
 * agents' authenticated link (docs/data-path.md, "Tags").
 *
 * A key is made by who is to believe what is tagged with it, and told to the one server that
 * is to tag with it; so what a server says can't be sent back to it as another's word. The tag
 * is SipHash-2-4 (Aumasson and Bernstein, 2012) with a key of 128 bits:
 *
 *   slip     8 bytes behind it (gw_slip.h), over it, the addresses and the segment's numbers
 *   segment  of twin or owner: 4 bytes, where the urgent pointer is and in the IPv4
 *            identification or the last 16 bits of the IPv6 flow label, which nobody needs
 *            between two servers on a link. Nothing gets longer by it. The urgent pointer's
 *            place has the stay's number (gw_stay.h), and half of the tag added to that
 */
#ifndef GW_TAG_H
#define GW_TAG_H

#include "gw_edit.h"

#define GW_MAX_TRUSTED 256
/* The longest that is tagged: a slip and what goes with it, of IPv6. */
#define GW_TAG_WORDS 14

enum gw_trust_flags {
	GW_TRUST_OUT = 1 << 0, /* what it is sent has a tag, with `out` */
	GW_TRUST_IN = 1 << 1, /* it was told the first key that is believed */
	GW_TRUST_BEFORE = 1 << 2, /* and the second one, earlier */
	/* it has said that it tags all: what has no tag is none of its */
	GW_TRUST_DEMANDED = 1 << 3,
};

/* The latest one, and the one before. */
#define GW_TRUST_KEYS 2

struct gw_mate_mac {
	__u8 mac[6];
	__u16 pad;
};

/* Of another server; the agent writes it whole. */
struct gw_trust {
	__u64 out[2];
	__u64 believed[GW_TRUST_KEYS][2];
	__u32 node; /* the number of its name */
	__u32 flags; /* enum gw_trust_flags */
};

_Static_assert(sizeof(struct gw_trust) == 56, "shared with Rust, pinned");

const enum gw_trust_flags *gw_export_trust_flags __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_TRUSTED);
	__type(key, struct gw_mate_mac);
	__type(value, struct gw_trust);
} gw_trusts SEC(".maps");

/* What a tag is made of. */
struct gw_tagged {
	__u64 words[GW_TAG_WORDS];
};

/* Too big for what stack there is. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_tagged);
} gw_tag_scratch SEC(".maps");

static __always_inline const struct gw_trust *gw_trust_of(const __u8 *mac)
{
	struct gw_mate_mac key = {};

	__builtin_memcpy(key.mac, mac, 6);
	return bpf_map_lookup_elem(&gw_trusts, &key);
}

static __always_inline bool gw_has_key(const struct gw_trust *k, int at)
{
	return k->flags & (at ? GW_TRUST_BEFORE : GW_TRUST_IN);
}

struct gw_sip {
	__u64 a, b, c, d;
};

static __always_inline __u64 gw_rotated(__u64 word, __u32 by)
{
	return word << by | word >> (64 - by);
}

static __always_inline void gw_sip_round(struct gw_sip *s)
{
	s->a += s->b;
	s->b = gw_rotated(s->b, 13) ^ s->a;
	s->a = gw_rotated(s->a, 32);
	s->c += s->d;
	s->d = gw_rotated(s->d, 16) ^ s->c;
	s->a += s->d;
	s->d = gw_rotated(s->d, 21) ^ s->a;
	s->c += s->b;
	s->b = gw_rotated(s->b, 17) ^ s->c;
	s->c = gw_rotated(s->c, 32);
}

static __always_inline void gw_sip_word(struct gw_sip *s, __u64 word)
{
	s->d ^= word;
	gw_sip_round(s);
	gw_sip_round(s);
	s->a ^= word;
}

/* SipHash-2-4 of `count` words. A global function: it is verified once. */
__noinline __u64 gw_siphash(const struct gw_tagged *t, __u32 count, __u64 k0,
			    __u64 k1)
{
	struct gw_sip s = {
		.a = k0 ^ 0x736f6d6570736575ull,
		.b = k1 ^ 0x646f72616e646f6dull,
		.c = k0 ^ 0x6c7967656e657261ull,
		.d = k1 ^ 0x7465646279746573ull,
	};

	if (!t)
		return 0;
	for (__u32 i = 0; i < GW_TAG_WORDS && i < count; i++)
		gw_sip_word(&s, t->words[i]);
	gw_sip_word(&s, (__u64)count << 59);
	s.c ^= 0xff;
	for (int i = 0; i < 4; i++)
		gw_sip_round(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}

static __always_inline __u64 gw_tag_word(__be32 high, __be32 low)
{
	return (__u64)bpf_ntohl(high) << 32 | bpf_ntohl(low);
}

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

/* Without the family's bit. */
#define GW_TAG_SLIP 2
#define GW_TAG_SEGMENT 4

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
 * A segment in a service's name, to the server with the address `dmac`, is about to leave: it
 * gets its tag, if that one has told a key. 0 or -1.
 */
__noinline int gw_put_tag(struct __sk_buff *skb, struct gw_pkt *p)
{
	__u32 zero = 0, count;
	struct gw_tagged *t = bpf_map_lookup_elem(&gw_tag_scratch, &zero);
	const struct gw_trust *k;
	__u16 stay;
	__u64 tag;

	if (!p || !t)
		return -1;
	k = gw_trust_of(p->dmac);
	if (!k || !(k->flags & GW_TRUST_OUT) || !gw_is_tagged(p))
		return 0;
	if (gw_load_urgent(skb, p, &stay))
		return -1;
	count = gw_tag_segment(t, p);
	tag = gw_siphash(t, count, k->out[0], k->out[1]);
	if (gw_store_urgent(skb, p, stay ^ (__u16)tag))
		return -1;
	return gw_set_half(skb, p, tag >> 16);
}

/* Of a segment's tag. */
enum gw_belief {
	GW_BELIEF_STAY = -1, /* it is right, but of another stay */
	GW_BELIEF_NONE = -2, /* it has none, and need not */
	GW_BELIEF_PROVED = 0,
};

/*
 * Is a segment in a service's name of the server whose address it has? Says enum gw_belief, or
 * the reason why not.
 */
__noinline int gw_believe(struct __sk_buff *skb, const struct gw_pkt *p,
			  __u32 stay)
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
	if (!(k->flags & GW_TRUST_DEMANDED))
		return GW_BELIEF_NONE;
	return !urgent || urgent == stay ? GW_REASON_TAG_MISSING :
					   GW_REASON_TAG_WRONG;
}

#endif /* GW_TAG_H */
