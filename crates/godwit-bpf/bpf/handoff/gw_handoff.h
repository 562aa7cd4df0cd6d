/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Connections that go from one server to another by themselves, while they run.
 * Each has an entry of its own, apart from its flow: the agent writes it whole,
 * at most a few times in a connection's life, and the next run of the agent reads
 * it. An entry without its share's consent (gw_share.moves) is never looked for.
 *
 *   HELD  it is about to come: what its client sends waits in the agent, and the
 *         socket that is made of it meanwhile says nothing. One that had left from
 *         here goes on where it is until it is stopped there: only a copy waits,
 *         until its segments come back from there
 *   AWAY  it has left: what its client sends goes on to where it is now, and our
 *         socket, which may still be there, says nothing
 *   HERE  it has come: our kernel and the client speak with each other. Nothing
 *         is kept of it as of a flow: its handshake was elsewhere
 *   BORN  it has come and its socket is being made here (gw_newborn.h): that may
 *         speak, and what its client sends waits until it is whole
 */
#ifndef GW_HANDOFF_H
#define GW_HANDOFF_H

#include "net/gw_edit.h"
#include "share/gw_fence.h"
#include "net/gw_hops.h"
#include "net/gw_note.h"
#include "net/gw_tag.h"

/* The entry of a connection, if it has one. */
static __always_inline struct gw_handoff *
gw_handoff_of(const struct gw_share *s, const struct gw_flow_key *key)
{
	return s->moves ? bpf_map_lookup_elem(&gw_handoffs, key) : NULL;
}

/*
 * A segment of the client, from its IP header on, into the agent's device: it
 * segments what was coalesced and completes checksums, so that what comes back
 * out of it is like what a wire brings.
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
 * Has it come from where we send it? At a server that it has left a connection may
 * arrive again by way of others, and then these forward here, last of them its origin,
 * what we have forwarded to the first of them. To send that on would be a circle that
 * no segment leaves before the connection speaks somewhere.
 */
static __always_inline bool gw_is_sent_back(const struct gw_pkt *p,
					    const struct gw_handoff *h)
{
	return gw_mac_equal(p->smac, h->mac) ||
	       (gw_is_node(h->origin) && gw_mac_equal(p->smac, h->origin));
}

/* To where the connection is. */
static __noinline int gw_send_on(struct __sk_buff *skb, const __u8 *mac)
{
	__u8 to[6];

	__builtin_memcpy(to, mac, 6);
	return gw_send_to(skb, to, GW_REASON_SENT_ON);
}

/* What a director is told of a connection. */
struct gw_lead {
	__u8 at[6]; /* whose it is: another server may have taken that one's over */
	__u16 pad;
	__u32 irs; /* of the client */
};

/*
 * Writes the note into the frame, for the director with that address: with a tag, if that one
 * has told a key. 0 or -1.
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

/* The segment becomes a note to whom it came from; 0 or -1. */
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
 * A director that does not know yet where the connection is has sent us a segment of it:
 * that goes on, and the director hears where to. If that is lost there will be another
 * segment.
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

/* About once in a millisecond is often enough. */
static __always_inline bool gw_is_to_be_told(const struct gw_share *s,
					     __u64 heard, __u64 now)
{
	return (s->front & GW_FRONT_TOLD) && heard >> 20 != now >> 20;
}

/*
 * It is about to come. If it had left from here, its server elsewhere has to come to a
 * place from which it can be moved, and may need its client's acknowledgements for that:
 * a copy waits. What comes back, once it is stopped there, only waits: it may have been
 * forwarded there by others than us.
 */
static __always_inline int gw_await(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_handoff *h)
{
	if (!gw_is_node(h->mac) || gw_is_sent_back(p, h))
		return gw_hold(h);
	gw_count(GW_REASON_HELD_BACK);
	/* that the copy was lost, as on a wire: its client repeats it */
	bpf_clone_redirect(skb, h->device, 0);
	if (gw_spend_hop(skb, p, GW_HOPS_FLOW))
		return gw_verdict(GW_REASON_SENT_ROUND, GW_DROP);
	return gw_send_on(skb, h->mac);
}

/* What becomes of a client's segment; GW_UNDECIDED: nothing is known of it. */
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

/* The same for what our own kernel says. */
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
