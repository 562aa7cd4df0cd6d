/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A question that gets no answer (docs/adr/0025): the link has lost it, or does not carry
 * it, though whom we have asked lives. Ten milliseconds later the agent hears of it, and
 * asks that server's agent over the control link. That one rules the question out
 * (GW_ORDER_SETTLE): a question that it has not accepted by then it never will. Then our
 * agent puts the answer, with the request as it was kept here, into our own ingress, as if
 * it had come from the link.
 *
 * On two processors of the target a question and the order may be at work at once. The
 * order writes gw_settled and then looks at the connection's entry; the question writes that
 * entry (COMING) and then looks at gw_settled. One of them sees the other.
 */
#ifndef GW_SETTLE_H
#define GW_SETTLE_H

#include "net/gw_craft.h"
#include "request/gw_slip.h"
#include "request/gw_transfer.h"

/* Requests that are kept while their question is open: one per place. */
#define GW_KEPT 1024
/* With a slip and an Ethernet header, on a link of 1 500 bytes. */
#define GW_KEPT_LEN 1536

/* The frame of a question, as it left. */
struct gw_kept {
	struct gw_flow_key key;
	__u32 irs; /* of the client */
	__u32 number; /* of the handoff */
	__u32 share;
	__u16 len; /* 0: it is being written */
	__u8 partial; /* 1: its TCP checksum is that of the pseudo header */
	__u8 by_way; /* 1: it goes by a standby */
	__u8 to[6]; /* MAC address of whom is asked */
	__u16 pad;
	__u8 frame[GW_KEPT_LEN];
};

_Static_assert(sizeof(struct gw_kept) == 64 + GW_KEPT_LEN, "shared with Rust");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_KEPT);
	__type(key, __u32);
	__type(value, struct gw_kept);
} gw_kepts SEC(".maps");

/* Questions that are ruled out here: up to this number. */
struct gw_settled {
	__u32 irs;
	__u32 number;
	__u32 asked; /* how often: see gw_settle() */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_settled);
} gw_settled SEC(".maps");

/* What a server says of a connection that it was asked for. */
enum gw_settlement {
	GW_SETTLED_NEVER =
		2, /* it has it not, and never will by that question */
	GW_SETTLED_HAS = 3,
	GW_SETTLED_LATER = 4, /* it is coming this very moment: ask again */
};

const enum gw_settlement *gw_export_settlement __attribute__((unused));

/* Keeps the frame at hand, if it is not too long. */
static __noinline void gw_keep(struct __sk_buff *skb, const struct gw_flow *f,
			       const struct gw_transfer *t)
{
	const struct gw_offer *o = gw_offer_at_hand();
	__u32 at = o ? gw_kept_place(&o->key, f->irs) : 0, len = skb->len;
	struct gw_kept *k = bpf_map_lookup_elem(&gw_kepts, &at);

	if (!k || !o)
		return;
	*(volatile __u16 *)&k->len = 0;
	if (len < ETH_HLEN || len > GW_KEPT_LEN ||
	    bpf_skb_load_bytes(skb, 0, k->frame, len))
		return;
	k->key = o->key;
	k->irs = f->irs;
	k->number = t->number;
	k->share = f->share;
	k->partial = gw_csum_partial(skb);
	k->by_way = !!o->slip.from;
	__builtin_memcpy(k->to, t->to.mac, 6);
	*(volatile __u16 *)&k->len = len;
}

/* Is the question ruled out? */
static __always_inline bool gw_is_ruled_out_here(const struct gw_flow_key *key,
						 __u32 irs, __u32 number)
{
	const struct gw_settled *s = bpf_map_lookup_elem(&gw_settled, key);

	return s && *(volatile const __u32 *)&s->irs == irs &&
	       !gw_before(*(volatile const __u32 *)&s->number, number);
}

#endif /* GW_SETTLE_H */
