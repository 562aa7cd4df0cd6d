/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Handoff of one running connection by the agents (docs/data-path.md). Each connection has
 * an entry of its own, apart from its flow. The agent writes the whole entry, at most a few
 * times in a connection's life. The next process of the agent reads it. Only shares whose
 * connections move (gw_share.moves) have entries, and only for them is one looked up.
 *
 *   HELD  about to come. The client's segments wait in the agent. The new socket is silent.
 *         If the connection had left from here earlier, it runs on until it is stopped
 *         there: a copy of each segment waits, until segments come back from there
 *   AWAY  has left. The client's segments go on to its server. This node's socket may still
 *         exist, and is silent
 *   HERE  has come. This kernel and the client speak. There is no flow: the handshake was
 *         at another server
 *   BORN  has come, and its socket is being made (gw_newborn.h). That socket may speak. The
 *         client's segments wait until it is complete
 */
#ifndef GW_HANDOFF_H
#define GW_HANDOFF_H

#include "net/gw_edit.h"
#include "share/gw_fence.h"
#include "net/gw_hops.h"
#include "net/gw_note.h"
#include "net/gw_tag.h"

/* The entry of a connection; NULL: none, or the share has no entries. */
static __always_inline struct gw_handoff *
gw_handoff_of(const struct gw_share *s, const struct gw_flow_key *key)
{
	return s->moves ? bpf_map_lookup_elem(&gw_handoffs, key) : NULL;
}

/*
 * The client's packet goes into the agent's tun device. The device segments coalesced packets
 * and completes checksums, so what the agent puts back looks like what a wire brings.
 */
static __always_inline int gw_hold(const struct gw_handoff *h)
{
	gw_count(GW_REASON_HELD_BACK);
	return bpf_redirect(h->device, 0);
}

/* No node has the address that is all zeroes. */
static __always_inline bool gw_is_node(const __u8 *mac)
{
	static const __u8 none[6];

	return !gw_mac_equal(mac, none);
}

/*
 * Does the segment come from the server that this entry sends it to? A connection may return
 * to a server that it has left, by way of others. While it does, its origin forwards here
 * what this server has forwarded to the first of them. A segment that is sent on then would
 * circle until the connection speaks at one of them.
 */
static __always_inline bool gw_is_sent_back(const struct gw_pkt *p,
					    const struct gw_handoff *h)
{
	return gw_mac_equal(p->smac, h->mac) ||
	       (gw_is_node(h->origin) && gw_mac_equal(p->smac, h->origin));
}

/* Sends the frame on to the server with that MAC address. */
static __noinline int gw_send_on(struct __sk_buff *skb, const __u8 *mac)
{
	__u8 to[6];

	__builtin_memcpy(to, mac, 6);
	return gw_send_to(skb, to, GW_REASON_SENT_ON);
}

/* What a director is told of a connection. */
struct gw_lead {
	__u8 at[6]; /* MAC of the server of its share, also if another owns that */
	__u16 pad;
	__u32 irs; /* of the client */
};

/*
 * Writes the note into the frame, for the director with that address. The note has a tag if
 * that director has told a key. 0 or -1.
 */
static __noinline int gw_put_note(struct __sk_buff *skb,
				  struct gw_tagged_note *n,
				  const struct gw_mate_mac *to)
{
	const __u64 *key = gw_key_for(bpf_map_lookup_elem(&gw_trusts, to));
	__u32 len = sizeof(n->note);

	n->note.version = GW_NOTE_VERSION;
	if (key) {
		n->note.version = GW_NOTE_TAGGED;
		n->proof.order = bpf_cpu_to_be64(gw_now());
		n->proof.tag = bpf_cpu_to_be64(gw_words_tag(
			GW_TAG_LEARN, (const __be32 *)n, GW_LEARN_WORDS, key));
		len = sizeof(*n);
	}
	if (bpf_skb_change_tail(skb, ETH_HLEN + len, 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN, n, len, 0);
}

/* The segment's frame becomes a note to its sender. 0 or -1. */
static __always_inline int gw_write_note(struct __sk_buff *skb,
					 const struct gw_pkt *p,
					 const struct gw_flow_key *key,
					 const struct gw_lead *lead)
{
	struct gw_tagged_note n = {
		.note = {
			.kind = GW_NOTE_LEARN,
			.irs = bpf_htonl(lead->irs),
			.client_port = key->client.port,
			.service_port = key->service.port,
		},
	};
	__be16 proto = bpf_htons(GW_ETH_P_NOTE);
	struct gw_mate_mac to = {};
	__u8 self[6];

	__builtin_memcpy(n.note.at, lead->at, 6);
	__builtin_memcpy(n.note.client, key->client.addr, 16);
	__builtin_memcpy(n.note.service, key->service.addr, 16);
	__builtin_memcpy(to.mac, p->smac, 6);
	gw_self(self);
	if (gw_put_note(skb, &n, &to))
		return -1;
	gw_set_macs(skb, to.mac, self);
	return bpf_skb_store_bytes(skb, ETH_HLEN - 2, &proto, 2, 0);
}

/*
 * A director has sent a segment here and does not know yet where the connection is. A copy of
 * the segment goes on, and the frame becomes the note that tells the director. If the note
 * is lost, the next segment makes another.
 */
static __noinline int gw_send_on_and_tell(struct __sk_buff *skb,
					  const struct gw_pkt *p,
					  const struct gw_flow_key *key,
					  const __u8 *mac,
					  const struct gw_lead *lead)
{
	__u8 to[6];

	__builtin_memcpy(to, mac, 6);
	gw_address_to(skb, to);
	gw_count(GW_REASON_SENT_ON);
	/* a copy that could not be made is a segment that a wire has lost */
	bpf_clone_redirect(skb, skb->ifindex, 0);
	if (gw_write_note(skb, p, key, lead))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_count(GW_REASON_TOLD);
	return bpf_redirect(skb->ifindex, 0);
}

/* Is a note due? About one in a millisecond is enough, for each connection. */
static __always_inline bool gw_is_to_be_told(const struct gw_share *s,
					     __u64 heard, __u64 now)
{
	return (s->front & GW_FRONT_TOLD) && heard >> 20 != now >> 20;
}

/*
 * The connection is about to come (HELD). If it had left from here earlier, its server must
 * reach a point at which it can be stopped. That may need the client's acknowledgements, so
 * the segment goes on and a copy waits. Once the connection is stopped there, segments come
 * back: these only wait.
 */
static __always_inline int gw_await(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_handoff *h)
{
	if (!gw_is_node(h->mac) || gw_is_sent_back(p, h))
		return gw_hold(h);
	gw_count(GW_REASON_HELD_BACK);
	/* a copy that can't be made is like a segment lost on a wire */
	bpf_clone_redirect(skb, h->device, 0);
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	return gw_send_on(skb, h->mac);
}

/* A client's segment; GW_UNDECIDED: its connection has no entry. */
static __noinline int gw_handoff_client(struct __sk_buff *skb,
					const struct gw_pkt *p,
					const struct gw_flow_key *key,
					const struct gw_share *s)
{
	struct gw_handoff *h = gw_handoff_of(s, key);
	__u64 now = gw_now(), heard;
	struct gw_lead lead = {};

	if (!h)
		return GW_UNDECIDED;
	heard = h->heard_ns;
	h->heard_ns = now;
	switch (h->mode) {
	case GW_HANDOFF_HELD:
		return gw_await(skb, p, h);
	case GW_HANDOFF_BORN:
		return gw_hold(h);
	case GW_HANDOFF_AWAY:
		if (gw_is_sent_back(p, h))
			return gw_verdict(GW_REASON_SENT_BACK, GW_DROP);
		if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
			return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
		if (!gw_is_to_be_told(s, heard, now))
			return gw_send_on(skb, h->mac);
		__builtin_memcpy(lead.at, h->mac, 6);
		lead.irs = h->irs;
		return gw_send_on_and_tell(skb, p, key, h->mac, &lead);
	default:
		return gw_verdict(GW_REASON_HERE, GW_PASS);
	}
}

/* The same for a segment of this node's kernel. */
static __noinline int gw_handoff_own(const struct gw_flow_key *key, __u32 share,
				     const struct gw_share *s)
{
	struct gw_handoff *h = gw_handoff_of(s, key);
	int why;

	if (!h)
		return GW_UNDECIDED;
	switch (h->mode) {
	case GW_HANDOFF_HELD:
		return gw_verdict(GW_REASON_NOT_YET, GW_DROP);
	case GW_HANDOFF_AWAY:
		return gw_verdict(GW_REASON_AWAY, GW_DROP);
	default:
		why = s->role == GW_ROLE_OWNER ? gw_silenced(share) :
						 GW_REASON_NOT_OWNER;
		return why ? gw_verdict(why, GW_DROP) :
			     gw_verdict(GW_REASON_HERE, GW_PASS);
	}
}

#endif /* GW_HANDOFF_H */
