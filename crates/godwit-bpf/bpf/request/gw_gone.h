/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Connections with an open question, or that have gone to another server (gw_transfer.h):
 * the origin's side after the question.
 */
#ifndef GW_GONE_H
#define GW_GONE_H

#include "request/gw_ask.h"
#include "net/gw_craft.h"
#include "flow/gw_handshake.h"
#include "net/gw_hops.h"
#include "request/gw_proof.h"
#include "request/gw_ward.h"

/*
 * Removes what a SYN has left, or the mark for a twin that never came (gw_order.h,
 * gw_mark_unborn()).
 */
static __always_inline void gw_forget_half(const struct gw_flow_key *key,
					   __u32 irs)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);

	if (half && half->irs == irs)
		bpf_map_delete_elem(&gw_half_open, key);
	else if (half && gw_is_marked(half, irs))
		half->marked = 0;
}

/*
 * Removes the flow's entry, its log and its sums of output. Of a twin it stays known whose it was:
 * its socket may be gone already, and our kernel answers with RST what is still on its way there
 * on another CPU. As a twin's that is silent (gw_shadow_own).
 */
static __noinline void gw_forget_flow(const struct gw_flow_key *key)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	if (!f)
		return;
	gw_note_forgotten(key, f->share);
	gw_flag(f, GW_FLOW_OVER); /* see gw_log_keep() */
	if (f->log.state != GW_LOG_NONE)
		gw_log_free(key, f, GW_LOG_NONE);
	if (f->generation) {
		bpf_map_delete_elem(&gw_outputs, key);
		/* adopted: the last owner has asked, and this node's standby does not know */
		gw_tell(key, f,
			f->flags & GW_FLOW_ADOPTED ? GW_EVENT_ENDED :
						     GW_EVENT_LEFT,
			0);
	}
	gw_forget_half(key, f->irs);
	bpf_map_delete_elem(&gw_flows, key);
}

/*
 * The byte that this node's socket expects; `seq` if there is no socket. A twin may expect an
 * earlier byte than the segment begins with.
 */
static __noinline __u32 gw_own_next(struct __sk_buff *skb,
				    const struct gw_pkt *p, __u32 seq)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	const struct tcp_sock *tp;

	if (!sk)
		return seq;
	tp = (const struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (tp)
		seq = BPF_CORE_READ(tp, rcv_nxt);
	bpf_sk_release(sk);
	return seq;
}

/*
 * The segment becomes a RST to this server's own socket, in the client's name, at exactly the
 * byte that the socket expects: the connection is at another server, or lost.
 */
static __noinline int gw_reset_own(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key, __u32 seq,
				   enum gw_reason reason)
{
	seq = gw_own_next(skb, p, seq);
	bpf_map_delete_elem(&gw_talks, key);
	gw_forget_flow(key);
	if (gw_set_seq(skb, p, seq) ||
	    gw_set_flags(skb, p, GW_TCP_RST | GW_TCP_ACK))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(reason, GW_PASS);
}

/* The target has accepted: the request's frame becomes the RST to this server's socket. */
static __always_inline int gw_leave(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_transfer *t)
{
	__u32 seq = t->seq;

	t->seq = gw_seg_end(p);
	*(volatile __u32 *)&t->state = GW_TRANSFER_GONE;
	/* a millisecond ago: the very next segment tells a director */
	t->heard_ns = gw_now() - (1 << 20);
	gw_transfer_expire(key, t, GW_FORWARD_NS);
	return gw_reset_own(skb, p, key, seq, GW_REASON_ACCEPTED);
}

/*
 * How far a client may have come behind its request, and acknowledge replies of the target,
 * when the first such segment comes here.
 */
#define GW_ANSWER_MOST 0xffffu

/* Does it acknowledge bytes that this server has not sent? */
static __always_inline bool gw_is_ack_beyond(const struct gw_flow *f,
					     const struct gw_pkt *p)
{
	return (p->flags & GW_TCP_ACK) && gw_after(p->ack, f->own.snd_nxt);
}

/*
 * Such a segment may be the client's, or anybody's with its addresses and ports. Which bytes
 * the target has sent is not known here. The client's segment begins at the request or behind
 * it, and acknowledges no more than the client has offered room for (RFC 5961 section 5).
 */
static __always_inline bool gw_is_of_client(const struct gw_flow *f,
					    const struct gw_transfer *t,
					    const struct gw_pkt *p)
{
	__u32 most =
		gw_max_seq(f->client.edge, f->own.snd_nxt + GW_ANSWER_MOST);

	return p->seq - t->seq <= GW_ANSWER_MOST && !gw_after(p->ack, most);
}

/*
 * The target is known to be dead, so this server takes the connection back. There is one
 * exception: the client acknowledges bytes that only the target has sent. This kernel does
 * not have them, so no server can go on, and the connection ends. A target that only was
 * without power (lapsed) gets here without such bytes, see gw_ask_again().
 */
static __always_inline int gw_reclaim(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      const struct gw_flow *f,
				      struct gw_transfer *t)
{
	if (gw_is_ack_beyond(f, p)) {
		if (!gw_is_of_client(f, t, p))
			return gw_verdict(GW_REASON_CLIENT_BEYOND, GW_DROP);
		t->state = GW_TRANSFER_GONE;
		gw_transfer_expire(key, t, GW_CLOSING_NS);
		gw_tell(key, f, GW_EVENT_ENDED, 0);
		return gw_reset_own(skb, p, key, t->seq, GW_REASON_MATE_GONE);
	}
	t->window = 0;
	t->state = GW_TRANSFER_HERE;
	gw_note_denied(t);
	gw_count(GW_REASON_RECLAIMED);
	return GW_UNDECIDED;
}

/*
 * Does the client acknowledge bytes of the target? Then the target has accepted. What cannot be
 * the client's is counted; the target's kernel judges it.
 */
static __always_inline bool gw_is_answered_there(const struct gw_flow *f,
						 const struct gw_transfer *t,
						 const struct gw_pkt *p)
{
	/*
	 * a twin's server may have sent less than the last owner's; of a question that nobody
	 * remembers there is no better sign
	 */
	if ((!t->lapsed && (f->flags & GW_FLOW_TWIN)) ||
	    !gw_is_ack_beyond(f, p))
		return false;
	if (gw_is_of_client(f, t, p))
		return true;
	gw_count(GW_REASON_CLIENT_BEYOND);
	return false;
}

/* The target has accepted, and its answer was lost. */
static __always_inline int gw_leave_late(struct __sk_buff *skb,
					 struct gw_pkt *p,
					 const struct gw_flow_key *key,
					 struct gw_transfer *t)
{
	__u8 to[6];

	__builtin_memcpy(to, t->to.mac, 6);
	gw_address_to(skb, to);
	if (!gw_spend_hop(skb, p, GW_HOPS_FLOW)) {
		gw_count(GW_REASON_SENT_ON);
		bpf_clone_redirect(skb, skb->ifindex, 0);
	}
	skb->mark = 0;
	return gw_leave(skb, p, key, t);
}

/*
 * The client sends the request again, in one segment with earlier requests. The gate has
 * held the acknowledgement of those, because the twin lacked them. They are answered, so the
 * client gets an ACK of all that is before the request, and can send the request alone. This
 * kernel and the log still have what the twin lacks. If the request is refused, the flow is
 * unprotected until the twin has it.
 */
static __noinline int gw_ask_for_rest(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      struct gw_flow *f, __u32 seq)
{
	struct gw_bare b = {
		.seq = f->own.snd_nxt,
		.ack = seq,
		.flags = GW_TCP_ACK,
		.ts = !!(f->flags & GW_FLOW_TS),
		.ts_val = gw_max_seq(gw_owner_ts(f, gw_now()), f->own.ts_val),
		.ts_ecr = f->client.ts_val,
	};
	__u8 client[6];

	if (gw_after(seq, f->gated.told_ack) && (f->flags & GW_FLOW_GATED)) {
		gw_advance(&f->gated.told_ack, seq);
		gw_tell(key, f, GW_EVENT_STALLED, 0);
	}
	b.wnd = (gw_floored(f, f->own.edge) - seq) >> (f->rcv_wscale & 15);
	if (gw_craft(skb, p, &key->service, &key->client, &b))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	__builtin_memcpy(client, f->client.mac, 6);
	return gw_send_to(skb, client, GW_REASON_REST_ASKED);
}

/*
 * Would TCP take its acknowledgement (RFC 5961 section 5)? A twin's server may have sent less than
 * the last owner's.
 */
static __always_inline bool gw_is_heard_beside(const struct gw_flow *f,
					       const struct gw_pkt *p)
{
	if (!(f->flags & GW_FLOW_TWIN) && gw_is_ack_beyond(f, p))
		return false;
	return !gw_is_ignored(f, p, gw_now());
}

/* A client's segment while the question is open: is it the request again? */
static __noinline int gw_ask_again(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key, __u32 share,
				   struct gw_transfer *t)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_talk *talk = f ? gw_talk_of(key, f) : NULL;

	if (f && (gw_is_dead(share, &t->to) ||
		  (t->lapsed && !gw_is_ack_beyond(f, p))))
		return gw_reclaim(skb, p, key, f, t);
	gw_find_mate(share, &t->to);
	if (talk && p->len && p->seq == t->seq && !t->lapsed &&
	    gw_has_room(skb, p))
		return gw_put_question(skb, p, f, t, talk->head);
	if (f && gw_is_answered_there(f, t, p))
		return gw_leave_late(skb, p, key, t);
	if (f && gw_before(p->seq, t->seq) && gw_after(gw_seg_end(p), t->seq) &&
	    gw_is_heard_beside(f, p))
		return gw_ask_for_rest(skb, p, key, f, t->seq);
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	return gw_send_on(skb, t->to.mac);
}

/*
 * Sends a SYN on to the server with that MAC address. In a ring it gets a slip, so that a
 * standby does not take it for a mirrored copy.
 */
static __noinline int gw_send_syn_on(struct __sk_buff *skb,
				     const struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     const __u8 *mac)
{
	struct gw_offer *o = gw_offer_at_hand();

	if (!bpf_map_lookup_elem(&gw_wards, &key->service))
		return gw_send_on(skb, mac);
	if (!o)
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	o->slip = (struct gw_slip){
		.magic = bpf_htonl(GW_SLIP_MAGIC),
		.version = GW_SLIP_VERSION,
		.kind = GW_SLIP_BEGIN,
		.irs = bpf_htonl(p->seq),
	};
	if (gw_seal_for(skb, p, &o->slip, mac) || gw_wrap(skb))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_send_on(skb, mac);
}

/*
 * What a client's segment changes here of a connection that has gone. Which window its kernel
 * offers is not known here, so only a segment at exactly the client's next byte counts (RFC 5961
 * section 3.2), and moves that byte. One that was lost on its way here leaves the byte behind:
 * the entry then lasts for as long as that of a silent client. Does it count?
 */
static __always_inline bool gw_hear_gone(const struct gw_flow_key *key,
					 struct gw_transfer *t,
					 const struct gw_pkt *p)
{
	if (p->seq != t->seq) {
		if (p->flags & (GW_TCP_RST | GW_TCP_FIN))
			gw_count(GW_REASON_NOT_HEARD);
		return false;
	}
	t->seq = gw_seg_end(p);
	if (p->flags & GW_TCP_RST)
		gw_transfer_expire(key, t, GW_CLOSING_NS);
	else if (p->flags & GW_TCP_FIN)
		gw_transfer_expire(key, t, GW_ENDING_NS);
	return true;
}

/* Forwards a client's segment of a connection that has gone; tells a director. */
static __noinline int gw_forward_gone(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      __u32 share, struct gw_transfer *t)
{
	const struct gw_share *s = gw_share_at(share);
	__u64 now = gw_now(), heard = t->heard_ns;
	struct gw_lead lead = {};
	bool counts;

	if (gw_mac_equal(p->smac, t->to.mac))
		return gw_verdict(GW_REASON_SENT_BACK, GW_DROP);
	if (gw_is_dead(share, &t->to)) {
		/* what it had is here, but for what had gone on from there before */
		if (gw_is_mate(p->smac) &&
		    bpf_map_lookup_elem(&gw_wards, &key->service))
			return gw_verdict(GW_REASON_NO_SLIP, GW_DROP);
		/* the target is dead: this kernel answers with a RST */
		bpf_map_delete_elem(&gw_transfers, key);
		return gw_verdict(GW_REASON_MATE_GONE, GW_PASS);
	}
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	gw_find_mate(share, &t->to);
	t->heard_ns = now;
	counts = gw_hear_gone(key, t, p);
	if ((p->flags & (GW_TCP_SYN | GW_TCP_ACK)) == GW_TCP_SYN)
		return gw_send_syn_on(skb, p, key, t->to.mac);
	if (!s || gw_is_mate(p->smac) || !gw_is_to_be_told(s, heard, now))
		return gw_send_on(skb, t->to.mac);
	/* the director knows from now on; if the note is lost it sends more segments here */
	if (counts && t->idle_ns > GW_LEARNT_NS)
		gw_transfer_expire(key, t, GW_LEARNT_NS);
	gw_lead_to(share, t, &lead);
	return gw_send_on_and_tell(skb, p, key, t->to.mac, &lead);
}

/*
 * The entry of a connection, brought up to date with the share's role:
 *
 *   this node owns the share by now, TOLD            -> ASKED: the question is its own
 *   this node owns the share by now, TWIN, GONE or   -> HERE: the twin's connection is here
 *   REFUSED
 *   this node has become the standby, ASKED          -> TOLD: the question is the owner's
 *   this node has become the standby, HERE           -> TWIN
 *   the entry is of an earlier connection            -> removed
 */
static __noinline struct gw_transfer *
gw_transfer_now(const struct gw_flow_key *key)
{
	struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);
	const struct gw_share *s;
	const struct gw_flow *f;

	if (!t)
		return t;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (!f || gw_is_over(f))
		return t;
	if (f->irs != t->irs) {
		if (t->state == GW_TRANSFER_HERE ||
		    t->state == GW_TRANSFER_REFUSED)
			return t;
		bpf_map_delete_elem(&gw_transfers, key);
		return NULL;
	}
	s = gw_share_at(f->share);
	if (!s || !(f->flags & GW_FLOW_TWIN))
		return t;
	if (s->role == GW_ROLE_OWNER && t->state == GW_TRANSFER_HERE)
		return t;
	if (s->role == GW_ROLE_OWNER && t->state == GW_TRANSFER_TOLD) {
		t->owner = 0;
		t->state = GW_TRANSFER_ASKED;
	} else if (s->role == GW_ROLE_OWNER && t->state != GW_TRANSFER_ASKED) {
		t->owner = 0;
		/* a director is told with this very segment: gw_tell_whose() */
		t->idle_ns = 0;
		t->state = GW_TRANSFER_HERE;
	} else if (s->role != GW_ROLE_OWNER && (t->state == GW_TRANSFER_ASKED ||
						t->state == GW_TRANSFER_HERE)) {
		gw_note_owner(t, s->peer_mac);
		t->state = t->state == GW_TRANSFER_ASKED ? GW_TRANSFER_TOLD :
							   GW_TRANSFER_TWIN;
	}
	return t;
}

/* The answer to the SYN of another connection: it may begin here (gw_begin_client()). */
static __always_inline bool gw_is_new_answer(const struct gw_pkt *p,
					     const struct gw_transfer *t)
{
	return (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) ==
		       (GW_TCP_SYN | GW_TCP_ACK) &&
	       p->ack != t->irs + 1;
}

/* A segment of this node's kernel; GW_UNDECIDED: it may leave. */
static __always_inline int gw_transfer_own(const struct gw_pkt *p,
					   const struct gw_flow_key *key,
					   __u32 share,
					   const struct gw_share *s)
{
	const struct gw_transfer *t;

	/* a shadow is silent anyway */
	if (s->role == GW_ROLE_SHADOW || !gw_placing_of(share))
		return GW_UNDECIDED;
	t = gw_transfer_now(key);
	if (!t || gw_is_new_answer(p, t))
		return GW_UNDECIDED;
	switch (t->state) {
	case GW_TRANSFER_ASKED:
		return gw_verdict(GW_REASON_UNANSWERED, GW_DROP);
	case GW_TRANSFER_GONE:
		return gw_verdict(GW_REASON_AWAY, GW_DROP);
	default:
		return GW_UNDECIDED;
	}
}

#endif /* GW_GONE_H */
