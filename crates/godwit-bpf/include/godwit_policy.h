/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR MIT OR Apache-2.0 */
/*
 * A program of your own that says which server a connection, or a request, is best served
 * by. docs/policies.md has the whole of it; this is all that it is compiled with:
 *
 *	#include <linux/bpf.h>
 *	#include <bpf/bpf_helpers.h>
 *	#include <godwit_policy.h>
 *
 *	GW_POLICY(ctx, head)
 *	{
 *		return GW_POLICY_RULES;
 *	}
 *
 *	char LICENSE[] SEC("license") = "GPL";
 *
 *	clang -O2 -g -target bpf -I/usr/include/$(uname -m)-linux-gnu \
 *	      -c policy.bpf.c -o policy.bpf.o
 *
 * It is asked for each first SYN and for each request that may be handed over. What it
 * returns is the number of a server, below GW_POLICY_NODES, or one of enum
 * gw_policy_answer. A server that can't be named now (see `open`) is nobody's: what was
 * asked about stays where it is, and is counted (policy_refused).
 */
#ifndef GODWIT_POLICY_H
#define GODWIT_POLICY_H

#include <linux/types.h>

/*
 * Servers have numbers. A node that starts for the first time gives them by the places of
 * the [[peer]]s in the file, from 0 on; a server keeps its number while it is in the file.
 */
#define GW_POLICY_NODES 64
/* Bytes of a head that can be looked at; a power of two. */
#define GW_POLICY_HEAD_MAX 2048
/* A load that is not known. */
#define GW_POLICY_NO_LOAD 255

enum gw_policy_event {
	GW_POLICY_SYN = 1, /* a connection begins; there is no head */
	GW_POLICY_REQUEST = 2, /* the whole head of a request is here */
};

enum gw_policy_answer {
	GW_POLICY_RULES = -1, /* as it would be without the program */
	GW_POLICY_HERE = -2, /* it stays on this server */
};

/* What is asked about. Appended to, never changed. */
struct gw_policy_ctx {
	__u32 event; /* enum gw_policy_event */
	__u32 self; /* number of this server */
	__u64 open; /* who may be named, a bit per number; this server too */
	__u64 ruled; /* REQUEST: whom the file's rule names, likewise; 0: no rule */
	__u64 path; /* REQUEST: FNV-1a (64 bits) of the path without its query */
	__u64 host; /* REQUEST: of the host in lower case, without port; 0: none */
	__be32 client[4]; /* addresses, IPv4 as ::ffff:a.b.c.d */
	__be32 service[4];
	__be16 client_port;
	__be16 service_port;
	__u32 head_len; /* REQUEST: bytes in `head`, the empty line included */
	__u32 path_at; /* REQUEST: where the path begins in `head`, ... */
	__u32 path_end; /* ... and the first byte behind it */
	__u8 load[GW_POLICY_NODES]; /* percent by number, or GW_POLICY_NO_LOAD */
};

/* The head of the request as it came (RFC 9112), 2 047 bytes at most; old bytes behind it. */
struct gw_policy_head {
	__u8 bytes[GW_POLICY_HEAD_MAX];
};

/* One question and its answer, on one processor. */
struct gw_policy_call {
	__s32 answer;
	__u32 state; /* enum gw_policy_state */
	__u32 seq; /* of the segment */
	__u32 program; /* number of the program */
	struct gw_policy_head head;
	struct gw_policy_ctx ctx; /* the last: it grows */
};

enum gw_policy_state {
	GW_POLICY_ASKED = 1,
	GW_POLICY_ANSWERED = 2,
};

/* Programs of a server at a time; number 0 is the data path, to which they go back. */
#define GW_POLICIES 4

/* The data path's own; a program finds them by their names. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_policy_call);
} gw_policy_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, GW_POLICIES + 1);
	__type(key, __u32);
	__type(value, __u32);
} gw_policy_programs SEC(".maps");

/*
 * What follows is the body of a function that gets `struct gw_policy_ctx *ctx` and
 * `struct gw_policy_head *head`, neither of them NULL. One per file.
 */
#define GW_POLICY(ctx, head)                                               \
	static __always_inline int gw_policy_decide(                       \
		struct gw_policy_ctx *ctx, struct gw_policy_head *head);   \
	SEC("tcx/ingress") int policy(struct __sk_buff *skb)               \
	{                                                                  \
		__u32 zero = 0;                                            \
		struct gw_policy_call *call =                              \
			bpf_map_lookup_elem(&gw_policy_calls, &zero);      \
		if (call) {                                                \
			call->answer =                                     \
				gw_policy_decide(&call->ctx, &call->head); \
			call->state = GW_POLICY_ANSWERED;                  \
		}                                                          \
		bpf_tail_call(skb, &gw_policy_programs, 0);                \
		return -1; /* TCX_NEXT: the data path has just gone */     \
	}                                                                  \
	static __always_inline int gw_policy_decide(                       \
		struct gw_policy_ctx *ctx, struct gw_policy_head *head)

#endif /* GODWIT_POLICY_H */
