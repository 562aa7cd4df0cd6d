/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Programs of the user's own ([service.policy], docs/policies.md, docs/adr/0021). A
 * function can't call one, so `tap` hands the packet to it and has it handed back:
 *
 *   tap ── what it would ask ──► gw_policy_calls      tail call ──► the program
 *   tap, from the start ◄── the answer is there ──── tail call ◄── its answer
 *
 * All of that is one packet's, on one processor and without a pause. Nothing was changed
 * by the first pass; whatever is not answered is as if there were no program.
 */
#ifndef GW_POLICY_H
#define GW_POLICY_H

#include "policy/gw_rules.h"

#include <godwit_policy.h>

/* A verdict: the program in gw_policy_calls is to be asked first. */
#define GW_CONSULT (-3)
/* What is known of a load is worth nothing after so long. */
#define GW_LOAD_NS 500000000ull

/*
 * What else the file says of a share's connections, and how loaded this node is. Without an
 * agent programs are asked on, and the load grows old.
 */
struct gw_steering {
	__u64 at_ns; /* when `load` was measured */
	__u8 load; /* percent */
	__u8 redirect; /* new connections are passed on from here on; 0: none is */
	__u8 margin; /* only to who has so much less */
	__u8 program; /* 1 to GW_POLICIES: who is asked first; 0: nobody */
	__u32 pad;
};

/* What another server of the share has said of its load. */
struct gw_mate_load {
	__u64 at_ns; /* when it did */
	__u32 passed; /* connections that it got from here since then */
	__u8 load; /* percent */
	__u8 pad[3];
};

_Static_assert(sizeof(struct gw_steering) == 16, "shared with Rust");
_Static_assert(GW_POLICY_NODES == GW_MAX_NODES, "a number names the same node");
_Static_assert(GW_POLICY_HEAD_MAX == GW_HTTP_MAX, "a head is shown as it is");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_steering);
} gw_steerings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_SHARES *GW_MAX_NODES);
	__type(key, struct gw_mate_key);
	__type(value, struct gw_mate_load);
} gw_mate_loads SEC(".maps");

static __always_inline const struct gw_steering *gw_steering_of(__u32 share)
{
	return bpf_map_lookup_elem(&gw_steerings, &share);
}

/*
 * What a mate has said of its load, and what it has got from here meanwhile: so a burst is
 * not all for the one that was lightest before it. GW_POLICY_NO_LOAD: not known.
 */
static __always_inline __u32 gw_load_of(const struct gw_mate_key *key)
{
	const struct gw_mate_load *l = bpf_map_lookup_elem(&gw_mate_loads, key);
	__u32 load;

	if (!l || gw_now() - l->at_ns > GW_LOAD_NS)
		return GW_POLICY_NO_LOAD;
	load = l->load + l->passed;
	return load > 100 ? 100 : load;
}

struct gw_survey {
	struct gw_policy_ctx *ctx;
	__u32 share;
	__u32 pad;
};

static long gw_survey_step(__u32 node, struct gw_survey *v)
{
	struct gw_mate_key key = { .share = v->share, .node = node };
	struct gw_policy_ctx *ctx = v->ctx;
	const struct gw_mate *mate;

	node &= GW_POLICY_NODES - 1;
	if (node == ctx->self) {
		ctx->open |= 1ull << node;
		return 0;
	}
	mate = bpf_map_lookup_elem(&gw_mates, &key);
	if (mate && mate->state == GW_MATE_OPEN) {
		ctx->open |= 1ull << node;
		ctx->load[node] = gw_load_of(&key);
	}
	return 0;
}

/* Of a request: what the program may want to know of it. */
static __always_inline void gw_describe(struct gw_policy_ctx *ctx,
					const struct gw_http *h, __u32 share,
					const struct gw_placing *pl)
{
	const struct gw_rule *rule = gw_rule_of(h, share, pl);

	ctx->event = GW_POLICY_REQUEST;
	ctx->ruled = rule ? rule->nodes : 0;
	ctx->path = h->path;
	ctx->host = h->host;
	ctx->head_len = h->head;
	ctx->path_at = h->path_at;
	ctx->path_end = h->path_end;
}

/*
 * Was this segment asked about, and what is the answer? It is taken. A program that has
 * handed the packet back without one is not asked again.
 */
static __always_inline bool gw_is_answered(struct gw_policy_call *call,
					   const struct gw_flow_key *key,
					   __u32 seq, int *answer)
{
	bool asked = call->state && call->seq == seq &&
		     call->ctx.client_port == key->client.port &&
		     call->ctx.service_port == key->service.port &&
		     gw_addr_equal(call->ctx.client, key->client.addr) &&
		     gw_addr_equal(call->ctx.service, key->service.addr);

	*answer = call->answer;
	if (asked && call->state != GW_POLICY_ANSWERED) {
		gw_count(GW_REASON_POLICY_LOST);
		*answer = GW_POLICY_RULES;
	}
	call->state = 0;
	return asked;
}

/* Bytes of a head that a program is shown: all but the last of the longest one. */
static __always_inline __u32 gw_shown(const struct gw_http *h)
{
	__u32 len = h->len;

	return len >= GW_HTTP_MAX ? GW_HTTP_MAX - 1 : len & (GW_HTTP_MAX - 1);
}

/* What there is to be said of a request (`h`) or of a SYN (NULL). */
static __noinline int gw_question(struct gw_policy_call *call,
				  const struct gw_flow_key *key, __u32 share,
				  const struct gw_http *h)
{
	const struct gw_steering *st = gw_steering_of(share);
	const struct gw_placing *pl = gw_placing_of(share);
	struct gw_policy_ctx *ctx = &call->ctx;
	struct gw_survey v = { .ctx = ctx, .share = share };

	if (!st || !pl)
		return -1;
	__builtin_memset(ctx, 0, offsetof(struct gw_policy_ctx, load));
	__builtin_memset(ctx->load, GW_POLICY_NO_LOAD, sizeof(ctx->load));
	ctx->event = GW_POLICY_SYN;
	if (h) {
		gw_describe(ctx, h, share, pl);
		bpf_probe_read_kernel(&call->head, gw_shown(h), h->bytes);
	}
	ctx->self = pl->node & (GW_POLICY_NODES - 1);
	if (gw_now() - st->at_ns <= GW_LOAD_NS)
		ctx->load[ctx->self & (GW_POLICY_NODES - 1)] = st->load;
	__builtin_memcpy(ctx->client, key->client.addr, 16);
	__builtin_memcpy(ctx->service, key->service.addr, 16);
	ctx->client_port = key->client.port;
	ctx->service_port = key->service.port;
	bpf_loop(pl->nodes & 127, gw_survey_step, &v, 0);
	call->program = st->program;
	return 0;
}

/*
 * What the share's program says: the number of a server, or one of enum gw_policy_answer.
 * GW_CONSULT: it has yet to be asked.
 */
static __noinline int gw_ask_policy(const struct gw_flow_key *key, __u32 share,
				    const struct gw_http *h, __u32 seq)
{
	__u32 zero = 0;
	struct gw_policy_call *call =
		bpf_map_lookup_elem(&gw_policy_calls, &zero);
	int to;

	if (!call)
		return GW_POLICY_RULES;
	if (!gw_is_answered(call, key, seq, &to)) {
		if (gw_question(call, key, share, h))
			return GW_POLICY_RULES;
		call->seq = seq;
		call->state = GW_POLICY_ASKED;
		return GW_CONSULT;
	}
	if (to == GW_POLICY_RULES || to == GW_POLICY_HERE)
		return to;
	if (to >= 0 && to < GW_POLICY_NODES &&
	    (call->ctx.open >> (to & 63) & 1))
		return to;
	gw_count(GW_REASON_POLICY_REFUSED);
	return GW_POLICY_HERE;
}

/*
 * A program is asked, and hands the packet back to `tap`. If it is not there, the packet
 * goes back at once, and on by the rules; it is lost if not even that can be done. For
 * `tap` itself: a tail call does not come from a deep place.
 */
static __always_inline int gw_consult(struct __sk_buff *skb, int verdict)
{
	__u32 zero = 0;
	struct gw_policy_call *call;

	if (verdict != GW_CONSULT)
		return verdict;
	call = bpf_map_lookup_elem(&gw_policy_calls, &zero);
	if (call)
		bpf_tail_call(skb, &gw_policy_programs, call->program);
	bpf_tail_call(skb, &gw_policy_programs, 0);
	return gw_verdict(GW_REASON_POLICY_LOST, GW_DROP);
}

/* A mate by its number: 0 and who it is, or -1. */
static __always_inline int gw_name_mate(__u32 share, __u32 node,
					struct gw_target *to)
{
	struct gw_mate_key key = { .share = share, .node = node };
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	if (!mate || mate->state != GW_MATE_OPEN)
		return -1;
	__builtin_memcpy(to->mac, mate->mac, 6);
	to->node = node;
	return 0;
}

/* The server of a request: 0 and who it is, why it stays here, or GW_CONSULT. */
static __noinline int gw_choose_by_policy(const struct gw_flow_key *key,
					  const struct gw_http *h, __u32 share,
					  __u32 seq, struct gw_target *to)
{
	const struct gw_steering *st = gw_steering_of(share);
	const struct gw_placing *pl = gw_placing_of(share);
	int node = GW_POLICY_RULES;

	if (!pl)
		return GW_REASON_KEPT_HERE;
	if (st && st->program)
		node = gw_ask_policy(key, share, h, seq);
	if (node == GW_CONSULT)
		return GW_CONSULT;
	if (node == GW_POLICY_RULES)
		return gw_choose(h, share, pl, to);
	if (node < 0 || node == pl->node)
		return GW_REASON_KEPT_HERE;
	return gw_name_mate(share, node, to) ? GW_REASON_KEPT_ALONE : 0;
}

#endif /* GW_POLICY_H */
