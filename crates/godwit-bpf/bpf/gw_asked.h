/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A director asks about a SYN: is there a connection of its addresses and ports? It can't know
 * that itself of connections that began before their slot led elsewhere, and a SYN that
 * anybody can send must not take them from there (RFC 5961 section 4).
 *
 *   director ── SYN as a note ──► who would have it    known: as any SYN, which our TCP
 *                                                      answers (a challenge ACK)
 *            ◄── the same, back ──                     unknown
 *            ── SYN ───────────► who has the new one
 *
 * The note is the packet itself behind the EtherType of notes, whose first byte is never that
 * of an IP packet. Nothing is kept of it, here or there. Behind the packet is a proof
 * (struct gw_query_proof): the question's that it is of the director, and the answer's, of the
 * same time, that it is of the back-end. So an answer counts for two seconds, and for its SYN.
 */
#ifndef GW_ASKED_H
#define GW_ASKED_H

#include "gw_hear.h"
#include "gw_reach.h"

/* The kernel tells what a frame is before `tap`, and only there: it comes in once more. */
static __always_inline int gw_hear_asked(struct __sk_buff *skb, __u8 version)
{
	if (gw_set_ether_type(skb, version == 6 ? ETH_P_IPV6 : ETH_P_IP))
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_DROP);
	skb->mark = GW_MARK_ASKED;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* A note: of another server, or of a director. */
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

/* Has our kernel a socket of the connection, or do we know where it is? */
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
 * Is the question of the director whose address it has, with that proof behind it or not?
 * enum gw_belief, or the reason why not. Verified once.
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

/* The answer to a question of that director's gets its proof, if that one has told a key. */
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
 * GW_UNDECIDED: the connection is here, and the SYN is like any other; else it goes back.
 * Only where a director stands before the service: nobody else has reason to ask.
 */
static __noinline int gw_answer_asked(struct __sk_buff *skb, struct gw_pkt *p,
				      __u32 share)
{
	const struct gw_share *s = gw_share_at(share);
	struct gw_query_proof proof = {};
	struct gw_flow_key key;
	__u8 self[6], from[6];
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
	gw_self(self);
	__builtin_memcpy(from, p->smac, 6);
	gw_set_macs(skb, from, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_ASKED_UNKNOWN);
	return bpf_redirect(skb->ifindex, 0);
}

#endif /* GW_ASKED_H */
