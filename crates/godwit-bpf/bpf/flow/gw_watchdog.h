/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The timer of a flow: a new flow that no twin has confirmed, a gate or a leash
 * that makes no progress, a FIN that came alone, an entry that may go. The
 * agent learns of each by an event; the data path decides nothing by time.
 */
#ifndef GW_WATCHDOG_H
#define GW_WATCHDOG_H

#include "request/gw_transfer.h"
#include "flow/gw_turn.h"

/* Longest time without a twin before a new flow is given up as unprotected. */
#define GW_START_LIMIT_NS 30000000ull
#define GW_START_RETRY_NS 5000000ull

/* Starts a flow's timer; without one it stands in a queue (gw_untimed.h). */
static __always_inline void gw_time(const struct gw_flow_key *key,
				    struct gw_flow *f, __u64 ns)
{
	if (!bpf_timer_start(&f->timer, ns, 0))
		return;
	if (gw_watch_untimed(key, f->irs, gw_ms(ns)))
		gw_unflag(f, GW_FLOW_WATCHED);
	gw_start_ticking();
}

/* Arms the watchdog unless it is. */
static __noinline void gw_watch(const struct gw_flow_key *key,
				struct gw_flow *f, __u64 ns)
{
	if (!(__sync_fetch_and_or(&f->flags, GW_FLOW_WATCHED) &
	      GW_FLOW_WATCHED))
		gw_time(key, f, ns);
}

/* A new flow without a twin: when to look again. */
static __noinline __u64 gw_check_start(const struct gw_flow_key *key,
				       const struct gw_flow *f,
				       const struct gw_share *s, __u64 now)
{
	__u64 age = now - f->born_ns;

	if (age < GW_START_LIMIT_NS) {
		/* the handshake of one that came makes no twin of it */
		if (!(f->flags & GW_FLOW_CAME))
			gw_tell(key, f, GW_EVENT_UNCONFIRMED, 0);
		return GW_START_LIMIT_NS - age;
	}
	gw_tell(key, f, GW_EVENT_NOT_CONFIRMED, 0);
	return s->lag_limit_ns;
}

/* Client or kernel held back by the twin: when to look again; 0: not held. */
static __noinline __u64 gw_check_lag(const struct gw_flow_key *key,
				     const struct gw_flow *f,
				     const struct gw_share *s, __u64 now)
{
	__u64 held = f->gated.held_ns, leashed = f->gated.leashed_ns;
	__u64 since, due;

	/* it has come to where the client was; what came then is not timed yet */
	if (!gw_before(f->gated.twin_snd_nxt, f->client.due))
		leashed = 0;
	since = held && (!leashed || held < leashed) ? held : leashed;
	due = since + s->lag_limit_ns;
	if (!since)
		return 0;
	if (now < due)
		return due - now;
	gw_tell(key, f, GW_EVENT_STALLED, 0);
	return s->lag_limit_ns;
}

/*
 * A twin sent its FIN a while ago. If the client has all that is in front of it and the
 * owner has sent none, the twin would end the client's stream too early at a takeover: its
 * server is gone, or has closed. An owner that has not come there is no measure: it is
 * slow, or stopped. When to look again; 0: never.
 */
static __always_inline __u64 gw_judge_fin(const struct gw_flow_key *key,
					  struct gw_flow *f,
					  const struct gw_share *s)
{
	if (f->phase != GW_PHASE_TWIN || !(f->flags & GW_FLOW_OWN_FIN) ||
	    (f->flags & GW_FLOW_OWNER_FIN))
		return 0;
	/* the owner's frame was lost, but the client acknowledges a FIN there */
	if (!gw_before(f->client.ack, f->own.fin))
		return 0;
	/* the owner has not come there, or the client has left it no room */
	if (gw_before(f->client.ack, f->own.fin - 1) ||
	    gw_after(f->own.fin, f->client.edge))
		return s->lag_limit_ns;
	gw_close_twin(key, f);
	return 0;
}

__noinline int gw_forget_ended(const struct gw_flow_key *key, __u32 irs)
{
	const struct gw_flow *here;

	if (!key)
		return -1;
	here = bpf_map_lookup_elem(&gw_flows, key);
	/* a later connection may have the four-tuple by now */
	if (!here || here->irs != irs || !gw_is_over(here))
		return 0;
	bpf_map_delete_elem(&gw_outputs, key);
	gw_transfer_forget(key, irs);
	bpf_map_delete_elem(&gw_flows, key);
	return 0;
}

/*
 * Looks at a new flow that no twin has confirmed (5 ms, 30 ms), and at a gate
 * that made no progress for lag_limit. Verified once.
 */
__noinline int gw_watch_due(const struct gw_flow_key *key, __u32 irs)
{
	__u64 now = gw_now(), next = 0;
	struct gw_share *s;
	struct gw_flow *f;

	if (!key)
		return -1;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (!f || f->irs != irs || gw_is_over(f))
		return 0;
	s = gw_share_at(f->share);
	if (!s)
		return 0;
	/* the claim first, then the look: who holds back an ACK after our look
	 * finds no claim and arms the timer itself */
	gw_unflag(f, GW_FLOW_WATCHED);
	gw_follow(f, s, s->role);
	if (s->role == GW_ROLE_SHADOW)
		next = gw_judge_fin(key, f, s);
	else if (gw_is_gated(s, f))
		next = f->phase == GW_PHASE_CONFIRMING ?
			       gw_check_start(key, f, s, now) :
			       gw_check_lag(key, f, s, now);
	if (next)
		gw_watch(key, f, next);
	return 0;
}

/* Fires when a flow is to be looked at, and when an ended one may go. */
static int gw_watchdog(void *map, struct gw_flow_key *key, struct gw_flow *f)
{
	/* a function that is verified once might write into it */
	struct gw_flow_key own = *key;

	if (gw_is_over(f))
		gw_forget_ended(&own, f->irs);
	else
		gw_watch_due(&own, f->irs);
	return 0;
}

/*
 * A flow enters the table with the claim to its watchdog taken (GW_FLOW_WATCHED)
 * and no timer, for a timer can be made only there. Here the timer is made and
 * the claim is used or given back: no other CPU can have come between.
 */
static __always_inline void gw_watch_new(const struct gw_flow_key *key,
					 struct gw_flow *f)
{
	bpf_timer_init(&f->timer, &gw_flows, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&f->timer, gw_watchdog);
	if (gw_is_over(f)) /* by a RST on another CPU */
		gw_linger(key);
	else if (f->flags & GW_FLOW_GATED)
		gw_time(key, f, GW_START_RETRY_NS);
	else
		gw_unflag(f, GW_FLOW_WATCHED);
}

#endif /* GW_WATCHDOG_H */
