/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Canary: proof that twins can be born at the standby. The owner's agent says an ACK to
 * its own data path, which mirrors it as it mirrors a client's third ACK:
 *
 *   agent ──► gate ──► tap ── mirror ──► tap of the standby ──► IP input, netfilter
 *                       ▲                  │ echo: "heard"        │ socket of its agent
 *                       └──────────────────┴──────────────────────┘ its ACK: "born"
 *
 * The standby's tap looks up the listener of the service, as for a twin, and then gives
 * the segment to a listener of its own agent, so that no application sees a connection.
 * The kernel makes a socket of it by the same call, and what that socket acknowledges
 * comes back as a twin's ACK does. The agent resets the socket later; the gate drops that.
 *
 * A canary comes from the owner's own address, so that the standby has a route and a
 * neighbour for it, and from a port below 256, a new one each time: to connection tracking
 * it is a new flow, as a twin's first segment is. Its TSval is the nonce, which TCP echoes;
 * its TSecr says what it is. Nothing of it ever goes to a client's address.
 */
#ifndef GW_CANARY_H
#define GW_CANARY_H

#include "net/gw_craft.h"
#include "flow/gw_materialise.h"
#include "flow/gw_mirror.h"
#include "flow/gw_stay.h"
#include "net/gw_tag.h"

#define GW_CANARY_PORTS 256
#define GW_CANARY_MAGIC 0x67774341u
#define GW_CANARY_SLOTS 1024
#define GW_CANARY_NONCES 4

/* Owner: what the agent asks of one standby at one address. Written by the agent. */
struct gw_canary {
	__u32 nonces[GW_CANARY_NONCES]; /* the latest first; 0: none */
	__u8 mac[6]; /* of the standby */
	__u16 pad;
};
_Static_assert(sizeof(struct gw_canary) == 24, "gw_canary is shared with Rust");

/* Owner: the latest nonce that came back, and how. Written by the tap. */
struct gw_canary_answer {
	__u32 heard; /* the standby's tap had it */
	__u32 born; /* its kernel made a socket of it */
};
_Static_assert(sizeof(struct gw_canary_answer) == 8, "shared with Rust");

/* Standby: loopback ports of the agent's listeners; 0: none. Written by the agent. */
struct gw_canary_home {
	__u16 v4;
	__u16 v6;
};
_Static_assert(sizeof(struct gw_canary_home) == 4, "shared with Rust");

/* A peer's MAC address as a key. */
struct gw_canary_peer {
	__u8 mac[8]; /* the last two are 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_CANARY_SLOTS);
	__type(key, __u32);
	__type(value, struct gw_canary);
} gw_canaries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_CANARY_SLOTS);
	__type(key, __u32);
	__type(value, struct gw_canary_answer);
} gw_canary_answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_canary_home);
} gw_canary_homes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, struct gw_canary_peer);
	__type(value, __u32);
} gw_canary_peers SEC(".maps");

/*
 * Standby: where a canary has come from, by the address and port that it is from. What answers it
 * goes there: the kernel's table of neighbours believes whoever claims an owner's address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct gw_endpoint);
	__type(value, struct gw_canary_peer);
} gw_canary_ways SEC(".maps");

/* Is that MAC address a peer's? */
static __always_inline bool gw_is_canary_peer(const __u8 *mac)
{
	struct gw_canary_peer key = {};

	__builtin_memcpy(key.mac, mac, 6);
	return bpf_map_lookup_elem(&gw_canary_peers, &key);
}

static __always_inline bool gw_is_canary_port(__be16 port)
{
	return bpf_ntohs(port) < GW_CANARY_PORTS;
}

static __always_inline bool gw_is_canary(const struct gw_pkt *p)
{
	return gw_is_canary_port(p->src.port) && p->flags == GW_TCP_ACK &&
	       !p->len && p->ts_at && p->ts_ecr == GW_CANARY_MAGIC;
}

/* Owner: the agent's segment takes the way of a client's. */
static __noinline int gw_canary_send(struct __sk_buff *skb)
{
	const struct gw_canary *asked;
	struct gw_pkt p = {};
	__u8 peer[6], who[6];
	__u32 slot;

	skb->mark = 0;
	if (gw_parse(skb, &p) || !gw_is_canary(&p))
		return gw_verdict(GW_REASON_CANARY_REFUSED, GW_DROP);
	__builtin_memcpy(peer, p.dmac, 6);
	slot = p.ts_val % GW_CANARY_SLOTS;
	asked = bpf_map_lookup_elem(&gw_canaries, &slot);
	if (asked) {
		/* the frame may be a group's */
		__builtin_memcpy(who, asked->mac, 6);
		if (gw_put_canary_tag(skb, &p, who))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	}
	gw_mirror_to(skb, &p, peer);
	return gw_verdict(GW_REASON_CANARY_SENT, GW_DROP);
}

/* Standby: a copy of a canary that has come goes back to its owner. */
static __noinline int gw_canary_echo(struct __sk_buff *skb)
{
	struct gw_endpoint client, service;
	struct gw_pkt p = {};
	struct gw_bare b = {
		.flags = GW_TCP_ACK | GW_TCP_PSH,
		.ts = 1,
	};
	__u8 self[6], peer[6];

	if (gw_parse(skb, &p))
		return gw_verdict(GW_REASON_CANARY_REFUSED, GW_DROP);
	b.seq = p.ack;
	b.ack = p.seq;
	b.ts_ecr = p.ts_val;
	client = p.src;
	service = p.dst;
	__builtin_memcpy(peer, p.smac, 6);
	if (gw_craft(skb, &p, &service, &client, &b))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_self(self);
	gw_set_macs(skb, peer, self);
	skb->mark = GW_MARK_CANARY_ECHO;
	gw_count(GW_REASON_CANARY_HEARD);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * Would a twin find a listener? 0 or a reason. With `rst` the kernel remembers a SYN that
 * somebody has sent in the owner's name, when this node was it: that is where a RST ends it.
 */
static __always_inline int gw_canary_is_served(struct __sk_buff *skb,
					       const struct gw_pkt *p,
					       struct gw_bare *rst)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	struct tcp_request_sock *req;
	bool listens;

	if (!sk)
		return GW_REASON_CANARY_NO_LISTENER;
	listens = sk->state == GW_TCP_LISTEN;
	req = bpf_skc_to_tcp_request_sock(sk);
	if (req) {
		rst->seq = BPF_CORE_READ(req, rcv_nxt);
		rst->flags = GW_TCP_RST;
	}
	bpf_sk_release(sk);
	/* else the agent has not ended the last one of this port yet */
	return listens ? 0 : GW_REASON_CANARY_IN_THE_WAY;
}

/* The agent's listener makes a socket of it, as a server's does of a twin; 0 or a reason. */
static __always_inline int gw_canary_bear(struct __sk_buff *skb,
					  const struct gw_pkt *p)
{
	struct bpf_tcp_req_attrs attrs = {
		.mss = 1220,
		.snd_wscale = 7,
		.rcv_wscale = 7,
		.ecn_ok = 1,
		.wscale_ok = 1,
		.sack_ok = 1,
		.tstamp_ok = 1,
		.rcv_tsval = p->ts_val,
		.rcv_tsecr = gw_now() / 1000000,
	};
	const struct gw_canary_home *home;
	struct bpf_sock *sk;
	__u32 zero = 0;
	int err;

	home = bpf_map_lookup_elem(&gw_canary_homes, &zero);
	if (!home)
		return GW_REASON_CANARY_NO_LISTENER;
	sk = gw_hidden(skb, p, home->v4, home->v6);
	if (!sk)
		return GW_REASON_CANARY_NO_LISTENER;
	err = gw_assign_as(skb, sk, &attrs);
	bpf_sk_release(sk);
	return err ? GW_REASON_CANARY_REFUSED : 0;
}

/*
 * A canary's client is its owner itself, which has no connection over the link: what is known of
 * one was made by somebody else in its name, and must not be in its way. A twin that has
 * spoken stays: its socket has the port.
 */
static __noinline void gw_canary_clear(const struct gw_pkt *p)
{
	struct gw_flow_key key;
	struct gw_flow *f;

	gw_key(&key, &p->src, &p->dst);
	bpf_map_delete_elem(&gw_half_open, &key);
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (f && !(f->flags & GW_FLOW_TWIN_SEEN))
		gw_end(&key, f);
}

/* The canary becomes the RST that clears its way, and a copy of it comes behind that. */
static __noinline int gw_canary_try_again(struct __sk_buff *skb,
					  struct gw_pkt *p,
					  const struct gw_bare *rst)
{
	struct gw_endpoint client = p->src, service = p->dst;

	skb->mark = GW_MARK_AGAIN;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = 0;
	if (gw_craft(skb, p, &client, &service, rst))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_CANARY_IN_THE_WAY, GW_PASS);
}

static __always_inline void gw_canary_remember(const struct gw_pkt *p)
{
	struct gw_canary_peer from = {};

	__builtin_memcpy(from.mac, p->smac, 6);
	bpf_map_update_elem(&gw_canary_ways, &p->src, &from, BPF_ANY);
}

/* Standby: the owner's canary, through the tap. */
static __noinline int gw_canary_hear(struct __sk_buff *skb, struct gw_pkt *p)
{
	bool again = skb->mark == GW_MARK_AGAIN;
	struct gw_bare rst = {};
	int why;

	if (!gw_is_canary_peer(p->smac))
		return gw_verdict(GW_REASON_CANARY_REFUSED, GW_DROP);
	/* a copy of ours was proved when it came */
	if (!again) {
		why = gw_check_canary(p);
		if (why)
			return gw_verdict(why, GW_DROP);
		gw_clear_stay(p);
		if (gw_rewrite(skb, p))
			return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	}
	gw_canary_clear(p);
	gw_canary_remember(p);
	if (!again) {
		skb->mark = GW_MARK_CANARY_HEARD;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	skb->mark = 0;
	why = gw_canary_is_served(skb, p, &rst);
	if (rst.flags && !again)
		return gw_canary_try_again(skb, p, &rst);
	if (!why)
		why = gw_canary_bear(skb, p);
	if (why)
		return gw_verdict(why, GW_DROP);
	gw_greet(skb, p);
	return gw_verdict(GW_REASON_CANARY_BORN, GW_PASS);
}

/* Is this the flow of a connection, whatever its client's port? */
static __always_inline bool gw_is_connection(const struct gw_flow_key *key)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	return (f && !gw_is_over(f)) || bpf_map_lookup_elem(&gw_half_open, key);
}

/*
 * Standby, egress: what a socket says that was made of a canary. Its ACKs go to the owner,
 * wherever the kernel believes that to be; the reset that ends it goes nowhere.
 */
static __noinline int gw_canary_own(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key)
{
	const struct gw_canary_peer *way;
	__u8 self[6], owner[6];

	if (!gw_is_canary_port(p->dst.port) || gw_is_connection(key))
		return GW_UNDECIDED;
	way = bpf_map_lookup_elem(&gw_canary_ways, &p->dst);
	if (!way || !gw_is_canary_peer(way->mac))
		return GW_UNDECIDED;
	if (p->flags != GW_TCP_ACK || p->len || !p->ts_at)
		return gw_verdict(GW_REASON_CANARY_SILENCED, GW_DROP);
	__builtin_memcpy(owner, way->mac, 6);
	gw_self(self);
	gw_set_macs(skb, owner, self);
	if (gw_put_canary_tag(skb, p, owner))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_CANARY_ANSWERED, GW_PASS);
}

/* Standby, egress: an echo, final but for its tag. */
static __noinline int gw_canary_out(struct __sk_buff *skb)
{
	struct gw_pkt p = {};

	if (gw_parse(skb, &p) || gw_put_canary_tag(skb, &p, p.dmac))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_MARKED, GW_PASS);
}

/* How long ago the nonce was asked for, in canaries; GW_CANARY_NONCES: longer, or never. */
static __always_inline int gw_canary_age(const struct gw_canary *canary,
					 __u32 nonce)
{
	int age = GW_CANARY_NONCES;

	for (int i = GW_CANARY_NONCES - 1; i >= 0; i--)
		if (canary->nonces[i] == nonce)
			age = i;
	return age;
}

/* Owner: a frame of the standby in the service's name; is it about a canary? */
static __noinline int gw_canary_book(const struct gw_pkt *p,
				     const struct gw_flow_key *key)
{
	__u32 slot = p->ts_ecr % GW_CANARY_SLOTS;
	const struct gw_canary *canary;
	struct gw_canary_answer *answer;
	int age, why;

	if (!gw_is_canary_port(p->dst.port) || !p->ts_at || p->len ||
	    !p->ts_ecr)
		return GW_UNDECIDED;
	canary = bpf_map_lookup_elem(&gw_canaries, &slot);
	answer = bpf_map_lookup_elem(&gw_canary_answers, &slot);
	if (!canary || !answer || !gw_mac_equal(canary->mac, p->smac))
		return GW_UNDECIDED;
	age = gw_canary_age(canary, p->ts_ecr);
	/* what is asked for is a canary's, whatever else is known of its port */
	if (age == GW_CANARY_NONCES)
		return gw_is_connection(key) ?
			       GW_UNDECIDED :
			       gw_verdict(GW_REASON_CANARY_STALE, GW_DROP);
	why = gw_check_canary(p);
	if (why)
		return gw_verdict(why, GW_DROP);
	/* what is said again takes nothing back */
	if (p->flags == (GW_TCP_ACK | GW_TCP_PSH) &&
	    age <= gw_canary_age(canary, answer->heard)) {
		answer->heard = p->ts_ecr;
		return gw_verdict(GW_REASON_CANARY_ECHOED, GW_DROP);
	}
	if (p->flags != GW_TCP_ACK || age > gw_canary_age(canary, answer->born))
		return gw_verdict(GW_REASON_CANARY_STALE, GW_DROP);
	answer->born = p->ts_ecr;
	return gw_verdict(GW_REASON_CANARY_PROVED, GW_DROP);
}

#endif /* GW_CANARY_H */
