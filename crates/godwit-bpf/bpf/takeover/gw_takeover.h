/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A twin whose node has become the owner. It may lag: a segment wholly below
 * the client's acknowledged point is still reflected (catching up), one that
 * reaches beyond it is sent whole, for the client trims and a cut segment
 * would cost a retransmission timeout (docs/kernel-facts.md, "Windows").
 */
#ifndef GW_TAKEOVER_H
#define GW_TAKEOVER_H

#include "flow/gw_ecn.h"
#include "flow/gw_edge.h"
#include "flow/gw_mirror.h"
#include "base/gw_mutant.h"
#include "flow/gw_turn.h"
#include "flow/gw_twin.h"

#define GW_TS_MARGIN_MS 2
#define GW_RTO_INITIAL_NS 1000000000ull

/*
 * RFC 7323 section 5.4: a TSval below what the client has seen is dropped as
 * old. The owner's last TSval is not known, but its clock is, with a margin
 * for pacing ahead and 1000 ppm of drift between the two clocks.
 */
static __always_inline __u32 gw_ts_floor(const struct gw_flow *f, __u64 now)
{
	__u32 age_ms = (now - f->born_ns) / 1000000;

	return gw_owner_ts(f, now) + GW_TS_MARGIN_MS + age_ms / 1000;
}

/* From here on this node's own clock is the owner's: books, see gw_turn.h. */
static __always_inline void gw_anchor_ts(struct gw_flow *f, __u32 ts_val,
					 __u64 now)
{
	f->client.ts_base = ts_val;
	f->client.ts_base_ns = now;
}

/* A TSval for a word that our kernel has not said itself. */
static __always_inline __u32 gw_ts_now(const struct gw_flow *f)
{
	if ((f->flags & GW_FLOW_TWIN) && !(f->flags & GW_FLOW_TS_MOVED))
		return gw_ts_floor(f, gw_now());
	return f->own.ts_val + f->own.ts_off;
}

static __always_inline void gw_move_ts(struct gw_flow *f,
				       const struct gw_pkt *p, __u64 now)
{
	__u32 floor = gw_ts_floor(f, now);

	if (f->flags & GW_FLOW_TS_MOVED)
		return;
	if (GW_MUTANT != GW_MUTANT_NO_TIMESTAMP_OFFSET &&
	    gw_before(p->ts_val + f->own.ts_off, floor)) {
		f->own.ts_off = floor - p->ts_val;
		gw_count(GW_REASON_TS_MOVED);
	}
	f->own.ts_first = p->ts_val + f->own.ts_off;
	f->own.first_ns = now;
	gw_anchor_ts(f, f->own.ts_first, now);
	gw_flag(f, GW_FLOW_TS_MOVED);
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
 * The agent may be held up between making a segment and sending it, and our
 * kernel speak meanwhile. Neither the time stamp (RFC 7323 section 5.4) nor the
 * right edge (RFC 9293 section 3.8.6) may be older than what it said.
 */
static __noinline int gw_catch_up_late(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_share *s)
{
	struct gw_flow_key key;
	struct gw_flow *f;
	__u32 last, edge;

	if (p->flags & GW_TCP_SYN)
		return 0;
	gw_key(&key, &p->dst, &p->src);
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (!f)
		return 0;
	last = gw_is_gated(s, f) ? f->gated.told_edge :
				   gw_floored(f, f->own.edge);
	edge = gw_offered(f, p);
	if (gw_before(edge, last) && !(p->flags & GW_TCP_RST)) {
		__u32 wnd = p->wnd + ((last - edge) >> (f->rcv_wscale & 15));

		if (gw_set_wnd(skb, p, wnd > 0xffff ? 0xffff : wnd))
			return -1;
	}
	if (!p->ts_at || !(f->flags & GW_FLOW_TS_MOVED))
		return 0;
	last = f->own.ts_val + f->own.ts_off;
	return gw_before(p->ts_val, last) ? gw_set_ts_val(skb, p, last) : 0;
}

/* Takes down what the client says to an adopted twin. */
static __always_inline bool gw_adopted_hear(struct gw_flow *f,
					    const struct gw_pkt *p, __u64 now)
{
	__u32 was = f->client.ack;
	bool heard = gw_hear_client(f, p, now);

	if (f->flags & GW_FLOW_RAMPING)
		f->ramp += f->client.ack - was;
	return heard;
}

/* Turns a client's segment into what an adopted twin may know of it. */
static __noinline int gw_adopted_client(struct __sk_buff *skb, struct gw_pkt *p,
					struct gw_flow *f)
{
	if (p->ts_at) {
		__u32 ts_ecr = p->ts_ecr - f->own.ts_off;

		/* the client has seen a TSval ahead of ours: catch up. Before our
		 * first word that is the last owner's, and gw_move_ts() sees to it */
		if (GW_MUTANT != GW_MUTANT_NO_TIMESTAMP_OFFSET &&
		    gw_after(ts_ecr, f->own.ts_val)) {
			if (f->flags & GW_FLOW_TS_MOVED) {
				f->own.ts_off += ts_ecr - f->own.ts_val;
				gw_anchor_ts(f, p->ts_ecr, gw_now());
			}
			ts_ecr = f->own.ts_val;
		}
		if (gw_set_ts_ecr(skb, p, ts_ecr))
			return -1;
	}
	return gw_gate_twin(skb, p, f);
}

/*
 * Has the last owner sent this already, so that it is under way? Our kernel is
 * to think that it has sent it; if it was lost, it will send it again. Without
 * that a client would get all that is under way twice.
 */
static __always_inline bool gw_is_under_way(struct gw_flow *f, __u32 end)
{
	if (!(f->flags & GW_FLOW_FLIGHT))
		return false;
	if (gw_before(f->own.snd_nxt, f->flight))
		return gw_after(end, f->own.snd_nxt) &&
		       !gw_after(end, f->flight);
	gw_unflag(f, GW_FLOW_FLIGHT);
	return false;
}

/* Our kernel's time stamp and ECN as the client is to see them; 0 or -1. */
static __noinline int gw_disguise(struct __sk_buff *skb, struct gw_pkt *p,
				  struct gw_flow *f, __u64 now)
{
	if (p->ts_at) {
		gw_move_ts(f, p, now);
		if (gw_set_ts_val(skb, p, p->ts_val + f->own.ts_off))
			return -1;
	}
	return gw_hide_ecn(skb, p, f);
}

/*
 * A RST of an adopted twin's kernel. Between two that have closed it is none: a
 * last segment that was sent again too early (the round-trip time was learnt from
 * reflections) is answered by a client in TIME-WAIT, and finds no socket here.
 * Any other the client is to have, each time that it asks.
 */
static __noinline int gw_adopted_rst(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     struct gw_flow *f,
				     const struct gw_share *s)
{
	if (gw_is_over(f) && gw_is_through(f))
		return gw_verdict(GW_REASON_LATE_RST, GW_DROP);
	gw_hear_own(f, p);
	gw_advance(&f->own.snd_nxt, gw_seg_end(p));
	if (gw_is_tapped(s, f))
		gw_mirror(skb, p, s);
	if (gw_disguise(skb, p, f, gw_now()))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_end(key, f);
	return gw_verdict(GW_REASON_OWN_RST, GW_PASS);
}

/*
 * Both sides have closed, and the client sends its last bytes again: it was not
 * told that they have arrived. A twin that had nothing to wait for after its own
 * FIN (LAST-ACK) has no socket any more, and our kernel would answer with RST.
 */
static __always_inline bool gw_is_last_again(const struct gw_flow *f,
					     const struct gw_pkt *p)
{
	return gw_is_over(f) && gw_is_through(f) && gw_seg_end(p) != p->seq &&
	       !gw_after(gw_seg_end(p), f->client.fin);
}

static __noinline int gw_say_last_ack(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      const struct gw_flow *f)
{
	__u32 edge = gw_floored(f, f->own.edge);
	struct gw_bare b = {
		.seq = f->own.fin,
		.ack = f->client.fin,
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = gw_ts_now(f),
		.ts_ecr = f->client.ts_val,
	};
	__u8 client[6];

	if (gw_after(edge, b.ack))
		b.wnd = gw_wnd_up(f, b.ack, edge);
	if (gw_craft(skb, p, &key->service, &key->client, &b))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	__builtin_memcpy(client, f->client.mac, 6);
	return gw_send_to(skb, client, GW_REASON_LAST_ACK);
}

/*
 * A segment that an adopted twin's kernel wants to send. GW_UNDECIDED: the
 * client is to have it, as it is now, if the gate agrees.
 */
static __noinline int gw_adopted_own(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     struct gw_flow *f,
				     const struct gw_share *s)
{
	__u32 end = gw_seg_end(p);
	__u64 now;

	if (p->flags & GW_TCP_RST)
		return gw_adopted_rst(skb, p, key, f, s);
	now = gw_now();
	gw_hear_own(f, p);
	if (gw_is_too_early(f, p, now)) {
		gw_count(GW_REASON_TOO_EARLY);
		return gw_swallow(skb);
	}
	if (!gw_is_pure_ack(p) && !gw_after(end, f->client.ack)) {
		gw_advance(&f->own.snd_nxt, end);
		gw_count(GW_REASON_CATCHING_UP);
		return gw_reflect(skb, p, key, f, end);
	}
	if (gw_is_under_way(f, end)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
		gw_count(GW_REASON_UNDER_WAY);
		return gw_swallow(skb);
	}
	if (gw_after(end, f->own.snd_nxt)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
	}
	if ((p->flags & GW_TCP_FIN) && gw_is_tapped(s, f))
		gw_mirror(skb, p, s);
	if (gw_disguise(skb, p, f, now))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	/* seq of a bare ACK that lags would make the client ignore it */
	if (gw_is_pure_ack(p) && p->seq != f->own.snd_nxt - 1 &&
	    gw_before(p->seq, f->client.ack) &&
	    gw_set_seq(skb, p, f->client.ack))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return GW_UNDECIDED;
}

#endif /* GW_TAKEOVER_H */
