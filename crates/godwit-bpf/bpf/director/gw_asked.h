/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A director asks about a SYN: does this back-end have a connection with its four-tuple?
 * In a slot that has changed the director does not know. Anybody can send such a SYN, and it
 * must not move the connection (RFC 5961 section 4).
 *
 *   director ── SYN as a note ──► old back-end    has it: the SYN is like any other, and TCP
 *                                                 answers it (a challenge ACK)
 *            ◄── the same note ── old back-end    has not
 *            ── SYN ────────────► back-end of new connections
 *
 * The note is the packet itself behind the EtherType of notes. The first byte of any other
 * note is none that an IP packet begins with. Neither side keeps anything of it. Behind the
 * packet is a proof (struct gw_query_proof) with the director's time. The question's proof
 * shows that it is the director's, the answer's that it is the back-end's. So an answer counts
 * for two seconds, and for its SYN only.
 */
#ifndef GW_ASKED_H
#define GW_ASKED_H

#include "director/gw_reach.h"
#include "request/gw_hear.h"

/*
 * The kernel sets skb->protocol before `tap`, and only there. So the frame gets the EtherType
 * of IP and comes in once more.
 */
static __always_inline int gw_hear_asked(struct __sk_buff *skb, __u8 version)
{
	if (gw_set_ether_type(skb, version == 6 ? ETH_P_IPV6 : ETH_P_IP))
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_DROP);
	skb->mark = GW_MARK_ASKED;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* A note: a director's question (it begins as an IP packet), or another server's load. */
static __noinline int gw_hear_note(struct __sk_buff *skb)
{
	__u8 first;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &first, 1))
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_PASS);
	if (first == GW_NOTE_ASK)
		return gw_answer_reach(skb);
	first >>= 4;
	return first == 4 || first == 6 ? gw_hear_asked(skb, first) :
					  gw_hear_load(skb);
}

/* Has this kernel a socket of the connection, or is it known where the connection is? */
static __noinline bool gw_has_connection(struct __sk_buff *skb,
					 const struct gw_pkt *p,
					 const struct gw_flow_key *key,
					 const struct gw_share *s)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	bool has = false;

	if (sk) {
		has = sk->state != GW_TCP_LISTEN &&
		      sk->state != GW_TCP_TIME_WAIT;
		bpf_sk_release(sk);
	}
	return has || (f && !gw_is_over(f)) || gw_handoff_of(s, key) ||
	       gw_transfer_now(key);
}

/*
 * Does the question come from the director whose MAC address it has? enum gw_belief, or the
 * reason why not. A director that has told no key needs no proof. Verified once.
 */
__noinline int gw_check_question(const struct gw_pkt *p,
				 const struct gw_flow_key *key,
				 const struct gw_query_proof *proof)
{
	struct gw_query q = {};
	struct gw_claim c = {
		.raw = (const __be32 *)&q,
		.count = GW_QUERY_WORDS,
		.kind = GW_TAG_QUESTION,
	};

	if (!p || !key || !proof)
		return GW_REASON_TAG_WRONG;
	if (proof->magic != bpf_htonl(GW_QUERY_MAGIC))
		return gw_believe_bare(gw_trust_of(p->smac));
	c.tag = bpf_be64_to_cpu(proof->tag);
	gw_fill_query(&q, key, p->seq, proof->time);
	return gw_believe_words(gw_trust_of(p->smac), &c);
}

/* Puts the proof into the answer, if the director has told a key. 0 or -1. */
__noinline int gw_seal_unknown(struct __sk_buff *skb, const struct gw_pkt *p,
			       const struct gw_flow_key *key,
			       struct gw_query_proof *proof)
{
	struct gw_query q = {};
	const __u64 *k;

	if (!p || !key || !proof)
		return -1;
	k = gw_key_for(gw_trust_of(p->smac));
	if (!k || proof->magic != bpf_htonl(GW_QUERY_MAGIC))
		return 0;
	gw_fill_query(&q, key, p->seq, proof->time);
	proof->tag = bpf_cpu_to_be64(gw_words_tag(
		GW_TAG_UNKNOWN, (const __be32 *)&q, GW_QUERY_WORDS, k));
	return bpf_skb_store_bytes(skb, gw_packet_end(p), proof, sizeof(*proof),
				   0);
}

/*
 * Answers the question. GW_UNDECIDED: the connection is here, and the SYN is like any other.
 * Otherwise the note goes back. Counts only for a service behind a director: nobody else
 * asks.
 */
static __noinline int gw_answer_asked(struct __sk_buff *skb, struct gw_pkt *p,
				      __u32 share)
{
	const struct gw_share *s = gw_share_at(share);
	struct gw_query_proof proof = {};
	struct gw_flow_key key;
	__u8 from[6];
	int belief;

	skb->mark = 0;
	if (!s || !s->front ||
	    (p->flags & (GW_TCP_SYN | GW_TCP_ACK | GW_TCP_RST)) != GW_TCP_SYN)
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_DROP);
	gw_key(&key, &p->src, &p->dst);
	if (bpf_skb_load_bytes(skb, gw_packet_end(p), &proof, sizeof(proof)))
		proof.magic = 0;
	belief = gw_check_question(p, &key, &proof);
	if (belief > 0)
		return gw_verdict(belief, GW_DROP);
	if (gw_has_connection(skb, p, &key, s)) {
		gw_count(GW_REASON_ASKED_KNOWN);
		if (proof.magic == bpf_htonl(GW_QUERY_MAGIC))
			bpf_skb_change_tail(skb, gw_packet_end(p), 0);
		return GW_UNDECIDED;
	}
	if (gw_seal_unknown(skb, p, &key, &proof) ||
	    gw_set_ether_type(skb, GW_ETH_P_NOTE))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	__builtin_memcpy(from, p->smac, 6);
	return gw_send_to(skb, from, GW_REASON_ASKED_UNKNOWN);
}

#endif /* GW_ASKED_H */
