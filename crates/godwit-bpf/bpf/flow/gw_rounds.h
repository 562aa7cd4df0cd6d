/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Our kernel may answer at once what we say to it in the client's name, and we answer that:
 * rounds within one machine, without a clock, that would take all of it. So an answer that
 * acknowledges nothing new is a round, and of those there are a few for each segment of the
 * client. Beyond them the twin waits for the client, or for its own timer.
 *
 * What acknowledges something new needs no bound: it ends with what the twin has to say.
 * docs/data-path.md lists all that a hook gives to our own kernel.
 */
#ifndef GW_ROUNDS_H
#define GW_ROUNDS_H

#include "flow/gw_flow.h"

#define GW_ROUNDS_MOST 4
/* If the client says nothing there are as many again after 2^26 ns. */
#define GW_ROUNDS_SHIFT 26

/* The client has said something: what comes of it is counted anew. */
static __always_inline void gw_open_rounds(struct gw_flow *f)
{
	f->rounds = 0;
}

/*
 * May a twin be told once more what it knows? A socket speaks on one CPU at a time; one that
 * hears the client meanwhile costs a few rounds more, at most.
 */
static __always_inline bool gw_go_round(struct gw_flow *f, __u64 now)
{
	__u32 at = (__u32)(now >> GW_ROUNDS_SHIFT) << 8, rounds = f->rounds;

	if (rounds >> 8 != at >> 8)
		rounds = at;
	if ((rounds & 0xff) >= GW_ROUNDS_MOST)
		return false;
	f->rounds = rounds + 1;
	return true;
}

#endif /* GW_ROUNDS_H */
