/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Addresses and flags, for every program that looks at packets. */
#ifndef GW_NET_H
#define GW_NET_H

#include "base/gw_kernel.h"

#define GW_TCP_FIN 0x01
#define GW_TCP_SYN 0x02
#define GW_TCP_RST 0x04
#define GW_TCP_PSH 0x08
#define GW_TCP_ACK 0x10
#define GW_TCP_URG 0x20
#define GW_TCP_ECE 0x40
#define GW_TCP_CWR 0x80

static __always_inline bool gw_mac_equal(const __u8 *a, const __u8 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] &&
	       a[4] == b[4] && a[5] == b[5];
}

static __always_inline bool gw_addr_equal(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

static __always_inline void gw_map_v4(__be32 *addr, __be32 v4)
{
	addr[0] = 0;
	addr[1] = 0;
	addr[2] = bpf_htonl(0xffff);
	addr[3] = v4;
}

static __always_inline bool gw_is_mapped(const __be32 *addr)
{
	return !addr[0] && !addr[1] && addr[2] == bpf_htonl(0xffff);
}

#endif /* GW_NET_H */
