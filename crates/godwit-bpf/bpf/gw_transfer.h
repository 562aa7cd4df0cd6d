/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Handoff at a request boundary (DESIGN section 3): a connection goes to another server
 * with its next request, in the data path alone. The request's own segment is the
 * question, with a slip behind it (gw_slip.h); the answer is the same frame, sent back.
 *
 *              origin                                     target
 *   request ─► ASKED ── segment, ASK ───────────────────► socket made of it: HERE
 *              GONE  ◄───────────── segment, ACCEPTED ───
 *              our server's socket is reset                reply to the client
 *   or
 *              HERE  ◄───────────── segment, REFUSED ──── REFUSED
 *              our server has the segment
 *
 * The question commits (docs/adr/0020): from then on only the target's answer, or that it
 * is known to be without power, gives the connection back. While it is open our server's words stay in
 * its socket. A frame that is lost is a segment that is lost: the client says it again,
 * and the same question goes out under the same number, which the target answers as
 * before. So one server answers, once.
 */
#ifndef GW_TRANSFER_H
#define GW_TRANSFER_H

#include "gw_edge.h"
#include "gw_handoff.h"
#include "gw_policy.h"
#include "gw_slip.h"
#include "gw_window.h"

enum gw_transfer_state {
	GW_TRANSFER_HERE = 1, /* it is ours; what counts is the number */
	GW_TRANSFER_ASKED = 2,
	GW_TRANSFER_GONE = 3,
	GW_TRANSFER_REFUSED = 4, /* it is another's, and we have refused it */
};

struct gw_transfer {
	struct bpf_timer timer; /* GONE, REFUSED: removes the entry */
	__u64 heard_ns; /* when its client was last heard here */
	__u64 idle_ns; /* GONE, REFUSED: it may go when nobody was for so long */
	__u32 irs; /* of the client */
	__u32 number; /* of the handoff at hand, or of the last one */
	__u32 seq; /* ASKED: where the request begins */
	__u32 refused; /* the last number that we have refused, if ... */
	struct gw_target to; /* ASKED, GONE: who has it */
	__u32 state; /* enum gw_transfer_state */
	__u16 why; /* ... this is not 0: enum gw_reason */
	__u8 timed; /* 1: the timer was made */
	__u8 window; /* HERE: what its socket begins with; 0: as any other */
};

_Static_assert(sizeof(struct gw_transfer) == 64, "pinned");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_transfer);
} gw_transfers SEC(".maps");

/* A refusal is remembered for as long as a frame may be under way. */
#define GW_REFUSAL_NS 2000000000ull
/* An entry by which nobody is forwarded: its director knows better by now. */
#define GW_LEARNT_NS 20000000000ull
/* A connection that was passed on with its SYN, and has not begun. */
#define GW_BEGINNING_NS 60000000000ull
/* And without one: as long as any server keeps an idle connection. */
#define GW_FORWARD_NS 3600000000000ull
/* After a FIN of its client, which may wait for the rest of a reply. */
#define GW_ENDING_NS 120000000000ull
/* After a RST of its client, as GW_LINGER_NS. */
#define GW_CLOSING_NS 5000000000ull

static int gw_transfer_timer(void *map, struct gw_flow_key *key,
			     struct gw_transfer *t)
{
	__u64 now = gw_now(), due = t->heard_ns + t->idle_ns;

	if (t->state != GW_TRANSFER_GONE && t->state != GW_TRANSFER_REFUSED)
		return 0;
	if (now < due)
		bpf_timer_start(&t->timer, due - now, 0);
	else
		bpf_map_delete_elem(&gw_transfers, key);
	return 0;
}

/* The entry goes by itself when its client has been silent for `ns`. */
static __always_inline void gw_transfer_expire(struct gw_transfer *t, __u64 ns)
{
	t->idle_ns = ns;
	if (!t->timed) {
		t->timed = 1;
		bpf_timer_init(&t->timer, &gw_transfers, 1);
		bpf_timer_set_callback(&t->timer, gw_transfer_timer);
	}
	bpf_timer_start(&t->timer, ns, 0);
}

/* The entry of a connection of which there was none, or of an earlier one. */
static __noinline struct gw_transfer *
gw_transfer_begin(const struct gw_flow_key *key, __u32 irs, __u32 state)
{
	struct gw_transfer fresh = {
		.irs = irs,
		.state = state,
		.heard_ns = gw_now(),
	};

	if (bpf_map_update_elem(&gw_transfers, key, &fresh, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&gw_transfers, key);
}

static __always_inline struct gw_transfer *
gw_transfer_of(const struct gw_flow_key *key, __u32 irs)
{
	struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	return t && t->irs == irs ? t : NULL;
}

/* Is whom we have asked, or given it to, known to be without power? */
static __always_inline bool gw_is_dead(__u32 share, const struct gw_target *to)
{
	struct gw_mate_key key = { .share = share, .node = to->node };
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	return mate && mate->state == GW_MATE_DEAD;
}

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
		.flags = bpf_htonl(f->flags & GW_NEGOTIATED),
		.mss = bpf_htons(f->mss),
		.syn_ack_mss = bpf_htons(f->syn_ack_mss),
		.snd_wscale = f->snd_wscale,
		.rcv_wscale = f->rcv_wscale,
		.head = head,
		.rtt_us = bpf_htonl(f->rtt_ns / 1000),
	};
}

/* The segment at hand, with the question, to whom it is put. */
static __noinline int gw_put_question(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_flow *f,
				      const struct gw_transfer *t, bool head)
{
	struct gw_slip slip;
	__u8 self[6], to[6];

	gw_fill_slip(&slip, f, t, head);
	slip.window = gw_own_window(skb, p);
	__builtin_memcpy(to, t->to.mac, 6);
	if (gw_add_slip(skb, p, &slip))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_self(self);
	gw_set_macs(skb, to, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_ASKED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Does the frame have room for a slip, on this link? */
static __always_inline bool gw_has_room(struct __sk_buff *skb,
					const struct gw_pkt *p)
{
	__u32 mtu = 0;

	return !skb->gso_size &&
	       !bpf_check_mtu(skb, 0, &mtu,
			      (__s32)(gw_packet_end(p) +
				      sizeof(struct gw_slip) - skb->len),
			      0);
}

/*
 * Puts the question on record; 0, or why it is not put.
 *
 * Another CPU may have a copy of the request: one of them takes the number. Or it may have
 * a segment of our server at the gate. That notes what it lets out and then looks for a
 * question (gw_has_spoken_late), we note the question and then look for what was let out:
 * one of us sees the other, for both are atomic operations that return a value.
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

/* Has a question been put while this CPU has let our server speak? */
static __always_inline bool gw_has_spoken_late(const struct gw_flow_key *key)
{
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	return t && *(volatile const __u32 *)&t->state == GW_TRANSFER_ASKED;
}

/*
 * A segment of the client on a connection of ours, before it is noted. What becomes of
 * it; GW_UNDECIDED: it is for our server; GW_CONSULT: a program has yet to be asked.
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

	if (!pl || !p->len || (f->flags & GW_FLOW_TWIN) || gw_is_over(f))
		return GW_UNDECIDED;
	talk = gw_talk_of(key, f);
	if (!talk)
		talk = gw_talk_begin(key, f);
	if (!talk)
		return GW_UNDECIDED;
	h = gw_talk_request(skb, p, f, talk);
	if (!h)
		return GW_UNDECIDED;
	why = gw_silenced(share);
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

/*
 * Our server's socket is reset in its client's name, at the very byte that it waits
 * for: the connection is elsewhere, or nowhere.
 */
static __noinline int gw_reset_own(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key, __u32 seq,
				   enum gw_reason reason)
{
	bpf_map_delete_elem(&gw_talks, key);
	bpf_map_delete_elem(&gw_flows, key);
	if (gw_set_seq(skb, p, seq) ||
	    gw_set_flags(skb, p, GW_TCP_RST | GW_TCP_ACK))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(reason, GW_PASS);
}

/*
 * Whom we have asked is dead. Unless the client has heard it: what it has said then our
 * kernel has not, so nobody can go on, and the client's next segment is reset.
 */
static __always_inline int gw_reclaim(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      const struct gw_flow *f,
				      struct gw_transfer *t)
{
	if (gw_after(p->ack, f->own.snd_nxt)) {
		t->state = GW_TRANSFER_GONE;
		gw_transfer_expire(t, GW_CLOSING_NS);
		return gw_reset_own(skb, p, key, t->seq, GW_REASON_MATE_GONE);
	}
	t->state = GW_TRANSFER_HERE;
	gw_count(GW_REASON_RECLAIMED);
	return GW_UNDECIDED;
}

/* A client's segment while the question is open. */
static __always_inline int gw_ask_again(struct __sk_buff *skb, struct gw_pkt *p,
					const struct gw_flow_key *key,
					__u32 share, struct gw_transfer *t)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_talk *talk = f ? gw_talk_of(key, f) : NULL;

	if (f && gw_is_dead(share, &t->to))
		return gw_reclaim(skb, p, key, f, t);
	if (talk && p->len && p->seq == t->seq && gw_has_room(skb, p))
		return gw_put_question(skb, p, f, t, talk->head);
	return gw_send_on(skb, t->to.mac);
}

/* A client's segment of a connection that has gone. */
static __always_inline int
gw_forward_gone(struct __sk_buff *skb, const struct gw_pkt *p,
		const struct gw_flow_key *key, __u32 share,
		const struct gw_share *s, struct gw_transfer *t)
{
	__u64 now = gw_now(), heard = t->heard_ns;

	if (gw_mac_equal(p->smac, t->to.mac))
		return gw_verdict(GW_REASON_SENT_BACK, GW_DROP);
	if (gw_is_dead(share, &t->to))
		return gw_verdict(GW_REASON_MATE_GONE, GW_PASS);
	t->heard_ns = now;
	if (t->idle_ns == GW_BEGINNING_NS && !(p->flags & GW_TCP_SYN))
		gw_transfer_expire(t, GW_FORWARD_NS);
	if (p->flags & GW_TCP_RST)
		gw_transfer_expire(t, GW_CLOSING_NS);
	else if (p->flags & GW_TCP_FIN)
		gw_transfer_expire(t, GW_ENDING_NS);
	if (!gw_is_to_be_told(s, heard, now))
		return gw_send_on(skb, t->to.mac);
	/* it knows from now on, and if it did not it would send more of them */
	if (t->idle_ns > GW_LEARNT_NS)
		gw_transfer_expire(t, GW_LEARNT_NS);
	return gw_send_on_and_tell(skb, p, key, t->to.mac, t->irs);
}

/* The same for what our own kernel says of it; GW_UNDECIDED: it may. */
static __always_inline int gw_transfer_own(const struct gw_flow_key *key,
					   __u32 share)
{
	const struct gw_transfer *t;

	if (!gw_placing_of(share))
		return GW_UNDECIDED;
	t = bpf_map_lookup_elem(&gw_transfers, key);
	if (!t)
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

/* A connection is over, or elsewhere: what was known of its requests goes. */
static __always_inline void gw_transfer_forget(const struct gw_flow_key *key,
					       __u32 irs)
{
	const struct gw_transfer *t = gw_transfer_of(key, irs);

	bpf_map_delete_elem(&gw_talks, key);
	if (t && t->state == GW_TRANSFER_HERE)
		bpf_map_delete_elem(&gw_transfers, key);
}

#endif /* GW_TRANSFER_H */
