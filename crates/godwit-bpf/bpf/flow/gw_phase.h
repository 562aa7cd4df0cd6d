/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The phases of a flow, and how one follows another. This is the only place that
 * writes a phase; docs/flow.md says when, and a test compares the two.
 *
 * Two CPUs may change a phase at once: the last one wins, as with all words of a flow. So
 * who depends on a flag that the other one clears asks for it again behind the change
 * (gw_confirm), or changes the phase before and after (GW_ORDER_UNGATE). That a flow has
 * ended its flag GW_FLOW_OVER tells, whatever the phase.
 */
#ifndef GW_PHASE_H
#define GW_PHASE_H

#include "base/gw_kernel.h"
#include "base/gw.h"
#include "base/gw_reason.h"

#define GW_AT(phase) (1u << GW_PHASE_##phase)

/* The phases from which a flow may come to one. */
static __always_inline __u32 gw_phases_before(__u32 phase)
{
	switch (phase) {
	case GW_PHASE_CONFIRMING:
		return GW_AT(NEW) | GW_AT(PROTECTED);
	case GW_PHASE_PROTECTED:
		return GW_AT(CONFIRMING) | GW_AT(PROTECTED) |
		       GW_AT(UNPROTECTED) | GW_AT(TWIN) | GW_AT(REJOINING);
	case GW_PHASE_UNPROTECTED:
		return GW_AT(NEW) | GW_AT(CONFIRMING) | GW_AT(PROTECTED) |
		       GW_AT(UNPROTECTED) | GW_AT(TWIN) | GW_AT(REJOINING);
	case GW_PHASE_REJOINING:
		return GW_AT(CONFIRMING) | GW_AT(PROTECTED) |
		       GW_AT(UNPROTECTED) | GW_AT(TWIN) | GW_AT(REJOINING);
	case GW_PHASE_TWIN:
		return GW_AT(NEW) | GW_AT(CONFIRMING) | GW_AT(PROTECTED) |
		       GW_AT(UNPROTECTED) | GW_AT(TWIN) | GW_AT(CLOSED) |
		       GW_AT(REJOINING);
	case GW_PHASE_CLOSED:
		return GW_AT(TWIN);
	case GW_PHASE_ENDED:
		return GW_AT(CONFIRMING) | GW_AT(PROTECTED) |
		       GW_AT(UNPROTECTED) | GW_AT(TWIN) | GW_AT(CLOSED) |
		       GW_AT(REJOINING);
	default:
		return 0;
	}
}

/*
 * 1: it was changed. Else the phase is what it was, and that is counted. A global function:
 * verified once, and not at each change.
 */
__noinline int gw_enter(__u8 *at, __u32 phase)
{
	if (!at)
		return 0;
	if (!(gw_phases_before(phase) & (1u << (*at & 31)))) {
		gw_count(GW_REASON_PHASE_REFUSED);
		return 0;
	}
	*at = phase;
	return 1;
}

/* Brings a flow to a phase, if it may come there from where it is. */
static __always_inline void gw_flow_enter(struct gw_flow *f,
					  enum gw_phase phase)
{
	gw_enter(&f->phase, phase);
}

#endif /* GW_PHASE_H */
