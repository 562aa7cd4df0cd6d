/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Handoff of a connection with a twin, in a ring of servers (gw_ward.h). The connection is
 * protected again once the new twin, at the target's standby, has acknowledged the request.
 * Until then the target does not acknowledge the request to the client.
 *
 *   origin              its standby               target           its standby
 *   ASKED ─── ASK ────► TOLD ─── ASK ───────────► socket: HERE
 *                                                   │ ─── TWIN ───► twin: TWIN
 *   GONE ◄─ ACCEPTED ── twin reset: GONE ◄ ACCEPTED ┘                │
 *                                                 PROTECTED ◄─ ACK ──┘
 *
 * The question goes by way of the origin's standby, so the standby knows of it. If the standby
 * becomes the owner while the question is open, it goes on with that question. If the standby
 * is the target, its twin makes way for the connection.
 */
#ifndef GW_RING_H
#define GW_RING_H

#include "request/gw_come.h"
#include "shadow/gw_shadow.h"

/* After this time the owner does not wait for a twin any more (GW_START_LIMIT_NS). */
#define GW_LATE_TWIN_NS 1000000000ull

/* Is the slip for another server, and this one only relays it? */
static __always_inline bool gw_is_by_way(const struct gw_offer *o)
{
	const struct gw_placing *pl = gw_placing_of(o->share);
	const struct gw_slip *slip = &o->slip;
	__be32 self = pl ? gw_node_id(pl->node) : 0;

	return pl && slip->from && slip->from != self && slip->to != self;
}

/* Is this node the owner's standby? If it owns the share by now, an answer is for itself. */
static __always_inline bool gw_is_shadow(const struct gw_offer *o)
{
	const struct gw_share *s = gw_share_at(o->share);

	return s && s->role == GW_ROLE_SHADOW;
}

/*
 * The connection has gone from its owner, and this standby has no twin of it. If this node
 * takes the share over, the client's segments may come here for a while: it forwards them.
 */
static __always_inline void gw_note_gone(const struct gw_pkt *p,
					 const struct gw_flow_key *key,
					 const struct gw_offer *o)
{
	const struct gw_placing *pl = gw_placing_of(o->share);
	__u32 irs = bpf_ntohl(o->slip.irs);
	__u32 number = bpf_ntohl(o->slip.number);
	struct gw_transfer *t;

	if (!pl || bpf_map_lookup_elem(&gw_flows, key))
		return;
	t = gw_transfer_of(key, irs);
	if (t && gw_after(t->number, number))
		number = t->number;
	t = gw_transfer_begin(key, irs, GW_TRANSFER_GONE);
	if (!t)
		return;
	t->number = number;
	t->seq = gw_seg_end(p);
	t->to.node = gw_node_slot(o->slip.to);
	gw_find_mate(o->share, &t->to);
	gw_transfer_expire(key, t, GW_FORWARD_NS);
}

/* Is the owner's question over, as far as its standby knows? This is a late copy then. */
static __always_inline bool gw_is_question_over(const struct gw_flow_key *key,
						const struct gw_offer *o)
{
	__u32 irs = bpf_ntohl(o->slip.irs), number = bpf_ntohl(o->slip.number);
	const struct gw_transfer *t = gw_transfer_of(key, irs);
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	if (!t || !f || f->irs != irs || gw_is_over(f) || f->share != o->share)
		return false;
	return gw_before(number, t->number) ||
	       (number == t->number && t->state == GW_TRANSFER_TWIN);
}

/* Writes the owner's question down: after a takeover this node asks it again. 0 or -1. */
static __noinline int gw_note_question(const struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_offer *o,
				       const struct gw_target *to)
{
	__u32 irs = bpf_ntohl(o->slip.irs), number = bpf_ntohl(o->slip.number);
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
	t->number = number;
	t->seq = p->seq;
	t->to = *to;
	t->heard_ns = gw_now();
	gw_note_owner(t, p->smac);
	t->state = GW_TRANSFER_TOLD;
	gw_transfer_expire(key, t, GW_FORWARD_NS);
	return bpf_map_update_elem(&gw_talks, key, &talk, BPF_ANY);
}

/*
 * The answer to the owner's question. If the target has accepted, the twin here is reset.
 * GW_UNDECIDED: the answer is only relayed.
 */
static __always_inline int gw_note_answer(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_flow_key *key,
					  struct gw_offer *o, const __u8 *mac)
{
	struct gw_transfer *t = gw_transfer_of(key, bpf_ntohl(o->slip.irs));
	__u8 to[6];

	/* it has been back with its owner meanwhile, or was to be there, and that one knows better */
	if (t && t->state == GW_TRANSFER_GONE &&
	    (gw_after(bpf_ntohl(o->slip.number), t->number) ||
	     t->to.node == gw_node_slot(o->slip.from)))
		t = NULL;
	if (!t && o->slip.kind == GW_SLIP_ACCEPTED)
		gw_note_gone(p, key, o);
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
	/* if the copy is lost, the owner asks again */
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = 0;
	gw_bare(skb, p);
	return gw_leave(skb, p, key, t);
}

/*
 * A share of ours is about to move, and our agent has found a connection that is elsewhere, which
 * a director or another server may still look for at that share. Who gets it is told as an owner's
 * standby is: by an answer that goes by way of it. The agent names the two in the slip.
 */
static __noinline int gw_bequeath(struct __sk_buff *skb, struct gw_pkt *p,
				  const struct gw_flow_key *key,
				  struct gw_offer *o)
{
	const struct gw_transfer *t =
		gw_transfer_of(key, bpf_ntohl(o->slip.irs));
	const struct gw_placing *pl = gw_placing_of(o->share);
	__u8 to[6];

	if (!pl || skb->mark != GW_MARK_SETTLED)
		return gw_verdict(GW_REASON_OTHER_SLIP, GW_DROP);
	if (t && t->state == GW_TRANSFER_GONE) {
		o->slip.number = bpf_htonl(t->number);
		o->slip.to = gw_node_id(t->to.node);
	}
	o->slip.from = gw_node_id(pl->node);
	gw_turn_slip(&o->slip, GW_SLIP_ACCEPTED, 0);
	__builtin_memcpy(to, p->smac, 6);
	if (gw_seal_for(skb, p, &o->slip, to) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_address_to(skb, to);
	gw_count(GW_REASON_BEQUEATHED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Relays a question or an answer about a connection whose twin may be here. */
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

	if (!s || !mate ||
	    (asks && (!gw_mac_equal(p->smac, s->peer_mac) ||
		      gw_is_question_over(key, o))))
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	__builtin_memcpy(to.mac, mate->mac, 6);
	gw_count(GW_REASON_RELAYED);
	if (!asks) {
		verdict = gw_note_answer(skb, p, key, o, to.mac);
		if (verdict != GW_UNDECIDED)
			return verdict;
	} else if (gw_note_question(p, key, o, &to)) {
		/* after a takeover this node could not go on with the question */
		return gw_verdict(GW_REASON_TABLE_FULL, GW_DROP);
	}
	if (gw_seal_for(skb, p, &o->slip, to.mac) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_send_on(skb, to.mac);
}

/*
 * A socket is here in the twin's place, and it is not the twin that the owner means. The frame
 * becomes the RST that ends the socket, and a copy of the frame follows.
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
 * The owner's TWIN slip shows that the target has accepted this node's own question. The
 * answer was to go by way of this node's standby, and may have been lost: the standby is told.
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
	/* the slip gets its own kind again; its tag was checked before */
	gw_turn_slip(&o->slip, GW_SLIP_TWIN, 0);
	gw_seal_for(skb, p, &o->slip, p->smac);
}

/* Has this standby promised not to serve the flow? See gw_mark_unborn() in gw_order.h. */
static __always_inline bool gw_is_ruled_out(const struct gw_flow_key *key,
					    __u32 irs)
{
	const struct gw_half_open *half =
		bpf_map_lookup_elem(&gw_half_open, key);

	return half && gw_is_marked(half, irs) &&
	       gw_now() - half->born_ns < GW_LATE_TWIN_NS;
}

/*
 * Has this node an open question about the connection, under another number? With the same
 * number the slip is as good as the answer, which may be on its way by this node's standby.
 */
static __always_inline bool gw_is_other(const struct gw_offer *o,
					const struct gw_transfer *t)
{
	return t && t->state == GW_TRANSFER_ASKED &&
	       t->number != bpf_ntohl(o->slip.number);
}

/*
 * The connection has gone from here, and has come to the owner for which this node stands by,
 * or stood by. No twin is made here. From now on the entry names that owner: segments go to it
 * and not to the server that had the connection before.
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
	t->seq = gw_seg_end(p);
	t->to.node = *node;
	__builtin_memcpy(t->to.mac, p->smac, 6);
}

/*
 * The owner for which this node stands by has got a connection. This is the segment that it
 * came with: a twin is made of it. GW_UNDECIDED: the twin is here already.
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
	    (t && gw_before(bpf_ntohl(o->slip.number), t->number)) ||
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
	/* here, and not where it was meant to come */
	if (gw_is_denied(t, t->number))
		t->why = 0;
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

/* The owner mirrors the request without a question: it serves the request itself. */
static __always_inline void gw_forget_question(const struct gw_pkt *p,
					       const struct gw_flow_key *key)
{
	struct gw_transfer *t = gw_transfer_now(key);

	if (t && t->state == GW_TRANSFER_TOLD && p->len &&
	    !gw_before(p->seq, t->seq))
		t->state = GW_TRANSFER_TWIN;
}

/* The share of the flow that is here, or `share` if none is. */
static __always_inline __u32 gw_share_of_flow(const struct gw_flow_key *key,
					      __u32 share)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	return f && !gw_is_over(f) ? f->share : share;
}

/*
 * A SYN with the addresses and ports of a connection whose twin is here, of another share than
 * this server's own. Anybody can send one, so it ends no twin: it goes to the twin's owner,
 * whose TCP answers it, or begins a new connection. GW_UNDECIDED: there is no such twin. One
 * that was taken over has spoken, and its socket answers here.
 */
static __noinline int gw_spare_twin(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_flow_key *key, __u32 share)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_share *s;
	__u8 owner[6];

	if (!f || gw_is_over(f) || f->share == share || f->irs == p->seq ||
	    !(f->flags & GW_FLOW_TWIN))
		return GW_UNDECIDED;
	s = gw_share_at(f->share);
	if (!s || s->role == GW_ROLE_OWNER)
		return GW_UNDECIDED;
	/* it is not known there, and soon not here */
	if (gw_mac_equal(p->smac, s->peer_mac) || !gw_is_node(s->peer_mac))
		return gw_verdict(GW_REASON_SENT_BACK, GW_DROP);
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	__builtin_memcpy(owner, s->peer_mac, 6);
	return gw_send_syn_on(skb, p, key, owner);
}

/* It begins a connection anew: what is known of the earlier one goes. */
static __noinline bool gw_renew(const struct gw_pkt *p,
				const struct gw_flow_key *key)
{
	const struct gw_half_open *half = gw_completed(p, key);

	if (!half)
		return false;
	gw_forget_earlier(key, half->irs);
	return true;
}

/* Has another connection begun in the place of one that is here, and of another share? */
static __noinline bool gw_is_in_the_way(const struct __sk_buff *skb,
					const struct gw_flow_key *key,
					const struct gw_pkt *p)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_half_open *half;

	if (!f || gw_is_over(f) || skb->mark == GW_MARK_AGAIN)
		return false;
	half = gw_completed(p, key);
	return half && half->irs != f->irs && half->share != f->share;
}

/* May another server have the connection? Then the agent must not send a segment of it. */
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
		/* the ACK of gw_ask_for_rest() may pass */
		return !gw_is_pure_ack(p) || p->ack != t->seq;
	return t && t->state == GW_TRANSFER_GONE;
}

#endif /* GW_RING_H */
