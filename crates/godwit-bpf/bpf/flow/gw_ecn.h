/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every twin does ECN, whatever its client has agreed to (gw_ask_quick_ack):
 * what leaves for a client without ECN must not show it (RFC 3168 section 6.1).
 */
#ifndef GW_ECN_H
#define GW_ECN_H

#include "net/gw_edit.h"
#include "flow/gw_flow.h"

/* Clears the ECN field of the IP header, RFC 3168 section 5. */
static __always_inline int gw_clear_ect(struct __sk_buff *skb,
					const struct gw_pkt *p)
{
	__be16 was, now;

	if (bpf_skb_load_bytes(skb, GW_L3, &was, sizeof(was)))
		return -1;
	/* version, header length, TOS; or version, class, flow label */
	now = was & (p->v6 ? bpf_htons(0xffcf) : bpf_htons(0xfffc));
	if (now == was)
		return 0;
	if (!p->v6 && bpf_l3_csum_replace(skb, GW_L3 + 10, was, now, 2))
		return -1;
	return bpf_skb_store_bytes(skb, GW_L3, &now, sizeof(now),
				   BPF_F_RECOMPUTE_CSUM);
}

/* The twin does ECN for our own ends; the client never agreed to it. */
static __noinline int gw_hide_ecn(struct __sk_buff *skb, struct gw_pkt *p,
				  const struct gw_flow *f)
{
	if (f->flags & GW_FLOW_ECN)
		return 0;
	if (gw_clear_ect(skb, p))
		return -1;
	if (!(p->flags & (GW_TCP_CWR | GW_TCP_ECE)))
		return 0;
	return gw_set_flags(skb, p, p->flags & ~(GW_TCP_CWR | GW_TCP_ECE));
}

#endif /* GW_ECN_H */
