/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Questions about SYNs, at the director that asks them (gw_asked.h): a question gets its proof,
 * and an answer shows one. Nothing is kept of a question: its time is in both, and an answer to
 * one of more than two seconds ago is none.
 */
#ifndef GW_QUERY_H
#define GW_QUERY_H

#include "base/gw_clock.h"
#include "director/gw_encap.h"
#include "director/gw_frame.h"
#include "net/gw_note.h"

/* Of a frame with a SYN in it. */
#define GW_QUERY_MOST 255

static __always_inline __u32 gw_query_time(void)
{
	return gw_now() >> 30;
}

/* Where the packet ends that is in the frame; 0: not that of a SYN. */
static __always_inline __u32 gw_frame_end(const struct ethhdr *eth,
					  const void *end)
{
	const struct iphdr *ip = (const void *)(eth + 1);
	const struct ipv6hdr *ip6 = (const void *)(eth + 1);
	__u32 at;

	if ((const void *)(ip + 1) > end)
		return 0;
	if (ip->version == 4)
		at = ETH_HLEN + bpf_ntohs(ip->tot_len);
	else if ((const void *)(ip6 + 1) > end)
		return 0;
	else
		at = ETH_HLEN + sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	return at > GW_QUERY_MOST ? 0 : at;
}

/*
 * The proof of a question, to the back-end with that address. False: that one has told no key,
 * or there is no SYN to ask about.
 */
static __noinline bool gw_seal_question(struct gw_way *way,
					const struct gw_told *told,
					const struct gw_mate_mac *to)
{
	const __u64 *key = gw_key_for(bpf_map_lookup_elem(&gw_trusts, to));
	struct gw_query q = {};

	if (!key || !way->end)
		return false;
	gw_fill_query(&q, &told->key, told->irs, bpf_htonl(gw_query_time()));
	way->proof = (struct gw_query_proof){
		.magic = bpf_htonl(GW_QUERY_MAGIC),
		.time = q.time,
		.tag = bpf_cpu_to_be64(gw_words_tag(GW_TAG_QUESTION,
						    (const __be32 *)&q,
						    GW_QUERY_WORDS, key)),
	};
	return true;
}

/*
 * Is the answer of the back-end whose address it has, to a question of now? enum gw_belief, or
 * the reason why not.
 */
static __noinline int gw_check_unknown(const struct ethhdr *eth,
				       const void *end,
				       const struct gw_told *told)
{
	const struct gw_query_proof *proof;
	struct gw_query q = {};
	struct gw_claim c = {
		.raw = (const __be32 *)&q,
		.count = GW_QUERY_WORDS,
		.kind = GW_TAG_UNKNOWN,
	};
	__u32 at = gw_frame_end(eth, end);
	int belief;

	if (!at)
		return GW_REASON_ANSWER_STALE;
	proof = (const void *)eth + at;
	if ((const void *)(proof + 1) > end ||
	    proof->magic != bpf_htonl(GW_QUERY_MAGIC))
		return gw_believe_bare(gw_trust_of(eth->h_source));
	c.tag = bpf_be64_to_cpu(proof->tag);
	gw_fill_query(&q, &told->key, told->irs, proof->time);
	belief = gw_believe_words(gw_trust_of(eth->h_source), &c);
	if (belief == GW_BELIEF_PROVED &&
	    gw_query_time() - bpf_ntohl(q.time) > 1)
		return GW_REASON_ANSWER_STALE;
	return belief;
}

#endif /* GW_QUERY_H */
