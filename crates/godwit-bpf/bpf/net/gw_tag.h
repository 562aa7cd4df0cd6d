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

#include "net/gw_edit.h"
#include "net/gw_key.h"

/*
 * The segment that is tagged, behind `before` words of what goes with it. It ends with seven
 * bytes and, as SipHash has it, the length of all in the eighth: 31 and 55 bytes of a segment of
 * IPv4 and IPv6, 79 and 103 of a slip. Whole words (gw_key.h) are a multiple of eight. So no kinds
 * and families can be taken for each other.
 */
static __always_inline void gw_sip_segment(struct gw_sip *s,
					   const struct gw_pkt *p, __u8 before)
{
	__u8 words = before + (p->v6 ? 5 : 2);

	gw_sip_word(s, (__u64)p->seq << 32 | p->ack);
	if (p->v6) {
		gw_sip_word(s, gw_wire_word(p->src.addr));
		gw_sip_word(s, gw_wire_word(p->src.addr + 2));
		gw_sip_word(s, gw_wire_word(p->dst.addr));
		gw_sip_word(s, gw_wire_word(p->dst.addr + 2));
	} else {
		gw_sip_word(s, gw_tag_word(p->src.addr[3], p->dst.addr[3]));
	}
	gw_sip_word(s, (__u64)(words * 8 + 7) << 56 | (__u64)p->flags << 48 |
			       (__u64)p->wnd << 32 |
			       (__u64)bpf_ntohs(p->src.port) << 16 |
			       bpf_ntohs(p->dst.port));
}

/* The tag of a segment without payload. */
static __always_inline __u64 gw_segment_tag(const struct gw_pkt *p,
					    const __u64 *key)
{
	struct gw_sip s;

	gw_sip_begin(&s, key);
	gw_sip_word(&s, (__u64)p->ts_val << 32 | p->ts_ecr);
	gw_sip_segment(&s, p, 1);
	return gw_sip_end(&s);
}

/* Has it a tag? Of one with payload a device may make several. */
static __always_inline bool gw_is_tagged(const struct gw_pkt *p)
{
	return !p->len || (p->flags & (GW_TCP_SYN | GW_TCP_RST));
}

/*
 * What `p` says is for that server: it gets its tag, if that one's flags are all of `need` (enum
 * gw_trust_flags). 1: gw_rewrite() is to write it. 0: there is none.
 */
__noinline int gw_prove(struct gw_pkt *p, const struct gw_mate_mac *to,
			__u32 need)
{
	const struct gw_trust *k;
	__u64 tag;

	if (!p || !to)
		return 0;
	k = bpf_map_lookup_elem(&gw_trusts, to);
	if (!k || (k->flags & need) != need || !gw_is_tagged(p))
		return 0;
	tag = gw_segment_tag(p, k->out);
	p->urgent ^= (__u16)tag;
	p->spare = tag >> 16;
	return 1;
}

/* The same of the segment itself, which is about to leave. 0 or -1. */
static __always_inline int gw_put_tag_for(struct __sk_buff *skb,
					  struct gw_pkt *p, const __u8 *mac,
					  __u32 need)
{
	struct gw_mate_mac to = {};

	__builtin_memcpy(to.mac, mac, 6);
	return gw_prove(p, &to, need) ? gw_rewrite(skb, p) : 0;
}

/* A segment in a service's name, to the server with the address `dmac`. */
static __always_inline int gw_put_tag(struct __sk_buff *skb, struct gw_pkt *p)
{
	return gw_put_tag_for(skb, p, p->dmac, GW_TRUST_OUT);
}

/*
 * Is a segment of the server whose address it has? Says enum gw_belief, or the reason why not;
 * without a tag it is, if that one's flags have not `demanded`.
 */
__noinline int gw_believe_if(const struct gw_pkt *p, __u32 stay, __u32 demanded)
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
	if (!(k->flags & demanded))
		return GW_BELIEF_NONE;
	return !p->urgent || p->urgent == stay ? GW_REASON_TAG_MISSING :
						 GW_REASON_TAG_WRONG;
}

/* The same of one in a service's name. */
static __always_inline int gw_believe(const struct gw_pkt *p, __u32 stay)
{
	return gw_believe_if(p, stay, GW_TRUST_DEMANDED);
}

/* A canary, or what is said of one, to the server with that address. */
static __always_inline int gw_put_canary_tag(struct __sk_buff *skb,
					     struct gw_pkt *p, const __u8 *mac)
{
	return gw_put_tag_for(skb, p, mac, GW_TRUST_OUT | GW_TRUST_ALL);
}

/* The same as it comes: 0, or the reason why it is none. */
static __always_inline int gw_check_canary(const struct gw_pkt *p)
{
	int belief = gw_believe_if(p, 0, GW_TRUST_ALL_DEMANDED);

	if (belief == GW_BELIEF_NONE)
		return 0;
	return belief == GW_BELIEF_STAY ? GW_REASON_TAG_WRONG : belief;
}

#endif /* GW_TAG_H */
