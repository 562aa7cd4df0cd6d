/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Does the link carry what servers send each other? A server's agent sends a probe of full
 * size, with the EtherType that slips have, to another one. That one's data path sends it back as
 * it is, and the first one's writes its number down for the agent (godwit-core, path.rs).
 */
#ifndef GW_PATH_H
#define GW_PATH_H

#include "gw_slip.h"

enum gw_probe_kind {
	/* no version of IP begins with these */
	GW_PROBE_ASK = 1,
	GW_PROBE_ANSWER = 2,
};

/* Behind the Ethernet header; what follows fills the frame. */
struct gw_path_probe {
	__u8 kind; /* enum gw_probe_kind */
	__u8 version;
	__u16 pad;
	__be32 number;
};

#define GW_PROBE_VERSION 1

/* The last probe of ours that has come back, by the server that has sent it back. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_NODES * 4);
	__type(key, struct gw_mate_mac);
	__type(value, __u32);
} gw_paths SEC(".maps");

/* A probe, or the answer to one of ours, from a server. */
static __noinline int gw_hear_probe(struct __sk_buff *skb,
				    const struct gw_mate_mac *from)
{
	struct gw_path_probe probe;
	__u8 self[6], to[6];
	__u32 number;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &probe, sizeof(probe)) ||
	    probe.version != GW_PROBE_VERSION)
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	if (probe.kind == GW_PROBE_ANSWER) {
		number = bpf_ntohl(probe.number);
		bpf_map_update_elem(&gw_paths, from, &number, BPF_ANY);
		return gw_verdict(GW_REASON_PATH_HEARD, GW_DROP);
	}
	if (probe.kind != GW_PROBE_ASK)
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	probe.kind = GW_PROBE_ANSWER;
	if (bpf_skb_store_bytes(skb, ETH_HLEN, &probe, sizeof(probe), 0))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	__builtin_memcpy(to, from->mac, 6);
	gw_self(self);
	gw_set_macs(skb, to, self);
	skb->mark = GW_MARK_SPOKEN;
	gw_count(GW_REASON_PATH_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* A frame of another server's with the EtherType of slips. */
static __noinline int gw_hear_server(struct __sk_buff *skb)
{
	struct gw_mate_mac from = {};
	__u8 first;

	if (bpf_skb_load_bytes(skb, ETH_ALEN, from.mac, ETH_ALEN) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &first, 1) ||
	    !bpf_map_lookup_elem(&gw_mate_macs, &from))
		return gw_verdict(GW_REASON_SLIP_REFUSED, GW_DROP);
	if (first >> 4)
		return gw_unwrap(skb, first >> 4);
	return gw_hear_probe(skb, &from);
}

#endif /* GW_PATH_H */
