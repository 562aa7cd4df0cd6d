/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Handoff of a connection with a twin, between servers that stand by for each other
 * (gw_ward.h). It is protected again when the twin at its new owner's standby has spoken,
 * and until that has the request nobody acknowledges it.
 *
 *   origin              its standby               target           its standby
 *   ASKED ─── ASK ────► TOLD ─── ASK ───────────► socket: HERE
 *                                                   │ ─── TWIN ───► twin: TWIN
 *   GONE ◄─ ACCEPTED ── twin reset: GONE ◄ ACCEPTED ┘                │
 *                                                 PROTECTED ◄─ ACK ──┘
 *
 * The origin's standby is told first, and so knows all that the origin does: should it
 * become the owner while the question is open, it goes on with that question. Where it is
 * the target itself, its twin makes way for the connection.
 */
#ifndef GW_RING_H
#define GW_RING_H

#include "request/gw_come.h"
#include "shadow/gw_shadow.h"

/* A frame that its owner does not wait for any more (GW_START_LIMIT_NS). */
#define GW_LATE_TWIN_NS 1000000000ull

/* Is it for another server, and is only to go by us? */
static __always_inline bool gw_is_by_way(const struct gw_offer *o)
{
	const struct gw_placing *pl = gw_placing_of(o->share);
	const struct gw_slip *slip = &o->slip;
	__be32 self = pl ? gw_node_id(pl->node) : 0;

	return pl && slip->from && slip->from != self && slip->to != self;
}

/* Are we its owner's standby? If we own it by now, an answer is for us. */
static __always_inline bool gw_is_shadow(const struct gw_offer *o)
{
	const struct gw_share *s = gw_share_at(o->share);

	return s && s->role == GW_ROLE_SHADOW;
}

/*
 * It has gone from its owner, and there is no twin of it here. If we come to own the share
 * its client's segments may come here for a while.
 */
static __always_inline void gw_note_gone(const struct gw_flow_key *key,
					 const struct gw_offer *o)
{
	const struct gw_placing *pl = gw_placing_of(o->share);
	__u32 irs = bpf_ntohl(o->slip.irs);
	struct gw_transfer *t;

	if (!pl || bpf_map_lookup_elem(&gw_flows, key))
		return;
	t = gw_transfer_begin(key, irs, GW_TRANSFER_GONE);
	if (!t)
		return;
	t->number = bpf_ntohl(o->slip.number);
	t->to.node = gw_node_slot(o->slip.to);
	gw_find_mate(o->share, &t->to);
	gw_transfer_expire(t, GW_FORWARD_NS);
}

/* The owner of a twin has asked: so would we, if we were to own it. */
static __noinline int gw_note_question(const struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_offer *o,
				       const struct gw_target *to)
{
	__u32 irs = bpf_ntohl(o->slip.irs);
	struct gw_talk talk = { .irs = irs, .head = o->slip.head };
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_transfer *t;

	if (!f || f->irs != irs || gw_is_over(f) || f->share != o->share)
		return 0;
	t = gw_transfer_of(key, irs);
	if (!t)
		t = gw_transfer_begin(key, irs, GW_TRANSFER_TOLD);
	if (!t)
		return -1;
	t->number = bpf_ntohl(o->slip.number);
	t->seq = p->seq;
	t->to = *to;
	t->heard_ns = gw_now();
	gw_note_owner(t, p->smac);
	t->state = GW_TRANSFER_TOLD;
	gw_transfer_expire(t, GW_FORWARD_NS);
	return bpf_map_update_elem(&gw_talks, key, &talk, BPF_ANY);
}

/* What the answer says of a twin; GW_UNDECIDED: it only goes on. */
static __always_inline int gw_note_answer(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_flow_key *key,
					  struct gw_offer *o, const __u8 *mac)
{
	struct gw_transfer *t = gw_transfer_of(key, bpf_ntohl(o->slip.irs));
	__u8 to[6];

	if (!t && o->slip.kind == GW_SLIP_ACCEPTED)
		gw_note_gone(key, o);
	if (!t || t->state != GW_TRANSFER_TOLD ||
	    t->number != bpf_ntohl(o->slip.number) || t->seq != p->seq)
		return GW_UNDECIDED;
	if (o->slip.kind != GW_SLIP_ACCEPTED) {
		t->state = GW_TRANSFER_TWIN;
		return GW_UNDECIDED;
	}
	__builtin_memcpy(to, mac, 6);
	if (gw_seal_for(skb, p, &o->slip, to) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_address_to(skb, to);
	/* if it is lost its owner asks again */
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = 0;
	gw_bare(skb, p);
	return gw_leave(skb, p, key, t);
}

/* A frame between two others about a connection whose twin may be here. */
static __noinline int gw_relay(struct __sk_buff *skb, struct gw_pkt *p,
			       const struct gw_flow_key *key,
			       struct gw_offer *o)
{
	const struct gw_share *s = gw_share_at(o->share);
	bool asks = o->slip.kind == GW_SLIP_ASK;
	struct gw_mate_key mate_key = {
		.share = o->share,
		.node = gw_node_slot(asks ? o->slip.to : o->slip.from),
	};
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &mate_key);
	struct gw_target to = { .node = mate_key.node };
	int verdict;

	if (!s || !mate || (asks && !gw_mac_equal(p->smac, s->peer_mac)))
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	__builtin_memcpy(to.mac, mate->mac, 6);
	gw_count(GW_REASON_RELAYED);
	if (!asks) {
		verdict = gw_note_answer(skb, p, key, o, to.mac);
		if (verdict != GW_UNDECIDED)
			return verdict;
	} else if (gw_note_question(p, key, o, &to)) {
		/* we could not go on with it */
		return gw_verdict(GW_REASON_TABLE_FULL, GW_DROP);
	}
	if (gw_seal_for(skb, p, &o->slip, to.mac) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_send_on(skb, to.mac);
}

/*
 * What we have in a twin's place is not what its owner means: it gives way, and a copy of
 * the frame comes behind that.
 */
static __noinline int gw_end_old_twin(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key)
{
	struct gw_bare rst = { .flags = GW_TCP_RST };

	rst.seq = gw_own_next(skb, p, p->seq);
	gw_forget_flow(key);
	skb->mark = GW_MARK_AGAIN;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = 0;
	if (gw_craft(skb, p, &key->client, &key->service, &rst))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_WAY_CLEARED, GW_PASS);
}

/*
 * Our own standby is told what we know by this: the answer, which was to go by it, may
 * have been lost on its way there.
 */
static __always_inline void gw_pass_answer(struct __sk_buff *skb,
					   struct gw_pkt *p,
					   const struct gw_flow *f,
					   struct gw_offer *o)
{
	const struct gw_share *s = gw_share_at(f->share);

	if (!s || !gw_is_tapped(s, f) || gw_mac_equal(s->peer_mac, p->smac) ||
	    !o->slip.from)
		return;
	gw_turn_slip(&o->slip, GW_SLIP_ACCEPTED, 0);
	gw_mirror_slip(skb, p, s, &o->slip);
	/* and what is here says again what it came with; it was looked at */
	gw_turn_slip(&o->slip, GW_SLIP_TWIN, 0);
	gw_seal_for(skb, p, &o->slip, p->smac);
}

/* Is its owner not to be promised that we would serve it? gw_order.h, gw_mark_unborn() */
static __always_inline bool gw_is_ruled_out(const struct gw_flow_key *key,
					    __u32 irs)
{
	const struct gw_half_open *half =
		bpf_map_lookup_elem(&gw_half_open, key);

	return half && half->irs == irs &&
	       (half->flags & GW_FLOW_NOT_IN_SYNC) &&
	       gw_now() - half->born_ns < GW_LATE_TWIN_NS;
}

/*
 * We have asked for it, and somebody else has it. If it is whom we have asked, this is as
 * good as the answer, which may be on its way by our own standby.
 */
static __always_inline bool gw_is_other(const struct gw_offer *o,
					const struct gw_transfer *t)
{
	return t && t->state == GW_TRANSFER_ASKED &&
	       t->number != bpf_ntohl(o->slip.number);
}

/*
 * It has left from here, and come round to the owner whose standby we are, or were, and
 * there will be no twin of it: what that one sends us of it is not for where it was.
 */
static __always_inline void gw_note_return(const struct gw_pkt *p,
					   const struct gw_offer *o,
					   const struct gw_share *s,
					   struct gw_transfer *t)
{
	__u32 number = bpf_ntohl(o->slip.number);
	struct gw_mate_mac key = {};
	const __u32 *node;

	if (!t || t->state != GW_TRANSFER_GONE || !s ||
	    !gw_mac_equal(p->smac, s->peer_mac) || !gw_after(number, t->number))
		return;
	__builtin_memcpy(key.mac, p->smac, 6);
	node = bpf_map_lookup_elem(&gw_mate_macs, &key);
	if (!node)
		return;
	t->number = number;
	t->to.node = *node;
	__builtin_memcpy(t->to.mac, p->smac, 6);
}

/*
 * The owner, whose standby we are, has got a connection: this is the segment that came
 * with it, and of which its twin is made. GW_UNDECIDED: it is there.
 */
static __noinline int gw_make_twin(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key,
				   struct gw_offer *o)
{
	__u32 irs = bpf_ntohl(o->slip.irs);
	struct gw_transfer *t = gw_transfer_of(key, irs);
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_share *s = gw_share_at(o->share);
	int err;

	if (!s || s->role != GW_ROLE_SHADOW || !s->generation ||
	    !gw_mac_equal(p->smac, s->peer_mac) ||
	    (t && t->state == GW_TRANSFER_HERE) || gw_is_other(o, t) ||
	    gw_is_ruled_out(key, irs)) {
		gw_note_return(p, o, s, t);
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	}
	if (f && !gw_is_over(f) && f->irs == irs && f->share == o->share)
		return t && t->number == bpf_ntohl(o->slip.number) ?
			       GW_UNDECIDED :
			       gw_end_old_twin(skb, p, key);
	if (f && t && t->state == GW_TRANSFER_ASKED &&
	    skb->mark != GW_MARK_AGAIN)
		gw_pass_answer(skb, p, f, o);
	err = gw_clear_way(skb, p, key, t);
	if (err != GW_UNDECIDED)
		return err;
	f = gw_came_begin(p, key, o);
	if (!t)
		t = gw_transfer_begin(key, irs, GW_TRANSFER_TWIN);
	if (!f || !t)
		return gw_verdict(GW_REASON_TABLE_FULL, GW_DROP);
	t->number = bpf_ntohl(o->slip.number);
	gw_note_owner(t, p->smac);
	t->state = GW_TRANSFER_TWIN;
	if (gw_hear_client(f, p, gw_now()))
		gw_log_input(skb, p, key, f, s);
	err = gw_materialise(skb, p, key, f);
	if (err && err != GW_REASON_TAPPED_SEGMENT)
		return gw_verdict(err, GW_DROP);
	gw_ask_quick_ack(skb, p);
	gw_gate_twin(skb, p, f);
	return gw_verdict(GW_REASON_TWIN_CAME, GW_PASS);
}

/* What its owner says again, without a question, that one serves itself. */
static __always_inline void gw_forget_question(const struct gw_pkt *p,
					       const struct gw_flow_key *key)
{
	struct gw_transfer *t = gw_transfer_now(key);

	if (t && t->state == GW_TRANSFER_TOLD && p->len &&
	    !gw_before(p->seq, t->seq))
		t->state = GW_TRANSFER_TWIN;
}

/* The share of a connection that there is, or `share`. */
static __always_inline __u32 gw_share_of_flow(const struct gw_flow_key *key,
					      __u32 share)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	return f && !gw_is_over(f) ? f->share : share;
}

/* A SYN where there is the twin of another server's earlier connection. */
static __always_inline bool gw_is_in_the_way(struct __sk_buff *skb,
					     const struct gw_flow_key *key,
					     const struct gw_pkt *p,
					     __u32 share)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	return f && !gw_is_over(f) && f->share != share && f->irs != p->seq &&
	       (f->flags & GW_FLOW_TWIN) && skb->mark != GW_MARK_AGAIN;
}

/* May another server have the connection that the agent speaks for? */
static __noinline bool gw_is_asked_for(const struct gw_pkt *p, __u32 share,
				       const struct gw_share *s)
{
	const struct gw_transfer *t;
	struct gw_flow_key key;

	if (s->role != GW_ROLE_OWNER || !gw_placing_of(share))
		return false;
	gw_key(&key, &p->dst, &p->src);
	t = gw_transfer_now(&key);
	if (t && t->state == GW_TRANSFER_ASKED)
		/* but gw_ask_for_rest() */
		return !gw_is_pure_ack(p) || p->ack != t->seq;
	return t && t->state == GW_TRANSFER_GONE;
}

#endif /* GW_RING_H */
