/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Materialise: an ACK for which no socket exists becomes a full socket in the
 * accept queue of an unmodified server (kfunc bpf_sk_assign_tcp_reqsk, Linux
 * 6.9, made for SYN cookies). The kernel takes iss = ack - 1 and irs = seq - 1
 * from the segment itself.
 */
#ifndef GW_MATERIALISE_H
#define GW_MATERIALISE_H

#include "net/gw_edit.h"
#include "flow/gw_flow.h"
#include "base/gw_mutant.h"

/* The socket that a segment of the client would find; to be released. */
static __always_inline struct bpf_sock *
gw_lookup(struct __sk_buff *skb, bool v6, const struct gw_endpoint *client,
	  const struct gw_endpoint *service)
{
	struct bpf_sock_tuple tuple = {};

	if (v6) {
		__builtin_memcpy(tuple.ipv6.saddr, client->addr, 16);
		__builtin_memcpy(tuple.ipv6.daddr, service->addr, 16);
		tuple.ipv6.sport = client->port;
		tuple.ipv6.dport = service->port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6),
					  BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = client->addr[3];
	tuple.ipv4.daddr = service->addr[3];
	tuple.ipv4.sport = client->port;
	tuple.ipv4.dport = service->port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4),
				  BPF_F_CURRENT_NETNS, 0);
}

static __always_inline int gw_assign_as(struct __sk_buff *skb,
					struct bpf_sock *listener,
					struct bpf_tcp_req_attrs *attrs)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(listener);

	if (!tp)
		return -1;
	return bpf_sk_assign_tcp_reqsk(skb, (struct sock *)tp, attrs,
				       sizeof(*attrs));
}

static __always_inline int gw_assign(struct __sk_buff *skb,
				     struct bpf_sock *listener,
				     const struct gw_flow *f,
				     const struct gw_pkt *p)
{
	struct bpf_tcp_req_attrs attrs = {
		.mss = f->mss,
		.snd_wscale = f->snd_wscale,
		.rcv_wscale = f->rcv_wscale,
		/* always: gw_ask_quick_ack needs it, gw_hide_ecn mends it */
		.ecn_ok = 1,
		.wscale_ok = !!(f->flags & GW_FLOW_WSCALE),
		.sack_ok = !!(f->flags & GW_FLOW_SACK),
		.tstamp_ok = !!(f->flags & GW_FLOW_TS),
		/*
		 * The twin's clock is the owner's of this moment. With the
		 * client's echo, a round trip old, it would find that trip to
		 * be zero and never open its window far enough
		 * (tcp_rcv_rtt_measure_ts).
		 */
		.rcv_tsval = p->ts_val,
		.rcv_tsecr = GW_MUTANT == GW_MUTANT_NO_TIMESTAMP_OFFSET ?
				     gw_now() / 1000000 :
				     gw_owner_ts(f, gw_now()),
	};

	return gw_assign_as(skb, listener, &attrs);
}

/* A listener of the agent's own, on the loopback; to be released. */
static __always_inline struct bpf_sock *
gw_hidden(struct __sk_buff *skb, const struct gw_pkt *p, __u16 v4, __u16 v6)
{
	struct gw_endpoint hidden = {};

	if (p->v6) {
		hidden.addr[3] = bpf_htonl(1);
		hidden.port = bpf_htons(v6);
	} else {
		hidden.addr[3] = bpf_htonl(0x7f000001);
		hidden.port = bpf_htons(v4);
	}
	return gw_lookup(skb, p->v6, &p->src, &hidden);
}

/*
 * Who gets the new socket in place of the service's listener: the agent, which keeps
 * the twins of a share that says so until somebody is to serve them. The socket has
 * the service's address and port all the same: those are of the segment.
 */
static __always_inline struct bpf_sock *gw_keeper(struct __sk_buff *skb,
						  const struct gw_pkt *p,
						  const struct gw_share *s)
{
	return gw_hidden(skb, p, s->keep_v4, s->keep_v6);
}

static __always_inline bool gw_has_keeper(const struct gw_pkt *p,
					  const struct gw_share *s)
{
	return s && s->role == GW_ROLE_SHADOW &&
	       (p->v6 ? s->keep_v6 : s->keep_v4);
}

/* Gives the segment to the listener as its new connection; 0 or a reason. */
static __noinline int gw_materialise(struct __sk_buff *skb, struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     struct gw_flow *f)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	struct gw_share *s = gw_share_at(f->share);
	int err;

	if (sk && sk->state != GW_TCP_LISTEN) {
		/* the old twin of a reused four-tuple, or ours already */
		bpf_sk_release(sk);
		return GW_REASON_TAPPED_SEGMENT;
	}
	if (sk && gw_has_keeper(p, s)) {
		bpf_sk_release(sk);
		sk = gw_keeper(skb, p, s);
	}
	if (!sk) {
		gw_tell(key, f, GW_EVENT_MATERIALISE_FAILED, 0);
		return GW_REASON_NO_LISTENER;
	}
	err = gw_assign(skb, sk, f, p);
	bpf_sk_release(sk);
	if (err) {
		gw_tell(key, f, GW_EVENT_MATERIALISE_FAILED, err);
		return GW_REASON_MATERIALISE_REFUSED;
	}
	return 0;
}

/*
 * Makes the new twin speak, so that the owner learns that it exists: behind
 * the segment at hand follows a copy that looks like a keep-alive (seq one too
 * low), which TCP answers with an ACK at once (RFC 9293 section 3.8.4). An
 * accept queue that was full gives no answer and so no protection.
 */
static __noinline void gw_greet(struct __sk_buff *skb, struct gw_pkt *p)
{
	__u32 seq = p->seq, mark = skb->mark;
	__u8 self[6];

	if (p->len)
		return; /* data is acknowledged anyway */
	gw_self(self);
	gw_set_macs(skb, self, p->smac);
	gw_set_seq(skb, p, seq - 1);
	skb->mark = GW_MARK_REFLECT;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	gw_set_seq(skb, p, seq);
}

#endif /* GW_MATERIALISE_H */
