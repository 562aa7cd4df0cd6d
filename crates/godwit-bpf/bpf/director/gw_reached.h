/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A back-end's answer whether notes arrive (gw_reach.h), at the director: it counts if its tag is
 * the back-end's, and if its number is that of the agent's last question.
 */
#ifndef GW_REACHED_H
#define GW_REACHED_H

#include "net/gw_note.h"
#include "request/gw_probe.h"

/* Is the note such an answer? */
static __always_inline bool gw_is_reached(const struct ethhdr *eth,
					  const void *end)
{
	const __u8 *kind = (const void *)(eth + 1);

	return (const void *)(kind + 1) <= end && *kind == GW_NOTE_ANSWER;
}

/* REACH_HEARD, or why not. */
static __noinline int gw_hear_reached(const struct ethhdr *eth, const void *end)
{
	const struct gw_tagged_probe *said = (const void *)(eth + 1);
	struct gw_mate_mac from = {};
	struct gw_tagged_probe p;
	int belief;

	if ((const void *)(said + 1) > end)
		return GW_REASON_LEARN_REFUSED;
	p = *said;
	__builtin_memcpy(from.mac, eth->h_source, 6);
	belief = gw_check_probe(&p, &from);
	if (belief > 0)
		return belief;
	/* only who has told a key is asked */
	if (belief != GW_BELIEF_PROVED ||
	    !gw_is_last_answer(&from, bpf_ntohl(p.probe.number)))
		return GW_REASON_REACH_STALE;
	return GW_REASON_REACH_HEARD;
}

#endif /* GW_REACHED_H */
