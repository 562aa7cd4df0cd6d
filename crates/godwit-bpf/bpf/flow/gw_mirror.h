/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Tap by mirror: the owner's hook clones a segment to the standby's MAC. The
 * source MAC becomes ours, or the switch would learn that the client lives
 * here. Selection as in docs/design.md ("Tap"): everything that carries news, and of
 * plain ACKs enough that the twin neither stalls nor floods.
 */
#ifndef GW_MIRROR_H
#define GW_MIRROR_H

#include "net/gw_edit.h"
#include "flow/gw_flow.h"

#define GW_MIRROR_BYTES 65536
#define GW_MIRROR_NS 10000000ull

static __noinline void gw_mirror_to(struct __sk_buff *skb, struct gw_pkt *p,
				    const __u8 *peer)
{
	__u32 mark = skb->mark;

	gw_address_to(skb, peer);
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		gw_count(GW_REASON_MIRROR_FAILED);
	else
		gw_count(GW_REASON_MIRRORED);
	skb->mark = mark;
	gw_set_macs(skb, p->dmac, p->smac);
}

static __always_inline void gw_mirror(struct __sk_buff *skb, struct gw_pkt *p,
				      const struct gw_share *s)
{
	__u8 peer[6];

	__builtin_memcpy(peer, s->peer_mac, 6);
	gw_mirror_to(skb, p, peer);
}

/* A client's segment that the standby must have, unless the network gives it its own. */
static __always_inline void gw_mirror_client(struct __sk_buff *skb,
					     struct gw_pkt *p,
					     const struct gw_share *s)
{
	if (!gw_is_multicast(s))
		gw_mirror(skb, p, s);
}

/* Does the standby need this segment of the client? Before gw_hear_client. */
static __always_inline bool gw_is_news(const struct gw_flow *f,
				       const struct gw_pkt *p, __u64 now)
{
	if (!gw_is_pure_ack(p) || (p->flags & (GW_TCP_ECE | GW_TCP_CWR)))
		return true;
	/* a keep-alive, or an ACK from before a loss */
	if (p->seq != f->client.end)
		return true;
	if (!p->wnd != !f->tapped.wnd)
		return true;
	/* more options than time stamps: SACK blocks */
	if (p->hdr_len > (p->ts_at ? 32 : 20))
		return true;
	/* all that was sent is acknowledged: no later ACK would tell */
	if (p->ack == f->own.snd_nxt && p->ack != f->tapped.ack)
		return true;
	return p->ack - f->tapped.ack >= GW_MIRROR_BYTES ||
	       now - f->tapped.ns >= GW_MIRROR_NS;
}

/* Does the standby in sync run a twin of this flow? */
static __always_inline bool gw_is_tapped(const struct gw_share *s,
					 const struct gw_flow *f)
{
	return f->generation && f->generation == s->generation;
}

static __always_inline void
gw_mirror_if(struct __sk_buff *skb, struct gw_pkt *p, const struct gw_share *s,
	     struct gw_flow *f, bool news, __u64 now)
{
	if (!gw_is_tapped(s, f) || gw_is_multicast(s))
		return;
	if (!news) {
		gw_count(GW_REASON_MIRROR_SPARED);
		return;
	}
	f->tapped.ns = now;
	f->tapped.ack = p->ack;
	f->tapped.wnd = p->wnd;
	gw_mirror(skb, p, s);
}

#endif /* GW_MIRROR_H */
