/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sources of connections that have more than their part of the flow table while it is nearly
 * full: a /24 of IPv4, a /64 of IPv6. The agent counts and writes them down (godwit-agent,
 * driver/crowd.rs). A new connection of such a source is served unprotected, so that there is
 * room for those of others.
 */
#ifndef GW_CROWD_H
#define GW_CROWD_H

#include "net/gw_packet.h"

/* There can't be more: each has an eighth of the table. */
#define GW_CROWDS 16

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_CROWDS);
	__type(key, struct gw_address);
	__type(value, __u32); /* how many it has */
} gw_crowds SEC(".maps");

static __noinline bool gw_is_of_crowd(const struct gw_endpoint *client)
{
	struct gw_address source = {
		.addr = { client->addr[0], client->addr[1] },
	};

	if (gw_is_mapped(client->addr)) {
		source.addr[2] = client->addr[2];
		source.addr[3] = client->addr[3] & bpf_htonl(0xffffff00);
	}
	return bpf_map_lookup_elem(&gw_crowds, &source);
}

#endif /* GW_CROWD_H */
