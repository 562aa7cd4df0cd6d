/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR MIT OR Apache-2.0 */
/*
 * Locality by class: what is in one folder at the top of the site (/images/..., /api/...)
 * is served by one server, which has it in its caches. Where the file has a rule for the
 * path its servers are drawn from, or all that are there.
 */
#include "draw.h"

struct walk {
	struct gw_policy_head *head;
	__u32 at; /* behind the path's first slash */
	__u32 end;
	__u64 class;
};

/* One character of the folder's name. */
static long step(__u32 i, struct walk *walk)
{
	__u32 at = walk->at + i;
	__u8 c;

	if (at >= walk->end)
		return 1;
	c = walk->head->bytes[at & (GW_POLICY_HEAD_MAX - 1)];
	if (c == '/')
		return 1;
	walk->class = fnv(walk->class, c);
	return 0;
}

GW_POLICY(ctx, head)
{
	struct walk walk = { .head = head, .class = FNV_BASIS };
	__u64 nodes;

	if (ctx->event != GW_POLICY_REQUEST)
		return GW_POLICY_RULES;
	walk.at = ctx->path_at + 1;
	walk.end = ctx->path_end;
	bpf_loop(GW_POLICY_HEAD_MAX, step, &walk, 0);
	nodes = ctx->ruled ? ctx->ruled & ctx->open : ctx->open;
	return draw(nodes, walk.class);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
