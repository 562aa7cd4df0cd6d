/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A silent twin (DESIGN section 3, "Shadow"). Inward: acknowledgements are
 * clamped to what the twin has sent, and its window ends at the client's
 * acknowledged point, so at a takeover nothing of it is in flight. Outward:
 * nothing leaves; what the client has acknowledged (through the owner) is
 * answered here with the client's ACK, and the twin's own acknowledgements go
 * to the owner's gate.
 */
#ifndef GW_SHADOW_H
#define GW_SHADOW_H

#include "gw_craft.h"
#include "gw_handshake.h"
#include "gw_materialise.h"

#define GW_REPORT_NS 5000000ull

/*
 * The window that a twin at `ack` may see: up to `edge`. Rounded down, for a
 * rounded-up one makes the twin send bytes that are then suppressed and cost a
 * retransmission timeout at takeover; but never to 0 while there is room, or
 * the last bytes of a stream would never leave (KERNEL-FACTS 1.6, 1.16).
 */
static __always_inline __u16 gw_twin_wnd(const struct gw_flow *f, __u32 ack,
					 __u32 edge)
{
	__u32 room = gw_before(ack, edge) ? edge - ack : 0;
	__u16 wnd = gw_wnd_down(room, f->snd_wscale);

	return wnd || !room ? wnd : 1;
}

/*
 * How far a twin that serves the client may send: after a takeover the window
 * opens from 10 MSS and grows by what is acknowledged, since the twin's
 * congestion window was learnt from reflections (RFC 6928, RFC 5681 3.1).
 */
static __always_inline __u32 gw_ramp_edge(struct gw_flow *f)
{
	__u32 edge = f->client.ack + f->ramp;

	if (!(f->flags & GW_FLOW_RAMPING))
		return f->client.edge;
	if (!gw_before(edge, f->client.edge)) {
		gw_unflag(f, GW_FLOW_RAMPING);
		return f->client.edge;
	}
	gw_count(GW_REASON_RAMPED);
	return edge;
}

/* How far the twin may send: silent, no further than the client has acked. */
static __always_inline __u32 gw_send_edge(struct gw_flow *f)
{
	return f->flags & GW_FLOW_ADOPTED ? gw_ramp_edge(f) : f->client.ack;
}

/* Turns a client's segment into what the twin may know of it. */
static __noinline int gw_gate_twin(struct __sk_buff *skb, struct gw_pkt *p,
				   struct gw_flow *f)
{
	__u32 edge = gw_send_edge(f);
	__u32 ack = p->ack;

	if (gw_after(ack, f->own.snd_nxt)) {
		ack = f->own.snd_nxt;
		gw_count(GW_REASON_CLAMPED);
	}
	if (gw_set_wnd(skb, p, gw_twin_wnd(f, ack, edge)))
		return -1;
	return gw_set_ack(skb, p, ack);
}

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
	f = gw_flow_begin(key, half, s);
	if (!f)
		return GW_UNDECIDED;
	gw_hear_client(f, p, now);
	err = gw_materialise(skb, p, key, f);
	if (err && err != GW_REASON_TAPPED_SEGMENT)
		return gw_verdict(err, GW_DROP);
	gw_greet(skb, p);
	gw_ask_quick_ack(skb, p);
	gw_gate_twin(skb, p, f);
	return gw_verdict(GW_REASON_MATERIALISED, GW_PASS);
}

/* The first segment found no socket (accept queue full): once more. */
static __noinline int gw_shadow_retry(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      struct gw_flow *f)
{
	if (p->seq != f->irs + 1 || p->ack != f->iss + 1)
		return 0;
	return gw_materialise(skb, p, key, f);
}

static __noinline int gw_shadow_syn(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key, __u32 share,
				    const struct gw_share *s)
{
	struct gw_options o;

	if (!gw_walk_options(skb, p, &o))
		gw_note_syn(p, key, &o, share, s);
	return gw_verdict(GW_REASON_TAPPED_SYN, GW_DROP);
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
	if (!f || f->phase == GW_PHASE_ENDED) {
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
	gw_hear_client(f, p, now);
	if (!(f->flags & GW_FLOW_TWIN_SEEN)) {
		int err = gw_shadow_retry(skb, p, key, f);

		if (err && err != GW_REASON_TAPPED_SEGMENT)
			return gw_verdict(err, GW_DROP);
	}
	gw_ask_quick_ack(skb, p);
	if (gw_gate_twin(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_end_if_closed(key, f);
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

/* A segment of the owner to the client, cloned to us: SYN-ACK, FIN, RST. */
static __noinline int gw_shadow_owner(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_options o;

	if ((p->flags & GW_TCP_SYN) && (p->flags & GW_TCP_ACK)) {
		if (f && p->seq == f->iss) /* again: its ACK was lost */
			return gw_verdict(GW_REASON_TAPPED_SYN_ACK, GW_DROP);
		if (gw_note_syn_ack(skb, p, key, &o))
			return gw_verdict(GW_REASON_NO_HANDSHAKE, GW_DROP);
		/* the owner took a new connection: the old twin must go */
		if (f && f->irs + 1 != p->ack)
			return gw_reset_twin(skb, p, key, f);
		return gw_verdict(GW_REASON_TAPPED_SYN_ACK, GW_DROP);
	}
	if (f && (p->flags & GW_TCP_RST) && f->phase != GW_PHASE_ENDED)
		return gw_reset_twin(skb, p, key, f);
	if (f && (p->flags & GW_TCP_FIN))
		gw_flag(f, GW_FLOW_OWNER_FIN);
	return gw_verdict(GW_REASON_OWNER_SEGMENT, GW_DROP);
}

/* Hands the packet to our own kernel as the client's ACK of `ack`. */
static __noinline int gw_reflect(struct __sk_buff *skb, struct gw_pkt *p,
				 const struct gw_flow_key *key,
				 struct gw_flow *f, __u32 ack)
{
	struct gw_bare b = {
		.seq = p->ack,
		.ack = ack,
		.wnd = gw_twin_wnd(f, ack, gw_send_edge(f)),
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = f->client.ts_val,
		.ts_ecr = p->ts_val,
	};
	__u8 self[6];

	if (gw_craft(skb, p, &key->client, &key->service, &b))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_self(self);
	gw_set_macs(skb, self, f->client.mac);
	skb->mark = GW_MARK_REFLECT;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Does the owner need to hear from the twin beside its pure ACKs? */
static __always_inline bool gw_report_due(const struct gw_flow *f,
					  const struct gw_share *s, __u32 end,
					  __u64 now)
{
	if (f->tapped.ack != f->own.ack || f->tapped.edge != f->own.edge)
		return true;
	if (end - f->tapped.snd_nxt >= s->leash / 8)
		return true;
	return now - f->tapped.ns >= GW_REPORT_NS;
}

static __always_inline void gw_reported(struct gw_flow *f, __u64 now)
{
	f->tapped.ack = f->own.ack;
	f->tapped.edge = f->own.edge;
	f->tapped.snd_nxt = f->own.snd_nxt;
	f->tapped.ns = now;
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
		.seq = f->own.snd_nxt,
		.ack = p->ack,
		.wnd = p->wnd,
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = p->ts_val,
		.ts_ecr = p->ts_ecr,
	};
	__u8 self[6], peer[6];

	if (gw_craft(skb, p, &key->service, &key->client, &b)) {
		gw_count(GW_REASON_CRAFT_FAILED);
		return;
	}
	gw_self(self);
	__builtin_memcpy(peer, s->peer_mac, 6);
	gw_set_macs(skb, peer, self);
	skb->mark = GW_MARK_SPOKEN;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	gw_count(GW_REASON_REPORTED);
}

/* The client's ACK of all that the twin has sent, with a window of `wnd`. */
static __noinline int gw_answer(struct __sk_buff *skb, struct gw_pkt *p,
				const struct gw_flow_key *key,
				struct gw_flow *f, __u16 wnd)
{
	struct gw_bare b = {
		.seq = p->ack,
		.ack = f->own.snd_nxt,
		.wnd = wnd,
		.flags = GW_TCP_ACK,
		.ts = !!p->ts_at,
		.ts_val = f->client.ts_val,
		.ts_ecr = p->ts_val,
	};
	__u8 self[6];

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
	__u16 wnd = gw_twin_wnd(f, f->own.snd_nxt, gw_send_edge(f));

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
	if (!gw_answer(skb, p, key, f, 0))
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	return gw_verdict(GW_REASON_UNSENT, GW_DROP);
}

/* A bare ACK of the twin: to the owner as it is, or a probe to answer here. */
static __noinline int gw_shadow_ack(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f, const struct gw_share *s)
{
	__u8 self[6], peer[6];

	if (p->seq == f->own.snd_nxt - 1)
		return gw_answer_probe(skb, p, key, f);
	gw_reported(f, gw_now());
	gw_self(self);
	__builtin_memcpy(peer, s->peer_mac, 6);
	gw_set_macs(skb, peer, self);
	skb->mark = GW_MARK_SPOKEN;
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
	bool beyond;

	if (!f)
		return gw_verdict(GW_REASON_SUPPRESSED_NO_FLOW, GW_DROP);
	if (p->flags & GW_TCP_SYN)
		return gw_verdict(GW_REASON_SUPPRESSED_SYN_ACK, GW_DROP);
	if (p->flags & GW_TCP_RST) {
		/* before the twin has spoken it is the listener's: a segment
		 * overtook the one that makes the twin, on another CPU */
		if (f->phase == GW_PHASE_TWIN &&
		    (f->flags & GW_FLOW_TWIN_SEEN)) {
			f->phase = GW_PHASE_CLOSED;
			f->why = GW_WHY_TWIN_CLOSED;
			gw_tell(key, f, GW_EVENT_TWIN_CLOSED, 0);
		}
		return gw_verdict(GW_REASON_SUPPRESSED_RST, GW_DROP);
	}
	gw_flag(f, GW_FLOW_TWIN_SEEN);
	gw_hear_own(f, p);
	/* servers do not close at the same instant: the watchdog judges */
	if ((p->flags & GW_TCP_FIN) && !(f->flags & GW_FLOW_OWNER_FIN))
		gw_watch(f, s->lag_limit_ns);
	if (gw_is_pure_ack(p))
		return gw_shadow_ack(skb, p, key, f, s);

	/* beyond what the client has: dropped here, it stays unsent there */
	beyond = gw_after(end, f->client.ack);
	if (!beyond && gw_after(end, f->own.snd_nxt)) {
		f->bytes_out += end - f->own.snd_nxt;
		gw_advance(&f->own.snd_nxt, end);
	}
	if (gw_report_due(f, s, f->own.snd_nxt, now)) {
		gw_reported(f, now);
		gw_report(skb, p, key, f, s);
	}
	gw_end_if_closed(key, f);
	if (beyond)
		return gw_keep_unsent(skb, p, key, f);
	gw_count(GW_REASON_REFLECTED);
	return gw_reflect(skb, p, key, f, end);
}

#endif /* GW_SHADOW_H */
