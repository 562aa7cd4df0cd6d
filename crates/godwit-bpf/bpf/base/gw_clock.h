/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The clock of the data path, in nanoseconds. */
#ifndef GW_CLOCK_H
#define GW_CLOCK_H

#include "base/gw_kernel.h"

/* CLOCK_BOOTTIME: goes on while the host is suspended, as a lease must. */
static __always_inline __u64 gw_now(void)
{
	return bpf_ktime_get_boot_ns();
}

static __always_inline __u64 gw_min_ns(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

#endif /* GW_CLOCK_H */
