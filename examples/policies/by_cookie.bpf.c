/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) OR MIT OR Apache-2.0 */
/*
 * All requests of a session are served by one server, over whatever connections they come:
 * by the value of the cookie below (RFC 6265 section 4.2). Requests without it are placed by
 * the rules of the file.
 */
#include "draw.h"

/* The name, in all its letters, and the sign behind it: 31 at most. */
const volatile char cookie[32] = "session=";
const volatile char field[8] = "cookie:";

enum where {
	NAME = 0, /* of a field, as long as it may be ours */
	OTHER = 1, /* a field that is not ours */
	PAIR = 2, /* the name of a cookie, as long as it may be ours */
	SKIP = 3, /* another cookie */
	VALUE = 4, /* ours */
};

struct scan {
	struct gw_policy_head *head;
	__u32 len;
	__u32 at; /* how much of a name was matched */
	__u32 where; /* enum where */
	__u32 found;
	__u64 session;
};

static inline void begin(struct scan *scan, enum where where)
{
	scan->where = where;
	scan->at = 0;
}

static inline void match(struct scan *scan, __u8 c)
{
	if (scan->where == NAME) {
		if (c >= 'A' && c <= 'Z')
			c |= 0x20;
		if (c != field[scan->at & 7])
			scan->where = OTHER;
		else if (!field[++scan->at & 7])
			begin(scan, PAIR);
		return;
	}
	if (scan->at == 0 && (c == ' ' || c == '\t'))
		return;
	if (c != cookie[scan->at & 31])
		scan->where = SKIP;
	else if (!cookie[++scan->at & 31])
		begin(scan, VALUE);
}

static long step(__u32 i, struct scan *scan)
{
	__u8 c;

	if (i >= scan->len)
		return 1;
	c = scan->head->bytes[i & (GW_POLICY_HEAD_MAX - 1)];
	if (scan->where == VALUE && (c == ';' || c == '\r')) {
		scan->found = 1;
		return 1;
	}
	if (c == '\n')
		begin(scan, NAME);
	else if (scan->where == VALUE)
		scan->session = fnv(scan->session, c);
	else if (scan->where == NAME || scan->where == PAIR)
		match(scan, c);
	else if (scan->where == SKIP && c == ';')
		begin(scan, PAIR);
	return 0;
}

GW_POLICY(ctx, head)
{
	struct scan scan = {
		.head = head,
		.where = OTHER,
		.session = FNV_BASIS,
	};

	if (ctx->event != GW_POLICY_REQUEST)
		return GW_POLICY_RULES;
	scan.len = ctx->head_len;
	bpf_loop(GW_POLICY_HEAD_MAX, step, &scan, 0);
	if (!scan.found)
		return GW_POLICY_RULES;
	return draw(ctx->ruled ? ctx->ruled & ctx->open : ctx->open,
		    scan.session);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
