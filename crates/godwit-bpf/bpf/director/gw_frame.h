/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a director reads of a frame, straight from the packet: XDP and tc alike.
 * Functions return 0 or a reason; NOT_OURS for what no connection has to do with.
 */
#ifndef GW_FRAME_H
#define GW_FRAME_H

#include "base/gw_net.h"
#include "base/gw.h"
#include "base/gw_reason.h"

/* RFC 792 */
#define GW_ICMP_LEN 8
#define GW_ICMP_UNREACHABLE 3
#define GW_ICMP_TIME_EXCEEDED 11
#define GW_ICMP_BAD_PARAMETER 12
/* RFC 4443: errors are below 128, and four are in use */
#define GW_ICMP6 58
#define GW_ICMP6_UNREACHABLE 1
#define GW_ICMP6_BAD_PARAMETER 4

/* A client's frame, or what a router says of a frame to the client. */
struct gw_told {
	struct gw_flow_key key;
	__u32 irs; /* of a SYN */
	bool syn;
	bool error;
};

static __always_inline int gw_told_tcp(const struct tcphdr *tcp,
				       const void *end, struct gw_told *t)
{
	__u8 flags;

	if ((const void *)(tcp + 1) > end)
		return GW_REASON_BAD_HEADER;
	t->key.client.port = tcp->source;
	t->key.service.port = tcp->dest;
	flags = ((const __u8 *)tcp)[13];
	t->syn = (flags & (GW_TCP_SYN | GW_TCP_ACK | GW_TCP_RST)) == GW_TCP_SYN;
	t->irs = bpf_ntohl(tcp->seq);
	return 0;
}

/* The ports of a segment that the service has sent. */
static __always_inline int gw_told_back(const __be16 *ports, struct gw_told *t)
{
	t->key.service.port = ports[0];
	t->key.client.port = ports[1];
	t->error = true;
	return 0;
}

/* An error about a segment of the service, which it quotes. */
static __always_inline int gw_told_icmp(const __u8 *icmp, const void *end,
					struct gw_told *t)
{
	const struct iphdr *ip = (const void *)(icmp + GW_ICMP_LEN);
	const __be16 *ports = (const void *)(ip + 1);

	if ((const void *)(ports + 2) > end ||
	    (icmp[0] != GW_ICMP_UNREACHABLE &&
	     icmp[0] != GW_ICMP_TIME_EXCEEDED &&
	     icmp[0] != GW_ICMP_BAD_PARAMETER))
		return GW_REASON_NOT_OURS;
	if (ip->protocol != IPPROTO_TCP || ip->ihl != 5 ||
	    (ip->frag_off & bpf_htons(0x1fff)) ||
	    ip->saddr != t->key.service.addr[3])
		return GW_REASON_NOT_OURS;
	gw_map_v4(t->key.client.addr, ip->daddr);
	return gw_told_back(ports, t);
}

static __always_inline int gw_told_v4(const struct iphdr *ip, const void *end,
				      struct gw_told *t)
{
	bool fragment;

	if ((const void *)(ip + 1) > end)
		return GW_REASON_TRUNCATED;
	gw_map_v4(t->key.client.addr, ip->saddr);
	gw_map_v4(t->key.service.addr, ip->daddr);
	fragment = ip->frag_off & bpf_htons(0x3fff);
	if (ip->protocol == IPPROTO_ICMP && !fragment && ip->ihl == 5)
		return gw_told_icmp((const void *)(ip + 1), end, t);
	if (ip->protocol != IPPROTO_TCP)
		return GW_REASON_NOT_OURS;
	if (fragment)
		return GW_REASON_FRAGMENT;
	if (ip->ihl != 5)
		return GW_REASON_IP_OPTIONS;
	return gw_told_tcp((const void *)(ip + 1), end, t);
}

static __always_inline int gw_told_icmp6(const __u8 *icmp, const void *end,
					 struct gw_told *t)
{
	const struct ipv6hdr *ip = (const void *)(icmp + GW_ICMP_LEN);
	const __be16 *ports = (const void *)(ip + 1);

	if ((const void *)(ports + 2) > end || icmp[0] < GW_ICMP6_UNREACHABLE ||
	    icmp[0] > GW_ICMP6_BAD_PARAMETER)
		return GW_REASON_NOT_OURS;
	if (ip->nexthdr != IPPROTO_TCP ||
	    !gw_addr_equal(ip->saddr.in6_u.u6_addr32, t->key.service.addr))
		return GW_REASON_NOT_OURS;
	__builtin_memcpy(t->key.client.addr, &ip->daddr, 16);
	return gw_told_back(ports, t);
}

static __always_inline int gw_told_v6(const struct ipv6hdr *ip, const void *end,
				      struct gw_told *t)
{
	if ((const void *)(ip + 1) > end)
		return GW_REASON_TRUNCATED;
	__builtin_memcpy(t->key.client.addr, &ip->saddr, 16);
	__builtin_memcpy(t->key.service.addr, &ip->daddr, 16);
	/* RFC 4291 section 2.5.5.2: never on the wire; here it would be IPv4 */
	if (gw_is_mapped(t->key.client.addr) ||
	    gw_is_mapped(t->key.service.addr))
		return GW_REASON_BAD_HEADER;
	switch (ip->nexthdr) {
	case IPPROTO_TCP:
		return gw_told_tcp((const void *)(ip + 1), end, t);
	case GW_ICMP6:
		return gw_told_icmp6((const void *)(ip + 1), end, t);
	case IPPROTO_FRAGMENT:
		return GW_REASON_FRAGMENT;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		return GW_REASON_IP_OPTIONS;
	}
	return GW_REASON_NOT_OURS;
}

#endif /* GW_FRAME_H */
