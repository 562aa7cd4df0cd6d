/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Re-protection, the owner's side (docs/design.md): a standby makes a twin of
 * a flow that runs already. First the tap is opened, then the agents send the
 * log; the twin's first ACK closes the gate, and when the twin has all that the
 * client was told, and has said nearly all that the client has, the agents
 * agree that it may be served. Until then it must not be.
 */
#ifndef GW_REJOIN_H
#define GW_REJOIN_H

#include "owner/gw_leash.h"
#include "flow/gw_turn.h"

/* What an open gate lets out is told, too: the gate may close behind it. */
static __always_inline void gw_note_told(struct gw_flow *f)
{
	__u32 edge = gw_floored(f, f->own.edge);

	gw_advance(&f->gated.told_ack, f->own.ack);
	gw_advance(&f->gated.told_edge, edge);
	/* the new twin's kernel may not offer that yet */
	gw_raise_floor(f, edge);
}

/*
 * The agent wants a twin of this flow in `generation`, which begins to speak at
 * `base_ack`. From here on all that the client says is tapped; what it said
 * before is in the log.
 */
static __always_inline int gw_rejoin(struct gw_flow *f, __u32 generation,
				     __u32 base_ack)
{
	struct gw_share *s = gw_share_at(f->share);

	if (!s || !s->gate || !generation || s->generation != generation ||
	    gw_is_over(f) || !gw_follow(f, s, GW_ROLE_OWNER) ||
	    ((f->flags & GW_FLOW_TWIN) && gw_is_given_up(f)) ||
	    f->log.state != GW_LOG_KEPT ||
	    (gw_is_gated(s, f) && f->phase != GW_PHASE_REJOINING) ||
	    /* the standby may have been asked to serve it */
	    (gw_is_rejoining(s, f) && (f->flags & GW_FLOW_WHOLE)))
		return 1;
	gw_unflag(f, GW_FLOW_GATED | GW_FLOW_WHOLE | GW_FLOW_LEASHED |
			     GW_FLOW_OWED);
	f->gated.held_ns = 0;
	f->gated.leashed_ns = 0;
	f->gated.twin_ack = f->log.base;
	f->gated.twin_edge = f->log.base;
	f->gated.twin_snd_nxt = base_ack;
	f->gated.told_ack = f->own.ack;
	f->gated.told_edge = gw_floored(f, f->own.edge);
	f->gated.kernel_edge = f->client.edge;
	for (int i = 0; i < 6; i++)
		f->gated.sack[i] = 0;
	gw_flow_enter(f, GW_PHASE_REJOINING);
	/* what another CPU lets out now, it notes after this or before that */
	__sync_lock_test_and_set(&f->generation, generation);
	gw_note_told(f);
	return 0;
}

/* The new twin has spoken. The agent may be giving up at the same moment. */
static __always_inline void gw_close_gate(const struct gw_flow_key *key,
					  struct gw_flow *f)
{
	if (__sync_fetch_and_or(&f->flags, GW_FLOW_GATED) & GW_FLOW_GATED)
		return;
	if (*(volatile __u8 *)&f->phase != GW_PHASE_REJOINING) {
		gw_unflag(f, GW_FLOW_GATED);
		return;
	}
	gw_note_told(f);
	f->client.due = f->client.ack;
	gw_tell(key, f, GW_EVENT_REJOINED, 0);
}

/* An ACK of the new twin was booked. */
static __noinline void gw_follow_rejoin(const struct gw_flow_key *key,
					struct gw_flow *f,
					const struct gw_share *s)
{
	gw_close_gate(key, f);
	if ((f->flags & (GW_FLOW_WHOLE | GW_FLOW_GATED)) != GW_FLOW_GATED)
		return;
	if (gw_before(f->gated.twin_ack, f->gated.told_ack) ||
	    gw_is_lagging(f, s, f->client.ack))
		return;
	/* its kernel may have it all, and a server that hangs has said nothing:
	 * it is to come to where the client was when it first spoke; one that
	 * stands at a snapshot says nothing before it is served */
	if (s->log_mode != GW_LOG_MODE_LATEST &&
	    gw_before(f->gated.twin_snd_nxt, f->client.due))
		return;
	if (!(__sync_fetch_and_or(&f->flags, GW_FLOW_WHOLE) & GW_FLOW_WHOLE))
		gw_tell(key, f, GW_EVENT_WHOLE, 0);
}

/* The standby will serve it. */
static __always_inline int gw_protect(struct gw_flow *f)
{
	struct gw_share *s = gw_share_at(f->share);

	if (!s || !gw_is_rejoining(s, f) || !gw_is_gated(s, f) ||
	    !(f->flags & GW_FLOW_WHOLE))
		return 1;
	f->gated.kernel_edge = f->client.edge;
	f->why = GW_WHY_NONE;
	f->rejoined_ns = gw_now();
	gw_flow_enter(f, GW_PHASE_PROTECTED);
	return 0;
}

#endif /* GW_REJOIN_H */
