/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connection that was handed over before anybody had read from it. Its new server
 * knows nothing of that: it gets the connection from its own listener, as it gets any
 * other. The agent leaves a record of it and says an ACK in its client's name, at the
 * first byte of both sides, which becomes the socket; then it says the client's input.
 */
#ifndef GW_NEWBORN_H
#define GW_NEWBORN_H

#include "handoff/gw_handoff.h"
#include "flow/gw_materialise.h"

static __always_inline int gw_assign_newborn(struct __sk_buff *skb,
					     struct bpf_sock *listener,
					     const struct gw_newborn *n,
					     const struct gw_pkt *p)
{
	struct bpf_tcp_req_attrs attrs = {
		.mss = n->mss,
		.snd_wscale = n->snd_wscale,
		.rcv_wscale = n->rcv_wscale,
		.ecn_ok = !!(n->flags & GW_FLOW_ECN),
		.wscale_ok = !!(n->flags & GW_FLOW_WSCALE),
		.sack_ok = !!(n->flags & GW_FLOW_SACK),
		.tstamp_ok = !!(n->flags & GW_FLOW_TS),
		.rcv_tsval = p->ts_val,
		/* the service's clock goes on from where it was elsewhere */
		.rcv_tsecr = n->ts_val,
	};

	return gw_assign_as(skb, listener, &attrs);
}

/* From the agent: 0, or why it becomes no socket. */
static __always_inline int gw_newborn(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_newborn *n)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	int err;

	if (!sk)
		return GW_REASON_NO_LISTENER;
	if (sk->state != GW_TCP_LISTEN) {
		bpf_sk_release(sk);
		return GW_REASON_BORN_BEFORE;
	}
	err = gw_assign_newborn(skb, sk, n, p);
	bpf_sk_release(sk);
	return err ? GW_REASON_MATERIALISE_REFUSED : 0;
}

/* What becomes of a segment that the agent has made; GW_UNDECIDED: of no newborn. */
static __noinline int gw_bear(struct __sk_buff *skb, const struct gw_pkt *p,
			      const struct gw_share *s)
{
	struct gw_newborn *n;
	struct gw_flow_key key;
	struct gw_handoff *h;
	int err;

	gw_key(&key, &p->src, &p->dst);
	h = gw_handoff_of(s, &key);
	if (!h || h->mode != GW_HANDOFF_BORN)
		return GW_UNDECIDED;
	n = bpf_map_lookup_elem(&gw_newborns, &key);
	if (!n || p->seq != n->irs + 1 || p->ack != n->iss + 1)
		return gw_verdict(GW_REASON_REPLAY_NO_FLOW, GW_DROP);
	err = gw_newborn(skb, p, n);
	return err ? gw_verdict(err, GW_DROP) :
		     gw_verdict(GW_REASON_BORN, GW_PASS);
}

#endif /* GW_NEWBORN_H */
