/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Re-protection, the standby's side: the entry of a running flow comes from its
 * owner, as it stood at the first byte of the log; then the agent replays the
 * log, of which the first segment makes the twin. What the twin says up to the
 * client's acknowledged point is reflected, like that of any other.
 */
#ifndef GW_INSTALL_H
#define GW_INSTALL_H

#include "shadow/gw_shadow.h"

/* As gw_scratch, which belongs to softirqs: they come in between. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_flow_words);
} gw_install_scratch SEC(".maps");

/* Its window is not known before it speaks: as much as any takes. */
#define GW_FIRST_WINDOW 65535

static __always_inline void gw_install_fill(struct gw_flow *f,
					    const struct gw_install *in)
{
	f->share = in->share;
	f->generation = in->generation;
	f->irs = in->irs;
	f->iss = in->iss;
	f->mss = in->mss;
	f->syn_ack_mss = in->syn_ack_mss;
	/* the watchdog's claim is taken, see gw_watch_new() */
	f->flags = in->flags | GW_FLOW_TWIN | GW_FLOW_NOT_IN_SYNC |
		   GW_FLOW_AWAITED | GW_FLOW_WATCHED;
	gw_flow_enter(f, GW_PHASE_TWIN);
	f->why = GW_WHY_NOT_IN_SYNC;
	f->snd_wscale = in->snd_wscale;
	f->rcv_wscale = in->rcv_wscale;
	f->rtt_ns = in->rtt_ns;
	f->client.ack = in->snd_una;
	f->client.edge = in->snd_edge;
	f->client.end = in->base;
	f->client.wl1 = in->base - 1;
	f->client.ts_val = in->ts_val;
	f->client.ts_seen = in->ts_val;
	f->client.ts_ecr = in->owner_ts;
	f->client.ts_base = in->owner_ts + GW_TS_TRANSIT_MS;
	f->own.snd_nxt = in->base_ack;
	f->own.ack = in->base;
	f->own.edge = in->base + GW_FIRST_WINDOW;
	f->own.ts_val = in->owner_ts;
	f->own.tried = in->base_ack;
	f->birth = in->base;
	f->birth_ack = in->base_ack;
	/* what the owner says before a planned move adds to these */
	f->gated.twin_ack = in->base;
	f->gated.twin_edge = in->base;
	f->gated.twin_snd_nxt = in->base_ack;
	f->gated.told_ack = in->base;
	f->gated.told_edge = f->own.edge;
	f->tapped.ack = in->base_ack;
	f->tapped.snd_nxt = in->base_ack;
	__builtin_memcpy(f->client.mac, in->client_mac, 6);
}

/* 0: done, 1: there is one already, or this node is no shadow. */
static __noinline int gw_obey_install(const struct gw_install *in)
{
	struct gw_share *s = gw_share_at(in->share);
	struct gw_flow_key key = in->key;
	struct gw_flow_words *words;
	struct gw_transfer *t;
	struct gw_flow *f;
	__u32 zero = 0;

	words = bpf_map_lookup_elem(&gw_install_scratch, &zero);
	if (!s || !words || s->role != GW_ROLE_SHADOW || !in->generation ||
	    s->generation != in->generation)
		return 1;
	__builtin_memset(words, 0, sizeof(*words));
	f = (struct gw_flow *)words;
	gw_install_fill(f, in);
	f->part = gw_part(s);
	f->born_ns = gw_now();
	f->client.heard_ns = f->born_ns;
	f->client.ts_base_ns = f->born_ns;
	gw_log_begin(f, in->base, in->base_ack);
	if (!s->log_cap)
		f->log.state = GW_LOG_NONE;
	if (bpf_map_update_elem(&gw_flows, &key, f, BPF_NOEXIST))
		return 1;
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (!f)
		return 1;
	gw_watch_new(&key, f);
	/* what we have asked as its owner, another owner has no part in */
	t = gw_transfer_of(&key, in->irs);
	if (t &&
	    (t->state == GW_TRANSFER_ASKED || t->state == GW_TRANSFER_TOLD))
		t->state = GW_TRANSFER_TWIN;
	return 0;
}

/* The first segment that is replayed: the twin is born there. */
static __always_inline int gw_replay_begin(struct __sk_buff *skb,
					   struct gw_pkt *p,
					   const struct gw_flow_key *key,
					   struct gw_flow *f)
{
	if ((f->flags & GW_FLOW_TWIN_SEEN) || p->seq != f->birth ||
	    p->ack != f->birth_ack)
		return GW_REASON_TAPPED_SEGMENT;
	return gw_materialise(skb, p, key, f);
}

/* A segment that the agent made from the log, on its way in. */
static __noinline int gw_replay(struct __sk_buff *skb, struct gw_pkt *p,
				const struct gw_share *s)
{
	struct gw_flow_key key;
	struct gw_flow *f;
	int err;

	gw_key(&key, &p->src, &p->dst);
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (!f || gw_is_over(f) || s->role != GW_ROLE_SHADOW)
		return gw_verdict(GW_REASON_REPLAY_NO_FLOW, GW_DROP);
	err = gw_replay_begin(skb, p, &key, f);
	if (err && err != GW_REASON_TAPPED_SEGMENT)
		return gw_verdict(err, GW_DROP);
	gw_advance(&f->client.end, gw_seg_end(p));
	if (p->flags & GW_TCP_FIN) {
		f->client.fin = gw_seg_end(p);
		gw_flag(f, GW_FLOW_CLIENT_FIN);
	}
	gw_log_input(skb, p, &key, f, s);
	if (!err)
		gw_greet(skb, p);
	gw_ask_quick_ack(skb, p);
	if (gw_gate_twin(skb, p, f))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_REPLAYED, GW_PASS);
}

#endif /* GW_INSTALL_H */
