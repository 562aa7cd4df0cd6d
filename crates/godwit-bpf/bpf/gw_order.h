/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Changes to one flow that the agent asks for. They run here, on the entry in
 * place: a read and a write back from user space would undo what segments did
 * to it meanwhile.
 */
#ifndef GW_ORDER_H
#define GW_ORDER_H

#include "request/gw_gone.h"
#include "owner/gw_rejoin.h"
#include "flow/gw_turn.h"
#include "request/gw_ward.h"

/*
 * A flow that must not be served may have no twin yet: what makes one, sent
 * again by the owner or late in the network, would make it whole for all that
 * anybody can tell. The mark waits for it with the handshake. After a takeover
 * the client is asked where it is (godwit-agent, driver/revive.rs).
 */
static __always_inline int gw_mark_unborn(const struct gw_order *o,
					  const struct gw_flow_key *key)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);
	struct gw_half_open unborn = {
		.born_ns = gw_now(),
		.irs = o->irs,
		.share = o->share,
		.flags = GW_FLOW_NOT_IN_SYNC,
		.tapped = 1,
	};

	if (half && half->irs == o->irs) {
		half->flags |= GW_FLOW_NOT_IN_SYNC;
		return 0;
	}
	if (half && half->tapped && !half->answered &&
	    half->share == o->share) {
		gw_mark_beside(half, o->irs);
		return 0;
	}
	return bpf_map_update_elem(&gw_half_open, key, &unborn, BPF_ANY) ? 1 :
									   0;
}

/* Another server has asked for it under that number, and has no answer. */
static __noinline int gw_settle(const struct gw_flow_key *key, __u32 irs,
				__u32 number)
{
	struct gw_settled mine = { .irs = irs, .number = number };
	struct gw_settled *s = bpf_map_lookup_elem(&gw_settled, key);
	const struct gw_flow *f;
	struct gw_transfer *t;

	if ((!s || s->irs != irs || gw_before(s->number, number)) &&
	    bpf_map_update_elem(&gw_settled, key, &mine, BPF_ANY))
		return GW_SETTLED_LATER;
	s = bpf_map_lookup_elem(&gw_settled, key);
	if (!s)
		return GW_SETTLED_LATER;
	/* a full barrier: what follows is read after what was written */
	__sync_fetch_and_add(&s->asked, 1);
	t = gw_transfer_now(key);
	if (!t || t->irs != irs)
		return gw_is_adopted(key, irs) ? GW_SETTLED_HAS :
						 GW_SETTLED_NEVER;
	if (gw_is_denied(t, number))
		return GW_SETTLED_NEVER;
	switch (*(volatile const __u32 *)&t->state) {
	case GW_TRANSFER_COMING:
		return GW_SETTLED_LATER;
	case GW_TRANSFER_HERE:
		return GW_SETTLED_HAS;
	case GW_TRANSFER_TOLD:
		f = bpf_map_lookup_elem(&gw_flows, key);
		/* of whom its owner has asked this node has all, and it has it not */
		if (f && gw_is_dead(f->share, &t->to))
			return GW_SETTLED_NEVER;
		break;
	case GW_TRANSFER_GONE:
		/* somebody has accepted that number, or a later one */
		return gw_before(t->number, number) ? GW_SETTLED_NEVER :
						      GW_SETTLED_HAS;
	case GW_TRANSFER_ASKED:
	case GW_TRANSFER_TWIN:
		break;
	default:
		return GW_SETTLED_NEVER;
	}
	/* it came, and has gone on from here, or from its owner, under a later number */
	return gw_after(t->number, number) ? GW_SETTLED_HAS :
	       t->number == number	   ? GW_SETTLED_LATER :
					     GW_SETTLED_NEVER;
}

/* 0: done, 1: no such flow of the share (or a later one on the same four-tuple). */
static __noinline int gw_obey(struct gw_order *o)
{
	struct gw_flow_key key = o->key;
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, &key);

	if (o->kind == GW_ORDER_TICK)
		return gw_start_ticking();
	if (o->kind == GW_ORDER_SETTLE)
		return gw_settle(&key, o->irs, o->detail);
	if (!f || f->irs != o->irs)
		return o->kind == GW_ORDER_NOT_IN_SYNC ?
			       gw_mark_unborn(o, &key) :
			       1;
	if (f->share != o->share)
		return 1;
	switch (o->kind) {
	case GW_ORDER_UNGATE:
		if (gw_is_over(f))
			return 1;
		/* before and after: see gw_close_gate() and gw_confirm() */
		gw_flow_enter(f, GW_PHASE_UNPROTECTED);
		gw_unflag(f, GW_FLOW_GATED);
		gw_flow_enter(f, GW_PHASE_UNPROTECTED);
		f->why = o->detail;
		return 0;
	case GW_ORDER_NOT_IN_SYNC: /* `detail` is enum gw_why */
		gw_give_twin_up(f);
		f->why = o->detail ? o->detail : GW_WHY_NOT_IN_SYNC;
		return 0;
	case GW_ORDER_END:
		/* as long as its socket lives, too */
		if ((f->flags & GW_FLOW_TWIN) && gw_is_given_up(f))
			gw_give_twin_up(f);
		gw_end(&key, f);
		return 0;
	case GW_ORDER_ACKNOWLEDGED:
		gw_advance(&f->client.ack, o->detail);
		return 0;
	case GW_ORDER_REJOIN:
		if (gw_has_spoken_late(&key))
			return 1;
		return gw_rejoin(f, o->detail, o->base_ack);
	case GW_ORDER_PROTECT:
		return gw_protect(f);
	case GW_ORDER_ADMIT:
		if (f->phase != GW_PHASE_TWIN || gw_is_over(f) ||
		    (f->flags & GW_FLOW_ADOPTED) ||
		    !(f->flags & GW_FLOW_TWIN_SEEN))
			return 1;
		gw_unflag(f, GW_FLOW_NOT_IN_SYNC);
		f->why = GW_WHY_NONE;
		return 0;
	case GW_ORDER_FORGET:
		gw_note_forgotten(&key, f->share);
		bpf_map_delete_elem(&gw_outputs, &key);
		if (!gw_transfer_part(f, &key))
			gw_transfer_forget(&key, f->irs);
		gw_forget_half(&key, f->irs);
		gw_flag(f, GW_FLOW_OVER); /* see gw_log_keep() */
		gw_log_free(&key, f, GW_LOG_NONE);
		return bpf_map_delete_elem(&gw_flows, &key) ? 1 : 0;
	case GW_ORDER_DROP_LOG:
		/* a twin is being made of it */
		if (gw_is_over(f) || f->phase == GW_PHASE_REJOINING ||
		    !gw_is_log_kept(f->log.state))
			return 1;
		gw_log_free(&key, f, GW_LOG_FAILED);
		gw_count(GW_REASON_LOG_EVICTED);
		return 0;
	case GW_ORDER_TURN: {
		struct gw_share *s = gw_share_at(f->share);

		return s && gw_follow(f, s, s->role) ? 0 : 1;
	}
	default:
		return 1;
	}
}

#endif /* GW_ORDER_H */
