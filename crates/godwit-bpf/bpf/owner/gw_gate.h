/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The ACK gate (docs/design.md, "Gate"): the client is never told that a
 * byte is received before the twin has it. What goes out is the smaller
 * acknowledgement, only SACK blocks that the twin holds too, and a right edge
 * that is the smaller of both and retreats by less than one unit of its scale,
 * which rounding may ask for (RFC 9293 section 3.8.6, RFC 7323 section 2.4).
 */
#ifndef GW_GATE_H
#define GW_GATE_H

#include "flow/gw_ecn.h"
#include "flow/gw_edge.h"
#include "base/gw_mutant.h"
#include "owner/gw_rejoin.h"
#include "takeover/gw_takeover.h"
#include "flow/gw_sack.h"
#include "flow/gw_stay.h"

/* What may be said to the client now. */
struct gw_words {
	__u32 ack;
	__u32 edge;
	__u16 wnd;
};

/*
 * The edge is told in units from the acknowledgement on. It is rounded up where
 * it would retreat, but only from what both kernels offer (or the floor) and
 * never from what was rounded up before: that would add up from ACK to ACK,
 * beyond what either kernel takes, and beyond all that a twin could know at a
 * takeover.
 */
static __always_inline void gw_may_say(const struct gw_flow *f,
				       struct gw_words *w)
{
	const struct gw_gated *g = &f->gated;
	__u8 shift = f->rcv_wscale & 15;
	__u32 room, wnd;

	w->ack = gw_max_seq(gw_min_seq(f->own.ack, g->twin_ack), g->told_ack);
	w->edge = gw_floored(f, gw_min_seq(f->own.edge, g->twin_edge));
	room = gw_before(w->ack, w->edge) ? w->edge - w->ack : 0;
	wnd = room >> shift;
	if ((room & ((1u << shift) - 1)) &&
	    gw_before(w->ack + (wnd << shift), g->told_edge))
		wnd++;
	w->wnd = wnd > 0xffff ? 0xffff : wnd;
}

/* A window that is all but shut because of the twin alone. */
static __always_inline bool gw_is_shut_by_twin(const struct gw_flow *f)
{
	const struct gw_gated *g = &f->gated;

	return g->told_edge - g->told_ack < f->mss &&
	       gw_after(f->own.edge, g->told_edge) &&
	       f->own.edge - g->told_edge >= 2 * (__u32)f->mss;
}

/*
 * Books what the client is told now. While it is less than what our kernel has
 * said, the watchdog runs: no stall of the gate lasts longer than lag_limit.
 */
static __noinline void gw_said(const struct gw_flow_key *key, struct gw_flow *f,
			       const struct gw_words *w,
			       const struct gw_share *s)
{
	struct gw_gated *g = &f->gated;
	bool moved = gw_after(w->ack, g->told_ack);

	gw_leave_floor(f, gw_min_seq(f->own.edge, g->twin_edge));
	gw_advance(&g->told_ack, w->ack);
	gw_advance(&g->told_edge,
		   w->ack + ((__u32)w->wnd << (f->rcv_wscale & 15)));
	if (!gw_before(g->told_ack, f->own.ack) && !gw_is_shut_by_twin(f)) {
		g->held_ns = 0;
		return;
	}
	if (moved || !g->held_ns)
		g->held_ns = gw_now();
	gw_watch(key, f, s->lag_limit_ns);
}

/* More acknowledged, or a window that was all but shut opens. */
static __always_inline bool gw_is_news_to_client(const struct gw_flow *f,
						 const struct gw_words *w)
{
	const struct gw_gated *g = &f->gated;
	__u32 room = g->told_edge - g->told_ack;

	if (gw_after(w->ack, g->told_ack))
		return true;
	return room < 2 * (__u32)f->mss && gw_after(w->edge, g->told_edge) &&
	       w->edge - g->told_edge >= 2 * (__u32)f->mss;
}

/* An own segment of a gated flow on its way to the client. */
static __noinline int gw_gate_own(struct __sk_buff *skb, struct gw_pkt *p,
				  const struct gw_flow_key *key,
				  struct gw_flow *f, const struct gw_share *s)
{
	struct gw_options o = {};
	struct gw_words w;
	bool ahead = false;

	if (GW_MUTANT == GW_MUTANT_NO_GATE)
		return gw_verdict(GW_REASON_SPOKEN, GW_PASS);
	if (p->hdr_len > (p->ts_at ? 32 : 20)) {
		gw_walk_options(skb, p, &o);
		ahead = gw_sack_ahead(f, &o);
	}
	gw_may_say(f, &w);
	/* a probe of our kernel must reach the client to be answered */
	if (gw_is_pure_ack(p) && p->seq != f->own.snd_nxt - 1 &&
	    (ahead || gw_before(w.ack, p->ack)) &&
	    !gw_is_news_to_client(f, &w)) {
		/* nothing that the client may know: the twin's ACK follows,
		 * unless it has come on another CPU before the debt was booked */
		gw_flag(f, GW_FLOW_OWED);
		ahead = gw_sack_ahead(f, &o);
		gw_may_say(f, &w);
		if (ahead || gw_before(w.ack, p->ack)) {
			gw_said(key, f, &w, s);
			gw_count(GW_REASON_HELD);
			return gw_swallow(skb);
		}
		gw_unflag(f, GW_FLOW_OWED);
	}
	if (ahead) {
		gw_count(GW_REASON_SACK_BLANKED);
		gw_blank(skb, p, p->l4 + 20 + o.sack_at - 3, o.sack_len + 2);
	}
	if (w.ack == p->ack && !gw_before(w.edge, f->own.edge)) {
		/* the twin is no obstacle: our kernel's own words */
		if (gw_after(w.edge, f->own.edge) && gw_set_wnd(skb, p, w.wnd))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
		w.wnd = p->wnd;
		gw_said(key, f, &w, s);
		gw_end_if_closed(key, f, true);
		return gw_verdict(GW_REASON_SPOKEN, GW_PASS);
	}
	if (gw_set_ack(skb, p, w.ack) || gw_set_wnd(skb, p, w.wnd))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_said(key, f, &w, s);
	return gw_verdict(GW_REASON_GATED, GW_PASS);
}

/* Is the twin's ACK worth a segment to the client? */
static __always_inline bool gw_is_owed(struct gw_flow *f,
				       const struct gw_words *w, bool sack)
{
	if (gw_is_news_to_client(f, w))
		return true;
	/* the twin misses what we have: the client is to send it again */
	if (sack && gw_before(f->gated.twin_ack, f->own.ack))
		return true;
	return f->flags & GW_FLOW_OWED;
}

/* The twin's bare ACK becomes ours, ready for the client; 0 or -1. */
static __noinline int gw_own_words(struct __sk_buff *skb, struct gw_pkt *p,
				   struct gw_flow *f, const struct gw_words *w)
{
	__u8 client[6];

	/* a forwarded ACK with the twin's TSval could fail PAWS later; an owner
	 * that is still catching up speaks from where the client is */
	if (gw_hide_ecn(skb, p, f) || gw_set_ts_val(skb, p, gw_ts_now(f)))
		return -1;
	gw_clear_stay(p);
	p->flags &= ~GW_TCP_URG;
	p->seq = gw_max_seq(f->own.snd_nxt, f->client.ack);
	p->ack = w->ack;
	p->wnd = w->wnd;
	if (gw_rewrite(skb, p))
		return -1;
	__builtin_memcpy(client, f->client.mac, 6);
	gw_address_to(skb, client);
	gw_unflag(f, GW_FLOW_OWED);
	return 0;
}

/*
 * The twin holds all that the client was told. The agent may be opening the
 * gate at this moment, on another CPU, with a phase of its own: the flag is
 * asked again after the phase is written, so that one of the two sees the other.
 */
static __always_inline void gw_confirm(const struct gw_flow_key *key,
				       struct gw_flow *f)
{
	gw_flow_enter(f, GW_PHASE_PROTECTED);
	if (!(__sync_fetch_and_or(&f->flags, 0) & GW_FLOW_GATED)) {
		gw_flow_enter(f, GW_PHASE_UNPROTECTED);
		return;
	}
	gw_tell(key, f, GW_EVENT_CONFIRMED, 0);
}

/*
 * How far a twin can be: its client acknowledges what we have sent, or the last owner has under
 * way, and no more is it let; but for a FIN.
 */
static __always_inline __u32 gw_sent_most(const struct gw_flow *f)
{
	__u32 most = gw_max_seq(f->own.snd_nxt + 1, f->gated.twin_snd_nxt);

	return gw_max_seq(most, f->client.ack);
}

/* May this frame count as the twin's acknowledgement? 0 or a reason. */
static __always_inline int gw_check_twin_ack(struct __sk_buff *skb,
					     struct gw_pkt *p,
					     const struct gw_share *s,
					     const struct gw_flow *f)
{
	int why;

	if (p->len)
		return GW_REASON_TWIN_ACK_PAYLOAD;
	if ((p->flags & (GW_TCP_SYN | GW_TCP_FIN | GW_TCP_RST)) ||
	    !(p->flags & GW_TCP_ACK))
		return GW_REASON_TWIN_ACK_FLAGS;
	if (!f)
		return GW_REASON_TWIN_ACK_NO_FLOW;
	why = gw_check_stay(p, f);
	if (why)
		return why;
	if (!gw_is_gated(s, f) && !gw_is_rejoining(s, f))
		return GW_REASON_TWIN_ACK_GENERATION;
	/* the twin may have had the client's segment before us, but nothing
	 * beyond the window that the client knows, and its FIN; what a last
	 * owner told it we may not know to the byte */
	if (gw_after(p->ack, f->gated.told_edge + 1) &&
	    (!(f->flags & GW_FLOW_TWIN) || gw_after(p->ack, f->own.edge + 1)))
		return GW_REASON_TWIN_ACK_BEYOND;
	if (gw_before(p->ack, f->gated.twin_ack))
		return GW_REASON_TWIN_ACK_STALE;
	if (gw_after(p->seq, gw_sent_most(f)))
		return GW_REASON_TWIN_ACK_AHEAD;
	return 0;
}

/* A frame from the standby in the service's name: the twin's ACK. */
static __noinline int gw_gate_twin_ack(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_share *s)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_options o = {};
	struct gw_words w;
	int err;

	if (f && !gw_follow(f, s, GW_ROLE_OWNER))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	err = gw_check_twin_ack(skb, p, s, f);
	if (err || !f)
		return gw_verdict(err, GW_DROP);
	if (p->hdr_len > (p->ts_at ? 32 : 20))
		gw_walk_options(skb, p, &o);
	gw_note_sack(f, &o);
	gw_advance(&f->gated.twin_ack, p->ack);
	/* its first word may be less than the SYN-ACK said, by rounding */
	if (f->phase == GW_PHASE_CONFIRMING)
		f->gated.twin_edge = gw_offered(f, p);
	gw_advance(&f->gated.twin_edge, gw_offered(f, p));
	gw_advance(&f->gated.twin_snd_nxt, p->seq);
	if (f->phase == GW_PHASE_CONFIRMING &&
	    !gw_before(f->gated.twin_ack, f->gated.told_ack))
		gw_confirm(key, f);
	if (f->phase == GW_PHASE_REJOINING)
		gw_follow_rejoin(key, f, s);
	gw_may_say(f, &w);
	if (gw_is_owed(f, &w, o.sack_at)) {
		gw_said(key, f, &w, s);
		gw_end_if_closed(key, f, true);
		if (gw_own_words(skb, p, f, &w))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
		gw_count(GW_REASON_TWIN_ACK_FORWARDED);
		if (!(f->flags & GW_FLOW_LEASHED))
			return bpf_redirect(skb->ifindex, 0);
		/* and our kernel is to hear of it as well */
		bpf_clone_redirect(skb, skb->ifindex, 0);
		skb->mark = 0;
	}
	if (f->flags & GW_FLOW_LEASHED)
		return gw_move_leash(skb, p, key, f, s);
	return gw_verdict(GW_REASON_TWIN_ACK, GW_DROP);
}

#endif /* GW_GATE_H */
