/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which server a request is best served by, as the file says ([[service.rule]]). A rule
 * names servers for the paths that begin, or end, in some way, perhaps of one host only.
 * Of those that are there the hash of the path draws one (rendezvous hashing): when one
 * comes or goes, only its own paths move.
 */
#ifndef GW_RULES_H
#define GW_RULES_H

#include "policy/gw_http.h"
#include "net/gw_tag.h"

/* Servers of a cluster that rules can name: bits of a word. */
#define GW_MAX_NODES 64
#define GW_RULE_PATH 48
#define GW_RULE_SUFFIX 12

enum gw_placing_flags {
	GW_PLACING_ON = 1 << 0, /* requests of the share have rules */
	GW_PLACING_HOSTS = 1 << 1, /* some of them are of one host */
	GW_PLACING_SUFFIXES = 1 << 2,
};

/* By share. */
struct gw_placing {
	__u32 flags; /* enum gw_placing_flags */
	__u16 node; /* number of this node */
	__u16 nodes; /* one more than the greatest number of its servers */
};

enum gw_mate_state {
	GW_MATE_CLOSED = 0, /* it may live, and is not to be asked */
	GW_MATE_OPEN = 1,
	GW_MATE_DEAD = 2, /* it is without power */
	/* as OPEN, but the link does not carry what we would send it */
	GW_MATE_UNPROVED = 3,
};

enum gw_mate_place {
	/* with a server's number: its own address, while its entry has another one's */
	GW_MATE_ITSELF = 1 << 16,
};

struct gw_mate_key {
	__u32 share;
	__u32 node; /* its number, or with enum gw_mate_place */
};

/* Another server of the share. */
struct gw_mate {
	__u8 mac[6];
	__u16 state; /* enum gw_mate_state */
};

struct gw_rule {
	__u64 nodes; /* a bit per server */
};

struct gw_prefix_key {
	__u32 prefixlen; /* in bits, of what follows */
	__u32 share;
	__u64 host; /* 0: any */
	__u8 path[GW_RULE_PATH];
} __attribute__((packed));

struct gw_suffix_key {
	__u64 host;
	__u32 share;
	__u8 suffix[GW_RULE_SUFFIX]; /* behind the dot */
};

_Static_assert(sizeof(struct gw_placing) == 8, "shared with Rust");
_Static_assert(sizeof(struct gw_mate) == 8, "shared with Rust");
_Static_assert(sizeof(struct gw_prefix_key) == 64, "shared with Rust");
_Static_assert(sizeof(struct gw_suffix_key) == 24, "shared with Rust");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_SHARES);
	__type(key, __u32);
	__type(value, struct gw_placing);
} gw_placings SEC(".maps");

/* Of each number of a node here that of its name, the same at all nodes; 0: free. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_MAX_NODES);
	__type(key, __u32);
	__type(value, __u32);
} gw_node_ids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_SHARES *GW_MAX_NODES);
	__type(key, struct gw_mate_key);
	__type(value, struct gw_mate);
} gw_mates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_MAX_NODES * 4);
	__type(key, struct gw_mate_mac);
	__type(value, __u32); /* its number */
} gw_mate_macs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct gw_prefix_key);
	__type(value, struct gw_rule);
} gw_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct gw_suffix_key);
	__type(value, struct gw_rule);
} gw_suffixes SEC(".maps");

/* The number of a node's name, as other nodes know it; 0: the slot is nobody's. */
static __always_inline __be32 gw_node_id(__u32 slot)
{
	const __u32 *id = bpf_map_lookup_elem(&gw_node_ids, &slot);

	return id ? bpf_htonl(*id) : 0;
}

struct gw_node_search {
	__be32 id;
	__u32 slot;
};

static long gw_node_step(__u32 slot, struct gw_node_search *s)
{
	if (gw_node_id(slot) != s->id)
		return 0;
	s->slot = slot;
	return 1;
}

/* How this node calls another one; GW_MAX_NODES: it does not know it. */
static __noinline __u32 gw_node_slot(__be32 id)
{
	struct gw_node_search s = { .id = id, .slot = GW_MAX_NODES };

	if (id)
		bpf_loop(GW_MAX_NODES, gw_node_step, &s, 0);
	return s.slot;
}

/* How the requests of a share are placed; NULL: they are not. */
static __always_inline const struct gw_placing *gw_placing_of(__u32 share)
{
	const struct gw_placing *pl = bpf_map_lookup_elem(&gw_placings, &share);

	return pl && (pl->flags & GW_PLACING_ON) ? pl : NULL;
}

static __always_inline bool gw_is_mate(const __u8 *mac)
{
	struct gw_mate_mac key = {};

	__builtin_memcpy(key.mac, mac, 6);
	return bpf_map_lookup_elem(&gw_mate_macs, &key);
}

/* What is looked for; too big for what stack there is. */
struct gw_sought {
	struct gw_prefix_key prefix;
	struct gw_suffix_key suffix;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_sought);
} gw_soughts SEC(".maps");

static __noinline const struct gw_rule *
gw_rule_of_host(const struct gw_http *h, __u32 share,
		const struct gw_placing *pl, __u64 host)
{
	__u32 zero = 0, at, len;
	struct gw_sought *s = bpf_map_lookup_elem(&gw_soughts, &zero);
	const struct gw_rule *rule;

	if (!s)
		return NULL;
	if ((pl->flags & GW_PLACING_SUFFIXES) && h->suffix_at) {
		at = h->suffix_at;
		len = h->path_end - at;
		/* not `len &&`: Linux 6.12 loses the bound in what clang-14
		 * makes of that */
		if (len <= GW_RULE_SUFFIX &&
		    at < GW_HTTP_MAX - GW_RULE_SUFFIX) {
			s->suffix = (struct gw_suffix_key){ .host = host,
							    .share = share };
			bpf_probe_read_kernel(s->suffix.suffix, len,
					      &h->bytes[at]);
			rule = bpf_map_lookup_elem(&gw_suffixes, &s->suffix);
			if (rule)
				return rule;
		}
	}
	at = h->path_at;
	len = h->path_end - at;
	if (len > GW_RULE_PATH)
		len = GW_RULE_PATH;
	if (at >= GW_HTTP_MAX - GW_RULE_PATH)
		return NULL;
	s->prefix.share = share;
	s->prefix.host = host;
	s->prefix.prefixlen = (offsetof(struct gw_prefix_key, path) -
			       sizeof(s->prefix.prefixlen) + len) *
			      8;
	/* what is behind it is not looked at */
	bpf_probe_read_kernel(s->prefix.path, len, &h->bytes[at]);
	return bpf_map_lookup_elem(&gw_prefixes, &s->prefix);
}

/* A rule of its host first; of those a suffix, then the longest prefix. */
static __always_inline const struct gw_rule *
gw_rule_of(const struct gw_http *h, __u32 share, const struct gw_placing *pl)
{
	const struct gw_rule *rule = NULL;

	if ((pl->flags & GW_PLACING_HOSTS) && h->host)
		rule = gw_rule_of_host(h, share, pl, h->host);
	return rule ? rule : gw_rule_of_host(h, share, pl, 0);
}

/* A server that is to have a connection. */
struct gw_target {
	__u8 mac[6];
	__u16 node;
};

struct gw_draw {
	__u64 nodes;
	__u64 hash;
	__u64 best;
	__u32 share;
	__u32 self;
	struct gw_target to; /* node GW_MAX_NODES: nobody */
};

/* What a node makes of a path: who makes most of it has it. */
static __always_inline __u64 gw_lot(__u64 path, __u32 node)
{
	__u64 lot = (path ^ (node + 1) * GW_FNV_PRIME) * GW_FNV_BASIS;

	return lot ^ lot >> 29;
}

static long gw_draw_step(__u32 node, struct gw_draw *d)
{
	struct gw_mate_key key = { .share = d->share, .node = node };
	const struct gw_mate *mate = NULL;
	__u64 lot;

	if (!(d->nodes >> (node & 63) & 1))
		return 0;
	if (node != d->self) {
		mate = bpf_map_lookup_elem(&gw_mates, &key);
		if (mate && mate->state == GW_MATE_UNPROVED)
			gw_count(GW_REASON_PATH_UNPROVED);
		if (!mate || mate->state != GW_MATE_OPEN)
			return 0;
	}
	lot = gw_lot(d->hash, node);
	if (d->to.node != GW_MAX_NODES && lot <= d->best)
		return 0;
	d->best = lot;
	d->to.node = node;
	if (mate)
		__builtin_memcpy(d->to.mac, mate->mac, 6);
	return 0;
}

/* The server of a request: 0 and who it is, or why the request stays here. */
static __noinline int gw_choose(const struct gw_http *h, __u32 share,
				const struct gw_placing *pl,
				struct gw_target *to)
{
	const struct gw_rule *rule = gw_rule_of(h, share, pl);
	struct gw_draw d = {
		.hash = h->path,
		.share = share,
		.self = pl->node,
		.to.node = GW_MAX_NODES,
	};

	if (!rule)
		return GW_REASON_KEPT_HERE;
	d.nodes = rule->nodes;
	bpf_loop(pl->nodes & 127, gw_draw_step, &d, 0);
	if (d.to.node == GW_MAX_NODES)
		return GW_REASON_KEPT_ALONE;
	if (d.to.node == pl->node)
		return GW_REASON_KEPT_HERE;
	*to = d.to;
	return 0;
}

const enum gw_placing_flags *gw_export_placing_flags __attribute__((unused));
const enum gw_mate_state *gw_export_mate_state __attribute__((unused));
const enum gw_mate_place *gw_export_mate_place __attribute__((unused));

#endif /* GW_RULES_H */
