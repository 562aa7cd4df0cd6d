/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What processes of this machine do. Local clients: processes of this machine that connect
 * to a service address. The address is local, so the kernel would bring them to the server
 * here over the loopback, past tap and gate. Where this node does not own the service that
 * server is a silent twin's: what it is told there nobody else learns. So connect() is
 * refused (EPERM) unless one of the shares at that address is owned here, and may speak: an
 * owner whose lease has ended, its agent dead, is none.
 */
#ifndef GW_LOCAL_H
#define GW_LOCAL_H

#include "share/gw_fence.h"

#define GW_CONNECT_REFUSED 0
#define GW_CONNECT_ALLOWED 1

static __always_inline bool gw_is_owned(const __u32 *share)
{
	const struct gw_share *s = share ? gw_share_at(*share) : NULL;

	return s && s->role == GW_ROLE_OWNER && !gw_silenced(*share);
}

static __noinline int gw_connect_local(const struct gw_endpoint *to)
{
	const __u32 *home = bpf_map_lookup_elem(&gw_services, to);

	if (!home)
		return GW_CONNECT_ALLOWED;
	if (gw_is_owned(home) ||
	    gw_is_owned(bpf_map_lookup_elem(&gw_wards, to))) {
		gw_count(GW_REASON_LOCAL_CLIENT);
		return GW_CONNECT_ALLOWED;
	}
	gw_count(GW_REASON_LOCAL_CLIENT_REFUSED);
	return GW_CONNECT_REFUSED;
}

/*
 * A listening socket is about to be closed: a server that was stopped in order, or that
 * goes on without it. Which, the kernel does not show here; the agent looks who listens.
 */
static __noinline void gw_tell_listener(void)
{
	gw_tell_machine(GW_EVENT_LISTENER, 0);
}

#endif /* GW_LOCAL_H */
