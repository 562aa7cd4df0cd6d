/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Does the link carry what servers send each other? A server's agent sends a probe of full
 * size, with the EtherType that slips have, to another one. That one's data path sends it back as
 * it is but for its tag (gw_key.h), and the first one's writes its number down for the agent
 * (godwit-core, path.rs), if that is the one of its last probe: an answer counts once.
 */
#ifndef GW_PATH_H
#define GW_PATH_H

#include "request/gw_probe.h"
#include "request/gw_slip.h"

enum gw_probe_kind {
	/* no version of IP begins with these */
	GW_PROBE_ASK = 1,
	GW_PROBE_ANSWER = 2,
};

/* A probe is to be an answer, of that kind, to that one; with a tag, if it has told a key. */
static __noinline void gw_seal_probe(struct gw_tagged_probe *p,
				     const struct gw_mate_mac *to, __u8 kind)
{
	const __u64 *key = gw_key_for(bpf_map_lookup_elem(&gw_trusts, to));

	p->probe.kind = kind;
	p->probe.version = key ? GW_PROBE_TAGGED : GW_PROBE_VERSION;
	p->tag = 0;
	if (key)
		p->tag = bpf_cpu_to_be64(
			gw_words_tag(GW_TAG_PROBE, (const __be32 *)p, 1, key));
}

/* The answer to a probe of ours. */
static __noinline int gw_hear_answer(const struct gw_mate_mac *from,
				     __u32 number)
{
	return gw_is_last_answer(from, number) ?
		       gw_verdict(GW_REASON_PATH_HEARD, GW_DROP) :
		       gw_verdict(GW_REASON_PATH_STALE, GW_DROP);
}

/* A probe, or the answer to one of ours, from a server. */
static __noinline int gw_hear_probe(struct __sk_buff *skb,
				    const struct gw_mate_mac *from)
{
	struct gw_tagged_probe p = {};
	__u8 self[6], to[6];
	int belief;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &p, sizeof(p)) ||
	    (p.probe.version != GW_PROBE_VERSION &&
	     p.probe.version != GW_PROBE_TAGGED))
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	belief = gw_check_probe(&p, from);
	if (belief > 0)
		return gw_verdict(belief, GW_DROP);
	if (p.probe.kind == GW_PROBE_ANSWER)
		return gw_hear_answer(from, bpf_ntohl(p.probe.number));
	if (p.probe.kind != GW_PROBE_ASK)
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	gw_seal_probe(&p, from, GW_PROBE_ANSWER);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &p, sizeof(p), 0))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	__builtin_memcpy(to, from->mac, 6);
	gw_self(self);
	gw_set_macs(skb, to, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_PATH_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* A frame of another server's with the EtherType of slips. */
static __noinline int gw_hear_server(struct __sk_buff *skb)
{
	struct gw_mate_mac from = {};
	__u8 first;

	if (bpf_skb_load_bytes(skb, ETH_ALEN, from.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &first, 1) ||
	    !bpf_map_lookup_elem(&gw_mate_macs, &from))
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	if (first >> 4)
		return gw_unwrap(skb, first >> 4);
	return gw_hear_probe(skb, &from);
}

#endif /* GW_PATH_H */
