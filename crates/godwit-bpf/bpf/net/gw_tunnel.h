/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * VXLAN (RFC 7348) between a director and back-ends that are not on its link: the whole
 * frame behind IP, UDP and eight bytes. The UDP checksum is zero, which RFC 6935 allows
 * over IPv6, too: the frame has one of its own.
 */
#ifndef GW_TUNNEL_H
#define GW_TUNNEL_H

#include "base/gw_net.h"
#include "base/gw.h"

#include <linux/udp.h>

#define GW_VXLAN_PORT 4789
#define GW_VXLAN_FLAGS 0x08000000 /* there is a VNI */
#define GW_TUNNEL_TTL 64

struct gw_vxlan {
	__be32 flags;
	__be32 vni; /* in the upper 24 bits */
};

/* What is before the frame, without the link's own header. */
struct gw_outer_v4 {
	struct iphdr ip;
	struct udphdr udp;
	struct gw_vxlan vxlan;
};

struct gw_outer_v6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct gw_vxlan vxlan;
};

_Static_assert(sizeof(struct gw_outer_v4) == 36, "RFC 7348 section 5");
_Static_assert(sizeof(struct gw_outer_v6) == 56, "RFC 7348 section 5");

#endif /* GW_TUNNEL_H */
