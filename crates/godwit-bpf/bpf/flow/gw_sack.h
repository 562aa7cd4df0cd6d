/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Selective acknowledgements at the gate (RFC 2018): only blocks that the twin
 * holds too may be told to the client, which frees what it believes is safe.
 */
#ifndef GW_SACK_H
#define GW_SACK_H

#include "flow/gw_flow.h"
#include "net/gw_options.h"

static __always_inline bool gw_twin_holds(const struct gw_gated *g, __u32 start,
					  __u32 end)
{
	if (!gw_after(end, g->twin_ack))
		return true;
	for (int i = 0; i < 6; i += 2)
		if (g->sack[i] != g->sack[i + 1] &&
		    !gw_before(start, g->sack[i]) &&
		    !gw_after(end, g->sack[i + 1]))
			return true;
	return false;
}

struct gw_sack_walk {
	const struct gw_gated *g;
	const struct gw_options *o;
	__u32 missing; /* blocks that the twin does not hold */
};

static long gw_sack_step(__u32 n, struct gw_sack_walk *c)
{
	__u32 at = c->o->sack_at - 1 + n * 8;

	if (n * 8 + 8 > c->o->sack_len)
		return 1;
	if (!gw_twin_holds(c->g, gw_opt32(c->o, at), gw_opt32(c->o, at + 4)))
		c->missing++;
	return 0;
}

/* Are there SACK blocks in an own segment that the twin does not hold? */
static __noinline bool gw_sack_ahead(struct gw_flow *f, struct gw_options *o)
{
	struct gw_sack_walk c = { .g = &f->gated, .o = o };

	if (!o->sack_at)
		return false;
	bpf_loop(4, gw_sack_step, &c, 0);
	return c.missing;
}

/* Remembers the blocks of the twin's ACK; none clears them. */
static __always_inline void gw_note_sack(struct gw_flow *f,
					 const struct gw_options *o)
{
	struct gw_gated *g = &f->gated;

	for (int i = 0; i < 3; i++) {
		__u32 at = o->sack_at - 1 + i * 8;
		bool there = o->sack_at && i * 8 + 8 <= o->sack_len;

		g->sack[i * 2] = there ? gw_opt32(o, at) : 0;
		g->sack[i * 2 + 1] = there ? gw_opt32(o, at + 4) : 0;
	}
}

#endif /* GW_SACK_H */
