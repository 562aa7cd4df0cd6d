/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A connection that another server offers: the target's side (gw_transfer.h). */
#ifndef GW_COME_H
#define GW_COME_H

#include "net/gw_craft.h"
#include "flow/gw_materialise.h"
#include "flow/gw_mirror.h"
#include "net/gw_options.h"
#include "request/gw_proof.h"
#include "flow/gw_watchdog.h"
#include "request/gw_steer.h"
#include "request/gw_way.h"

/* Addresses the frame, with its slip, to its sender, under the EtherType it had. 0 or -1. */
static __always_inline int gw_turn_back(struct __sk_buff *skb,
					const struct gw_pkt *p,
					struct gw_slip *slip)
{
	__u8 to[6];

	__builtin_memcpy(to, p->smac, 6);
	if (gw_seal_for(skb, p, slip, to) ||
	    (gw_is_wrapped(skb) && gw_wrap(skb)))
		return -1;
	gw_address_to(skb, to);
	return 0;
}

static __noinline int gw_refuse(struct __sk_buff *skb, const struct gw_pkt *p,
				struct gw_slip *slip, __u16 why)
{
	gw_count(why);
	gw_turn_slip(slip, GW_SLIP_REFUSED, why);
	if (gw_turn_back(skb, p, slip))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_count(GW_REASON_SENT_AWAY);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * Refuses, and writes that down: the same question always gets the same answer. If the
 * connection has gone from here, or may have, its entry stays as it is.
 */
static __always_inline int gw_refuse_for_good(struct __sk_buff *skb,
					      const struct gw_pkt *p,
					      const struct gw_flow_key *key,
					      struct gw_slip *slip, __u16 why)
{
	__u32 irs = bpf_ntohl(slip->irs), number = bpf_ntohl(slip->number);
	struct gw_transfer *t = gw_transfer_of(key, irs);

	if (!t) {
		t = gw_transfer_begin(key, irs, GW_TRANSFER_REFUSED);
		if (t) {
			t->number = number;
			gw_transfer_expire(key, t, GW_REFUSAL_NS);
		}
	}
	if (t && t->state == GW_TRANSFER_COMING) {
		t->state = GW_TRANSFER_REFUSED;
		t->number = number;
		gw_transfer_expire(key, t, GW_REFUSAL_NS);
	}
	if (t) {
		t->refused = number;
		t->why = why;
	}
	return gw_refuse(skb, p, slip, why);
}

/* Sends "accepted" with a copy of the frame. The frame itself is for this kernel. */
static __always_inline int
gw_accept(struct __sk_buff *skb, const struct gw_pkt *p, struct gw_slip *slip)
{
	gw_turn_slip(slip, GW_SLIP_ACCEPTED, 0);
	if (gw_turn_back(skb, p, slip))
		return -1;
	/* if the copy is lost, the origin asks again */
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = 0;
	return gw_bare(skb, p);
}

static __always_inline void gw_came_fill(struct gw_flow *f,
					 const struct gw_pkt *p,
					 const struct gw_slip *slip)
{
	f->irs = bpf_ntohl(slip->irs);
	f->iss = bpf_ntohl(slip->iss);
	f->mss = bpf_ntohs(slip->mss);
	f->syn_ack_mss = bpf_ntohs(slip->syn_ack_mss);
	f->snd_wscale = slip->snd_wscale & 15;
	f->rcv_wscale = slip->rcv_wscale & 15;
	/* the watchdog's claim is taken, see gw_watch_new() */
	f->flags = (bpf_ntohs(slip->flags) & GW_NEGOTIATED) | GW_FLOW_WATCHED;
	f->rtt_ns = (__u64)bpf_ntohl(slip->rtt_us) * 1000;
	f->client.ack = p->ack;
	f->client.edge = p->ack;
	f->client.end = p->seq;
	f->client.wl1 = p->seq - 1;
	f->client.ts_val = p->ts_val;
	f->client.ts_seen = p->ts_val;
	f->client.ts_ecr = p->ts_ecr;
	f->client.ts_base = bpf_ntohl(slip->ts_val);
	__builtin_memcpy(f->client.mac, p->smac, 6);
	f->own.snd_nxt = p->ack;
	f->own.tried = p->ack;
	f->own.ack = p->seq;
	f->own.edge = bpf_ntohl(slip->edge);
	f->own.ts_val = bpf_ntohl(slip->ts_val);
	f->birth = p->seq;
	f->birth_ack = p->ack;
	f->tapped.ack = p->ack;
	f->tapped.snd_nxt = p->ack;
	f->gated.twin_ack = p->seq;
	f->gated.twin_edge = f->own.edge;
	f->gated.twin_snd_nxt = p->ack;
	f->gated.told_ack = p->seq;
	f->gated.told_edge = f->own.edge;
	/* our kernel's first window may be smaller than what the client knows */
	gw_raise_floor(f, f->own.edge);
}

/* With a standby in sync the flow begins gated, so it is protected from the start. */
static __always_inline void gw_came_start(struct gw_flow *f,
					  const struct gw_share *s)
{
	if (s->log_cap)
		gw_log_begin(f, f->birth, f->birth_ack);
	f->generation = s->generation;
	if (s->role == GW_ROLE_SHADOW) {
		gw_flow_enter(f, GW_PHASE_TWIN);
		f->flags |= GW_FLOW_TWIN;
		return;
	}
	f->flags |= GW_FLOW_CAME;
	if (s->generation && s->gate) {
		gw_flow_enter(f, GW_PHASE_CONFIRMING);
		f->flags |= GW_FLOW_GATED;
		return;
	}
	gw_flow_enter(f, GW_PHASE_UNPROTECTED);
	f->why = s->generation ? GW_WHY_GATE_OFF : GW_WHY_NO_STANDBY;
}

/* Makes the flow's entry, as if it had begun here; NULL: no room, or there is one. */
static __noinline struct gw_flow *gw_came_begin(const struct gw_pkt *p,
						const struct gw_flow_key *key,
						const struct gw_offer *o)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_share *s = gw_share_at(o->share);
	struct gw_flow_words *words;
	__u32 zero = 0;

	/* another share: this node had a twin of the connection */
	if (f && (gw_is_over(f) || f->irs != bpf_ntohl(o->slip.irs) ||
		  f->share != o->share))
		gw_forget_flow(key);
	gw_forget_half(key, bpf_ntohl(o->slip.irs));
	words = bpf_map_lookup_elem(&gw_scratch, &zero);
	if (!words || !s)
		return NULL;
	__builtin_memset(words, 0, sizeof(*words));
	f = (struct gw_flow *)words;
	gw_came_fill(f, p, &o->slip);
	gw_came_start(f, s);
	f->share = o->share;
	f->part = gw_part(s);
	f->born_ns = gw_now();
	f->client.heard_ns = f->born_ns;
	f->client.ts_base_ns = f->born_ns;
	if (bpf_map_update_elem(&gw_flows, key, f, BPF_NOEXIST))
		return NULL;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (f)
		gw_watch_new(key, f);
	return f;
}

/* Makes the socket in the accept queue of the server. 0, or why there is none. */
static __noinline int gw_come_alive(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_slip *slip)
{
	__u32 flags = bpf_ntohs(slip->flags);
	struct bpf_tcp_req_attrs attrs = {
		.mss = bpf_ntohs(slip->mss),
		.snd_wscale = slip->snd_wscale & 15,
		.rcv_wscale = slip->rcv_wscale & 15,
		.ecn_ok = !!(flags & GW_FLOW_ECN),
		.wscale_ok = !!(flags & GW_FLOW_WSCALE),
		.sack_ok = !!(flags & GW_FLOW_SACK),
		.tstamp_ok = !!(flags & GW_FLOW_TS),
		.rcv_tsval = p->ts_val,
		/* the service's clock goes on from where it was elsewhere */
		.rcv_tsecr = bpf_ntohl(slip->ts_val),
	};
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	const struct sock *listener;
	int err = 0;

	if (!sk)
		return GW_REASON_NO_LISTENER;
	if (sk->state != GW_TCP_LISTEN) {
		bpf_sk_release(sk);
		return GW_REASON_BORN_BEFORE;
	}
	listener = (const struct sock *)bpf_skc_to_tcp_sock(sk);
	/* "accepted" is a promise, and the kernel drops a connection that finds the
	 * queue full. One eighth is left for what other CPUs promise meanwhile */
	if (listener &&
	    listener->sk_ack_backlog + (listener->sk_max_ack_backlog >> 3) >=
		    listener->sk_max_ack_backlog)
		err = GW_REASON_OVERLOADED;
	else if (gw_assign_as(skb, sk, &attrs))
		err = GW_REASON_MATERIALISE_REFUSED;
	bpf_sk_release(sk);
	return err;
}

/* Mirrors the segment with its slip to this server's standby. 0 or -1. */
static __always_inline int gw_mirror_slip(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_share *s,
					  struct gw_slip *slip)
{
	if (gw_seal_for(skb, p, slip, s->peer_mac) || gw_wrap(skb))
		return -1;
	gw_mirror(skb, p, s);
	return gw_bare(skb, p);
}

/* Asks this server's standby to make a twin of the same segment. 0 or -1. */
static __always_inline int gw_ask_twin(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow *f,
				       const struct gw_share *s,
				       struct gw_slip *slip)
{
	if (!s || !gw_is_tapped(s, f))
		return 0;
	gw_turn_slip(slip, GW_SLIP_TWIN, 0);
	gw_count(GW_REASON_TWIN_ASKED);
	return gw_mirror_slip(skb, p, s, slip);
}

/*
 * This server has refused the connection after it had reset its own twin to make way for it.
 * The owner is told that the twin is gone.
 */
static __always_inline void gw_miss_twin(struct __sk_buff *skb,
					 const struct gw_flow_key *key,
					 const struct gw_offer *o)
{
	struct gw_flow *f;

	if (skb->mark != GW_MARK_AGAIN)
		return;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (f && f->share != o->share && (f->flags & GW_FLOW_TWIN))
		gw_close_twin(key, f);
}

/*
 * The connection is here from now on, unless the agents have ruled its question out meanwhile.
 *
 * CPU A writes COMING, then reads gw_settled; the exchange is a full barrier. CPU B, with the
 * agent's order, writes gw_settled, then reads the state (gw_settle.h). So A or B sees the
 * other, and the question is either accepted or ruled out, never both.
 */
static __always_inline bool gw_comes(const struct gw_flow_key *key,
				     struct gw_transfer *t, __u32 number)
{
	t->number = number;
	__sync_val_compare_and_swap(&t->state, GW_TRANSFER_COMING,
				    GW_TRANSFER_COMING);
	if (gw_is_ruled_out_here(key, t->irs, number))
		return false;
	*(volatile __u32 *)&t->state = GW_TRANSFER_HERE;
	return true;
}

/*
 * Is the question put to a server in whose place this one is? The connection is here if that
 * one had it. A new one does not come: it would be where nobody looks for it once that server is
 * back, and has the question again.
 */
static __always_inline bool gw_is_for_another(const struct gw_offer *o)
{
	const struct gw_placing *pl = gw_placing_of(o->share);

	return pl && o->slip.to && o->slip.to != gw_node_id(pl->node);
}

/* A question with a new number: takes the connection, or refuses it. */
static __noinline int gw_come(struct __sk_buff *skb, struct gw_pkt *p,
			      const struct gw_flow_key *key, struct gw_offer *o)
{
	struct gw_slip *slip = &o->slip;
	struct gw_talk talk = {
		.irs = bpf_ntohl(slip->irs),
		.next = p->seq + p->len,
		.reply = p->ack,
		.state = GW_TALK_AWAITED,
		.head = slip->head,
	};
	int why = gw_is_for_another(o) ? GW_REASON_NOT_OWNER :
					 gw_unwilling(o->share);
	struct gw_share *s = gw_share_at(o->share);
	struct gw_transfer *t;
	struct gw_flow *f;
	int verdict;

	if (!why &&
	    gw_is_ruled_out_here(key, talk.irs, bpf_ntohl(slip->number)))
		why = GW_REASON_RULED_OUT;
	if (!why) {
		verdict = gw_clear_way(skb, p, key,
				       gw_transfer_of(key, talk.irs));
		if (verdict != GW_UNDECIDED)
			return verdict;
		why = gw_come_alive(skb, p, slip);
	}
	if (why) {
		gw_miss_twin(skb, key, o);
		/* that one may yet have the question, and take it */
		if (gw_is_for_another(o))
			return gw_refuse(skb, p, slip, why);
		return gw_refuse_for_good(skb, p, key, slip, why);
	}
	f = gw_came_begin(p, key, o);
	t = f ? gw_transfer_begin(key, talk.irs, GW_TRANSFER_COMING) : NULL;
	if (t && !gw_comes(key, t, bpf_ntohl(slip->number))) {
		bpf_map_delete_elem(&gw_flows, key);
		return gw_refuse_for_good(skb, p, key, slip,
					  GW_REASON_RULED_OUT);
	}
	if (!t) {
		if (f)
			bpf_map_delete_elem(&gw_flows, key);
		return gw_refuse_for_good(skb, p, key, slip,
					  GW_REASON_TABLE_FULL);
	}
	t->window = slip->window;
	bpf_map_update_elem(&gw_talks, key, &talk, BPF_ANY);
	if (gw_hear_client(f, p, gw_now()) && s)
		gw_log_input(skb, p, key, f, s);
	f->gated.kernel_edge = f->client.edge;
	if (gw_accept(skb, p, slip) || gw_ask_twin(skb, p, f, s, slip))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_CAME, GW_PASS);
}

/* gw_hear_question(): the question has a new number. */
#define GW_NEWCOMER (-4)

/* A question to this server. Gives an answer that was given before; else GW_NEWCOMER. */
static __noinline int gw_hear_question(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       struct gw_offer *o)
{
	struct gw_slip *slip = &o->slip;
	struct gw_transfer *t = gw_transfer_now(key);
	__u32 number = bpf_ntohl(slip->number);

	if (t && t->irs != bpf_ntohl(slip->irs))
		t = NULL;
	if (slip->version != GW_SLIP_VERSION && slip->version != GW_SLIP_TAGGED)
		return gw_refuse(skb, p, slip, GW_REASON_OTHER_SLIP);
	if (!t && gw_is_adopted(key, bpf_ntohl(slip->irs)))
		t = gw_transfer_begin(key, bpf_ntohl(slip->irs),
				      GW_TRANSFER_HERE);
	if (!t)
		return GW_NEWCOMER;
	if (gw_is_denied(t, number))
		return gw_refuse(skb, p, slip, t->why);
	/* what is here stays accepted, whatever was refused since */
	if (gw_before(number, t->number) ||
	    (t->why && gw_before(number, t->refused) &&
	     (t->state != GW_TRANSFER_HERE || number != t->number)))
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	if (number != t->number && t->state != GW_TRANSFER_HERE)
		return GW_NEWCOMER;
	/* of whom its owner has asked this node has all, and it has it not */
	if (t->state == GW_TRANSFER_TOLD && gw_is_dead(o->share, &t->to))
		return gw_refuse_for_good(skb, p, key, slip,
					  GW_REASON_NOT_OWNER);
	/* another question is open, or this one is being accepted: no answer is known */
	if (t->state == GW_TRANSFER_ASKED || t->state == GW_TRANSFER_TOLD ||
	    t->state == GW_TRANSFER_COMING)
		return gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
	/* the connection is here. To refuse would give it two servers */
	t->number = number;
	gw_count(GW_REASON_CAME_BEFORE);
	if (gw_accept(skb, p, slip))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_cut_slip(skb, p);
	/* it has been here. If it still is, this is the client's segment again */
	return t->state == GW_TRANSFER_HERE ?
		       GW_UNDECIDED :
		       gw_verdict(GW_REASON_STALE_SLIP, GW_DROP);
}

#endif /* GW_COME_H */
