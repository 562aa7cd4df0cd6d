/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The owner's two directions; the gate and the mirror have their own files. */
#ifndef GW_OWNER_H
#define GW_OWNER_H

#include "flow/gw_boundary.h"
#include "flow/gw_crowd.h"
#include "share/gw_fence.h"
#include "owner/gw_gate.h"
#include "flow/gw_handshake.h"
#include "owner/gw_leash.h"
#include "flow/gw_materialise.h"
#include "flow/gw_mirror.h"
#include "owner/gw_rejoin.h"
#include "takeover/gw_takeover.h"
#include "request/gw_gone.h"
#include "flow/gw_verify.h"

/* The client's SYN: blank what a twin can't have, then mirror it. */
static __noinline int gw_owner_syn(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key, __u32 share,
				   const struct gw_share *s)
{
	struct gw_options o;

	if (gw_walk_options(skb, p, &o) || gw_note_syn(p, key, &o, share, s))
		return gw_verdict(GW_REASON_BAD_HEADER, GW_PASS);
	if (o.is_signed)
		return gw_verdict(GW_REASON_SIGNED_SYN, GW_PASS);
	for (int i = 0; i < 2; i++) {
		if (!o.blank_at[i])
			continue;
		gw_blank(skb, p, p->l4 + 20 + o.blank_at[i] - 1,
			 o.blank_len[i]);
		gw_count(GW_REASON_OPTION_BLANKED);
	}
	if (s->generation)
		gw_mirror_client(skb, p, s);
	return gw_verdict(GW_REASON_SYN, GW_PASS);
}

/*
 * The client completes a handshake. One that was tapped before we took over
 * has no socket here yet: it is materialised now, at the same exact numbers.
 */
static __noinline int gw_owner_begin(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     const struct gw_share *s, __u64 now)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);
	struct gw_flow *f;
	bool tapped;
	int err;

	if (!half || (half->flags & GW_FLOW_NOT_IN_SYNC))
		return gw_verdict(GW_REASON_NO_FLOW, GW_PASS);
	/* our kernel knows nothing of it and would answer with RST */
	if (gw_is_ahead(half, p, s))
		return gw_verdict(GW_REASON_CLIENT_AHEAD, GW_DROP);
	if (!gw_is_third_ack(half, p))
		return gw_verdict(GW_REASON_NO_FLOW, GW_PASS);
	tapped = half->tapped;
	if (!tapped && gw_is_of_crowd(&key->client)) {
		/* what it says later would begin a flow in its midst */
		bpf_map_delete_elem(&gw_half_open, key);
		return gw_verdict(GW_REASON_SOURCE_SHARE, GW_PASS);
	}
	f = gw_flow_begin(key, half, s);
	if (!f)
		return GW_UNDECIDED;
	if (tapped) {
		err = gw_materialise(skb, p, key, f);
		if (err && err != GW_REASON_TAPPED_SEGMENT)
			return gw_verdict(err, GW_PASS);
		gw_follow(f, s, GW_ROLE_OWNER);
		if (gw_is_gated(s, f)) {
			gw_flow_enter(f, GW_PHASE_CONFIRMING);
			gw_watch(key, f, GW_START_RETRY_NS);
		}
		if (gw_adopted_hear(f, p, now))
			gw_log_input(skb, p, key, f, s);
		if (gw_is_tapped(s, f))
			gw_mirror_client(skb, p, s);
		if (gw_adopted_client(skb, p, f))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
		return gw_verdict(GW_REASON_ADOPTED_LATE, GW_PASS);
	}
	if (gw_hear_client(f, p, now))
		gw_log_input(skb, p, key, f, s);
	f->gated.kernel_edge = f->client.edge;
	if (f->generation && f->generation == s->generation)
		gw_mirror_client(skb, p, s);
	return gw_verdict(GW_REASON_HANDSHAKE_DONE, GW_PASS);
}

/* The kernel has its socket a few microseconds after we have said that it came. */
#define GW_BIRTH_NS 1000000000ull

/*
 * Another CPU has the segment of which the socket of a connection is being made that
 * has come (gw_come.h), and our kernel would answer this one with a RST.
 */
static __noinline bool gw_is_unborn(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_flow *f)
{
	struct bpf_sock *sk;
	bool unborn;

	if (!(f->flags & GW_FLOW_CAME) || (f->flags & GW_FLOW_TWIN_SEEN) ||
	    gw_now() - f->born_ns > GW_BIRTH_NS)
		return false;
	sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	if (!sk)
		return true;
	unborn = sk->state == GW_TCP_LISTEN;
	bpf_sk_release(sk);
	return unborn;
}

/* Our kernel knows whether it looks for signatures: it is asked, if that may end the flow. */
static __noinline int gw_owner_signed(const struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      struct gw_flow *f, __u64 now)
{
	gw_count(GW_REASON_NOT_HEARD);
	if (!(p->flags & GW_TCP_RST))
		return gw_verdict(GW_REASON_CLIENT_SEGMENT, GW_PASS);
	if (f)
		gw_doubt(key, f, p, now);
	return gw_verdict(GW_REASON_CLIENT_RST, GW_PASS);
}

/* A segment of the client for a share that we own. */
static __noinline int gw_owner_client(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      __u32 share, const struct gw_share *s)
{
	struct gw_flow *f;
	__u64 now = gw_now();
	bool news, through, heard = false;
	int placed;

	f = bpf_map_lookup_elem(&gw_flows, key);
	if ((p->flags & GW_TCP_SYN) && !(p->flags & GW_TCP_ACK)) {
		/* our kernel would answer it, and then have no room for the other */
		if (f && f->irs != p->seq && gw_is_unborn(skb, p, f))
			return gw_verdict(GW_REASON_NOT_YET, GW_DROP);
		return gw_owner_syn(skb, p, key, share, s);
	}
	gw_find_ts(skb, p);
	if (gw_is_signed_amiss(skb, p, key, f))
		return gw_owner_signed(p, key, f, now);
	if (!f || (gw_is_over(f) && bpf_map_lookup_elem(&gw_half_open, key))) {
		int verdict = gw_owner_begin(skb, p, key, s, now);

		if (verdict != GW_UNDECIDED)
			return verdict;
		f = bpf_map_lookup_elem(&gw_flows, key);
		if (!f)
			return gw_verdict(GW_REASON_TABLE_FULL, GW_PASS);
	}
	if (!gw_follow(f, s, GW_ROLE_OWNER))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	if (gw_is_unborn(skb, p, f))
		return gw_verdict(GW_REASON_NOT_YET, GW_DROP);
	if (f->flags & GW_FLOW_TWIN) {
		/* it was reset, and does not know it: our kernel says so again */
		if (gw_is_given_up(f))
			return gw_verdict(GW_REASON_UNPROTECTED_AT_TAKEOVER,
					  gw_is_over(f) ? GW_PASS : GW_DROP);
		if (gw_is_last_again(f, p))
			return gw_say_last_ack(skb, p, key, f);
		/* there is no socket: what this acknowledges is answered */
		if (gw_is_over(f) && !gw_is_through(f))
			return gw_verdict(GW_REASON_CLIENT_SEGMENT, GW_PASS);
	} else if (!(p->flags & GW_TCP_RST) &&
		   gw_after(p->ack, f->own.snd_nxt)) {
		/* of a RST our kernel looks at the sequence number alone */
		return gw_verdict(GW_REASON_CLIENT_BEYOND, GW_PASS);
	}
	/* what comes on an ended flow may be of a later connection, with another clock */
	if (!gw_is_over(f) && gw_is_odd(f, p, now))
		return gw_verdict(GW_REASON_TS_JUMP, GW_DROP);
	placed = gw_place_request(skb, p, key, f, share);
	if (placed != GW_UNDECIDED)
		return placed;
	if ((p->flags & GW_TCP_RST) && !gw_is_exact_rst(f, p)) {
		gw_doubt(key, f, p, now);
		return gw_verdict(GW_REASON_CLIENT_RST, GW_PASS);
	}
	/* judged by the books as they were, sent after they are kept: the
	 * twin's ACK may be back before this CPU goes on */
	news = gw_is_tapped(s, f) && gw_is_news(f, p, now);
	through = gw_is_gated(s, f) && gw_is_through(f);
	if (p->flags & GW_TCP_RST)
		gw_end(key, f);
	else
		heard = f->flags & GW_FLOW_TWIN ? gw_adopted_hear(f, p, now) :
						  gw_hear_client(f, p, now);
	if (heard)
		gw_log_input(skb, p, key, f, s);
	gw_mirror_if(skb, p, s, f, news, now);
	if (p->flags & GW_TCP_RST)
		return gw_verdict(GW_REASON_CLIENT_RST, GW_PASS);
	/*
	 * Our kernel has closed, but the client was not told that its FIN has
	 * arrived: the twin has missed it. What is sent again is for the twin
	 * alone; our kernel has no socket any more and would answer with RST.
	 */
	if (through)
		return gw_verdict(GW_REASON_CLIENT_LATE, GW_DROP);
	if ((f->flags & GW_FLOW_TWIN) && gw_adopted_client(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	if (heard && (p->flags & GW_TCP_ACK) && gw_is_gated(s, f) &&
	    f->phase != GW_PHASE_REJOINING && gw_leash(skb, p, key, f, s))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_end_if_closed(key, f, gw_is_gated(s, f));
	return gw_verdict(GW_REASON_CLIENT_SEGMENT, GW_PASS);
}

/*
 * A twin's first window is a multiple of the client's MSS, as after a SYN
 * cookie (cookie_tcp_reqsk_init); our kernel's one of another size. The client
 * is offered no more than both, or the right edge would retreat at a takeover.
 */
static __always_inline int gw_offer_less(struct __sk_buff *skb,
					 struct gw_pkt *p, __u16 mss)
{
	if (!mss || p->wnd < mss || !(p->wnd % mss))
		return 0;
	return gw_set_wnd(skb, p, p->wnd - p->wnd % mss);
}

/* Our kernel's SYN-ACK: the standby needs it as the client does. */
static __noinline int gw_owner_syn_ack(struct __sk_buff *skb, struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       const struct gw_share *s)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_options o;
	bool stands_by;

	/* our kernel took a new connection: it has no socket for the old one */
	if (f && f->irs + 1 != p->ack)
		gw_end(key, f);
	stands_by = s->generation && half && !half->is_signed;
	if (stands_by && gw_offer_less(skb, p, half->mss))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	if (!gw_note_syn_ack(skb, p, key, &o) && stands_by)
		gw_mirror(skb, p, s);
	return gw_verdict(GW_REASON_SYN_ACK, GW_PASS);
}

/* A segment of ours is complete: the gate may have a word in it. */
static __always_inline int gw_owner_say(struct __sk_buff *skb, struct gw_pkt *p,
					const struct gw_flow_key *key,
					struct gw_flow *f,
					const struct gw_share *s)
{
	if (gw_is_gated(s, f))
		return gw_gate_own(skb, p, key, f, s);
	if (gw_keep_edge(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	if (gw_is_rejoining(s, f))
		gw_note_told(f);
	gw_end_if_closed(key, f, false);
	return gw_verdict(f->flags & GW_FLOW_TWIN ? GW_REASON_CAUGHT_UP :
						    GW_REASON_SPOKEN,
			  GW_PASS);
}

/*
 * A RST without ACK says what the client's own segment has acknowledged (RFC 9293
 * section 3.10.7.1): no socket has anything to do with it.
 */
static __always_inline bool gw_is_refusal(const struct gw_flow *f,
					  const struct gw_pkt *p)
{
	return gw_is_over(f) && (p->flags & GW_TCP_RST) &&
	       !(p->flags & GW_TCP_ACK);
}

/*
 * Our kernel had no socket for a segment, and says so bare (RFC 9293 section 3.10.7.1), though the
 * connection has one: another CPU had that segment
 *
 *   - while a twin made way for a connection that came;
 *   - while the third ACK's socket took the place of the handshake's. For a moment the kernel
 *     finds neither (inet_ehash_insert), and answers the client's first data. The client will
 *     say it again.
 */
static __always_inline bool gw_is_premature(struct __sk_buff *skb,
					    const struct gw_pkt *p,
					    const struct gw_flow_key *key,
					    const struct gw_flow *f)
{
	bool came = f->flags & GW_FLOW_CAME, has, young;
	struct bpf_sock *sk;

	if (gw_is_over(f) || !(p->flags & GW_TCP_RST) ||
	    (p->flags & GW_TCP_ACK))
		return false;
	young = gw_now() - f->born_ns < GW_BIRTH_NS;
	if (came && young && !(f->flags & GW_FLOW_TWIN_SEEN))
		return true;
	/* a firewall may say so at any time later */
	if (!came && (!young || f->own.snd_nxt != f->iss + 1))
		return false;
	sk = gw_lookup(skb, p->v6, &key->client, &key->service);
	if (!sk)
		return false;
	has = sk->state != GW_TCP_LISTEN && sk->state != GW_TCP_TIME_WAIT;
	bpf_sk_release(sk);
	return has;
}

/*
 * In a ring, a RST of a socket whose connection is not ours: it had a twin's place. Where
 * there is no socket our kernel says it bare, or answers a SYN.
 */
static __always_inline bool gw_is_left_over(const struct gw_pkt *p,
					    const struct gw_flow_key *key,
					    const struct gw_share *s)
{
	const struct gw_half_open *half;

	if (!(s->front & GW_FRONT_THERE) || s->moves ||
	    !(p->flags & GW_TCP_RST) || !(p->flags & GW_TCP_ACK))
		return false;
	half = bpf_map_lookup_elem(&gw_half_open, key);
	return !half || p->ack != half->irs + 1;
}

/* A segment of our kernel for a share that we own. */
static __noinline int gw_owner_own(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key,
				   const struct gw_share *s)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	__u32 end = gw_seg_end(p);

	if (p->flags & GW_TCP_SYN)
		return gw_owner_syn_ack(skb, p, key, s);
	if (!f && gw_is_left_over(p, key, s))
		return gw_verdict(GW_REASON_LEFT_OVER, GW_DROP);
	if (!f)
		return gw_verdict(p->flags & GW_TCP_RST ?
					  GW_REASON_UNPROTECTED_AT_TAKEOVER :
					  GW_REASON_NO_FLOW,
				  GW_PASS);
	/* our word of a moment ago, when we still were the owner */
	if (!gw_follow(f, s, GW_ROLE_OWNER))
		return gw_verdict(GW_REASON_TURNING, GW_DROP);
	if (gw_is_premature(skb, p, key, f))
		return gw_verdict(GW_REASON_NOT_YET, GW_DROP);
	/* before anything is noted or mirrored: the twin must not hear of it */
	if (gw_is_orphaned(f))
		return gw_verdict(GW_REASON_PROCESS_EXIT, GW_DROP);
	__builtin_memcpy(f->client.mac, p->dmac, 6);
	if ((f->flags & GW_FLOW_TWIN) && gw_is_given_up(f))
		return gw_verdict(GW_REASON_UNPROTECTED_AT_TAKEOVER,
				  gw_is_refusal(f, p) ? GW_PASS : GW_DROP);
	if (f->log.is_marked && p->len && gw_after(end, f->own.snd_nxt))
		gw_log_settle(skb, key, f);
	if (gw_is_gated(s, f))
		gw_verify(skb, p, key, f);
	if (f->flags & GW_FLOW_TWIN) {
		int verdict = gw_adopted_own(skb, p, key, f, s);

		if (verdict != GW_UNDECIDED)
			return verdict;
		return gw_owner_say(skb, p, key, f, s);
	}
	gw_hear_own(f, p);
	if (gw_after(end, f->own.snd_nxt)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
	}
	if (p->flags & GW_TCP_RST) {
		if (gw_is_tapped(s, f))
			gw_mirror(skb, p, s);
		gw_end(key, f);
		return gw_verdict(GW_REASON_OWN_RST, GW_PASS);
	}
	if ((p->flags & GW_TCP_FIN) && gw_is_tapped(s, f))
		gw_mirror(skb, p, s);
	if (gw_placing_of(f->share)) {
		if ((f->flags & (GW_FLOW_CAME | GW_FLOW_TWIN_SEEN)) ==
		    GW_FLOW_CAME)
			gw_flag(f, GW_FLOW_TWIN_SEEN);
		if (gw_has_spoken_late(key))
			return gw_verdict(GW_REASON_UNANSWERED, GW_DROP);
		gw_talk_reply(skb, p, key, f);
	}
	return gw_owner_say(skb, p, key, f, s);
}

#endif /* GW_OWNER_H */
