/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A twin whose node has become the owner. It may lag: a segment wholly below
 * the client's acknowledged point is still reflected (catching up), one that
 * reaches beyond it is sent whole, for the client trims and a cut segment
 * would cost a retransmission timeout (KERNEL-FACTS 1.7).
 */
#ifndef GW_TAKEOVER_H
#define GW_TAKEOVER_H

#include "gw_ecn.h"
#include "gw_mutant.h"
#include "gw_twin.h"

/* RFC 6928 */
#define GW_INITIAL_WINDOW 10
#define GW_TS_MARGIN_MS 2
#define GW_RTO_INITIAL_NS 1000000000ull

/*
 * Has the twin said all, and the owner not, of which there is no sign either?
 * Its server died, perhaps of the same cause as the owner a moment later: its
 * FIN would end the client's stream too early.
 */
static __always_inline bool gw_is_cut_short(const struct gw_flow *f)
{
	return (f->flags & (GW_FLOW_OWN_FIN | GW_FLOW_OWNER_FIN |
			    GW_FLOW_CLIENT_FIN)) == GW_FLOW_OWN_FIN &&
	       gw_before(f->client.ack, f->own.fin);
}

/* Not whole at the takeover: the agent resets it, nobody serves it. */
static __always_inline bool gw_is_given_up(const struct gw_flow *f)
{
	return !(f->flags & GW_FLOW_ADOPTED) &&
	       ((f->flags & GW_FLOW_NOT_IN_SYNC) ||
		f->phase == GW_PHASE_CLOSED || gw_is_cut_short(f));
}

/* First segment of a flow after the share became ours. */
static __always_inline void gw_adopt(struct gw_flow *f)
{
	if (f->flags & GW_FLOW_ADOPTED)
		return;
	f->ramp = GW_INITIAL_WINDOW * (__u32)f->mss;
	/* the owner may have rounded up what it let out (gw_may_say) */
	f->gated.told_edge = f->own.edge + (1u << (f->rcv_wscale & 15));
	gw_flag(f, GW_FLOW_ADOPTED | GW_FLOW_RAMPING);
	gw_unflag(f, GW_FLOW_GATED);
	f->generation = 0;
	f->why = GW_WHY_AFTER_TAKEOVER;
}

/*
 * RFC 7323 section 5.4: a TSval below what the client has seen is dropped as
 * old. The owner's last TSval is not known, but its clock is, with a margin
 * for pacing ahead and 1000 ppm of drift between the two clocks.
 */
static __always_inline void gw_move_ts(struct gw_flow *f,
				       const struct gw_pkt *p, __u64 now)
{
	__u32 age_ms = (now - f->born_ns) / 1000000;
	__u32 floor = gw_owner_ts(f, now) + GW_TS_MARGIN_MS + age_ms / 1000;

	if (f->flags & GW_FLOW_TS_MOVED)
		return;
	gw_flag(f, GW_FLOW_TS_MOVED);
	if (GW_MUTANT != GW_MUTANT_NO_TIMESTAMP_OFFSET &&
	    gw_before(p->ts_val + f->own.ts_off, floor)) {
		f->own.ts_off = floor - p->ts_val;
		gw_count(GW_REASON_TS_MOVED);
	}
	f->own.ts_first = p->ts_val + f->own.ts_off;
	f->own.first_ns = now;
}

/*
 * The twin's retransmission timer was learnt from reflections, which take no
 * time, and is at its minimum (200 ms); the client may be further away than
 * that. Until it has answered anything that we sent, the timer of a connection
 * with one measured round trip holds: three of them (RFC 6298 section 2.2).
 */
static __always_inline bool gw_is_too_early(const struct gw_flow *f,
					    const struct gw_pkt *p, __u64 now)
{
	if (!f->own.first_ns || !p->len ||
	    gw_after(gw_seg_end(p), f->own.snd_nxt))
		return false;
	if (!gw_before(f->client.ts_ecr, f->own.ts_first))
		return false;
	/* and no longer than that of one that has measured nothing (2.1) */
	return now - f->own.first_ns <
	       gw_min_ns(3 * f->rtt_ns, GW_RTO_INITIAL_NS);
}

/*
 * The right edge that the client knows never retreats (RFC 9293 section 3.8.6),
 * though the twin's kernel may be up to one unit behind it. A shut window stays
 * shut: what is offered against it would be dropped.
 */
static __noinline int gw_keep_edge(struct __sk_buff *skb, struct gw_pkt *p,
				   struct gw_flow *f)
{
	__u8 shift = f->rcv_wscale & 15;
	__u32 edge = p->ack + ((__u32)p->wnd << shift);
	__u32 wnd;

	if (!p->wnd || !(p->flags & GW_TCP_ACK))
		return 0;
	if (!gw_before(edge, f->gated.told_edge)) {
		gw_advance(&f->gated.told_edge, edge);
		return 0;
	}
	wnd = (f->gated.told_edge - p->ack + (1u << shift) - 1) >> shift;
	if (wnd > 0xffff)
		wnd = 0xffff;
	gw_advance(&f->gated.told_edge, p->ack + (wnd << shift));
	return gw_set_wnd(skb, p, wnd);
}

/*
 * The agent may be held up between making a segment and sending it, and the
 * twin speak meanwhile: RFC 7323 section 5.4.
 */
static __noinline int gw_stamp_late(struct __sk_buff *skb, struct gw_pkt *p)
{
	struct gw_flow_key key;
	struct gw_flow *f;
	__u32 last;

	if (!p->ts_at)
		return 0;
	gw_key(&key, &p->dst, &p->src);
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (!f || !(f->flags & GW_FLOW_TS_MOVED))
		return 0;
	last = f->own.ts_val + f->own.ts_off;
	return gw_before(p->ts_val, last) ? gw_set_ts_val(skb, p, last) : 0;
}

/* A client's segment for an adopted twin. */
static __noinline int gw_adopted_client(struct __sk_buff *skb, struct gw_pkt *p,
					struct gw_flow *f)
{
	__u32 was = f->client.ack;
	__u64 now = gw_now();

	gw_adopt(f);
	gw_hear_client(f, p, now);
	if (f->flags & GW_FLOW_RAMPING)
		f->ramp += f->client.ack - was;
	if (p->ts_at) {
		__u32 ts_ecr = p->ts_ecr - f->own.ts_off;

		/* the client has seen a TSval ahead of ours: catch up */
		if (GW_MUTANT != GW_MUTANT_NO_TIMESTAMP_OFFSET &&
		    gw_after(ts_ecr, f->own.ts_val)) {
			f->own.ts_off += ts_ecr - f->own.ts_val;
			ts_ecr = f->own.ts_val;
		}
		if (gw_set_ts_ecr(skb, p, ts_ecr))
			return -1;
	}
	return gw_gate_twin(skb, p, f);
}

/* A segment that an adopted twin's kernel wants to send. */
static __noinline int gw_adopted_own(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     struct gw_flow *f)
{
	__u32 end = gw_seg_end(p);
	__u64 now;

	/* a last segment that was sent again too early (the round-trip time was
	 * learnt from reflections), answered by a client in TIME-WAIT */
	if ((p->flags & GW_TCP_RST) && gw_is_over(f))
		return gw_verdict(GW_REASON_LATE_RST, GW_DROP);
	now = gw_now();
	gw_adopt(f);
	gw_hear_own(f, p);
	if (gw_is_too_early(f, p, now)) {
		gw_count(GW_REASON_TOO_EARLY);
		return gw_swallow(skb);
	}
	if (!gw_is_pure_ack(p) && !(p->flags & GW_TCP_RST) &&
	    !gw_after(end, f->client.ack)) {
		gw_advance(&f->own.snd_nxt, end);
		gw_count(GW_REASON_CATCHING_UP);
		return gw_reflect(skb, p, key, f, end);
	}
	if (gw_after(end, f->own.snd_nxt)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
	}
	if (p->ts_at) {
		gw_move_ts(f, p, now);
		if (gw_set_ts_val(skb, p, p->ts_val + f->own.ts_off))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	}
	if (gw_hide_ecn(skb, p, f) || gw_keep_edge(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	/* seq of a bare ACK that lags would make the client ignore it */
	if (gw_is_pure_ack(p) && p->seq != f->own.snd_nxt - 1 &&
	    gw_before(p->seq, f->client.ack) &&
	    gw_set_seq(skb, p, f->client.ack))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	if (p->flags & GW_TCP_RST) {
		gw_end(key, f);
		return gw_verdict(GW_REASON_OWN_RST, GW_PASS);
	}
	gw_end_if_closed(key, f, false);
	return gw_verdict(GW_REASON_CAUGHT_UP, GW_PASS);
}

#endif /* GW_TAKEOVER_H */
