/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Keys, and what a tag is made of: SipHash-2-4 (Aumasson and Bernstein, 2012) of some words,
 * with a key of 128 bits. The same at servers and directors (docs/data-path.md, "Tags").
 *
 * A key is made by who is to believe what is tagged with it, and told to the one that is to tag
 * with it; so what one says can't be sent back to it as another's word.
 */
#ifndef GW_KEY_H
#define GW_KEY_H

#include "base/gw_kernel.h"
#include "base/gw_mutant.h"
#include "base/gw.h"
#include "base/gw_reason.h"

#define GW_MAX_TRUSTED 256
/* The longest that is tagged as whole words, without the kind: a LEARN. */
#define GW_TAG_WORDS 9

enum gw_trust_flags {
	GW_TRUST_OUT = 1 << 0, /* what it is sent has a tag, with `out` */
	GW_TRUST_IN = 1 << 1, /* it was told the first key that is believed */
	GW_TRUST_BEFORE = 1 << 2, /* and the second one, earlier */
	/* it has said that it tags slips and segments: what has no tag is none of its */
	GW_TRUST_DEMANDED = 1 << 3,
	/* notes, probes and canaries for it have tags, too, with `out` */
	GW_TRUST_ALL = 1 << 4,
	GW_TRUST_ALL_DEMANDED = 1 << 5, /* and it has said that its have */
	/* for the next agent: it may not have heard of the first key */
	GW_TRUST_PENDING = 1 << 6,
};

/*
 * What a tag of whole words says first. A segment or a slip (gw_tag.h) says no kind: that it is
 * over ends with seven bytes, so its length is never one of these.
 */
enum gw_tag_kind {
	GW_TAG_LOAD = 6,
	GW_TAG_PROBE = 8,
	GW_TAG_LEARN = 10,
	GW_TAG_QUESTION = 12,
	GW_TAG_UNKNOWN = 14, /* the answer to one */
};

/* The latest one, and the one before. */
#define GW_TRUST_KEYS 2

struct gw_mate_mac {
	__u8 mac[6];
	__u16 pad;
};

/* Of another server or a director; the agent writes it whole. */
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

/*
 * The latest order of what came with a key, by the first half of the key: a note is not heard
 * again. Who counts begins anew with his machine, and has another key then.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} gw_orders SEC(".maps");

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
 * The same of what is in one piece, in one load. It need not be aligned: the processors that
 * Godwit is built for read a word from anywhere.
 */
static __always_inline __u64 gw_wire_word(const __be32 *at)
{
	typedef __u64 __attribute__((may_alias)) gw_word;

	return bpf_be64_to_cpu(*(const gw_word *)at);
}

/*
 * The tag of `count` words of eight bytes, as they are sent, behind the kind. SipHash ends with
 * the length of all, here a multiple of eight.
 */
static __noinline __u64 gw_words_tag(enum gw_tag_kind kind, const __be32 *raw,
				     __u32 count, const __u64 *key)
{
	struct gw_sip s;

	gw_sip_begin(&s, key);
	gw_sip_word(&s, kind);
	for (__u32 i = 0; i < GW_TAG_WORDS && i < count; i++)
		gw_sip_word(&s, gw_tag_word(raw[2 * i], raw[2 * i + 1]));
	gw_sip_word(&s, (__u64)(count + 1) << 59);
	return gw_sip_end(&s);
}

/* Is something of the server whose address it has? */
enum gw_belief {
	GW_BELIEF_STAY = -1, /* its tag is right, but of another stay */
	GW_BELIEF_NONE = -2, /* it has none, and need not */
	GW_BELIEF_PROVED = 0,
};

/* How much later than the latest one an earlier note may come: two CPUs have sent them. */
#define GW_ORDER_SLACK (1 << 20)

/*
 * Is it later than what came with that key? Two CPUs may write at once, and then the earlier
 * of two orders stays, by less than the slack.
 */
static __always_inline bool gw_is_next(__u64 key, __u64 order)
{
	__u64 *last = bpf_map_lookup_elem(&gw_orders, &key);

	if (!last) {
		bpf_map_update_elem(&gw_orders, &key, &order, BPF_NOEXIST);
		return true;
	}
	if (order + GW_ORDER_SLACK <= *last)
		return false;
	if (order > *last)
		*last = order;
	return true;
}

/* A claim that some words are a server's or a director's. */
struct gw_claim {
	const __be32 *raw; /* the words, as they are sent */
	__u64 tag;
	__u64 order; /* 0: it has none */
	__u32 count; /* of words */
	enum gw_tag_kind kind;
};

/* Is it of him whose key that is? GW_BELIEF_PROVED, GW_BELIEF_NONE, or the reason why not. */
static __always_inline int gw_believe_words(const struct gw_trust *k,
					    const struct gw_claim *c)
{
	if (GW_MUTANT == GW_MUTANT_NO_PROOF)
		return GW_BELIEF_PROVED;
	if (!k || !(k->flags & GW_TRUST_IN))
		return GW_BELIEF_NONE;
	for (int i = 0; i < GW_TRUST_KEYS && gw_has_key(k, i); i++) {
		if (gw_words_tag(c->kind, c->raw, c->count, k->believed[i]) !=
		    c->tag)
			continue;
		if (c->order && !gw_is_next(k->believed[i][0], c->order))
			return GW_REASON_NOTE_REPLAYED;
		return GW_BELIEF_PROVED;
	}
	return k->flags & GW_TRUST_ALL_DEMANDED ? GW_REASON_TAG_WRONG :
						  GW_BELIEF_NONE;
}

/* The same of what has no tag: is it to be believed without? */
static __always_inline int gw_believe_bare(const struct gw_trust *k)
{
	const __u32 both = GW_TRUST_IN | GW_TRUST_ALL_DEMANDED;

	return k && (k->flags & both) == both ? GW_REASON_TAG_MISSING :
						GW_BELIEF_NONE;
}

/* With what notes, probes and canaries for it are tagged; NULL: they are not. */
static __always_inline const __u64 *gw_key_for(const struct gw_trust *k)
{
	const __u32 all = GW_TRUST_OUT | GW_TRUST_ALL;

	return k && (k->flags & all) == all ? k->out : NULL;
}

#endif /* GW_KEY_H */
