/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A slip goes with a client's segment from one server to another: the record of a
 * connection, and a question or the answer to it. Record and segment are lost together or
 * not at all.
 *
 *   | Ethernet, EtherType GW_ETH_P_SLIP | IP packet, as the client sent it | slip | tag |
 *
 * The tag proves that it is of the server whose address it has (gw_tag.h); between servers of
 * which one does not know of tags there is none.
 *
 * The frame has an EtherType of its own (docs/adr/0024): a switch that looks into IP
 * packets cuts off what stands behind one. The target's `tap` writes the EtherType of IP
 * back and sends the frame through the interface's ingress once more, with GW_MARK_SLIP
 * (gw_unwrap). On that second way the slip is behind the packet, where an IP stack takes
 * it for padding (RFC 894), and skb->protocol is what the kernel needs.
 */
#ifndef GW_SLIP_H
#define GW_SLIP_H

#include "net/gw_edit.h"
#include "policy/gw_rules.h"
#include "request/gw_talk.h"

#define GW_SLIP_MAGIC 0x67777370 /* "gwsp" */
/* 1 was behind a packet with the EtherType of IP: it is refused as it came. */
#define GW_SLIP_VERSION 2
/* As 2, with a tag behind it. */
#define GW_SLIP_TAGGED 3
/* IEEE Std 802: the second one for local experiments; notes have the first. */
#define GW_ETH_P_SLIP 0x88b6

enum gw_slip_kind {
	GW_SLIP_ASK =
		1, /* will you have this connection, from this segment on? */
	GW_SLIP_ACCEPTED = 2, /* it is here */
	GW_SLIP_REFUSED = 3, /* it is not, and never will be by that question */
	/* of servers that stand by for each other, gw_ring.h: */
	GW_SLIP_BEGIN = 4, /* a SYN: the connection begins at you */
	GW_SLIP_TWIN =
		5, /* to a standby: this is the first segment of a twin */
	/* of the agent to its own data path alone, gw_settle.h: */
	GW_SLIP_LAPSED =
		6, /* who was asked may have forgotten that it has it */
	GW_SLIP_BEQUEST = 7, /* tell who gets our share where it is */
};

/* All in network byte order. Appended to, never changed: see GW_SLIP_VERSION. */
struct gw_slip {
	__be32 magic;
	__u8 version;
	__u8 kind; /* enum gw_slip_kind */
	__be16 why; /* REFUSED: enum gw_reason */
	__be32 number; /* of the handoff, in the life of its connection */
	__be32 irs; /* of the client */
	__be32 iss; /* of the service */
	__be32 ts_val; /* what the service's clock says now */
	__be32 edge; /* right edge that the client knows */
	/* the names' numbers of who is asked, and of who asks by way of a standby; or 0 */
	__be32 to;
	__be32 from;
	__be16 flags; /* enum gw_flow_flags, the negotiated ones */
	__be16 mss; /* that the client announced */
	__be16 syn_ack_mss; /* that the service announced */
	__u8 snd_wscale;
	__u8 rcv_wscale;
	__u8 head; /* 1: the request is a HEAD */
	__u8 window; /* congestion window in segments; 0: not known */
	__be16 pad;
	__be32 rtt_us; /* as the handshake had it */
};

_Static_assert(sizeof(struct gw_slip) == 52, "the same at all nodes");

/* A frame with a slip, and the share that it is about. */
struct gw_offer {
	struct gw_slip slip;
	__u32 share;
	__u32 pad;
	struct gw_flow_key key; /* of a question of ours */
};

/* Too big for what stack there is. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_offer);
} gw_offers SEC(".maps");

/* What was agreed in a handshake, of all flags. */
#define GW_NEGOTIATED (GW_FLOW_TS | GW_FLOW_SACK | GW_FLOW_WSCALE | GW_FLOW_ECN)

static __always_inline struct gw_offer *gw_offer_at_hand(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&gw_offers, &zero);
}

/* Where the IP packet ends in its frame. */
static __always_inline __u32 gw_packet_end(const struct gw_pkt *p)
{
	return p->l4 + p->hdr_len + p->len;
}

/* Has it come under our own EtherType? */
static __always_inline bool gw_is_wrapped(const struct __sk_buff *skb)
{
	return skb->mark == GW_MARK_SLIP || skb->mark == GW_MARK_AGAIN ||
	       skb->mark == GW_MARK_SETTLED;
}

/* With its tag. */
static __always_inline __u32 gw_slip_len(const struct gw_slip *slip)
{
	return sizeof(*slip) +
	       (slip->version == GW_SLIP_TAGGED ? sizeof(__be64) : 0);
}

/* The slip of a frame; -1: it has none. */
static __always_inline int gw_read_slip(struct __sk_buff *skb,
					const struct gw_pkt *p,
					struct gw_slip *slip)
{
	__u32 end = gw_packet_end(p);

	if (bpf_skb_load_bytes(skb, end, slip, sizeof(*slip)) ||
	    slip->magic != bpf_htonl(GW_SLIP_MAGIC) ||
	    skb->len != end + gw_slip_len(slip))
		return -1;
	return slip->version == 1 || gw_is_wrapped(skb) ? 0 : -1;
}

static __always_inline int gw_set_ether_type(struct __sk_buff *skb, __u16 type)
{
	__be16 proto = bpf_htons(type);

	return bpf_skb_store_bytes(skb, ETH_HLEN - 2, &proto, 2, 0);
}

/* The frame, whose slip is behind it, is to leave under our own EtherType. */
static __always_inline int gw_wrap(struct __sk_buff *skb)
{
	return gw_set_ether_type(skb, GW_ETH_P_SLIP);
}

/* And what stays here of it is a packet again. */
static __always_inline int gw_bare(struct __sk_buff *skb,
				   const struct gw_pkt *p)
{
	return gw_set_ether_type(skb, p->v6 ? ETH_P_IPV6 : ETH_P_IP);
}

/*
 * A frame of another server's. With the EtherType of the packet that is in it, it comes
 * in once more: the kernel tells what a frame is before `tap`, and only there.
 */
static __always_inline int gw_unwrap(struct __sk_buff *skb, __u8 version)
{
	if ((version != 4 && version != 6) ||
	    gw_set_ether_type(skb, version == 6 ? ETH_P_IPV6 : ETH_P_IP))
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	skb->mark = GW_MARK_SLIP;
	gw_count(GW_REASON_SLIP_HEARD);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Takes the slip off: the segment is as its client has sent it. */
static __always_inline void gw_cut_slip(struct __sk_buff *skb,
					const struct gw_pkt *p)
{
	bpf_skb_change_tail(skb, gw_packet_end(p), 0);
}

/*
 * What stands behind a packet is a slip only if a server has put it there. Nobody else's is
 * to look like one here, or where we send the frame on under our own address. Padding is shorter.
 */
static __noinline int gw_cut_foreign(struct __sk_buff *skb,
				     const struct gw_pkt *p)
{
	if (skb->len >= gw_packet_end(p) + sizeof(struct gw_slip) &&
	    !gw_is_mate(p->smac))
		gw_cut_slip(skb, p);
	return 0;
}

/* The slip says something else from here on: to whom, gw_seal() is told. */
static __always_inline void gw_turn_slip(struct gw_slip *slip,
					 enum gw_slip_kind kind, __u16 why)
{
	slip->kind = kind;
	slip->why = bpf_htons(why);
}

#endif /* GW_SLIP_H */
