/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sequence numbers: serial arithmetic, RFC 9293 section 3.4. */
#ifndef GW_SEQ_H
#define GW_SEQ_H

#include "base/gw_kernel.h"

static __always_inline bool gw_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline bool gw_after(__u32 a, __u32 b)
{
	return gw_before(b, a);
}

static __always_inline __u32 gw_min_seq(__u32 a, __u32 b)
{
	return gw_before(a, b) ? a : b;
}

static __always_inline __u32 gw_max_seq(__u32 a, __u32 b)
{
	return gw_before(a, b) ? b : a;
}

/*
 * Moves a sequence field forward, never back, whichever CPU comes first: a
 * stale write would make the gate wait for bytes that nobody will send again.
 */
static __always_inline void gw_advance(__u32 *field, __u32 value)
{
	for (int i = 0; i < 8; i++) {
		__u32 seen = *(volatile __u32 *)field;

		if (!gw_after(value, seen))
			return;
		if (__sync_val_compare_and_swap(field, seen, value) == seen)
			return;
	}
}

#endif /* GW_SEQ_H */
