/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * This node's own addresses as a client's. Its processes reach a service of the machine over
 * the loopback, so no segment with such an address comes from the link: the kernel drops it (a
 * "martian source"). It must leave nothing behind here either, for canaries have these
 * addresses (gw_canary.h).
 */
#ifndef GW_OWN_H
#define GW_OWN_H

#include "base/gw_maps.h"
#include "base/gw_net.h"

static __always_inline bool gw_is_own_address(const __be32 *addr)
{
	__be32 v4 = gw_node_v4, v6[4];

	if (gw_is_mapped(addr))
		return v4 && addr[3] == v4;
	for (int i = 0; i < 4; i++)
		v6[i] = gw_node_v6[i];
	return v6[0] && gw_addr_equal(addr, v6);
}

#endif /* GW_OWN_H */
