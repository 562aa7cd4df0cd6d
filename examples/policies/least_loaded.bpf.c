/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR MIT OR Apache-2.0 */
/*
 * New connections begin at the server that is least loaded. Of two that differ by less than
 * MARGIN this one keeps them: loads are as old as a tick of the agents.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include <godwit_policy.h>

#define MARGIN 10 /* percent */

struct best {
	struct gw_policy_ctx *ctx;
	__u32 load;
	__u32 node;
};

static long look(__u32 node, struct best *best)
{
	node &= GW_POLICY_NODES - 1;
	if ((best->ctx->open >> node & 1) &&
	    best->ctx->load[node] < best->load) {
		best->load = best->ctx->load[node];
		best->node = node;
	}
	return 0;
}

GW_POLICY(ctx, head)
{
	struct best best = { .ctx = ctx, .load = GW_POLICY_NO_LOAD };
	__u32 own = ctx->load[ctx->self & (GW_POLICY_NODES - 1)];

	if (ctx->event != GW_POLICY_SYN || own == GW_POLICY_NO_LOAD)
		return GW_POLICY_RULES;
	bpf_loop(GW_POLICY_NODES, look, &best, 0);
	if (best.load + MARGIN >= own)
		return GW_POLICY_HERE;
	return best.node;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
