/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a frame goes: what godwit-core's director::Slot::place and FlowHash say,
 * at the rate of packets. A test holds them against each other.
 */
#ifndef GW_PLACE_H
#define GW_PLACE_H

#include "gw_director.h"
#include "gw_frame.h"

#define GW_HASH_STEP 0x9e3779b97f4a7c15ull

static __always_inline __u64 gw_absorb(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * GW_HASH_STEP;
	return hash ^ (hash >> 32);
}

static __always_inline __u64 gw_absorb_addr(__u64 hash, const __be32 *addr)
{
	hash = gw_absorb(hash,
			 (__u64)bpf_ntohl(addr[0]) << 32 | bpf_ntohl(addr[1]));
	return gw_absorb(hash,
			 (__u64)bpf_ntohl(addr[2]) << 32 | bpf_ntohl(addr[3]));
}

static __always_inline __u32 gw_slot_of(const struct gw_flow_key *key)
{
	__u64 hash = gw_absorb_addr(gw_seed, key->client.addr);

	hash = gw_absorb_addr(hash, key->service.addr);
	hash = gw_absorb(hash, (__u32)bpf_ntohs(key->client.port) << 16 |
				       bpf_ntohs(key->service.port));
	hash = gw_absorb(hash, GW_HASH_STEP);
	return (hash >> 32) * gw_table_size >> 32;
}

static __always_inline const struct gw_backend *gw_backend_of(__u32 number)
{
	const struct gw_backend *b = bpf_map_lookup_elem(&gw_backends, &number);

	return b && b->there ? b : NULL;
}

/* Who has what it had of a service; NULL: itself. */
static __always_inline const __u32 *gw_owner_of(__u32 service, __u32 number)
{
	struct gw_post post = { .service = service, .backend = number };

	return bpf_map_lookup_elem(&gw_posts, &post);
}

/* A back-end that has connections of a service, or had them before another took over. */
static __always_inline const struct gw_backend *gw_serving(__u32 service,
							   __u32 number)
{
	const struct gw_backend *b = gw_backend_of(number);

	if (b && (b->marks & GW_BACKEND_GONE) && !gw_owner_of(service, number))
		return NULL;
	return b;
}

/* The back-end that a slot names. */
static __always_inline const struct gw_backend *gw_backend_in(__u32 service,
							      __u16 place)
{
	return place == GW_NOBODY ? NULL : gw_serving(service, place - 1);
}

/*
 * Other directors are to know of the entry of a connection, or that it has none any more:
 * user space tells them. If it has no room for that it tells of all entries later on.
 */
static __always_inline void gw_share(const struct gw_flow_key *key,
				     const struct gw_entry *entry)
{
	struct gw_exception told = {
		.key = *key,
		.irs = entry->irs,
		.backend = entry->backend,
	};

	if (gw_is_shared &&
	    bpf_ringbuf_output(&gw_exceptions, &told, sizeof(told), 0))
		gw_count(GW_REASON_NOT_SHARED);
}

/*
 * A new connection goes where the table says. What its slot would not say of it
 * later on is written down; if it can't be, it goes where the slot says.
 */
static __always_inline __u16 gw_begin(const struct gw_slot *slot,
				      const struct gw_told *t,
				      const struct gw_entry *earlier)
{
	struct gw_entry entry = { .irs = t->irs, .backend = slot->now - 1 };

	if (slot->now == GW_NOBODY || !slot->mixed)
		return slot->now;
	if (slot->now == slot->base) {
		/* of an earlier connection, or it would not have got here */
		if (earlier && !bpf_map_delete_elem(&gw_entries, &t->key)) {
			entry.backend = GW_NO_ENTRY;
			gw_share(&t->key, &entry);
		}
		return slot->now;
	}
	if (!bpf_map_update_elem(&gw_entries, &t->key, &entry, BPF_ANY)) {
		gw_share(&t->key, &entry);
		return slot->now;
	}
	gw_count(GW_REASON_ENTRY_FAILED);
	return slot->base;
}

/*
 * The back-end of a frame, its number + 1 and the reason; NULL: there is none. A number
 * that is not below GW_MAX_BACKENDS has no back-end.
 */
static __always_inline const struct gw_backend *
gw_place(const struct gw_slot *slot, const struct gw_told *t, __u32 service,
	 __u32 *place, enum gw_reason *reason)
{
	const struct gw_entry *entry = NULL;
	const struct gw_backend *b = NULL;

	if (slot->mixed)
		entry = bpf_map_lookup_elem(&gw_entries, &t->key);
	/* of a back-end that is gone it is none */
	if (entry && (!t->syn || entry->irs == t->irs)) {
		*place = entry->backend + 1;
		b = gw_serving(service, entry->backend);
	}
	if (b) {
		*reason = t->error ? GW_REASON_DIRECTED_ERROR :
				     GW_REASON_DIRECTED_ENTRY;
		return b;
	}
	if (t->syn) {
		*reason = GW_REASON_DIRECTED_NEW;
		*place = gw_begin(slot, t, entry);
		return gw_backend_in(service, *place);
	}
	*reason = slot->mixed ? GW_REASON_DIRECTED_BASE : GW_REASON_DIRECTED;
	if (t->error)
		*reason = GW_REASON_DIRECTED_ERROR;
	*place = slot->base;
	return gw_backend_in(service, slot->base);
}

/* A connection that begins at who has taken over is that one's own. */
static __always_inline void gw_note_beginning(const struct gw_told *t,
					      __u32 index, __u32 backend)
{
	struct gw_entry entry = { .irs = t->irs, .backend = backend };
	struct gw_slot *slot = bpf_map_lookup_elem(&gw_slots, &index);

	if (!slot ||
	    bpf_map_update_elem(&gw_entries, &t->key, &entry, BPF_ANY)) {
		gw_count(GW_REASON_ENTRY_FAILED);
		return;
	}
	*(volatile __u16 *)&slot->mixed = 1;
	gw_share(&t->key, &entry);
}

/* To who has what a back-end had of a service, if others stand by for it. */
static __always_inline const struct gw_backend *
gw_follow_owner(const struct gw_backend *b, const struct gw_told *t,
		__u32 service, __u32 slot, __u32 *place)
{
	const struct gw_backend *owner;
	const __u32 *number;

	if (!(b->marks & GW_BACKEND_FOLLOWED))
		return b;
	number = gw_owner_of(service, *place - 1);
	if (!number)
		return b;
	owner = gw_backend_of(*number);
	if (!owner)
		return b;
	*place = *number + 1;
	gw_count(GW_REASON_DIRECTED_OWNER);
	/* who has no share of its own any more begins in this one */
	if (t->syn && !gw_owner_of(service, *number))
		gw_note_beginning(t, service * gw_table_size + slot, *number);
	return owner;
}

#endif /* GW_PLACE_H */
