/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Do notes go from a director to a back-end and back? The director's agent asks, under the
 * EtherType of notes, and a back-end's data path answers by itself: a numbered probe with a tag
 * (gw_probe.h), there and back.
 *
 *   director ── ASK number, tag ────► back-end
 *            ◄── ANSWER number, tag ──            gw_reached.h
 */
#ifndef GW_REACH_H
#define GW_REACH_H

#include "net/gw_edit.h"
#include "net/gw_note.h"
#include "request/gw_path.h"

/* A question whether notes arrive. Only who has told a key has an answer. Verified once. */
__noinline int gw_answer_reach(struct __sk_buff *skb)
{
	struct gw_tagged_probe p = {};
	struct gw_mate_mac from = {};
	__u8 self[6];
	int belief;

	if (bpf_skb_load_bytes(skb, ETH_ALEN, from.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &p, sizeof(p)) ||
	    p.probe.kind != GW_NOTE_ASK)
		return gw_verdict(GW_REASON_NOTE_REFUSED, GW_DROP);
	belief = gw_check_probe(&p, &from);
	if (belief > 0)
		return gw_verdict(belief, GW_DROP);
	gw_seal_probe(&p, &from, GW_NOTE_ANSWER);
	if (belief != GW_BELIEF_PROVED || p.probe.version != GW_PROBE_TAGGED)
		return gw_verdict(GW_REASON_REACH_NO_KEY, GW_DROP);
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &p, sizeof(p), 0))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_self(self);
	gw_set_macs(skb, from.mac, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_REACH_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

#endif /* GW_REACH_H */
