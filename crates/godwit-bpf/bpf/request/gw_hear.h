/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Slips as they come from other servers: questions, and the answers to ours. Who may send
 * them is in gw_mate_macs, and that they have sent them their tags prove (gw_proof.h).
 */
#ifndef GW_HEAR_H
#define GW_HEAR_H

#include "request/gw_come.h"
#include "request/gw_proof.h"
#include "request/gw_ring.h"
#include "request/gw_steer.h"

/* Is it the answer of whom we have asked, by way of our standby or not? */
static __always_inline bool gw_is_from(const struct gw_pkt *p,
				       const struct gw_slip *slip,
				       const struct gw_transfer *t)
{
	return gw_mac_equal(p->smac, t->to.mac) ||
	       (slip->from && slip->to == gw_node_id(t->to.node));
}

/* Must what has come be proved? What comes in once more was, and our agent's is ours. */
static __always_inline bool gw_is_from_link(const struct __sk_buff *skb)
{
	return skb->mark == GW_MARK_SLIP || !gw_is_wrapped(skb);
}

/* A frame with a slip. GW_UNDECIDED: its segment is a client's like any other. */
static __always_inline int gw_hear_slip(struct __sk_buff *skb, struct gw_pkt *p,
					const struct gw_flow_key *key,
					struct gw_offer *o)
{
	const struct gw_slip *slip = &o->slip;
	struct gw_transfer *t;
	struct gw_flow *f;
	int verdict;

	if (slip->kind == GW_SLIP_TWIN)
		return gw_make_twin(skb, p, key, o);
	if (slip->kind == GW_SLIP_BEGIN)
		return GW_UNDECIDED;
	if (slip->kind == GW_SLIP_BEQUEST)
		return gw_bequeath(skb, p, key, o);
	if (gw_is_by_way(o) && gw_is_shadow(o))
		return gw_relay(skb, p, key, o);
	if (gw_is_by_way(o) && slip->kind == GW_SLIP_ASK)
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	if (slip->kind == GW_SLIP_ASK) {
		verdict = gw_hear_question(skb, p, key, o);
		return verdict == GW_NEWCOMER ? gw_come(skb, p, key, o) :
						verdict;
	}
	t = gw_transfer_now(key);
	if (!t || t->state != GW_TRANSFER_ASKED ||
	    t->irs != bpf_ntohl(slip->irs) ||
	    t->number != bpf_ntohl(slip->number) || t->seq != p->seq ||
	    !gw_is_from(p, slip, t))
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	if (slip->kind == GW_SLIP_ACCEPTED) {
		f = bpf_map_lookup_elem(&gw_flows, key);
		/* our standby has not heard it: gw_forget_flow() */
		if (f && skb->mark == GW_MARK_SETTLED)
			gw_flag(f, GW_FLOW_ADOPTED);
		return gw_leave(skb, p, key, t);
	}
	if (slip->kind == GW_SLIP_LAPSED && skb->mark == GW_MARK_SETTLED) {
		t->lapsed = 1;
		return gw_verdict(GW_REASON_LAPSED, GW_DROP);
	}
	if (slip->kind != GW_SLIP_REFUSED)
		return gw_verdict(GW_REASON_OTHER_SLIP, GW_DROP);
	t->window = 0;
	t->state = GW_TRANSFER_HERE;
	gw_note_denied(t);
	/* of our agent, which has no copy of the request: the client says it again */
	if (!p->len)
		return gw_verdict(GW_REASON_REFUSED, GW_DROP);
	gw_count(GW_REASON_REFUSED);
	return GW_UNDECIDED;
}

/*
 * A SYN with the addresses and ports of a connection that another server has, or may have,
 * and another sequence number. Anybody can send one, so it ends nothing: it goes to whom
 * has the connection, and the TCP there answers it (RFC 5961 section 4: a challenge ACK), or
 * begins a new connection where the old one is over. While a question is open nobody is
 * known to have it, and the SYN waits for its retransmission. GW_UNDECIDED: it begins here.
 */
static __noinline int gw_hear_syn(struct __sk_buff *skb, const struct gw_pkt *p,
				  const struct gw_flow_key *key, __u32 share,
				  struct gw_transfer *t)
{
	const struct gw_share *s = gw_share_at(share);

	if (!t || !s || s->role != GW_ROLE_OWNER)
		return GW_UNDECIDED;
	if (t->state == GW_TRANSFER_ASKED)
		return t->lapsed || gw_is_dead(share, &t->to) ?
			       GW_UNDECIDED :
			       gw_verdict(GW_REASON_SYN_TOO_EARLY, GW_DROP);
	/* who sends it back has it no more, or does not know yet that it has it */
	if (t->state != GW_TRANSFER_GONE || gw_is_lost(share, &t->to) ||
	    gw_mac_equal(p->smac, t->to.mac))
		return GW_UNDECIDED;
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	gw_find_mate(share, &t->to);
	return gw_send_syn_on(skb, p, key, t->to.mac);
}

/*
 * What becomes of a client's segment where requests are placed; GW_UNDECIDED: it is
 * our server's, as far as can be told without reading it.
 */
static __noinline int gw_transfer_client(struct __sk_buff *skb,
					 struct gw_pkt *p,
					 const struct gw_flow_key *key,
					 __u32 share, const struct gw_share *s)
{
	bool syn = (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) == GW_TCP_SYN;
	struct gw_transfer *t;
	struct gw_offer *o;
	int verdict;
	bool mate;

	if (!gw_placing_of(share))
		return GW_UNDECIDED;
	mate = gw_is_mate(p->smac);
	if (mate) {
		o = gw_offer_at_hand();
		if (o && !gw_read_slip(skb, p, &o->slip)) {
			o->share = share;
			if (gw_is_from_link(skb) &&
			    !gw_check_slip(skb, p, &o->slip))
				return gw_verdict(GW_REASON_SLIP_FORGED,
						  GW_DROP);
			gw_find_ts(skb, p);
			verdict = gw_hear_slip(skb, p, key, o);
			/* the kernel knows nothing of our marks */
			if (skb->mark == GW_MARK_SLIP ||
			    skb->mark == GW_MARK_SETTLED)
				skb->mark = 0;
			if (verdict != GW_UNDECIDED)
				return verdict;
			gw_cut_slip(skb, p);
			if (!syn)
				return GW_UNDECIDED;
		}
	}
	if (s->role == GW_ROLE_SHADOW && gw_mac_equal(p->smac, s->peer_mac)) {
		gw_forget_question(p, key);
		return GW_UNDECIDED;
	}
	t = gw_transfer_now(key);
	if (!t && s->role == GW_ROLE_OWNER) {
		verdict = gw_follow_passed(skb, p, key, share);
		if (verdict != GW_UNDECIDED)
			return verdict;
		t = gw_transfer_now(key);
	}
	if (syn && (!t || p->seq != t->irs)) {
		verdict = gw_hear_syn(skb, p, key, share, t);
		return verdict == GW_UNDECIDED ?
			       gw_begin_client(skb, p, key, share, mate) :
			       verdict;
	}
	if (t && !syn && gw_renew(p, key))
		t = gw_transfer_now(key);
	if (t && t->state == GW_TRANSFER_ASKED)
		return gw_ask_again(skb, p, key, share, t);
	/* of a twin the owner is to have what its client says */
	if (t && t->state == GW_TRANSFER_GONE && s->role == GW_ROLE_OWNER)
		return gw_forward_gone(skb, p, key, share, t);
	if (t && t->state == GW_TRANSFER_HERE && !mate && !syn)
		return gw_tell_whose(skb, p, key);
	/* our kernel would reset what it does not know */
	if (mate && !syn && !gw_is_known(key))
		return gw_verdict(GW_REASON_NO_SLIP, GW_DROP);
	return GW_UNDECIDED;
}

#endif /* GW_HEAR_H */
