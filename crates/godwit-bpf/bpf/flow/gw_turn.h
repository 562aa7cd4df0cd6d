/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A flow whose share has changed hands, by a takeover or by a planned move. The
 * share's role is one word that is written once; each flow follows when its
 * next segment comes, or when the agent orders it (GW_ORDER_TURN). The same
 * twice at a time, on two CPUs, is as good as once: gw_flow.part is written
 * last.
 */
#ifndef GW_TURN_H
#define GW_TURN_H

#include "flow/gw_edge.h"
#include "flow/gw_twin.h"

/*
 * How far the time stamp clock of a flow is put ahead at each change of hands,
 * beside what its new owner adds (gw_ts_floor): by as many changes both nodes
 * know, without a word, what the other one's clock can say at most.
 */
#define GW_TS_LEAD_MS 4
/*
 * How much later than the owner's clock was read a new twin may be made of a
 * running flow (gw_install.h), and so how far ahead its clock is put: the owner waits
 * no longer for the answer (godwit-core, rejoin::ANSWER_DEADLINE). A clock that
 * is ahead by that is in order (RFC 7323 section 5.4), one that is behind has
 * the client drop what the new owner says.
 */
#define GW_TS_TRANSIT_MS 500

/* The role of a share and how often it has changed: one word, read at once. */
static __always_inline __u32 gw_part(const struct gw_share *s)
{
	return *(volatile const __u32 *)&s->role;
}

/*
 * Has the kernel closed the twin because its process is gone, and is there no
 * sign that the owner has closed too? That FIN would end the client's stream
 * too early. One that a living process sent is the service's own word: the
 * owner only died before its own. A twin whose process was killed is closed
 * before it can speak (gw_exit.h).
 */
static __always_inline bool gw_is_cut_short(const struct gw_flow *f)
{
	const __u32 ends = GW_FLOW_OWN_FIN | GW_FLOW_EXITED;

	return (f->flags & (ends | GW_FLOW_OWNER_FIN | GW_FLOW_CLIENT_FIN)) ==
		       ends &&
	       gw_before(f->client.ack, f->own.fin);
}

/* Not whole at the takeover: the agent resets it, nobody serves it. */
static __always_inline bool gw_is_given_up(const struct gw_flow *f)
{
	return !(f->flags & GW_FLOW_ADOPTED) &&
	       ((f->flags & GW_FLOW_NOT_IN_SYNC) ||
		f->phase == GW_PHASE_CLOSED || gw_is_cut_short(f));
}

/* The twin must not be served, whatever becomes of it. */
static __always_inline void gw_give_twin_up(struct gw_flow *f)
{
	gw_flag(f, GW_FLOW_NOT_IN_SYNC);
	gw_unflag(f, GW_FLOW_AWAITED);
}

static __always_inline void gw_forget_debts(struct gw_flow *f)
{
	f->gated.held_ns = 0;
	f->gated.leashed_ns = 0;
	f->own.first_ns = 0;
	gw_unflag(f, GW_FLOW_LEASHED | GW_FLOW_OWED | GW_FLOW_TS_MOVED |
			     GW_FLOW_FLIGHT);
}

/*
 * The standby has become the owner of a twin. After a planned move the node
 * that owned it last is its standby: what it holds it has reported, so the
 * gate is shut from the first word on. Otherwise nobody has a twin of it until
 * the agent has one made.
 *
 * Earlier programs left such a flow in GW_PHASE_TWIN. GW_FLOW_ADOPTED tells it from
 * a silent twin, and what an unprotected flow may do it may, too.
 */
static __always_inline void gw_turn_owner(struct gw_flow *f,
					  const struct gw_share *s)
{
	struct gw_gated *g = &f->gated;
	bool kept = f->generation && f->generation == s->generation;

	/* the last owner told no more than this, but for rounding (gw_may_say) */
	g->told_edge =
		kept ? gw_min_seq(f->own.edge, g->twin_edge) : f->own.edge;
	g->told_edge = gw_floored(f, g->told_edge);
	f->ramp = GW_INITIAL_WINDOW * (__u32)f->mss;
	f->tapped.ns = 0;
	if (kept) {
		g->told_ack = gw_min_seq(f->own.ack, g->twin_ack);
		g->kernel_edge = f->client.edge;
		for (int i = 0; i < 6; i++)
			g->sack[i] = 0;
		f->tapped.ack = f->client.ack;
		f->tapped.wnd = f->client.wnd;
		f->why = s->gate ? GW_WHY_NONE : GW_WHY_GATE_OFF;
	} else {
		f->generation = 0;
		f->why = GW_WHY_AFTER_TAKEOVER;
	}
	gw_flow_enter(f, kept && s->gate ? GW_PHASE_PROTECTED :
					   GW_PHASE_UNPROTECTED);
	/* what the last owner has under way need not be sent twice */
	if (kept && gw_after(g->twin_snd_nxt, f->client.ack)) {
		f->flight = g->twin_snd_nxt;
		if (f->flight - f->client.ack > f->ramp)
			f->ramp = f->flight - f->client.ack;
		gw_flag(f, GW_FLOW_FLIGHT);
	}
	if (kept && s->gate)
		gw_flag(f, GW_FLOW_GATED);
	else
		gw_unflag(f, GW_FLOW_GATED);
	gw_flag(f, GW_FLOW_ADOPTED | GW_FLOW_RAMPING);
}

/* Owner: a new twin of the flow has all, and may be served any moment. */
static __always_inline bool gw_is_whole(const struct gw_flow *f)
{
	return f->phase == GW_PHASE_REJOINING && (f->flags & GW_FLOW_WHOLE);
}

/*
 * Owner: may the standby of this generation serve the flow, if it takes over? Of
 * one that is whole it knows first.
 */
static __always_inline bool gw_is_kept(const struct gw_share *s,
				       const struct gw_flow *f)
{
	if (!f->generation || f->generation != s->generation)
		return false;
	return f->phase == GW_PHASE_CONFIRMING || gw_is_whole(f) ||
	       f->phase == GW_PHASE_PROTECTED ||
	       (f->phase == GW_PHASE_UNPROTECTED && f->why == GW_WHY_GATE_OFF);
}

/*
 * The owner has become the standby: its socket is a twin from here on. What it
 * had under way stays unacknowledged in it until the client has it.
 */
static __always_inline void gw_turn_shadow(struct gw_flow *f,
					   const struct gw_share *s)
{
	bool whole = gw_is_whole(f), kept = gw_is_kept(s, f);

	/* its own FIN was the owner's */
	if (f->flags & GW_FLOW_OWN_FIN)
		gw_flag(f, GW_FLOW_OWNER_FIN);
	if (!(f->flags & GW_FLOW_TWIN))
		gw_flag(f, GW_FLOW_NATIVE);
	/* unless it has said so to the client, nobody knows how far ahead it is */
	if (f->rejoined_ns || whole)
		f->client.ts_base += GW_TS_TRANSIT_MS;
	f->own.tried = f->own.snd_nxt;
	f->tapped.ns = 0;
	f->tapped.ack = 0;
	f->why = GW_WHY_NONE;
	gw_flow_enter(f, GW_PHASE_TWIN);
	gw_flag(f, GW_FLOW_TWIN | GW_FLOW_TWIN_SEEN);
	/* the new owner has no twin of it: it can't come back either */
	if (!kept) {
		f->why = GW_WHY_NOT_IN_SYNC;
		gw_give_twin_up(f);
	}
	gw_unflag(f, GW_FLOW_ADOPTED | GW_FLOW_RAMPING | GW_FLOW_GATED);
}

static __noinline int gw_turn(struct gw_flow *f, const struct gw_share *s,
			      __u32 part)
{
	__u16 role = part;

	if (!gw_is_over(f)) {
		f->client.ts_base += GW_TS_LEAD_MS;
		if (role == GW_ROLE_SHADOW) {
			gw_turn_shadow(f, s);
			gw_forget_debts(f);
		} else if (role == GW_ROLE_OWNER && !gw_is_given_up(f)) {
			gw_forget_debts(f);
			gw_turn_owner(f, s);
		}
	}
	*(volatile __u32 *)&f->part = part;
	return 0;
}

/*
 * Brings a flow up to what its share is now. False: that is not the role that
 * the caller plays, for the share has changed hands since the caller looked.
 * Or `s` is not the flow's share: a connection came from one share of this
 * server to the other on another CPU, after this one had chosen a share. A
 * flow that followed the other share would be a twin and an owner's at once.
 */
static __always_inline bool gw_follow(struct gw_flow *f,
				      const struct gw_share *s, __u16 role)
{
	__u32 part = gw_part(s);

	if ((__u16)part != role || gw_share_at(f->share) != s)
		return false;
	if (f->part != part)
		gw_turn(f, s, part);
	return true;
}

#endif /* GW_TURN_H */
