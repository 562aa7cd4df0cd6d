/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A connection has gone from one back-end to another by itself. The first one forwards
 * its segments, and says so, about once a millisecond (gw_handoff.h): from then on they go
 * straight to where it is. What is lost of that is said again, as long as segments are
 * forwarded. Where servers stand by for each other it says whose share it is in, and who
 * begins one in another's share says so, too (gw_ward.h).
 */
#ifndef GW_LEARN_H
#define GW_LEARN_H

#include "net/gw_note.h"
#include "director/gw_place.h"

/* The number of the back-end with that address, if it is there; or -1. */
static __always_inline int gw_station_of(const __u8 *mac)
{
	struct gw_station station = {};
	const struct gw_backend *b;
	__u32 *number;

	__builtin_memcpy(station.mac, mac, 6);
	number = bpf_map_lookup_elem(&gw_stations, &station);
	if (!number)
		return -1;
	b = gw_backend_of(*number);
	return b && gw_mac_equal(b->mac, mac) ? (int)*number : -1;
}

/* Is the note of the back-end whose address it has? enum gw_belief, or the reason why not. */
static __noinline int gw_check_note(const struct ethhdr *eth, const void *end)
{
	const struct gw_tagged_note *n = (const void *)(eth + 1);
	struct gw_claim c = {
		.raw = (const __be32 *)n,
		.count = GW_LEARN_WORDS,
		.kind = GW_TAG_LEARN,
	};

	if ((const void *)(&n->note + 1) > end)
		return GW_REASON_LEARN_REFUSED;
	if (n->note.version != GW_NOTE_TAGGED)
		return gw_believe_bare(gw_trust_of(eth->h_source));
	if ((const void *)(n + 1) > end)
		return GW_REASON_LEARN_REFUSED;
	c.tag = bpf_be64_to_cpu(n->proof.tag);
	c.order = bpf_be64_to_cpu(n->proof.order);
	return gw_believe_words(gw_trust_of(eth->h_source), &c);
}

/* LEARNT, or why not. */
static __always_inline int gw_learn(const struct ethhdr *eth, const void *end)
{
	const struct gw_note *note = (const void *)(eth + 1);
	struct gw_flow_key key = {};
	struct gw_entry entry = {};
	struct gw_slot *slot;
	__u32 *service, index;
	int at, belief;

	if ((const void *)(note + 1) > end || note->kind != GW_NOTE_LEARN ||
	    (note->version != GW_NOTE_VERSION &&
	     note->version != GW_NOTE_TAGGED))
		return GW_REASON_LEARN_REFUSED;
	at = gw_station_of(note->at);
	if (at < 0 || gw_station_of(eth->h_source) < 0)
		return GW_REASON_LEARN_REFUSED;
	belief = gw_check_note(eth, end);
	if (belief > 0)
		return belief;
	__builtin_memcpy(key.client.addr, note->client, 16);
	__builtin_memcpy(key.service.addr, note->service, 16);
	key.client.port = note->client_port;
	key.service.port = note->service_port;
	service = bpf_map_lookup_elem(&gw_fronts, &key.service);
	if (!service || *service == GW_NO_SERVICE)
		return GW_REASON_LEARN_REFUSED;
	index = *service * gw_table_size + gw_slot_of(&key);
	slot = bpf_map_lookup_elem(&gw_slots, &index);
	entry.irs = bpf_ntohl(note->irs);
	entry.backend = at;
	if (!slot || bpf_map_update_elem(&gw_entries, &key, &entry, BPF_ANY))
		return GW_REASON_LEARN_REFUSED;
	*(volatile __u16 *)&slot->mixed = 1;
	gw_share(&key, &entry);
	return GW_REASON_LEARNT;
}

#endif /* GW_LEARN_H */
