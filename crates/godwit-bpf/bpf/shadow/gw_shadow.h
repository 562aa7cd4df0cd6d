/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A silent twin (docs/design.md, "Shadow"), inward side: from the client's
 * segments it is born, fed and ended. Acknowledgements are clamped to what it
 * has sent, and its window ends at the client's acknowledged point, so at a
 * takeover nothing of it is in flight.
 */
#ifndef GW_SHADOW_H
#define GW_SHADOW_H

#include "flow/gw_handshake.h"
#include "flow/gw_materialise.h"
#include "request/gw_transfer.h"
#include "flow/gw_turn.h"
#include "flow/gw_twin.h"

/* What an owner without a leash may have sent before it notices a slow twin. */
#define GW_LEAD_MAX (64u << 20)

/*
 * A twin must acknowledge at once: the client waits for it, and a delayed ACK
 * costs 40 ms where the twin's answer, on which it would ride, is held by the
 * window. An RFC 3168 socket does so for data with CWR set: the sender's
 * window may be down to one segment (tcp_ecn_accept_cwr). So every twin is
 * materialised with ECN, and gw_hide_ecn() hides that where the client has
 * none.
 */
static __always_inline int gw_ask_quick_ack(struct __sk_buff *skb,
					    struct gw_pkt *p)
{
	if (!p->len || !(p->flags & GW_TCP_PSH))
		return 0;
	return gw_set_flags(skb, p, p->flags | GW_TCP_CWR);
}

/*
 * The same for a twin that was the owner's socket first, and may not do ECN:
 * data that TCP has already it acknowledges at once (RFC 9293 section
 * 3.10.7.4). The copy comes in behind the segment at hand.
 */
static __noinline void gw_say_twice(struct __sk_buff *skb, struct gw_pkt *p,
				    struct gw_flow *f)
{
	__u32 mark = skb->mark, ack = p->ack;
	__u16 wnd = p->wnd;

	if (!p->len || !(p->flags & GW_TCP_PSH) || gw_gate_twin(skb, p, f))
		return;
	skb->mark = GW_MARK_REFLECT;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	gw_set_ack(skb, p, ack);
	gw_set_wnd(skb, p, wnd);
}

/* The third ACK came through the tap: the twin's birth. */
static __noinline int gw_shadow_begin(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      const struct gw_share *s, __u64 now)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);
	struct gw_flow *f;
	int err;

	if (!half)
		return gw_verdict(GW_REASON_NO_HANDSHAKE, GW_DROP);
	if (!gw_is_third_ack(half, p))
		return gw_verdict(GW_REASON_NOT_EXACT, GW_DROP);
	/* begun in an earlier stay: to its owner it is not protected by this one */
	if (half->generation != s->generation)
		return gw_verdict(GW_REASON_NO_HANDSHAKE, GW_DROP);
	gw_forget_earlier(key, half->irs);
	f = gw_flow_begin(key, half, s);
	if (!f)
		return GW_UNDECIDED;
	if (gw_hear_client(f, p, now))
		gw_log_input(skb, p, key, f, s);
	err = gw_materialise(skb, p, key, f);
	if (err && err != GW_REASON_TAPPED_SEGMENT)
		return gw_verdict(err, GW_DROP);
	gw_greet(skb, p);
	gw_ask_quick_ack(skb, p);
	gw_gate_twin(skb, p, f);
	return gw_verdict(GW_REASON_MATERIALISED, GW_PASS);
}

/*
 * The twin has not spoken. The first segment may have found no socket (accept
 * queue full): once more. Or two CPUs have the third ACK and the data behind it
 * at one time, and both make a socket: the kernel drops the later one with the
 * segment that made it. If that was the data, a twin stays that has nothing to
 * say, and no handshake that is sent again would change that: so whichever has
 * no data greets, and data that may be lost comes in twice.
 */
static __noinline int gw_shadow_retry(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      struct gw_flow *f)
{
	int err;

	if (p->seq != f->birth || p->ack != f->birth_ack)
		return 0;
	err = gw_materialise(skb, p, key, f);
	if (!err)
		gw_say_twice(skb, p, f);
	if (!err || err == GW_REASON_TAPPED_SEGMENT)
		gw_greet(skb, p);
	return err;
}

/*
 * How far the initial sequence numbers of two connections with the same addresses
 * are apart if the network can still have segments of the earlier: four seconds of
 * Linux's clock, four minutes of RFC 9293's (section 3.4.1). One in 64 of those that
 * are drawn is taken for late, if another connection was here a moment ago: it gets
 * its twin as running connections do.
 */
#define GW_LATE_ISN (1u << 26)

/*
 * A SYN of a flow that there is, or was a moment ago, or of one before that, came
 * late: the handshake that it would begin anew could end the twin of a later
 * connection, or give the client's late third ACK an empty one.
 */
static __noinline int gw_shadow_syn(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key, __u32 share,
				    const struct gw_share *s)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_options o;

	if (f && f->irs - p->seq < GW_LATE_ISN)
		return gw_verdict(GW_REASON_TAPPED_SYN, GW_DROP);
	/* the network copies what an owner would not mirror */
	if (!gw_walk_options(skb, p, &o) && !o.is_signed)
		gw_note_syn(p, key, &o, share, s);
	return gw_verdict(GW_REASON_TAPPED_SYN, GW_DROP);
}

/*
 * RFC 5961 section 5: an acknowledgement of what was never sent is nobody's. The
 * owner refuses it; a copy that the network makes comes here without having
 * passed the owner, of which is known only how far it can be ahead of us.
 */
static __always_inline bool
gw_is_lead_absurd(const struct gw_flow *f, const struct gw_share *s, __u32 ack)
{
	__u32 known = f->own.snd_nxt;

	/* a twin that repeats a running flow has a long way to go, and nobody
	 * serves it before it is there */
	if (f->flags & GW_FLOW_NOT_IN_SYNC)
		known = gw_max_seq(known, f->client.ack);
	return gw_after(ack, known + 4 * s->leash + GW_LEAD_MAX);
}

/* A segment of the client, through the tap. */
static __noinline int gw_shadow_client(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       __u32 share, const struct gw_share *s)
{
	struct gw_flow *f;
	__u64 now = gw_now();

	if (p->flags & GW_TCP_SYN)
		return gw_shadow_syn(skb, p, key, share, s);
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (gw_is_signed_amiss(skb, p, key, f))
		return gw_verdict(GW_REASON_NOT_HEARD, GW_DROP);
	if (!f || gw_is_over(f)) {
		int verdict = GW_UNDECIDED;

		if (!(p->flags & GW_TCP_RST) &&
		    (!f || bpf_map_lookup_elem(&gw_half_open, key)))
			verdict = gw_shadow_begin(skb, p, key, s, now);
		if (verdict != GW_UNDECIDED)
			return verdict;
		/* another CPU was first, with the segment behind this one */
		f = bpf_map_lookup_elem(&gw_flows, key);
		if (!f)
			return gw_verdict(GW_REASON_NO_FLOW, GW_DROP);
	}
	if (!gw_follow(f, s, GW_ROLE_SHADOW))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	gw_find_ts(skb, p);
	if (p->flags & GW_TCP_RST) {
		/* one that is lost here is made up for by the digest */
		if (!gw_is_exact_rst(f, p))
			return gw_verdict(GW_REASON_TAPPED_RST, GW_DROP);
		gw_end(key, f);
		return gw_verdict(GW_REASON_TAPPED_RST, GW_PASS);
	}
	if (!(p->flags & GW_TCP_ACK))
		return gw_verdict(GW_REASON_BAD_HEADER, GW_DROP);
	if (gw_is_lead_absurd(f, s, p->ack))
		return gw_verdict(GW_REASON_TAPPED_BEYOND, GW_DROP);
	/* what its owner mirrors its owner has believed */
	if (!gw_mac_equal(p->smac, s->peer_mac) && gw_is_odd(f, p, now))
		return gw_verdict(GW_REASON_TS_JUMP, GW_DROP);
	if (gw_hear_client(f, p, now))
		gw_log_input(skb, p, key, f, s);
	if (!(f->flags & GW_FLOW_TWIN_SEEN)) {
		int err = gw_shadow_retry(skb, p, key, f);

		if (err && err != GW_REASON_TAPPED_SEGMENT)
			return gw_verdict(err, GW_DROP);
	}
	if (f->flags & GW_FLOW_NATIVE)
		gw_say_twice(skb, p, f);
	else
		gw_ask_quick_ack(skb, p);
	if (gw_gate_twin(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_end_if_closed(key, f, false);
	return gw_verdict(GW_REASON_TAPPED_SEGMENT, GW_PASS);
}

/* Resets a twin: the packet at hand becomes the client's RST. */
static __noinline int gw_reset_twin(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f)
{
	struct gw_bare rst = {
		.seq = f->own.ack,
		.ack = f->own.snd_nxt,
		.flags = GW_TCP_RST | GW_TCP_ACK,
	};

	gw_end(key, f);
	if (gw_craft(skb, p, &key->client, &key->service, &rst))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_TWIN_RESET, GW_PASS);
}

/*
 * The last connection of the four-tuple has left a socket in TIME-WAIT here,
 * whose flow is long gone. The owner's kernel reuses such a socket at the SYN
 * (RFC 6191), which a twin's kernel never sees: the SYN-ACK becomes the RST
 * that ends it, or no twin could be born for a minute.
 */
static __noinline int gw_end_time_wait(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow_key *key)
{
	struct gw_bare rst = { .flags = GW_TCP_RST };
	struct tcp_timewait_sock *tw;
	struct bpf_sock *sk;

	sk = gw_lookup(skb, p->v6, &key->client, &key->service);
	if (!sk)
		return gw_verdict(GW_REASON_TAPPED_SYN_ACK, GW_DROP);
	tw = bpf_skc_to_tcp_timewait_sock(sk);
	if (tw)
		rst.seq = BPF_CORE_READ(tw, tw_sk.__tw_common.skc_tw_rcv_nxt);
	bpf_sk_release(sk);
	if (!tw)
		return gw_verdict(GW_REASON_TAPPED_SYN_ACK, GW_DROP);
	if (gw_craft(skb, p, &key->client, &key->service, &rst))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_TIME_WAIT_ENDED, GW_PASS);
}

/* By how much the clock of an owner's stamps may be ahead of what is known of it, in ms. */
#define GW_WORD_TS_MOST (1u << 20)

/*
 * Can its owner have said that? It may be anybody with its address. An owner takes no more
 * than a twin offers, and is at most so far ahead of it.
 */
static __always_inline bool gw_is_word_absurd(const struct gw_flow *f,
					      const struct gw_share *s,
					      const struct gw_pkt *p, __u64 now)
{
	/* one that repeats a running flow has yet to come there */
	if (!(f->flags & GW_FLOW_NOT_IN_SYNC) &&
	    gw_after(p->ack, gw_floored(f, f->own.edge) + 1))
		return true;
	if (gw_is_lead_absurd(f, s, p->seq))
		return true;
	return p->ts_at && gw_after(p->ts_val, gw_owner_ts(f, now)) &&
	       p->ts_val - gw_owner_ts(f, now) > GW_WORD_TS_MOST;
}

/* An owner resets what its client has not acknowledged, and it has sent. */
static __always_inline bool
gw_is_owners_end(const struct gw_flow *f, const struct gw_share *s, __u32 seq)
{
	return !gw_before(seq, f->client.ack) && !gw_is_lead_absurd(f, s, seq);
}

/*
 * The owner is about to hand the share over to us, and says of each flow what
 * it has: from there on we are to speak. With PSH it is what the client was
 * told before there was a twin (gw_edge.h), and nothing else.
 */
static __always_inline int gw_owner_word(struct __sk_buff *skb,
					 struct gw_pkt *p, struct gw_flow *f,
					 const struct gw_share *s)
{
	__u32 edge = gw_offered(f, p);
	__u64 now = gw_now();

	gw_find_ts(skb, p);
	if (gw_is_word_absurd(f, s, p, now))
		return gw_verdict(GW_REASON_OWNER_WORD_ABSURD, GW_DROP);
	if (p->flags & GW_TCP_PSH) {
		if (gw_after(edge, f->own.edge))
			gw_raise_floor(f, edge);
		return gw_verdict(GW_REASON_OWNER_WORD, GW_DROP);
	}
	gw_advance(&f->gated.twin_ack, p->ack);
	gw_advance(&f->gated.twin_edge, edge);
	gw_advance(&f->gated.twin_snd_nxt, p->seq);
	if (p->ts_at && gw_after(p->ts_val, gw_owner_ts(f, now))) {
		f->client.ts_base = p->ts_val;
		f->client.ts_base_ns = now;
	}
	return gw_verdict(GW_REASON_OWNER_WORD, GW_DROP);
}

/* A segment of the owner to the client, cloned to us: SYN-ACK, FIN, RST. */
static __noinline int gw_shadow_owner(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      __u32 share, const struct gw_share *s)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	int belief = gw_believe(p, 0);
	struct gw_options o;

	if (belief > 0)
		return gw_verdict(belief, GW_DROP);
	/* a twin's, of before the share has changed hands */
	if (belief == GW_BELIEF_STAY)
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	/* another connection of the four-tuple may be left of a share of our own */
	if (f && f->share == share && !gw_follow(f, s, GW_ROLE_SHADOW))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	if (f && gw_is_pure_ack(p) && (p->flags & GW_TCP_ACK) && !gw_is_over(f))
		return gw_owner_word(skb, p, f, s);

	if ((p->flags & GW_TCP_SYN) && (p->flags & GW_TCP_ACK)) {
		if (f && p->seq == f->iss) /* again: its ACK was lost */
			return gw_verdict(GW_REASON_TAPPED_SYN_ACK, GW_DROP);
		if (gw_note_syn_ack(skb, p, key, &o))
			return gw_verdict(GW_REASON_NO_HANDSHAKE, GW_DROP);
		/*
		 * The owner has no socket of the old connection: its twin must go. What
		 * is another share's its owner knows nothing of
		 */
		if (f && f->irs + 1 != p->ack && f->share == share)
			return gw_reset_twin(skb, p, key, f);
		return gw_end_time_wait(skb, p, key);
	}
	if (f && (p->flags & GW_TCP_RST) && !gw_is_over(f))
		return gw_is_owners_end(f, s, p->seq) ?
			       gw_reset_twin(skb, p, key, f) :
			       gw_verdict(GW_REASON_OWNER_WORD_ABSURD, GW_DROP);
	if (f && (p->flags & GW_TCP_FIN)) {
		/* the same for its twin, once that has come there */
		if (!(f->flags & GW_FLOW_OWN_FIN))
			f->own.fin = gw_seg_end(p);
		gw_flag(f, GW_FLOW_OWNER_FIN);
	}
	return gw_verdict(GW_REASON_OWNER_SEGMENT, GW_DROP);
}

#endif /* GW_SHADOW_H */
