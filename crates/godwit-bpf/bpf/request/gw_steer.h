/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connection begins where it is best served: a server that is loaded passes a client's
 * SYN on to a lighter one (phase 2 of Olaru and Tichy), or to whom a program names. From
 * then on the connection is one that has gone (gw_transfer.h), as if by a handoff that was
 * the zeroth.
 *
 * What keeps SYNs from going to and fro: who gets one from another server has it; nobody
 * passes one on but to who has less by a margin; each one that was passed on counts at once
 * as a percent of its server's load; and what was not said lately is not believed.
 */
#ifndef GW_STEER_H
#define GW_STEER_H

#include "flow/gw_materialise.h"
#include "net/gw_note.h"
#include "request/gw_gone.h"

/* Is anything known here of its connection? */
static __always_inline bool gw_is_known(const struct gw_flow_key *key)
{
	return bpf_map_lookup_elem(&gw_flows, key) ||
	       bpf_map_lookup_elem(&gw_half_open, key);
}

/* The lightest of the mates. */
struct gw_lightest {
	__u32 share;
	__u32 turn; /* where to begin: of equals not always the same one has it */
	__u32 nodes;
	__u32 load;
	__u32 node;
};

static long gw_lightest_step(__u32 i, struct gw_lightest *l)
{
	__u32 at = i + l->turn;
	struct gw_mate_key key = {
		.share = l->share,
		.node = at >= l->nodes ? at - l->nodes : at,
	};
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);
	__u32 load;

	if (!mate || mate->state != GW_MATE_OPEN)
		return 0;
	load = gw_load_of(&key);
	if (load < l->load) {
		l->load = load;
		l->node = key.node;
	}
	return 0;
}

/* Of a SYN whose connection our kernel has already. */
#define GW_QUEUE_OURS (~0u)

/* How full the accept queue is in percent; of a listener that is not there it is. */
static __noinline __u32 gw_queue_load(struct __sk_buff *skb,
				      const struct gw_pkt *p)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	const struct sock *listener;
	__u32 load = 100, state;

	if (!sk)
		return load;
	state = sk->state;
	listener = (const struct sock *)bpf_skc_to_tcp_sock(sk);
	if (state != GW_TCP_LISTEN)
		load = state == GW_TCP_TIME_WAIT ? 0 : GW_QUEUE_OURS;
	else if (listener &&
		 listener->sk_ack_backlog < listener->sk_max_ack_backlog)
		load = (__u64)listener->sk_ack_backlog * 100 /
		       listener->sk_max_ack_backlog;
	bpf_sk_release(sk);
	return load;
}

/* Who is to have a new connection by the loads: its number; -1: we are. */
static __noinline int gw_lighter(__u32 share, const struct gw_placing *pl,
				 const struct gw_steering *st, __u32 queue)
{
	struct gw_lightest l = {
		.share = share,
		.nodes = pl->nodes & 127,
		.load = GW_POLICY_NO_LOAD,
	};
	__u32 load;

	if (!st->redirect || !l.nodes)
		return -1;
	load = gw_now() - st->at_ns > GW_LOAD_NS ? 0 : st->load;
	if (load < queue)
		load = queue;
	if (load < st->redirect)
		return -1;
	l.turn = bpf_get_prandom_u32() % l.nodes;
	bpf_loop(l.nodes, gw_lightest_step, &l, 0);
	if (l.load + st->margin > load) {
		gw_count(GW_REASON_NONE_LIGHTER);
		return -1;
	}
	return l.node;
}

/*
 * The SYN is to go to `to`, and what follows it, too; if another CPU has passed on a copy of
 * it, to where that went. -1: it can't be written down.
 */
static __noinline int gw_book_passing(const struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      __u32 share, struct gw_target *to)
{
	struct gw_passed fresh = {
		.irs = p->seq,
		.at = gw_now() >> 30,
		.to = *to,
	};
	struct gw_mate_key mate = { .share = share, .node = to->node };
	const struct gw_passed *passed;
	struct gw_mate_load *l;

	if (!bpf_map_update_elem(&gw_passed, key, &fresh, BPF_NOEXIST)) {
		l = bpf_map_lookup_elem(&gw_mate_loads, &mate);
		if (l)
			__sync_fetch_and_add(&l->passed, 1);
		gw_count(GW_REASON_PASSED_ON);
		return 0;
	}
	passed = bpf_map_lookup_elem(&gw_passed, key);
	if (!passed || passed->irs != p->seq) {
		gw_count(GW_REASON_TABLE_FULL);
		return -1;
	}
	*to = passed->to;
	return 0;
}

/*
 * A client whose SYN was passed on says more: from now on its connection is one that has
 * gone. If there is no room for that its segments go on as long as the SYN is remembered.
 */
static __noinline int gw_go_after(struct __sk_buff *skb, const struct gw_pkt *p,
				  const struct gw_flow_key *key,
				  const struct gw_passed *passed)
{
	struct gw_transfer *t =
		gw_transfer_begin(key, passed->irs, GW_TRANSFER_GONE);

	if (!t) {
		gw_count(GW_REASON_TABLE_FULL);
		if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
			return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
		return gw_send_on(skb, passed->to.mac);
	}
	t->to = passed->to;
	t->seq = passed->irs + 1;
	/* so that a director is told with this very segment */
	t->heard_ns = gw_now() - (1 << 20);
	gw_transfer_expire(key, t, GW_FORWARD_NS);
	bpf_map_delete_elem(&gw_passed, key);
	return GW_UNDECIDED;
}

/*
 * A client's segment, if its SYN was passed on and nothing else is known of it. A SYN with
 * another sequence number goes after that one, too: it may be anybody's. GW_UNDECIDED: it was
 * not, or it has gone from here now (gw_go_after), or whom it was passed on to is lost and it
 * may begin anew. Verified once.
 */
__noinline int gw_follow_passed(struct __sk_buff *skb, const struct gw_pkt *p,
				const struct gw_flow_key *key, __u32 share)
{
	struct gw_passed passed;
	const struct gw_passed *known;
	bool syn;

	if (!p || !key)
		return GW_UNDECIDED;
	known = bpf_map_lookup_elem(&gw_passed, key);
	if (!known)
		return GW_UNDECIDED;
	passed = *known;
	syn = (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) == GW_TCP_SYN;
	if (gw_mac_equal(p->smac, passed.to.mac) &&
	    (!syn || p->seq == passed.irs))
		return gw_verdict(GW_REASON_SENT_BACK, GW_DROP);
	if (!syn)
		return gw_go_after(skb, p, key, &passed);
	/* silence is no proof for a connection that may have begun there */
	if ((__u32)(gw_now() >> 30) - passed.at > GW_PASSED_AGE ||
	    (p->seq == passed.irs ? gw_is_dead(share, &passed.to) :
				    gw_mac_equal(p->smac, passed.to.mac) ||
					    gw_is_lost(share, &passed.to))) {
		bpf_map_delete_elem(&gw_passed, key);
		return GW_UNDECIDED;
	}
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	gw_find_mate(share, &passed.to);
	return gw_send_syn_on(skb, p, key, passed.to.mac);
}

/*
 * A SYN of which nothing is known here. GW_UNDECIDED: its connection begins here;
 * GW_CONSULT: a program has yet to be asked.
 */
static __noinline int gw_steer(struct __sk_buff *skb, const struct gw_pkt *p,
			       const struct gw_flow_key *key, __u32 share)
{
	const struct gw_steering *st = gw_steering_of(share);
	const struct gw_placing *pl = gw_placing_of(share);
	struct gw_target to = {};
	int node = GW_POLICY_RULES;
	__u32 queue;

	if (!st || !pl || (!st->redirect && !st->program) || gw_is_known(key))
		return GW_UNDECIDED;
	queue = gw_queue_load(skb, p);
	if (queue == GW_QUEUE_OURS)
		return GW_UNDECIDED;
	if (st->program)
		node = gw_ask_policy(key, share, NULL, p->seq);
	if (node == GW_CONSULT)
		return GW_CONSULT;
	if (node == GW_POLICY_RULES)
		node = gw_lighter(share, pl, st, queue);
	if (node < 0 || node == pl->node || gw_name_mate(share, node, &to) ||
	    gw_book_passing(p, key, share, &to))
		return GW_UNDECIDED;
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	return gw_send_syn_on(skb, p, key, to.mac);
}

/* Why we will not have it, whatever it is; 0: we may. */
static __always_inline int gw_unwilling(__u32 share)
{
	const struct gw_share *s = gw_share_at(share);

	if (!s || s->role != GW_ROLE_OWNER)
		return GW_REASON_NOT_OWNER;
	return gw_silenced(share);
}

/*
 * A SYN of a connection that another server has not, as far as is known: it begins here. What is
 * known of an earlier one that is elsewhere stays until the handshake is completed (gw_renew()).
 */
static __noinline int gw_begin_client(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      __u32 share, bool mate)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	/* nor is what was here, if anybody may pass it on */
	if (t && gw_is_elsewhere(t))
		return GW_UNDECIDED;
	/* it may be anybody's: the connection that is here has its numbers still */
	if (t && t->state != GW_TRANSFER_COMING &&
	    (!f || gw_is_over(f) || f->irs != t->irs))
		bpf_map_delete_elem(&gw_transfers, key);
	if (mate || gw_unwilling(share))
		return GW_UNDECIDED;
	return gw_steer(skb, p, key, share);
}

/* Is the load of the server with that address? enum gw_belief, or the reason why not. */
static __noinline int gw_check_load(struct __sk_buff *skb,
				    const struct gw_mate_mac *from,
				    __u8 version)
{
	const struct gw_trust *k = bpf_map_lookup_elem(&gw_trusts, from);
	struct gw_tagged_load load = {};
	struct gw_claim c = {
		.raw = (const __be32 *)&load,
		.count = GW_LOAD_WORDS,
		.kind = GW_TAG_LOAD,
	};

	if (version != GW_NOTE_TAGGED)
		return gw_believe_bare(k);
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &load, sizeof(load)))
		return GW_REASON_NOTE_REFUSED;
	c.tag = bpf_be64_to_cpu(load.proof.tag);
	c.order = bpf_be64_to_cpu(load.proof.order);
	return gw_believe_words(k, &c);
}

/* Another server says how loaded it is. */
static __noinline int gw_hear_load(struct __sk_buff *skb)
{
	struct gw_load_note note;
	struct gw_mate_mac from = {};
	struct gw_mate_load load = { .at_ns = gw_now() };
	struct gw_mate_key key = {};
	__u32 *node, *share;
	int belief;

	if (bpf_skb_load_bytes(skb, ETH_ALEN, from.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &note, sizeof(note)) ||
	    note.kind != GW_NOTE_LOAD ||
	    (note.version != GW_NOTE_VERSION &&
	     note.version != GW_NOTE_TAGGED) ||
	    note.load > 100)
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_PASS);
	node = bpf_map_lookup_elem(&gw_mate_macs, &from);
	share = bpf_map_lookup_elem(&gw_services, &note.service);
	if (!node || !share)
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_PASS);
	belief = gw_check_load(skb, &from, note.version);
	if (belief > 0)
		return gw_verdict(belief, GW_DROP);
	key.share = *share;
	key.node = *node;
	load.load = note.load;
	bpf_map_update_elem(&gw_mate_loads, &key, &load, BPF_ANY);
	return gw_verdict(GW_REASON_LOAD_HEARD, GW_DROP);
}

#endif /* GW_STEER_H */
