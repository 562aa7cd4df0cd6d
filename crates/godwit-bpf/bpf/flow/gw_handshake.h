/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The three segments that set a flow up, seen at the owner or through the tap.
 * A flow is made only at exactly known numbers: seq = irs + 1, ack = iss + 1.
 * A lost or a spoofed handshake segment can't shift a stream.
 */
#ifndef GW_HANDSHAKE_H
#define GW_HANDSHAKE_H

#include "net/gw_options.h"
#include "flow/gw_watchdog.h"

/* Is the connection that begins there one that must not be served? See gw_order.h. */
static __always_inline bool gw_is_marked(const struct gw_half_open *half,
					 __u32 irs)
{
	if ((half->flags & GW_FLOW_NOT_IN_SYNC) && half->irs == irs)
		return true;
	return half->marked && !half->answered && half->iss == irs;
}

static __always_inline void gw_mark_beside(struct gw_half_open *half, __u32 irs)
{
	half->iss = irs;
	half->marked = 1;
}

/*
 * Anybody can send a SYN with the addresses and ports of a connection that must not be served.
 * So its mark stays beside the new handshake, until an owner answers that: then the earlier
 * connection is over.
 */
static __always_inline void gw_keep_mark(struct gw_half_open *half,
					 const struct gw_half_open *old)
{
	if ((old->flags & GW_FLOW_NOT_IN_SYNC) && old->irs != half->irs)
		gw_mark_beside(half, old->irs);
	else if (old->marked && !old->answered && old->iss != half->irs)
		gw_mark_beside(half, old->iss);
	/* the mark was here before its SYN */
	if (half->tapped && gw_is_marked(old, half->irs))
		half->flags |= GW_FLOW_NOT_IN_SYNC;
}

/* The client's SYN, its options walked already. */
static __noinline int gw_note_syn(const struct gw_pkt *p,
				  const struct gw_flow_key *key,
				  const struct gw_options *o, __u32 share,
				  const struct gw_share *s)
{
	struct gw_half_open half = {
		.born_ns = gw_now(),
		.share = share,
		.generation = s->generation,
		.irs = p->seq,
		.mss = o->mss,
		.snd_wscale = o->wscale,
		.flags = o->flags,
		.client_ts_val = o->ts_val,
		.tapped = s->role == GW_ROLE_SHADOW,
		.is_signed = o->is_signed,
	};

	const struct gw_half_open *old =
		bpf_map_lookup_elem(&gw_half_open, key);

	/* again: what was agreed stands */
	if (old && old->answered && old->irs == p->seq &&
	    old->tapped == half.tapped && old->generation == half.generation)
		return 0;
	/* RFC 3168 section 6.1.1 */
	if ((p->flags & (GW_TCP_ECE | GW_TCP_CWR)) == (GW_TCP_ECE | GW_TCP_CWR))
		half.flags |= GW_FLOW_ECN;
	if (old)
		gw_keep_mark(&half, old);
	__builtin_memcpy(half.client_mac, p->smac, 6);
	return bpf_map_update_elem(&gw_half_open, key, &half, BPF_ANY);
}

/* The server's SYN-ACK: what both sides have agreed on from here. */
static __noinline int gw_note_syn_ack(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      struct gw_options *o)
{
	struct gw_half_open *half = bpf_map_lookup_elem(&gw_half_open, key);

	if (!half || p->ack != half->irs + 1)
		return -1;
	if (gw_walk_options(skb, p, o))
		return -1;
	half->iss = p->seq;
	half->rcv_wscale = o->flags & GW_FLOW_WSCALE ? o->wscale : 0;
	if (!(o->flags & GW_FLOW_WSCALE))
		half->snd_wscale = 0;
	half->flags &= o->flags | GW_FLOW_ECN | GW_FLOW_NOT_IN_SYNC;
	if (!(p->flags & GW_TCP_ECE))
		half->flags &= ~GW_FLOW_ECN;
	half->ts_val = o->ts_val;
	half->syn_ack_mss = o->mss;
	/* the window of a SYN-ACK is never scaled, RFC 7323 section 2.2 */
	half->syn_ack_edge = half->irs + 1 + p->wnd;
	half->born_ns = gw_now();
	half->answered = 1;
	return 0;
}

static __always_inline bool gw_is_third_ack(const struct gw_half_open *half,
					    const struct gw_pkt *p)
{
	return half->answered && (p->flags & GW_TCP_ACK) &&
	       !(p->flags & (GW_TCP_SYN | GW_TCP_RST)) &&
	       p->seq == half->irs + 1 && p->ack == half->iss + 1 &&
	       !((half->flags & GW_FLOW_TS) && p->ts_at &&
		 gw_is_stamp_before(half->client_ts_val, p->ts_val));
}

/*
 * The handshake that the segment completes. A SYN and its answer prove nothing: anybody can send
 * a SYN in a client's name. Who completes it has heard the answer.
 */
static __always_inline const struct gw_half_open *
gw_completed(const struct gw_pkt *p, const struct gw_flow_key *key)
{
	const struct gw_half_open *half =
		bpf_map_lookup_elem(&gw_half_open, key);

	return half && gw_is_third_ack(half, p) ? half : NULL;
}

/* As long as an agent answers a handshake anew after a takeover. */
#define GW_HANDSHAKE_NS 5000000000ull

/*
 * A client that has completed a handshake which the last owner answered, and has
 * said more: what comes first was lost with that owner. In the stay that this node
 * goes on with its gate let no acknowledgement out without a twin, so the client
 * repeats the first byte in time, and that is the third ACK. In another stay it may
 * have been acknowledged: nothing would make the client repeat it.
 */
static __always_inline bool gw_is_ahead(const struct gw_half_open *half,
					const struct gw_pkt *p,
					const struct gw_share *s)
{
	bool gated =
		s->gate && half->generation && half->generation == s->continued;

	return gated && half->tapped && half->answered &&
	       (p->flags & GW_TCP_ACK) &&
	       !(p->flags & (GW_TCP_SYN | GW_TCP_RST)) &&
	       p->ack == half->iss + 1 && gw_after(p->seq, half->irs + 1) &&
	       gw_now() - half->born_ns < GW_HANDSHAKE_NS;
}

static __always_inline void gw_flow_fill(struct gw_flow *f,
					 const struct gw_half_open *half)
{
	f->share = half->share;
	f->generation = half->generation;
	f->irs = half->irs;
	f->iss = half->iss;
	f->mss = half->mss;
	f->syn_ack_mss = half->syn_ack_mss;
	f->flags = half->flags | GW_FLOW_WATCHED;
	f->snd_wscale = half->snd_wscale;
	f->rcv_wscale = half->rcv_wscale;
	f->client.ack = half->iss + 1;
	f->client.edge = half->iss + 1;
	f->client.end = half->irs + 1;
	f->client.wl1 = half->irs;
	f->client.ts_val = half->client_ts_val;
	f->client.ts_seen = half->client_ts_val;
	f->client.ts_ecr = half->ts_val;
	f->client.ts_base = half->ts_val;
	f->client.ts_base_ns = half->born_ns;
	__builtin_memcpy(f->client.mac, half->client_mac, 6);
	f->birth = half->irs + 1;
	f->birth_ack = half->iss + 1;
	f->own.snd_nxt = half->iss + 1;
	f->own.tried = half->iss + 1;
	f->own.ack = half->irs + 1;
	f->own.edge = half->syn_ack_edge;
	f->own.ts_val = half->ts_val;
	f->gated.twin_ack = half->irs + 1;
	/* as far as a kernel can tell in units of the scale, which no SYN has */
	f->gated.twin_edge =
		half->syn_ack_edge - ((half->syn_ack_edge - half->irs - 1) &
				      ((1u << (half->rcv_wscale & 15)) - 1));
	f->gated.twin_snd_nxt = half->iss + 1;
	f->gated.told_ack = half->irs + 1;
	f->gated.told_edge = half->syn_ack_edge;
	f->tapped.ack = half->iss + 1;
	f->tapped.snd_nxt = half->iss + 1;
}

/* What a new flow starts as: a twin, gated, or unprotected for a reason. */
static __always_inline void gw_flow_start(struct gw_flow *f,
					  const struct gw_half_open *half,
					  const struct gw_share *s)
{
	if (half->is_signed) {
		f->flags |= GW_FLOW_SIGNED;
		f->generation = 0;
		gw_flow_enter(f, GW_PHASE_UNPROTECTED);
		f->why = GW_WHY_SIGNED_SEGMENTS;
		return;
	}
	if (s->log_cap)
		gw_log_begin(f, half->irs + 1, half->iss + 1);
	/* the owner has become the standby behind its own SYN-ACK: its kernel
	 * makes the socket by itself */
	if (half->tapped || s->role == GW_ROLE_SHADOW) {
		gw_flow_enter(f, GW_PHASE_TWIN);
		f->flags |= GW_FLOW_TWIN;
		if (f->flags & GW_FLOW_NOT_IN_SYNC)
			f->why = GW_WHY_NOT_IN_SYNC;
		if (!half->tapped)
			f->flags |= GW_FLOW_NATIVE;
		return;
	}
	if (f->generation && f->generation == s->generation && s->gate) {
		gw_flow_enter(f, GW_PHASE_CONFIRMING);
		f->flags |= GW_FLOW_GATED;
		return;
	}
	gw_flow_enter(f, GW_PHASE_UNPROTECTED);
	f->why = !s->generation ? GW_WHY_NO_STANDBY :
		 !s->gate	? GW_WHY_GATE_OFF :
				  GW_WHY_STANDBY_LOST;
}

/*
 * Moves a finished handshake into the flow table, whole: another CPU may have
 * the next segment at the same time. NULL: the table is full, or that CPU was
 * first, with the segment behind this one.
 */
static __noinline struct gw_flow *gw_flow_begin(const struct gw_flow_key *key,
						struct gw_half_open *half,
						const struct gw_share *s)
{
	struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_flow_words *words;
	__u32 zero = 0;

	if (f && gw_is_over(f))
		bpf_map_delete_elem(&gw_flows, key);
	/* per CPU; softirqs of one CPU do not nest */
	words = bpf_map_lookup_elem(&gw_scratch, &zero);
	if (!words)
		return NULL;
	__builtin_memset(words, 0, sizeof(*words));
	f = (struct gw_flow *)words;
	gw_flow_fill(f, half);
	gw_flow_start(f, half, s);
	/* a twin that is born to an owner: gw_owner_begin() has it follow */
	f->part = half->tapped && s->role == GW_ROLE_OWNER ? 0 : gw_part(s);
	f->born_ns = gw_now();
	f->rtt_ns = f->born_ns - half->born_ns;
	f->client.heard_ns = f->born_ns;
	if (bpf_map_update_elem(&gw_flows, key, f, BPF_NOEXIST))
		return NULL;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (!f)
		return NULL;
	gw_watch_new(key, f);
	bpf_map_delete_elem(&gw_half_open, key);
	return f;
}

/*
 * A signed segment of a connection that has no key: the kernel drops it (tcp_inbound_hash), if
 * it was built to look for signatures.
 */
static __noinline bool gw_is_signed_amiss(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_flow_key *key,
					  const struct gw_flow *f)
{
	const struct gw_half_open *half;

	if (!gw_has_signature(skb, p))
		return false;
	if (f && !gw_is_over(f))
		return !(f->flags & GW_FLOW_SIGNED);
	half = bpf_map_lookup_elem(&gw_half_open, key);
	return half && !half->is_signed;
}

#endif /* GW_HANDSHAKE_H */
