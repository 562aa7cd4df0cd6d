/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Outward side of a silent twin: nothing of it reaches the client. What the
 * client has acknowledged (through the owner) is answered here with the
 * client's ACK, the rest stays unsent, and the twin's own acknowledgements go
 * to the owner's gate.
 */
#ifndef GW_SUPPRESS_H
#define GW_SUPPRESS_H

#include "flow/gw_stay.h"
#include "flow/gw_turn.h"
#include "flow/gw_twin.h"
#include "flow/gw_verify.h"
#include "flow/gw_watchdog.h"
#include "flow/gw_window.h"

#define GW_REPORT_NS 5000000ull

/*
 * What the twin's kernel may take for acknowledged. A twin that was the owner
 * has sent more than the client has got.
 */
static __always_inline __u32 gw_twin_una(const struct gw_flow *f)
{
	return gw_min_seq(f->own.snd_nxt, f->client.ack);
}

/*
 * How far its application has answered, at least. What its kernel tries beyond
 * the client's place stays unsent, and yet was written: where a unit of the
 * client's window is more than the rest of what the client has, no window lets
 * out just that rest.
 */
static __always_inline __u32 gw_answered(const struct gw_flow *f)
{
	if (!gw_after(f->own.tried, f->own.snd_nxt) ||
	    !gw_after(f->client.ack, f->own.snd_nxt))
		return f->own.snd_nxt;
	return gw_min_seq(f->own.tried, f->client.ack);
}

/*
 * A twin that was given up lives on until another takes its place, and hears the
 * client as soon as the owner wants that one, in the same stay: what it
 * acknowledges must not be taken for the word of its successor.
 */
static __always_inline bool gw_is_given_up_twin(const struct gw_flow *f)
{
	const __u32 flags = GW_FLOW_NOT_IN_SYNC | GW_FLOW_AWAITED;

	return (f->flags & flags) == GW_FLOW_NOT_IN_SYNC;
}

/* Does the owner need to hear from the twin beside its pure ACKs? */
static __always_inline bool gw_report_due(const struct gw_flow *f,
					  const struct gw_share *s, __u32 end,
					  __u64 now)
{
	if (f->tapped.ack != f->own.ack || f->tapped.edge != f->own.edge)
		return true;
	/* made of a running flow, and has come to where the client is: its
	 * owner waits for that */
	if ((f->flags & GW_FLOW_NOT_IN_SYNC) && !gw_before(end, f->client.ack))
		return true;
	if (end - f->tapped.snd_nxt >= s->leash / 8)
		return true;
	return now - f->tapped.ns >= GW_REPORT_NS;
}

static __always_inline void gw_reported(struct gw_flow *f, __u64 now)
{
	f->tapped.ack = f->own.ack;
	f->tapped.edge = f->own.edge;
	f->tapped.snd_nxt = gw_answered(f);
	f->tapped.ns = now;
}

/* The report gets its stay and its tag, if its owner has a key. `p` is as it was. */
static __noinline bool gw_prove_report(struct gw_pkt *p,
				       const struct gw_flow *f,
				       const struct gw_share *s,
				       struct gw_bare *b)
{
	struct gw_mate_mac peer = {};
	__u32 seq = p->seq, len = p->len;
	__u16 urgent = p->urgent, spare = p->spare;
	__u8 flags = p->flags;
	bool proved;

	p->seq = b->seq;
	p->len = 0;
	p->urgent = gw_stay(f);
	p->spare = 0;
	p->flags = b->flags;
	__builtin_memcpy(peer.mac, s->peer_mac, 6);
	proved = gw_prove(p, &peer, GW_TRUST_OUT);
	b->urg = p->urgent;
	b->spare = p->spare;
	p->seq = seq;
	p->len = len;
	p->urgent = urgent;
	p->spare = spare;
	p->flags = flags;
	return proved;
}

/*
 * Sends the owner the acknowledgement that rides on a suppressed segment. The
 * packet becomes a bare ACK; the caller goes on to craft another from it.
 */
static __noinline void gw_report(struct __sk_buff *skb, struct gw_pkt *p,
				 const struct gw_flow_key *key,
				 struct gw_flow *f, const struct gw_share *s)
{
	struct gw_bare b = {
		.seq = gw_answered(f),
		.ack = p->ack,
		.wnd = p->wnd,
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = p->ts_val,
		.ts_ecr = p->ts_ecr,
	};
	bool proved = gw_prove_report(p, f, s, &b);
	__u8 peer[6];

	if (gw_craft(skb, p, &key->service, &key->client, &b)) {
		gw_count(GW_REASON_CRAFT_FAILED);
		return;
	}
	__builtin_memcpy(peer, s->peer_mac, 6);
	gw_address_to(skb, peer);
	if (proved)
		skb->mark = GW_MARK_PROVED;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	gw_count(GW_REASON_REPORTED);
}

/*
 * An answer from where the twin's kernel takes it: TCP takes a window from where the client
 * has said most (SND.WL1), which may be behind a hole, and if it acknowledges no less than is
 * known. One that it does not take has it try again, at once.
 */
static __always_inline void gw_say_from(struct __sk_buff *skb,
					struct gw_bare *b)
{
	struct bpf_sock *sk = skb->sk;
	const struct tcp_sock *tp;

	if (!sk)
		return;
	tp = (const struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return;
	b->seq = gw_max_seq(b->seq, tp->snd_wl1);
	b->ack = gw_max_seq(b->ack, tp->snd_una);
}

/* The client's ACK of all that it has of the twin, with a window of `wnd`. */
static __noinline int gw_answer(struct __sk_buff *skb, struct gw_pkt *p,
				const struct gw_flow_key *key,
				struct gw_flow *f, __u16 wnd)
{
	struct gw_bare b = {
		.seq = p->ack,
		.ack = gw_twin_una(f),
		.wnd = wnd,
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = f->client.ts_val,
		.ts_ecr = p->ts_val,
	};
	__u8 self[6];

	gw_say_from(skb, &b);
	if (gw_craft(skb, p, &key->client, &key->service, &b))
		return -1;
	gw_self(self);
	gw_set_macs(skb, self, f->client.mac);
	skb->mark = GW_MARK_REFLECT;
	return 0;
}

/*
 * A zero-window probe or keep-alive of the twin: unanswered, its timers would
 * kill it. It is offered one unit, so that a FIN that waits behind a shut
 * window shows itself; data that it tries then stays unsent.
 */
static __always_inline int gw_answer_probe(struct __sk_buff *skb,
					   struct gw_pkt *p,
					   const struct gw_flow_key *key,
					   struct gw_flow *f)
{
	__u16 wnd = gw_twin_wnd(f, gw_twin_una(f), gw_send_edge(f));

	if (!gw_go_round(f, gw_now()))
		return gw_verdict(GW_REASON_ROUNDS_SPENT, GW_DROP);
	if (gw_answer(skb, p, key, f, wnd ? wnd : 1))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_count(GW_REASON_PROBE_ANSWERED);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * Beyond what the client has: dropped, so that it stays unsent in the twin.
 * TCP takes that for congestion of its own host, tries again and in the end
 * gives up (tcp_send_probe0): an ACK that shuts the window makes it wait.
 */
static __always_inline int gw_keep_unsent(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_flow_key *key,
					  struct gw_flow *f)
{
	if (!gw_go_round(f, gw_now()))
		return gw_verdict(GW_REASON_ROUNDS_SPENT, GW_DROP);
	if (!gw_answer(skb, p, key, f, 0))
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	return gw_verdict(GW_REASON_UNSENT, GW_DROP);
}

/*
 * Does the twin's kernel take this for sent already? Below us a segment can be
 * lost without a word: while the link is down no neighbour has an address, and
 * what waits for one counts as sent.
 */
static __always_inline bool gw_is_sent_again(struct __sk_buff *skb,
					     const struct gw_pkt *p)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tp;

	if (!sk)
		return false;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return false;
	tp = bpf_tcp_sock(sk);
	return tp && gw_before(p->seq, tp->snd_nxt);
}

/* A bare ACK of the twin: to the owner as it is, or a probe to answer here. */
static __noinline int gw_shadow_ack(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f, const struct gw_share *s)
{
	struct gw_mate_mac peer = {};
	bool proved;

	if (p->seq == gw_twin_una(f) - 1)
		return gw_answer_probe(skb, p, key, f);
	if (gw_is_given_up_twin(f)) {
		gw_count(GW_REASON_GIVEN_UP_ACK);
		return gw_swallow(skb);
	}
	p->urgent = gw_stay(f);
	p->seq = gw_answered(f);
	__builtin_memcpy(peer.mac, s->peer_mac, 6);
	proved = gw_prove(p, &peer, GW_TRUST_OUT);
	if (gw_rewrite(skb, p))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_reported(f, gw_now());
	gw_address_to(skb, peer.mac);
	if (proved)
		skb->mark = GW_MARK_PROVED;
	gw_count(GW_REASON_SUPPRESSED_ACK);
	return bpf_redirect(skb->ifindex, 0);
}

/* A segment that the silent twin's kernel wants to send. */
static __noinline int gw_shadow_own(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    const struct gw_share *s)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	__u32 end = gw_seg_end(p);
	__u64 now = gw_now();
	bool beyond, again;

	if (!f)
		return gw_verdict(GW_REASON_SUPPRESSED_NO_FLOW, GW_DROP);
	if (!gw_follow(f, s, GW_ROLE_SHADOW))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	if (p->flags & GW_TCP_SYN)
		return gw_verdict(GW_REASON_SUPPRESSED_SYN_ACK, GW_DROP);
	if (p->flags & GW_TCP_RST) {
		/* before the twin has spoken it is the listener's: a segment
		 * overtook the one that makes the twin, on another CPU */
		if (f->flags & GW_FLOW_TWIN_SEEN)
			gw_close_twin(key, f);
		return gw_verdict(GW_REASON_SUPPRESSED_RST, GW_DROP);
	}
	/* what its window is we know from itself; until then it is a guess */
	if (!(f->flags & GW_FLOW_TWIN_SEEN))
		f->own.edge = gw_offered(f, p);
	gw_flag(f, GW_FLOW_TWIN_SEEN);
	__builtin_memcpy(f->client.mac, p->dmac, 6);
	gw_hear_own(f, p);
	gw_leave_floor(f, f->own.edge);
	/* servers do not close at the same instant: the watchdog judges */
	if ((p->flags & GW_TCP_FIN) && !(f->flags & GW_FLOW_OWNER_FIN))
		gw_watch(key, f, s->lag_limit_ns);
	if (gw_is_pure_ack(p)) {
		/* the last word of a twin that closed first */
		gw_end_if_closed(key, f, false);
		return gw_shadow_ack(skb, p, key, f, s);
	}

	/* beyond what the client has: dropped here, it stays unsent there */
	beyond = gw_after(end, f->client.ack);
	/* sent by an owner that became the standby, or never seen: under way */
	again = beyond &&
		(!gw_after(end, f->own.snd_nxt) || gw_is_sent_again(skb, p));
	if (!beyond)
		gw_verify(skb, p, key, f);
	if ((!beyond || again) && gw_after(end, f->own.snd_nxt)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
	}
	/* what it would send beyond that it tries again */
	f->own.tried = beyond && !again ? end : f->own.snd_nxt;
	if (!gw_is_given_up_twin(f) &&
	    gw_report_due(f, s, gw_answered(f), now)) {
		gw_reported(f, now);
		gw_report(skb, p, key, f, s);
	}
	gw_end_if_closed(key, f, false);
	/* a retransmission that is dropped is no retransmission to TCP: in loss
	 * recovery every answer would have it tried again, without end */
	if (again) {
		gw_count(GW_REASON_UNDER_WAY);
		return gw_swallow(skb);
	}
	if (beyond)
		return gw_keep_unsent(skb, p, key, f);
	gw_count(GW_REASON_REFLECTED);
	return gw_reflect(skb, p, key, f, end);
}

#endif /* GW_SUPPRESS_H */
