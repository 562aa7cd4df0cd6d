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

static __always_inline void gw_sip_begin(struct gw_sip *s, const __u64 *key)
{
	s->a = key[0] ^ 0x736f6d6570736575ull;
	s->b = key[1] ^ 0x646f72616e646f6dull;
	s->c = key[0] ^ 0x6c7967656e657261ull;
	s->d = key[1] ^ 0x7465646279746573ull;
}

static __always_inline __u64 gw_sip_end(struct gw_sip *s)
{
	s->c ^= 0xff;
	for (int i = 0; i < 4; i++)
		gw_sip_round(s);
	return s->a ^ s->b ^ s->c ^ s->d;
}

static __always_inline __u64 gw_tag_word(__be32 high, __be32 low)
{
	return (__u64)bpf_ntohl(high) << 32 | bpf_ntohl(low);
}

/*
 * The segment that is tagged, behind `before` words of what goes with it. It ends with seven
 * bytes and, as SipHash has it, the length of all in the eighth: no two kinds and families have
 * the same, so they can't be taken for each other.
 */
static __always_inline void gw_sip_segment(struct gw_sip *s,
					   const struct gw_pkt *p, __u8 before)
{
	__u8 words = before + (p->v6 ? 5 : 2);

	gw_sip_word(s, (__u64)p->seq << 32 | p->ack);
	if (p->v6) {
		gw_sip_word(s, gw_tag_word(p->src.addr[0], p->src.addr[1]));
		gw_sip_word(s, gw_tag_word(p->src.addr[2], p->src.addr[3]));
		gw_sip_word(s, gw_tag_word(p->dst.addr[0], p->dst.addr[1]));
		gw_sip_word(s, gw_tag_word(p->dst.addr[2], p->dst.addr[3]));
	} else {
		gw_sip_word(s, gw_tag_word(p->src.addr[3], p->dst.addr[3]));
	}
	gw_sip_word(s, (__u64)(words * 8 + 7) << 56 | (__u64)p->flags << 48 |
			       (__u64)p->wnd << 32 |
			       (__u64)bpf_ntohs(p->src.port) << 16 |
			       bpf_ntohs(p->dst.port));
}

/* The tag of a segment without payload. */
static __noinline __u64 gw_segment_tag(const struct gw_pkt *p, const __u64 *key)
{
	struct gw_sip s;

	gw_sip_begin(&s, key);
	gw_sip_word(&s, (__u64)p->ts_val << 32 | p->ts_ecr);
	gw_sip_segment(&s, p, 1);
	return gw_sip_end(&s);
}

static __always_inline int gw_set_urgent(struct __sk_buff *skb,
					 struct gw_pkt *p, __u16 urgent)
{
	__u16 was = p->urgent;

	p->urgent = urgent;
	return gw_edit16(skb, p, p->l4 + offsetof(struct tcphdr, urg_ptr), was,
			 urgent);
}

/*
 * Writes where the other half of a tag is. With IPv4 the header's sum goes with it, so that of
 * the whole frame, which a device may have told, stays right.
 */
static __always_inline int gw_set_spare(struct __sk_buff *skb, struct gw_pkt *p,
					__u16 spare)
{
	__be16 words[4], now = bpf_htons(spare);
	__u32 sum;

	if (p->spare == spare)
		return 0;
	p->spare = spare;
	/* the header of IPv6 has no sum of its own, so a device's may change */
	if (p->v6)
		return bpf_skb_store_bytes(skb, GW_L3 + 2, &now, sizeof(now),
					   BPF_F_RECOMPUTE_CSUM);
	if (bpf_skb_load_bytes(skb, GW_L3 + 4, words, sizeof(words)))
		return -1;
	/* RFC 1624 section 3 */
	sum = (__u16)~words[3] + (__u16)~words[0] + now;
	sum = (sum & 0xffff) + (sum >> 16);
	words[3] = ~(sum + (sum >> 16));
	words[0] = now;
	return bpf_skb_store_bytes(skb, GW_L3 + 4, words, sizeof(words), 0);
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
	const struct gw_trust *k;
	__u64 tag;

	if (!p)
		return -1;
	k = gw_trust_of(p->dmac);
	if (!k || !(k->flags & GW_TRUST_OUT) || !gw_is_tagged(p))
		return 0;
	tag = gw_segment_tag(p, k->out);
	return gw_set_urgent(skb, p, p->urgent ^ (__u16)tag) ||
			       gw_set_spare(skb, p, tag >> 16) ?
		       -1 :
		       0;
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
__noinline int gw_believe(const struct gw_pkt *p, __u32 stay)
{
	const struct gw_trust *k;
	__u64 tag;

	if (!p)
		return GW_REASON_TAG_WRONG;
	k = gw_trust_of(p->smac);
	if (!k || !(k->flags & GW_TRUST_IN) || !gw_is_tagged(p))
		return GW_BELIEF_NONE;
	for (int i = 0; i < GW_TRUST_KEYS && gw_has_key(k, i); i++) {
		tag = gw_segment_tag(p, k->believed[i]);
		if ((__u16)(tag >> 16) != p->spare)
			continue;
		return (p->urgent ^ (__u16)tag) == stay ? GW_BELIEF_PROVED :
							  GW_BELIEF_STAY;
	}
	if (!(k->flags & GW_TRUST_DEMANDED))
		return GW_BELIEF_NONE;
	return !p->urgent || p->urgent == stay ? GW_REASON_TAG_MISSING :
						 GW_REASON_TAG_WRONG;
}

#endif /* GW_TAG_H */
