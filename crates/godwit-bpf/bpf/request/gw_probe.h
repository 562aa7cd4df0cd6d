/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Probes of the link: between servers under the EtherType of slips (gw_path.h), and between a
 * director and its back-ends under that of notes (gw_reach.h). A probe has a number. Its answer
 * has the same number and a tag of who answers, and counts if it is that of the last probe.
 */
#ifndef GW_PROBE_H
#define GW_PROBE_H

#include "net/gw_key.h"

/* Behind the Ethernet header; what follows fills the frame. */
struct gw_path_probe {
	__u8 kind; /* enum gw_probe_kind, or enum gw_note_kind */
	__u8 version;
	__u16 pad;
	__be32 number;
};

#define GW_PROBE_VERSION 1
/* As 1, with a tag behind the number. */
#define GW_PROBE_TAGGED 2

struct gw_tagged_probe {
	struct gw_path_probe probe;
	__be64 tag;
};

_Static_assert(sizeof(struct gw_tagged_probe) == 16, "the same at all nodes");

/* The last probe of ours that has come back, by who has sent it back. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_TRUSTED);
	__type(key, struct gw_mate_mac);
	__type(value, __u32);
} gw_paths SEC(".maps");

/* The number of the probe whose answer is waited for; the agent's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_TRUSTED);
	__type(key, struct gw_mate_mac);
	__type(value, __u32);
} gw_paths_asked SEC(".maps");

/* Is the probe of who has that address? enum gw_belief, or the reason why not. */
static __noinline int gw_check_probe(const struct gw_tagged_probe *p,
				     const struct gw_mate_mac *from)
{
	struct gw_claim c = {
		.raw = (const __be32 *)p,
		.count = 1,
		.kind = GW_TAG_PROBE,
		.tag = bpf_be64_to_cpu(p->tag),
	};
	const struct gw_trust *k = bpf_map_lookup_elem(&gw_trusts, from);

	return p->probe.version == GW_PROBE_TAGGED ? gw_believe_words(k, &c) :
						     gw_believe_bare(k);
}

/* Is it the number of the last probe to that one? It is the agent's to see then. */
static __noinline bool gw_is_last_answer(const struct gw_mate_mac *from,
					 __u32 number)
{
	const __u32 *asked = bpf_map_lookup_elem(&gw_paths_asked, from);

	if (!asked || *asked != number)
		return false;
	bpf_map_update_elem(&gw_paths, from, &number, BPF_ANY);
	return true;
}

#endif /* GW_PROBE_H */
