/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which stay of a standby a twin's ACK belongs to. A connection may have one twin
 * after the other, and what the last one had the next may still lack: its ACK,
 * late in a queue, must not count. The number goes where TCP has the urgent
 * pointer, which means nothing without URG (RFC 9293 section 3.1). Within one stay a
 * flow may have several twins, too: those that were given up are mute (gw_suppress.h),
 * and the next one comes a second later.
 */
#ifndef GW_STAY_H
#define GW_STAY_H

#include "net/gw_edit.h"
#include "flow/gw_flow.h"
#include "net/gw_tag.h"

/* Never 0: that is what a node says that does not know of this. */
static __always_inline __u16 gw_stay(const struct gw_flow *f)
{
	return f->generation ? (f->generation - 1) % 0xffff + 1 : 0;
}

/*
 * Is this a word of the twin that the flow has now, and of its server? 0, or the reason why not.
 * Who has told a key says no stay 0, and nobody else can say any (gw_tag.h).
 */
static __noinline int gw_check_stay(const struct gw_pkt *p,
				    const struct gw_flow *f)
{
	int belief = gw_believe(p, gw_stay(f));

	if (belief == GW_BELIEF_STAY)
		return GW_REASON_TWIN_ACK_GENERATION;
	if (belief != GW_BELIEF_NONE)
		return belief;
	if (p->urgent && p->urgent != gw_stay(f))
		return GW_REASON_TWIN_ACK_GENERATION;
	return 0;
}

/* What was the tag of its words means nothing to a client: gw_rewrite() is to clear it. */
static __always_inline void gw_clear_stay(struct gw_pkt *p)
{
	p->urgent = 0;
	p->spare = 0;
}

#endif /* GW_STAY_H */
