/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR MIT OR Apache-2.0 */
/*
 * Which of several servers a hash is for: who makes most of it (rendezvous hashing). When
 * one comes or goes, only what is its own moves.
 */
#ifndef DRAW_H
#define DRAW_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include <godwit_policy.h>

#define FNV_BASIS 0xcbf29ce484222325ull
#define FNV_PRIME 0x100000001b3ull

static inline __u64 fnv(__u64 hash, __u8 c)
{
	return (hash ^ c) * FNV_PRIME;
}

struct draw {
	__u64 nodes;
	__u64 hash;
	__u64 most;
	__s64 node;
};

static long lot(__u32 node, struct draw *draw)
{
	__u64 lot = (draw->hash ^ (node + 1) * FNV_PRIME) * FNV_BASIS;

	lot ^= lot >> 29;
	if ((draw->nodes >> (node & 63) & 1) &&
	    (draw->node < 0 || lot > draw->most)) {
		draw->most = lot;
		draw->node = node;
	}
	return 0;
}

/* One of `nodes`; GW_POLICY_HERE: there is none. */
static inline int draw(__u64 nodes, __u64 hash)
{
	struct draw draw = { .nodes = nodes, .hash = hash, .node = -1 };

	bpf_loop(GW_POLICY_NODES, lot, &draw, 0);
	return draw.node < 0 ? GW_POLICY_HERE : (int)draw.node;
}

#endif /* DRAW_H */
