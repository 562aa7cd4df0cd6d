// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A director's data path: a client's frame goes to a back-end, with other MAC addresses and
 * nothing else changed; in a tunnel to one that is not on the link. A SYN of which nobody
 * can tell here whether its connection goes on is sent under another EtherType first. `direct` is for XDP, `direct_tc` for
 * interfaces that have none. Read docs/director.md first.
 */
#include "director/gw_encap.h"
#include "director/gw_learn.h"
#include "director/gw_query.h"
#include "director/gw_reached.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Headers that are looked at: Ethernet, IPv6, ICMPv6, and IPv6 and ports quoted. */
#define GW_HEADERS (ETH_HLEN + 40 + GW_ICMP_LEN + 40 + 4)

enum gw_act {
	GW_ACT_LEAVE, /* the stack of this machine may have it */
	GW_ACT_STOP,
	GW_ACT_SEND, /* over the link */
	GW_ACT_ASK, /* over the link, with a proof behind the packet */
	GW_ACT_TUNNEL, /* to a back-end that is not on it */
};

/* Is any port of this address a service? Our own kernel has nothing to say there. */
static __always_inline bool gw_is_front(const struct gw_told *t)
{
	struct gw_endpoint address = {};

	__builtin_memcpy(address.addr, t->key.service.addr, 16);
	return bpf_map_lookup_elem(&gw_fronts, &address);
}

/* The slot of a flow, in one read: user space may be writing it. */
static __always_inline struct gw_slot gw_slot_at(__u32 index)
{
	union {
		__u64 word;
		struct gw_slot slot;
	} read = { .slot = { .now = GW_NOBODY, .base = GW_NOBODY } };
	__u64 *word = bpf_map_lookup_elem(&gw_slots, &index);

	if (word)
		read.word = *(volatile __u64 *)word;
	return read.slot;
}

static __always_inline void gw_own_mac(__u8 *mac)
{
	__u64 self = gw_self;

	__builtin_memcpy(mac, &self, 6);
}

/*
 * What is in a note that begins as an IP packet does: a SYN that a back-end gives back, as it
 * knows no such connection. 0: it is another note.
 */
static __always_inline __be16 gw_given_back(const struct ethhdr *eth,
					    const void *end)
{
	const __u8 *first = (const void *)(eth + 1);

	if ((const void *)(first + 1) > end)
		return 0;
	if (*first >> 4 == 4)
		return bpf_htons(ETH_P_IP);
	return *first >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : 0;
}

/* The frame is that back-end's: what is to be done with it, as a question or not. */
static __always_inline enum gw_act
gw_address(struct ethhdr *eth, const void *end, const struct gw_backend *b,
	   const struct gw_told *t, bool asks, struct gw_way *way)
{
	struct gw_mate_mac to = {};
	__u8 self[6];

	__builtin_memcpy(way->mac, b->mac, 6);
	/* not on the link */
	if (b->there == GW_THERE_FAR)
		return GW_ACT_TUNNEL;
	gw_own_mac(self);
	__builtin_memcpy(eth->h_dest, way->mac, 6);
	__builtin_memcpy(eth->h_source, self, 6);
	if (!asks)
		return GW_ACT_SEND;
	__builtin_memcpy(to.mac, way->mac, 6);
	way->end = gw_frame_end(eth, end);
	return gw_seal_question(way, t, &to) ? GW_ACT_ASK : GW_ACT_SEND;
}

static __always_inline enum gw_act gw_direct(void *data, void *end,
					     struct gw_way *way)
{
	const struct gw_backend *b;
	struct gw_told t = {};
	struct ethhdr *eth = data;
	enum gw_reason reason;
	struct gw_slot slot;
	__u32 *service, place = 0, by = 0;
	__be16 proto;
	__u8 self[6];
	int err;

	if ((void *)(eth + 1) > end)
		return gw_verdict(GW_REASON_NOT_IP, GW_ACT_LEAVE);
	gw_own_mac(self);
	/* broadcasts, and what a switch floods: it is another's */
	if (!gw_mac_equal(eth->h_dest, self))
		return gw_verdict(GW_REASON_OTHER_HOST, GW_ACT_LEAVE);
	proto = eth->h_proto;
	if (proto == bpf_htons(GW_ETH_P_NOTE)) {
		proto = gw_given_back(eth, end);
		if (!proto && gw_is_reached(eth, end))
			return gw_verdict(gw_hear_reached(eth, end),
					  GW_ACT_STOP);
		if (!proto)
			return gw_verdict(gw_learn(eth, end), GW_ACT_STOP);
		by = gw_station_of(eth->h_source) + 1;
	}
	if (proto == bpf_htons(ETH_P_IP))
		err = gw_told_v4((void *)(eth + 1), end, &t);
	else if (proto == bpf_htons(ETH_P_IPV6))
		err = gw_told_v6((void *)(eth + 1), end, &t);
	else
		err = GW_REASON_NOT_IP;
	if (proto != eth->h_proto && (err || !by || !t.syn))
		return gw_verdict(GW_REASON_ANSWER_STALE, GW_ACT_STOP);
	if (by) {
		err = gw_check_unknown(eth, end, &t);
		if (err > 0)
			return gw_verdict(err, GW_ACT_STOP);
		err = 0;
	}
	if (err == GW_REASON_NOT_IP || err == GW_REASON_NOT_OURS)
		return gw_verdict(err, GW_ACT_LEAVE);
	/* not understood: our kernel would reset the connection */
	if (err)
		return gw_verdict(err,
				  gw_is_front(&t) ? GW_ACT_STOP : GW_ACT_LEAVE);
	service = bpf_map_lookup_elem(&gw_fronts, &t.key.service);
	if (!service || *service == GW_NO_SERVICE)
		return gw_verdict(GW_REASON_NOT_OURS, GW_ACT_LEAVE);
	way->slot = gw_slot_of(&t.key);
	slot = gw_slot_at(*service * gw_table_size + way->slot);
	reason = GW_REASON_NO_BACKEND;
	b = gw_place(&slot, &t, *service, &place, by, &reason);
	if (!b)
		return gw_verdict(reason == GW_REASON_ANSWER_STALE ?
					  reason :
					  GW_REASON_NO_BACKEND,
				  GW_ACT_STOP);
	b = gw_follow_owner(b, &t, reason == GW_REASON_DIRECTED_ASKED, *service,
			    way->slot, &place);
	eth->h_proto = reason == GW_REASON_DIRECTED_ASKED ?
			       bpf_htons(GW_ETH_P_NOTE) :
			       proto;
	way->backend = place - 1;
	return gw_verdict(reason,
			  gw_address(eth, end, b, &t,
				     reason == GW_REASON_DIRECTED_ASKED, way));
}

/* The SYN with the question's proof behind it. */
static __noinline int gw_ask_xdp(struct xdp_md *ctx, const struct gw_way *way)
{
	__u32 len = ctx->data_end - ctx->data;
	int more = way->end + (int)sizeof(way->proof) - (int)len;

	if (bpf_xdp_adjust_tail(ctx, more) ||
	    bpf_xdp_store_bytes(ctx, way->end, (void *)&way->proof,
				sizeof(way->proof)))
		return gw_verdict(GW_REASON_CRAFT_FAILED, XDP_DROP);
	return XDP_TX;
}

static __noinline int gw_send_far_xdp(struct xdp_md *ctx,
				      const struct gw_way *way)
{
	const struct gw_tunnel *t = gw_tunnel_of(way->backend);
	int err = t ? gw_encap_xdp(ctx, way, t) : GW_REASON_NO_BACKEND;

	if (err)
		return gw_verdict(err, XDP_DROP);
	return gw_verdict(GW_REASON_TUNNELLED, XDP_TX);
}

static __always_inline int gw_direct_xdp(struct xdp_md *ctx)
{
	struct gw_way way = {};

	switch (gw_direct((void *)(long)ctx->data, (void *)(long)ctx->data_end,
			  &way)) {
	case GW_ACT_SEND:
		return XDP_TX;
	case GW_ACT_ASK:
		return gw_ask_xdp(ctx, &way);
	case GW_ACT_TUNNEL:
		return gw_send_far_xdp(ctx, &way);
	case GW_ACT_STOP:
		return XDP_DROP;
	case GW_ACT_LEAVE:
		break;
	}
	return XDP_PASS;
}

SEC("xdp.frags")
int direct(struct xdp_md *ctx)
{
	return gw_direct_xdp(ctx);
}

static __noinline int gw_send_far_tc(struct __sk_buff *skb,
				     const struct gw_way *way)
{
	const struct gw_tunnel *t = gw_tunnel_of(way->backend);
	int err = t ? gw_encap_tc(skb, way, t) : GW_REASON_NO_BACKEND;

	if (err)
		return gw_verdict(err, GW_DROP);
	gw_count(GW_REASON_TUNNELLED);
	return bpf_redirect(skb->ifindex, 0);
}

static __noinline int gw_ask_tc(struct __sk_buff *skb, const struct gw_way *way)
{
	if (bpf_skb_change_tail(skb, way->end + sizeof(way->proof), 0) ||
	    bpf_skb_store_bytes(skb, way->end, &way->proof, sizeof(way->proof),
				0))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tcx/ingress")
int direct_tc(struct __sk_buff *skb)
{
	struct gw_way way = {};

	/* a VLAN's, whose tag the kernel has taken off: not this interface's */
	if (skb->vlan_present) {
		gw_count(GW_REASON_NOT_IP);
		return GW_PASS;
	}
	/* headers may be in pages; if they can't be had, they are not read */
	bpf_skb_pull_data(skb, skb->len < GW_HEADERS ? skb->len : GW_HEADERS);
	switch (gw_direct((void *)(long)skb->data, (void *)(long)skb->data_end,
			  &way)) {
	case GW_ACT_SEND:
		return bpf_redirect(skb->ifindex, 0);
	case GW_ACT_ASK:
		return gw_ask_tc(skb, &way);
	case GW_ACT_TUNNEL:
		return gw_send_far_tc(skb, &way);
	case GW_ACT_STOP:
		return GW_DROP;
	case GW_ACT_LEAVE:
		break;
	}
	return GW_PASS;
}

/* For figures: how many flows, and the next one's number. */
const volatile __u32 gw_load_flows = 1;
__u32 gw_load_next;

/*
 * As `direct`, for a TCP segment over IPv4 that each time is another client's. It is
 * loaded for figures only: BPF_PROG_TEST_RUN repeats one packet.
 */
SEC("xdp")
int direct_load(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 flow = gw_load_next++;

	if ((void *)(tcp + 1) > end)
		return XDP_ABORTED;
	if (gw_load_next >= gw_load_flows)
		gw_load_next = 0;
	gw_own_mac(eth->h_dest);
	ip->saddr = bpf_htonl(0x0a400000 | flow >> 10);
	tcp->source = bpf_htons(1024 | (flow & 1023));
	return gw_direct_xdp(ctx);
}
