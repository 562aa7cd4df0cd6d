/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way of a connection that comes (gw_come.h): a socket that is left may be in it. */
#ifndef GW_WAY_H
#define GW_WAY_H

#include "net/gw_craft.h"
#include "flow/gw_materialise.h"
#include "request/gw_gone.h"

/*
 * Is there a twin of it that can make way at once? It has all that its client said, and its
 * server is not at work on it: the RST would wait for that. If not, its owner keeps it.
 */
static __always_inline bool gw_has_twin(struct bpf_sock *sk,
					const struct gw_pkt *p,
					const struct gw_flow_key *key)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_share *s = f ? gw_share_at(f->share) : NULL;
	const struct sock *twin;

	if (!s || s->role != GW_ROLE_SHADOW || !(f->flags & GW_FLOW_TWIN) ||
	    f->own.ack != p->seq)
		return false;
	twin = (const struct sock *)bpf_skc_to_tcp_sock(sk);
	return twin && !BPF_CORE_READ(twin, sk_lock.owned);
}

/*
 * The byte that a socket waits for which is in the way of a connection that comes; 0 or
 * -1: there is none, or none that may go. An earlier connection of the client's with the
 * same addresses may have ended here, and is remembered for a minute: another server has
 * let its SYN in (RFC 6191). Or the connection has left from here, and nobody has told
 * us yet: it could not be offered to us otherwise. Or we have had its twin until now.
 */
static __noinline int gw_find_old(struct __sk_buff *skb, const struct gw_pkt *p,
				  const struct gw_flow_key *key,
				  const struct gw_transfer *t, __u32 *seq)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	struct tcp_timewait_sock *tw;
	int err = -1;

	if (!sk)
		return -1;
	tw = bpf_skc_to_tcp_timewait_sock(sk);
	if (tw) {
		*seq = BPF_CORE_READ(tw, tw_sk.__tw_common.skc_tw_rcv_nxt);
		err = 0;
	} else if (sk->state != GW_TCP_LISTEN && t &&
		   t->state == GW_TRANSFER_ASKED) {
		*seq = gw_own_next(skb, p, t->seq);
		err = 0;
	} else if (sk->state != GW_TCP_LISTEN && gw_has_twin(sk, p, key)) {
		*seq = p->seq;
		err = 0;
	}
	bpf_sk_release(sk);
	return err;
}

/*
 * The frame becomes the RST that clears the way for its connection, and a copy of it
 * asks again behind that. GW_UNDECIDED: nothing is in the way, or stays there.
 */
static __noinline int gw_clear_way(struct __sk_buff *skb, struct gw_pkt *p,
				   const struct gw_flow_key *key,
				   const struct gw_transfer *t)
{
	struct gw_bare rst = { .flags = GW_TCP_RST };

	if (skb->mark == GW_MARK_AGAIN || gw_find_old(skb, p, key, t, &rst.seq))
		return GW_UNDECIDED;
	if (t && t->state == GW_TRANSFER_ASKED) {
		bpf_map_delete_elem(&gw_talks, key);
		gw_forget_flow(key);
	}
	skb->mark = GW_MARK_AGAIN;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = 0;
	if (gw_craft(skb, p, &key->client, &key->service, &rst))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_WAY_CLEARED, GW_PASS);
}

#endif /* GW_WAY_H */
