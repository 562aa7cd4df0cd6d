/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A frame of a director that came by way of a tunnel (gw_tunnel.h) becomes the client's
 * packet that is in it, as if it had come over the link; `tap` is next. Only from a
 * director, only with our number, only TCP, only for a service of ours: all else is left
 * alone, so that a VXLAN device may be on this machine, too. Where the file names the routers
 * that such frames come by, what comes from another station is dropped.
 */
#ifndef GW_UNTUNNEL_H
#define GW_UNTUNNEL_H

#include "flow/gw_flow.h"
#include "net/gw_packet.h"
#include "net/gw_tag.h"
#include "net/gw_tunnel.h"

/* include/uapi/linux/bpf.h, Linux 6.3: BPF_F_ADJ_ROOM_DECAP_L3_* */
#define GW_DECAP_L3_IPV4 (1ull << 7)
#define GW_DECAP_L3_IPV6 (1ull << 8)

const volatile __u32 gw_tunnel_vni;
const volatile __be32 gw_tunnel_at[4]; /* where tunnels to this node end */

/* Directors, by their addresses. Not pinned: they are in the file. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct gw_endpoint); /* with port 0 */
	__type(value, __u32);
} gw_tunnel_ends SEC(".maps");

/*
 * Routers, by their addresses on our link. Not pinned either. There is room for MAX_ROUTERS, and
 * for as many that give way to them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32);
	__type(key, struct gw_mate_mac);
	__type(value, __u32);
} gw_tunnel_routers SEC(".maps");

/* Whether frames have to come from one of them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gw_tunnel_bound SEC(".maps");

/* May a tunnel's frame come from that station? */
static __always_inline bool gw_is_way_in(const __u8 *mac)
{
	struct gw_mate_mac key = {};
	__u32 zero = 0, *bound;

	bound = bpf_map_lookup_elem(&gw_tunnel_bound, &zero);
	if (!bound || !*bound)
		return true;
	__builtin_memcpy(key.mac, mac, 6);
	return bpf_map_lookup_elem(&gw_tunnel_routers, &key);
}

/* Is it a tunnel's that ends here, from a director? The length of what is before the inner frame, or 0. */
static __always_inline __u32 gw_outer_len(struct __sk_buff *skb, __be16 proto)
{
	struct gw_endpoint from = {};
	__be32 to[4] = {};
	struct {
		struct udphdr udp;
		struct gw_vxlan vxlan;
	} head;
	__u32 len;

	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) ||
		    ip.ihl != 5 || ip.protocol != IPPROTO_UDP ||
		    (ip.frag_off & bpf_htons(0x3fff)))
			return 0;
		gw_map_v4(from.addr, ip.saddr);
		gw_map_v4(to, ip.daddr);
		len = sizeof(ip);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) ||
		    ip.nexthdr != IPPROTO_UDP)
			return 0;
		__builtin_memcpy(from.addr, &ip.saddr, 16);
		__builtin_memcpy(to, &ip.daddr, 16);
		len = sizeof(ip);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, ETH_HLEN + len, &head, sizeof(head)) ||
	    head.udp.dest != bpf_htons(GW_VXLAN_PORT) ||
	    head.vxlan.flags != bpf_htonl(GW_VXLAN_FLAGS) ||
	    bpf_ntohl(head.vxlan.vni) >> 8 != gw_tunnel_vni ||
	    to[0] != gw_tunnel_at[0] || to[1] != gw_tunnel_at[1] ||
	    to[2] != gw_tunnel_at[2] || to[3] != gw_tunnel_at[3] ||
	    !bpf_map_lookup_elem(&gw_tunnel_ends, &from))
		return 0;
	return len + sizeof(head);
}

/* Is what begins at `at` a TCP segment for a service of ours? Its EtherType, or 0. */
static __always_inline __be16 gw_inner_proto(struct __sk_buff *skb, __u32 at)
{
	struct gw_endpoint to = {};
	struct ethhdr eth;
	__be16 ports[2];
	__u32 share;

	if (bpf_skb_load_bytes(skb, at, &eth, sizeof(eth)))
		return 0;
	at += sizeof(eth);
	if (eth.h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) ||
		    ip.ihl != 5 || ip.protocol != IPPROTO_TCP)
			return 0;
		gw_map_v4(to.addr, ip.daddr);
		at += sizeof(ip);
	} else if (eth.h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) ||
		    ip.nexthdr != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(to.addr, &ip.daddr, 16);
		at += sizeof(ip);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	to.port = ports[1];
	return gw_share_of(&to, &share) ? eth.h_proto : 0;
}

static __always_inline int gw_untunnel(struct __sk_buff *skb)
{
	struct ethhdr eth;
	__u64 flags = 0;
	__be16 inner;
	__u32 len;

	if (skb->pkt_type != GW_PACKET_HOST ||
	    bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return GW_PASS;
	len = gw_outer_len(skb, eth.h_proto);
	if (!len)
		return GW_PASS;
	inner = gw_inner_proto(skb, ETH_HLEN + len);
	if (!inner)
		return GW_PASS;
	if (!gw_is_way_in(eth.h_source))
		return gw_verdict(GW_REASON_TUNNEL_FOREIGN, GW_DROP);
	if (inner != eth.h_proto)
		flags = inner == bpf_htons(ETH_P_IP) ? GW_DECAP_L3_IPV4 :
						       GW_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)(len + ETH_HLEN), BPF_ADJ_ROOM_MAC,
				flags))
		return gw_verdict(GW_REASON_TUNNEL_FAILED, GW_DROP);
	eth.h_proto = inner;
	if (bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
		return gw_verdict(GW_REASON_TUNNEL_FAILED, GW_DROP);
	gw_count(GW_REASON_UNTUNNELLED);
	return GW_PASS;
}

#endif /* GW_UNTUNNEL_H */
