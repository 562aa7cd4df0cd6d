/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * TCP options, RFC 9293 section 3.1. The walk runs for handshakes, for segments
 * with SACK blocks, and for time stamps that are not where Linux puts them.
 * An option that would give the connection state which a twin can't have (TCP
 * Fast Open, MPTCP) is turned into NOPs in the SYN: the server then answers as
 * one that does not know it, and plain TCP follows.
 *
 * Segments that are signed (TCP-MD5, RFC 2385; TCP-AO, RFC 5925) are left as they
 * are, all of them: a changed one is refused at the other end, and a twin would
 * need the key. Such a connection is not protected.
 */
#ifndef GW_OPTIONS_H
#define GW_OPTIONS_H

#include "net/gw_edit.h"

#define GW_OPT_END 0
#define GW_OPT_NOP 1
#define GW_OPT_MSS 2
#define GW_OPT_WSCALE 3
#define GW_OPT_SACK_OK 4
#define GW_OPT_SACK 5
#define GW_OPT_TS 8
#define GW_OPT_MD5 19
#define GW_OPT_AO 29
#define GW_OPT_MPTCP 30
#define GW_OPT_FASTOPEN 34
#define GW_OPT_EXP1 253
#define GW_FASTOPEN_EXID 0xf989 /* RFC 7413 section 4.1.1, old form */

#define GW_OPT_SPACE 40

struct gw_options {
	__u8 bytes[64]; /* options, then zeros: the walk needs no end check */
	__u32 at; /* where the walk stands */
	__u32 len;
	__u32 ts_val;
	__u32 ts_ecr;
	__u16 mss;
	__u8 wscale;
	__u8 flags; /* enum gw_flow_flags */
	__u8 ts_at; /* offset of the value, plus 1 */
	__u8 sack_at; /* offset of the first block, plus 1 */
	__u8 sack_len;
	__u8 blank_at[2]; /* offsets of options to blank, plus 1 */
	__u8 blank_len[2];
	__u8 is_signed; /* with TCP-MD5 or TCP-AO */
};

static __always_inline __u32 gw_opt32(const struct gw_options *o, __u32 at)
{
	return (__u32)o->bytes[at & 63] << 24 |
	       (__u32)o->bytes[(at + 1) & 63] << 16 |
	       (__u32)o->bytes[(at + 2) & 63] << 8 | o->bytes[(at + 3) & 63];
}

static __always_inline void gw_opt_blank(struct gw_options *o, __u32 at,
					 __u8 len)
{
	int slot = o->blank_at[0] ? 1 : 0;

	o->blank_at[slot] = at + 1;
	o->blank_len[slot] = len;
}

/* One option; returns 1 to end the walk. A bad length ends it. */
static long gw_opt_step(__u32 n, struct gw_options **walk)
{
	struct gw_options *o = *walk;
	__u32 at = o->at & 63;
	__u8 kind = o->bytes[at], len;

	if (at >= o->len || at >= GW_OPT_SPACE || kind == GW_OPT_END)
		return 1;
	if (kind == GW_OPT_NOP) {
		o->at = at + 1;
		return 0;
	}
	len = o->bytes[(at + 1) & 63];
	if (len < 2 || at + len > o->len)
		return 1;
	if (kind == GW_OPT_MSS && len == 4) {
		o->mss = gw_opt32(o, at) & 0xffff;
	} else if (kind == GW_OPT_WSCALE && len == 3) {
		__u8 shift = o->bytes[(at + 2) & 63];

		/* RFC 7323 section 2.3: more than 14 counts as 14 */
		o->wscale = shift > 14 ? 14 : shift;
		o->flags |= GW_FLOW_WSCALE;
	} else if (kind == GW_OPT_SACK_OK && len == 2) {
		o->flags |= GW_FLOW_SACK;
	} else if (kind == GW_OPT_TS && len == 10) {
		o->ts_at = at + 3;
		o->ts_val = gw_opt32(o, at + 2);
		o->ts_ecr = gw_opt32(o, at + 6);
		o->flags |= GW_FLOW_TS;
	} else if (kind == GW_OPT_SACK) {
		o->sack_at = at + 3;
		o->sack_len = len - 2;
	} else if (kind == GW_OPT_MD5 || kind == GW_OPT_AO) {
		o->is_signed = 1;
	} else if (kind == GW_OPT_MPTCP || kind == GW_OPT_FASTOPEN ||
		   (kind == GW_OPT_EXP1 && len >= 4 &&
		    gw_opt32(o, at) << 16 >> 16 == GW_FASTOPEN_EXID)) {
		gw_opt_blank(o, at, len);
	}
	o->at = at + len;
	return 0;
}

/* The walk. Verified once: as a global function, not with each of its callers. */
__noinline int gw_read_options(struct gw_options *o)
{
	if (!o)
		return 0;
	bpf_loop(GW_OPT_SPACE, gw_opt_step, &o, 0);
	return 0;
}

/* Walks the options of a parsed segment; none is an error. */
static __noinline int gw_walk_options(struct __sk_buff *skb, struct gw_pkt *p,
				      struct gw_options *o)
{
	__u32 len = p->hdr_len - sizeof(struct tcphdr);

	__builtin_memset(o, 0, sizeof(*o));
	o->mss = 536; /* RFC 9293 section 3.7.1 */
	if (len == 0 || len > GW_OPT_SPACE)
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4 + 20, o->bytes, len))
		return -1;
	o->len = len;
	gw_read_options(o);
	return 0;
}

/* Time stamps in an unusual place: a second look, so that none is missed. */
static __noinline int gw_find_ts(struct __sk_buff *skb, struct gw_pkt *p)
{
	struct gw_options o;

	if (p->ts_at || p->hdr_len < 30)
		return 0;
	if (gw_walk_options(skb, p, &o))
		return -1;
	if (o.ts_at) {
		p->ts_at = p->l4 + 20 + o.ts_at - 1;
		p->ts_val = o.ts_val;
		p->ts_ecr = o.ts_ecr;
	}
	return 0;
}

/* With TCP-MD5 or TCP-AO? What kernels send otherwise is seen at a glance. */
static __noinline bool gw_has_signature(struct __sk_buff *skb, struct gw_pkt *p)
{
	struct gw_options o;

	if (p->hdr_len <= (p->ts_at ? 32 : 20))
		return false;
	return !gw_walk_options(skb, p, &o) && o.is_signed;
}

struct gw_nops {
	struct __sk_buff *skb;
	struct gw_pkt *p;
	__u32 at;
	__u32 end;
};

/* Turns one aligned pair of option bytes into NOPs, as far as it is inside. */
static long gw_nop_step(__u32 n, struct gw_nops *c)
{
	__u32 pair = (c->at & ~1u) + 2 * n;
	__u8 was[2], now[2];

	if (pair >= c->end)
		return 1;
	if (bpf_skb_load_bytes(c->skb, pair, was, 2))
		return 1;
	now[0] = pair >= c->at ? GW_OPT_NOP : was[0];
	now[1] = pair + 1 < c->end ? GW_OPT_NOP : was[1];
	gw_edit16(c->skb, c->p, pair, (__u16)was[0] << 8 | was[1],
		  (__u16)now[0] << 8 | now[1]);
	return 0;
}

/* Overwrites option bytes [at, at + len) of the packet with NOPs. */
static __noinline void gw_blank(struct __sk_buff *skb, struct gw_pkt *p,
				__u32 at, __u32 len)
{
	struct gw_nops c = { .skb = skb, .p = p, .at = at, .end = at + len };

	bpf_loop(GW_OPT_SPACE / 2 + 1, gw_nop_step, &c, 0);
}

#endif /* GW_OPTIONS_H */
