/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A rule, or a program, names another server for a request: this server asks that one
 * whether it takes the connection (gw_transfer.h).
 */
#ifndef GW_ASK_H
#define GW_ASK_H

#include "flow/gw_edge.h"
#include "policy/gw_policy.h"
#include "request/gw_proof.h"
#include "request/gw_settle.h"
#include "request/gw_transfer.h"
#include "flow/gw_window.h"

static __always_inline void gw_fill_slip(struct gw_slip *slip,
					 const struct gw_flow *f,
					 const struct gw_transfer *t, bool head)
{
	*slip = (struct gw_slip){
		.magic = bpf_htonl(GW_SLIP_MAGIC),
		.version = GW_SLIP_VERSION,
		.kind = GW_SLIP_ASK,
		.number = bpf_htonl(t->number),
		.irs = bpf_htonl(f->irs),
		.iss = bpf_htonl(f->iss),
		.ts_val = bpf_htonl(
			gw_max_seq(gw_owner_ts(f, gw_now()), f->own.ts_val)),
		.edge = bpf_htonl(gw_floored(f, f->own.edge)),
		.flags = bpf_htons(f->flags & GW_NEGOTIATED),
		.mss = bpf_htons(f->mss),
		.syn_ack_mss = bpf_htons(f->syn_ack_mss),
		.snd_wscale = f->snd_wscale,
		.rcv_wscale = f->rcv_wscale,
		.head = head,
		.rtt_us = bpf_htonl(f->rtt_ns / 1000),
	};
}

/*
 * A connection with a twin: the question goes to the target by way of the standby, unless the
 * standby is the target. So the standby knows of the question before the target does. It may
 * be the owner when the answer comes, and then asks again itself.
 */
static __always_inline void gw_ask_by_standby(const struct gw_flow *f,
					      const struct gw_transfer *t,
					      struct gw_slip *slip, __u8 *to)
{
	const struct gw_placing *pl = gw_placing_of(f->share);
	const struct gw_share *s = gw_share_at(f->share);

	if (!s || !pl || !f->generation || f->generation != s->generation ||
	    gw_mac_equal(s->peer_mac, to))
		return;
	slip->from = gw_node_id(pl->node);
	__builtin_memcpy(to, s->peer_mac, 6);
}

/* Sends the request's frame with the question behind it, and keeps a copy for the agent. */
static __noinline int gw_put_question(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_flow *f,
				      struct gw_transfer *t, bool head)
{
	struct gw_offer *o = gw_offer_at_hand();
	__u8 to[6];

	if (!o)
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_key(&o->key, &p->src, &p->dst);
	gw_fill_slip(&o->slip, f, t, head);
	o->slip.to = gw_node_id(t->to.node);
	o->slip.window = gw_own_window(skb, p);
	__builtin_memcpy(to, t->to.mac, 6);
	gw_ask_by_standby(f, t, &o->slip, to);
	if (gw_seal_for(skb, p, &o->slip, to) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_address_to(skb, to);
	gw_keep(skb, f, t);
	gw_transfer_expire(&o->key, t, GW_UNANSWERED_NS);
	gw_count(GW_REASON_ASKED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Does the frame have room for a slip and its tag, by the MTU of this link? */
static __always_inline bool gw_has_room(struct __sk_buff *skb,
					const struct gw_pkt *p)
{
	__u32 mtu = 0;

	return !skb->gso_size &&
	       !bpf_check_mtu(skb, 0, &mtu,
			      (__s32)(gw_packet_end(p) +
				      sizeof(struct gw_slip) + sizeof(__be64) -
				      skb->len),
			      0);
}

/*
 * Writes the question down; 0, or why it is not asked.
 *
 * Two races with another CPU, B, while this one is A:
 *
 *   - B has a copy of the same request. Only one exchange of the number succeeds; the other
 *     CPU drops its copy (ASKED_TWICE).
 *   - B has a segment of this server at the gate. A writes ASKED, then reads snd_nxt. B
 *     writes snd_nxt, then reads the state (gw_has_spoken_late). All are atomic operations
 *     that return a value, so A or B sees the other. If A does, the request stays here
 *     (KEPT_BUSY). If B does, it drops its segment. If both do, the server's TCP sends again.
 */
static __always_inline int gw_commit_question(struct gw_transfer *t,
					      const struct gw_flow *f,
					      const struct gw_pkt *p,
					      const struct gw_target *to)
{
	__u32 number = *(volatile __u32 *)&t->number, before;

	if (__sync_val_compare_and_swap(&t->number, number, number + 1) !=
	    number)
		return GW_REASON_ASKED_TWICE;
	t->seq = p->seq;
	t->to = *to;
	t->heard_ns = gw_now();
	t->lapsed = 0;
	before = __sync_val_compare_and_swap(&t->state, GW_TRANSFER_HERE,
					     GW_TRANSFER_ASKED);
	if (before != GW_TRANSFER_HERE)
		return before == GW_TRANSFER_ASKED ? GW_REASON_ASKED_TWICE :
						     GW_REASON_KEPT_BUSY;
	if (*(volatile const __u32 *)&f->own.snd_nxt == p->ack)
		return 0;
	*(volatile __u32 *)&t->state = GW_TRANSFER_HERE;
	return GW_REASON_KEPT_BUSY;
}

/* Was a question asked while this CPU let a segment of this server pass? See above, B. */
static __always_inline bool gw_has_spoken_late(const struct gw_flow_key *key)
{
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	return t && *(volatile const __u32 *)&t->state == GW_TRANSFER_ASKED;
}

/*
 * A client's segment on a connection that is here, before the flow's entry takes it in. Asks
 * another server if a rule says so. GW_UNDECIDED: this server gets the segment; GW_CONSULT: a
 * program must be asked first.
 */
static __noinline int gw_place_request(struct __sk_buff *skb,
				       const struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_flow *f, __u32 share)
{
	const struct gw_placing *pl = gw_placing_of(share);
	struct gw_target to = {};
	struct gw_transfer *t;
	struct gw_talk *talk;
	struct gw_http *h;
	int why;

	if (!pl || !p->len || gw_is_over(f))
		return GW_UNDECIDED;
	if (f->flags & GW_FLOW_TWIN) {
		gw_count(GW_REASON_KEPT_ADOPTED);
		return GW_UNDECIDED;
	}
	if (f->flags & GW_FLOW_SIGNED) {
		gw_count(GW_REASON_KEPT_SIGNED);
		return GW_UNDECIDED;
	}
	talk = gw_talk_of(key, f);
	if (!talk)
		talk = gw_talk_begin(key, f);
	if (!talk)
		return GW_UNDECIDED;
	h = gw_talk_request(skb, p, f, talk);
	if (!h)
		return GW_UNDECIDED;
	why = f->phase == GW_PHASE_REJOINING ? GW_REASON_KEPT_REJOINING :
					       gw_silenced(share);
	if (!why)
		why = gw_choose_by_policy(key, h, share, p->seq, &to);
	if (why == GW_CONSULT) {
		gw_talk_unasked(talk, p->seq);
		return GW_CONSULT;
	}
	if (!why && !gw_has_room(skb, p))
		why = GW_REASON_KEPT_LONG;
	if (why) {
		gw_count(why);
		return GW_UNDECIDED;
	}
	t = gw_transfer_of(key, f->irs);
	if (!t)
		t = gw_transfer_begin(key, f->irs, GW_TRANSFER_HERE);
	if (!t) {
		gw_count(GW_REASON_TABLE_FULL);
		return GW_UNDECIDED;
	}
	why = gw_commit_question(t, f, p, &to);
	if (why == GW_REASON_ASKED_TWICE)
		return gw_verdict(why, GW_DROP);
	if (why) {
		gw_count(why);
		return GW_UNDECIDED;
	}
	return gw_put_question(skb, p, f, t, talk->head);
}

#endif /* GW_ASK_H */
