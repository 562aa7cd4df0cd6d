/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow entries: look-up, events, the books, the end. A flow is written by
 * whichever CPU holds one of its segments. Its sequence fields only ever move
 * forward (gw_advance) and each is a single aligned word, so a race costs at
 * most an ACK that is a moment older than it could be, never one too new.
 */
#ifndef GW_FLOW_H
#define GW_FLOW_H

#include "base/gw_clock.h"
#include "base/gw_seq.h"
#include "flow/gw_log.h"
#include "flow/gw_phase.h"
#include "flow/gw_stamp.h"
#include "flow/gw_untimed.h"

static __always_inline void gw_flag(struct gw_flow *f, __u32 flags)
{
	__sync_fetch_and_or(&f->flags, flags);
}

static __always_inline void gw_unflag(struct gw_flow *f, __u32 flags)
{
	__sync_fetch_and_and(&f->flags, ~flags);
}

static __always_inline struct gw_share *gw_share_at(__u32 index)
{
	return bpf_map_lookup_elem(&gw_shares, &index);
}

/* The share that serves an endpoint, or NULL. */
static __always_inline struct gw_share *gw_share_of(const struct gw_endpoint *e,
						    __u32 *index)
{
	__u32 *found = bpf_map_lookup_elem(&gw_services, e);

	if (!found)
		return NULL;
	*index = *found;
	return gw_share_at(*found);
}

/* Does the network itself copy the client's segments to the standby? */
static __always_inline bool gw_is_multicast(const struct gw_share *s)
{
	return s->service_mac[0] & 1;
}

static __always_inline void gw_key(struct gw_flow_key *key,
				   const struct gw_endpoint *client,
				   const struct gw_endpoint *service)
{
	*key = (struct gw_flow_key){ .client = *client, .service = *service };
}

static __noinline void gw_tell(const struct gw_flow_key *key,
			       const struct gw_flow *f, __u32 kind,
			       __s32 detail)
{
	struct gw_event *e = bpf_ringbuf_reserve(&gw_events, sizeof(*e), 0);

	if (!e) {
		gw_count(GW_REASON_EVENT_LOST);
		return;
	}
	e->ns = gw_now();
	e->key = *key;
	e->irs = f->irs;
	e->share = f->share;
	e->generation = f->generation;
	e->kind = kind;
	e->detail = detail;
	e->place = 0;
	bpf_ringbuf_submit(e, 0);
}

/* What concerns this machine, and no flow. */
static __noinline void gw_tell_machine(__u32 kind, __s32 detail)
{
	struct gw_event *e = bpf_ringbuf_reserve(&gw_events, sizeof(*e), 0);

	if (!e) {
		gw_count(GW_REASON_EVENT_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->ns = gw_now();
	e->kind = kind;
	e->detail = detail;
	bpf_ringbuf_submit(e, 0);
}

/* Has the connection ended? Another CPU may be writing a phase meanwhile. */
static __always_inline bool gw_is_over(const struct gw_flow *f)
{
	return f->flags & GW_FLOW_OVER;
}

/*
 * Is the owner's gate to hold for this flow? One word in the share ungates all
 * flows of a standby that is lost: their generation is no longer the share's.
 */
static __always_inline bool gw_is_gated(const struct gw_share *s,
					const struct gw_flow *f)
{
	return (f->flags & GW_FLOW_GATED) && f->generation &&
	       f->generation == s->generation;
}

/* Owner: is a twin being made of this running flow? gw_rejoin.h */
static __always_inline bool gw_is_rejoining(const struct gw_share *s,
					    const struct gw_flow *f)
{
	return f->phase == GW_PHASE_REJOINING && f->generation &&
	       f->generation == s->generation;
}

/* Shadow: the twin can't serve the client any more. */
static __always_inline void gw_close_twin(const struct gw_flow_key *key,
					  struct gw_flow *f)
{
	if (f->phase != GW_PHASE_TWIN)
		return;
	gw_flow_enter(f, GW_PHASE_CLOSED);
	f->why = GW_WHY_TWIN_CLOSED;
	gw_tell(key, f, GW_EVENT_TWIN_CLOSED, 0);
}

static int gw_watchdog(void *map, struct gw_flow_key *key, struct gw_flow *f);

/*
 * An ended flow without a timer: the kernel had no memory for one when it began, so it gets one
 * now, or stands in a queue. Verified once.
 */
__noinline int gw_linger(const struct gw_flow_key *key)
{
	struct gw_flow *f;

	if (!key)
		return -1;
	f = bpf_map_lookup_elem(&gw_flows, key);
	if (!f)
		return -1;
	/* one that is there stays: another CPU has just made it */
	bpf_timer_init(&f->timer, &gw_flows, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&f->timer, gw_watchdog);
	if (!bpf_timer_start(&f->timer, GW_LINGER_NS, 0))
		return 0;
	gw_end_untimed(key, f->irs);
	gw_start_ticking();
	return 0;
}

/* The connection is over: late segments still find the entry for a while. */
static __noinline void gw_end(const struct gw_flow_key *key, struct gw_flow *f)
{
	if (__sync_fetch_and_or(&f->flags, GW_FLOW_OVER) & GW_FLOW_OVER)
		return;
	gw_flow_enter(f, GW_PHASE_ENDED);
	gw_unflag(f, GW_FLOW_GATED);
	gw_log_free(key, f, GW_LOG_NONE);
	if (bpf_timer_start(&f->timer, GW_LINGER_NS, 0))
		gw_linger(key);
	gw_tell(key, f, GW_EVENT_ENDED, 0);
}

/* Have both sides closed, and each has the other's FIN? */
static __always_inline bool gw_is_through(const struct gw_flow *f)
{
	return (f->flags & GW_FLOW_CLIENT_FIN) &&
	       (f->flags & GW_FLOW_OWN_FIN) &&
	       !gw_before(f->client.ack, f->own.fin) &&
	       !gw_before(f->own.ack, f->client.fin);
}

/*
 * Ends the flow once both FINs are acknowledged (RFC 9293 section 3.6). A gated
 * client does not know yet what our kernel has acknowledged.
 */
static __always_inline void gw_end_if_closed(const struct gw_flow_key *key,
					     struct gw_flow *f, bool gated)
{
	__u32 told = gated ? f->gated.told_ack : f->own.ack;

	if ((f->flags & GW_FLOW_CLIENT_FIN) && (f->flags & GW_FLOW_OWN_FIN) &&
	    !gw_before(f->client.ack, f->own.fin) &&
	    !gw_before(told, f->client.fin))
		gw_end(key, f);
}

/*
 * The least that the owner's time stamp clock says now. It is anchored where
 * no round trip is in it: at the SYN-ACK, which the tap shows as it leaves. A
 * client's echo is a round trip old, and too low by that (RFC 7323 section 4).
 */
static __always_inline __u32 gw_owner_ts(const struct gw_flow *f, __u64 now)
{
	/* another CPU may have anchored it anew a moment ago */
	if (now <= f->client.ts_base_ns)
		return f->client.ts_base;
	return f->client.ts_base + (now - f->client.ts_base_ns) / 1000000;
}

/*
 * Does TCP take nothing of a segment of an established connection, though it is
 * in the window (RFC 9293 section 3.10.7.4)? It has no ACK, or has SYN (RFC 5961
 * section 4); its acknowledgement is older than any window (section 5); its TSval is old (RFC 7323 section 5.3).
 */
static __always_inline bool gw_is_ignored(const struct gw_flow *f,
					  const struct gw_pkt *p, __u64 now)
{
	if ((p->flags & (GW_TCP_ACK | GW_TCP_SYN)) != GW_TCP_ACK)
		return true;
	if (gw_before(p->ack,
		      f->client.ack - (0xffffu << (f->snd_wscale & 15))))
		return true;
	return (f->flags & GW_FLOW_TS) && p->ts_at &&
	       gw_is_stamp_old(&f->client, p->ts_val, now);
}

/* A segment that would have TCP drop all that its client says later. */
static __always_inline bool gw_is_odd(struct gw_flow *f, const struct gw_pkt *p,
				      __u64 now)
{
	return (f->flags & GW_FLOW_TS) && p->ts_at &&
	       !(p->flags & GW_TCP_RST) &&
	       gw_is_stamp_odd(&f->client, p->ts_val, now);
}

/*
 * The window that the client offers, as TCP takes it: RFC 9293 section
 * 3.10.7.4 (SND.WL1), and of two that came at one place the larger one, or none
 * (tcp_may_update_window). It may be less than it was: a client may shrink it.
 * Another CPU may have the next segment: what it writes is as good.
 */
static __always_inline void gw_hear_window(struct gw_flow *f,
					   const struct gw_pkt *p)
{
	__u32 wnd = (__u32)p->wnd << (f->snd_wscale & 15);
	__u32 ack = f->client.ack, was = f->client.edge - ack;

	if (gw_before(p->ack, ack))
		return;
	if (p->ack == ack && !gw_after(p->seq, f->client.wl1) &&
	    (p->seq != f->client.wl1 || (wnd && wnd <= was)))
		return;
	f->client.edge = p->ack + wnd;
	f->client.wl1 = p->seq;
	f->client.wnd = p->wnd;
}

/*
 * Takes down what the client says of itself in a segment. A segment beyond the
 * window that our kernel offers is not the client's, or of no use: RFC 9293
 * section 3.10.7.4 has the kernel drop it, so it must not move our books: false.
 */
static __noinline bool gw_hear_client(struct gw_flow *f, const struct gw_pkt *p,
				      __u64 now)
{
	__u32 end = gw_seg_end(p);

	if (gw_after(end, f->own.edge + 1) || gw_is_ignored(f, p, now)) {
		gw_count(GW_REASON_NOT_HEARD);
		return false;
	}
	f->client.heard_ns = now;
	/* what ends before RCV.NXT is answered by the kernel, not heard */
	if (gw_before(end, f->own.ack))
		return false;
	gw_hear_window(f, p);
	gw_advance(&f->client.ack, p->ack);
	if (gw_after(end, f->client.end)) {
		f->bytes_in += end - f->client.end;
		gw_advance(&f->client.end, end);
	}
	if (p->flags & GW_TCP_FIN) {
		f->client.fin = end;
		gw_flag(f, GW_FLOW_CLIENT_FIN);
	}
	if (p->ts_at) {
		f->client.ts_seen = p->ts_val;
		/* RFC 7323 section 4.3 (2): not from a segment that came early */
		if (!gw_after(p->seq, f->own.ack))
			gw_hear_stamp(&f->client, p->ts_val);
		gw_advance(&f->client.ts_ecr, p->ts_ecr);
		/* the owner's clock runs faster than ours */
		if (gw_after(p->ts_ecr, gw_owner_ts(f, now))) {
			f->client.ts_base = p->ts_ecr;
			f->client.ts_base_ns = now;
		}
	}
	return true;
}

/* RFC 5961 section 3.2: only at RCV.NXT exactly; else a challenge follows. */
static __always_inline bool gw_is_exact_rst(const struct gw_flow *f,
					    const struct gw_pkt *p)
{
	return p->seq == f->own.ack || p->seq == f->client.end;
}

/*
 * A client's RST in the window, and not exact by our books: our kernel may have what it has not
 * told yet, and takes some that are a byte before that (tcp_reset_check). So the agent looks
 * whether there still is a socket. About once in a second is often enough: anybody may have
 * sent it.
 */
static __always_inline void gw_doubt(const struct gw_flow_key *key,
				     struct gw_flow *f, const struct gw_pkt *p,
				     __u64 now)
{
	__u32 at = (now >> 30) + 1;

	if (gw_is_over(f) || f->client.reset_at == at ||
	    gw_before(p->seq + 1, f->own.ack) || gw_after(p->seq, f->own.edge))
		return;
	f->client.reset_at = at;
	gw_tell(key, f, GW_EVENT_RESET, 0);
}

/* The right edge that a segment of the service, or of its twin, offers. */
static __always_inline __u32 gw_offered(const struct gw_flow *f,
					const struct gw_pkt *p)
{
	return p->ack + ((__u32)p->wnd << (f->rcv_wscale & 15));
}

/* Takes down what our own kernel announces in a segment. */
static __always_inline void gw_hear_own(struct gw_flow *f,
					const struct gw_pkt *p)
{
	if (p->flags & GW_TCP_ACK) {
		gw_advance(&f->own.ack, p->ack);
		gw_advance(&f->own.edge, gw_offered(f, p));
	}
	if (p->ts_at)
		gw_advance(&f->own.ts_val, p->ts_val);
	if (p->flags & GW_TCP_FIN) {
		f->own.fin = gw_seg_end(p);
		gw_flag(f, GW_FLOW_OWN_FIN);
	}
}

#endif /* GW_FLOW_H */
