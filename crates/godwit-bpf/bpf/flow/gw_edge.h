/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The floor under the right edge of a window. A client is told of no more than
 * both kernels take. But while a flow had no twin, it was told of its owner's
 * window alone, and the kernel of a new twin, or of a later owner, may have a
 * smaller one. Until they have come that far, the edge stays where it was told
 * (RFC 9293 section 3.8.6). What comes beyond a kernel's window it drops, and
 * as nobody acknowledges that, the client keeps it.
 *
 * The floor holds what was told before rounding, so nothing adds up.
 */
#ifndef GW_EDGE_H
#define GW_EDGE_H

#include "net/gw_edit.h"
#include "flow/gw_flow.h"

/*
 * `edge`, or the floor if that is further. A window that our kernel has shut
 * stays shut: a client that sends against it waits for its retransmission
 * timer when it opens, one that only probes is told at once.
 */
static __always_inline __u32 gw_floored(const struct gw_flow *f, __u32 edge)
{
	if (!(f->flags & GW_FLOW_FLOOR) || !gw_before(f->own.ack, f->own.edge))
		return edge;
	return gw_max_seq(edge, f->floor);
}

/* The client knows of `edge`, whatever kernels offer. */
static __always_inline void gw_raise_floor(struct gw_flow *f, __u32 edge)
{
	if (f->flags & GW_FLOW_FLOOR) {
		gw_advance(&f->floor, edge);
		return;
	}
	f->floor = edge;
	gw_flag(f, GW_FLOW_FLOOR);
}

/* Kernels offer `edge`: a floor that is no further has done its work. */
static __always_inline void gw_leave_floor(struct gw_flow *f, __u32 edge)
{
	if ((f->flags & GW_FLOW_FLOOR) && !gw_before(edge, f->floor))
		gw_unflag(f, GW_FLOW_FLOOR);
}

/* The window that ends at `edge`, as much as the field can say. */
static __always_inline __u16 gw_wnd_up(const struct gw_flow *f, __u32 ack,
				       __u32 edge)
{
	__u8 shift = f->rcv_wscale & 15;
	__u32 wnd = (edge - ack + (1u << shift) - 1) >> shift;

	return wnd > 0xffff ? 0xffff : wnd;
}

/* Our kernel's own words, with no gate that would see to the edge. */
static __noinline int gw_keep_edge(struct __sk_buff *skb, struct gw_pkt *p,
				   struct gw_flow *f)
{
	__u32 edge;

	gw_leave_floor(f, f->own.edge);
	edge = gw_floored(f, f->own.edge);
	if (edge == f->own.edge || !(p->flags & GW_TCP_ACK))
		return 0;
	return gw_set_wnd(skb, p, gw_wnd_up(f, p->ack, edge));
}

#endif /* GW_EDGE_H */
