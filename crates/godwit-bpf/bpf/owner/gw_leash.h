/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The leash (docs/design.md): how far an owner may run ahead of the twin's
 * application, told to our own kernel as the client's window.
 */
#ifndef GW_LEASH_H
#define GW_LEASH_H

#include "net/gw_craft.h"
#include "net/gw_edit.h"
#include "flow/gw_watchdog.h"

/*
 * A twin lags by the time that it needs to come to where the client is: what a
 * takeover would wait for. That is measured from one such point to the next
 * while the leash holds.
 */
static __always_inline void gw_time_lag(struct gw_flow *f, __u32 ack)
{
	if (f->gated.leashed_ns &&
	    gw_before(f->gated.twin_snd_nxt, f->client.due))
		return;
	f->client.due = ack;
	f->gated.leashed_ns = gw_now();
}

/* Our kernel knows all that the client offers. */
static __always_inline void gw_slip_leash(struct gw_flow *f, __u32 edge)
{
	f->gated.kernel_edge = edge;
	f->gated.leashed_ns = 0;
	if (f->flags & GW_FLOW_LEASHED)
		gw_unflag(f, GW_FLOW_LEASHED);
}

/*
 * Is the twin's application behind what the client has acknowledged? What is
 * under way to a far client is no lag: no twin can answer it yet.
 */
static __always_inline bool gw_is_lagging(const struct gw_flow *f,
					  const struct gw_share *s, __u32 ack)
{
	return gw_after(ack, f->gated.twin_snd_nxt + s->leash / 2);
}

/*
 * The client's last word for our kernel, its right edge no further than the
 * leash: the owner must not run away from a twin that lags, or a takeover would
 * wait for it to catch up. The edge may even move back, which a sender bears
 * (RFC 9293 section 3.8.6).
 */
static __always_inline int gw_leash(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f, const struct gw_share *s)
{
	__u32 limit = f->gated.twin_snd_nxt + s->leash;
	__u32 edge = p->ack + ((__u32)p->wnd << (f->snd_wscale & 15));

	limit = gw_max_seq(limit, p->ack);
	if (!gw_is_lagging(f, s, p->ack) || !gw_after(edge, limit)) {
		gw_slip_leash(f, edge);
		return 0;
	}
	gw_flag(f, GW_FLOW_LEASHED);
	gw_time_lag(f, p->ack);
	gw_watch(key, f, s->lag_limit_ns);
	f->gated.kernel_edge = limit;
	gw_count(GW_REASON_LEASHED);
	return gw_set_wnd(skb, p, gw_wnd_down(limit - p->ack, f->snd_wscale));
}

/* The leash was the limit and has moved: our kernel may send on. */
static __noinline int gw_move_leash(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f, const struct gw_share *s)
{
	__u32 edge =
		gw_min_seq(f->client.edge, f->gated.twin_snd_nxt + s->leash);
	struct gw_bare b = {
		.seq = f->own.ack,
		.ack = f->client.ack,
		.flags = GW_TCP_ACK,
		.ts = f->flags & GW_FLOW_TS ? 1 : 0,
		.ts_val = f->client.ts_val,
		.ts_ecr = f->client.ts_ecr - f->own.ts_off,
	};

	/* an owner that is still catching up has not said all that */
	b.ack = gw_min_seq(b.ack, f->own.snd_nxt);

	gw_time_lag(f, b.ack);
	gw_watch(key, f, s->lag_limit_ns);
	if (!gw_is_lagging(f, s, b.ack))
		edge = f->client.edge;
	if (!gw_after(edge, f->gated.kernel_edge))
		return gw_verdict(GW_REASON_TWIN_ACK, GW_DROP);
	f->gated.kernel_edge = edge;
	if (edge == f->client.edge)
		gw_unflag(f, GW_FLOW_LEASHED);
	b.wnd = gw_wnd_down(edge - b.ack, f->snd_wscale);
	if (gw_craft(skb, p, &key->client, &key->service, &b))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_LEASH_MOVED, GW_PASS);
}

#endif /* GW_LEASH_H */
