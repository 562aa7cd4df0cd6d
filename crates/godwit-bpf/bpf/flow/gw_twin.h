/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a twin may know of its client, silent or serving: acknowledgements end
 * at what it has sent, its window at what it may send.
 */
#ifndef GW_TWIN_H
#define GW_TWIN_H

#include "net/gw_craft.h"
#include "net/gw_edit.h"
#include "flow/gw_flow.h"
#include "flow/gw_rounds.h"

/* RFC 6928 */
#define GW_INITIAL_WINDOW 10

/*
 * The window that a twin at `ack` may see: up to `edge`. Rounded down, for a
 * rounded-up one makes the twin send bytes that are then suppressed and cost a
 * retransmission timeout at takeover; but never to 0 while there is room, or
 * the last bytes of a stream would never leave (docs/kernel-facts.md). Once the
 * owner has closed there is nothing beyond: rounded up, lest the end waits for a
 * timer while the client is long gone.
 */
static __always_inline __u16 gw_twin_wnd(const struct gw_flow *f, __u32 ack,
					 __u32 edge)
{
	__u32 room = gw_before(ack, edge) ? edge - ack : 0;
	const __u32 flags = GW_FLOW_OWNER_FIN | GW_FLOW_ADOPTED;
	__u16 wnd = gw_wnd_down(room, f->snd_wscale);

	if ((f->flags & flags) == GW_FLOW_OWNER_FIN && wnd < 0xffff &&
	    ((__u32)wnd << (f->snd_wscale & 15)) < room)
		return wnd + 1;
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
		/* a client that has shrunk its window for now ends no ramp */
		if (f->client.edge - f->client.ack >=
		    GW_INITIAL_WINDOW * (__u32)f->mss)
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

/*
 * The same as this segment of the client says: a socket that serves it follows
 * it where it shrinks its window (RFC 9293 section 3.8.6), for what TCP sends
 * beyond waits for the retransmission timer, where a shut window has it probe.
 */
static __always_inline __u32 gw_said_edge(struct gw_flow *f,
					  const struct gw_pkt *p)
{
	__u32 edge = gw_send_edge(f);

	if (!(f->flags & GW_FLOW_ADOPTED) || !(p->flags & GW_TCP_ACK))
		return edge;
	return gw_min_seq(edge,
			  p->ack + ((__u32)p->wnd << (f->snd_wscale & 15)));
}

/* Turns a client's segment into what the twin may know of it. */
static __noinline int gw_gate_twin(struct __sk_buff *skb, struct gw_pkt *p,
				   struct gw_flow *f)
{
	__u32 edge = gw_said_edge(f, p);
	__u32 ack = p->ack;

	gw_open_rounds(f);
	if (gw_after(ack, f->own.snd_nxt)) {
		ack = f->own.snd_nxt;
		gw_count(GW_REASON_CLAMPED);
	}
	if (gw_set_wnd(skb, p, gw_twin_wnd(f, ack, edge)))
		return -1;
	return gw_set_ack(skb, p, ack);
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

#endif /* GW_TWIN_H */
