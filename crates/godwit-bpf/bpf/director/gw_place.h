/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a frame goes: what godwit-core's director::Slot::place and FlowHash say,
 * at the rate of packets. A test holds them against each other.
 */
#ifndef GW_PLACE_H
#define GW_PLACE_H

#include "director/gw_director.h"
#include "director/gw_frame.h"

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

/* What its entry says is not so any more. */
static __always_inline void gw_forget_entry(const struct gw_told *t)
{
	struct gw_entry none = { .irs = t->irs, .backend = GW_NO_ENTRY };

	if (!bpf_map_delete_elem(&gw_entries, &t->key))
		gw_share(&t->key, &none);
}

/*
 * A new connection goes where the table says. What its slot would not say of it
 * later on is written down; if it can't be, it goes where the slot says.
 */
static __always_inline __u16 gw_begin(const struct gw_slot *slot,
				      const struct gw_told *t)
{
	struct gw_entry entry = { .irs = t->irs, .backend = slot->now - 1 };

	if (slot->now == GW_NOBODY || !slot->mixed)
		return slot->now;
	if (slot->now == slot->base) {
		/* of an earlier connection, or it would not have got here */
		gw_forget_entry(t);
		return slot->now;
	}
	if (!bpf_map_update_elem(&gw_entries, &t->key, &entry, BPF_ANY)) {
		gw_share(&t->key, &entry);
		return slot->now;
	}
	gw_count(GW_REASON_ENTRY_FAILED);
	return slot->base;
}

/* Who has what that one had of a service; itself, if nobody else. */
static __always_inline const struct gw_backend *
gw_keeper_of(const struct gw_backend *b, __u32 service, __u32 *place)
{
	const struct gw_backend *owner;
	const __u32 *number;

	if (!(b->marks & GW_BACKEND_FOLLOWED))
		return b;
	number = gw_owner_of(service, *place - 1);
	owner = number ? gw_backend_of(*number) : NULL;
	if (!owner)
		return b;
	*place = *number + 1;
	return owner;
}

/*
 * A SYN with another number than the flow's entry, or of a flow without one: anybody can
 * send it, and the connection may go on. Who would have that, `b`, is to be asked, unless it
 * is who would begin a new one, or can't tell: false.
 */
static __always_inline bool gw_is_to_ask(const struct gw_slot *slot,
					 const struct gw_backend *b,
					 __u32 service, __u32 place)
{
	const struct gw_backend *keeper = gw_keeper_of(b, service, &place);
	const struct gw_backend *next = gw_backend_in(service, slot->now);

	/* a frame that has come as a note does not get into a tunnel */
	if (next && next->there == GW_THERE_FAR)
		return false;
	return place != slot->now && keeper->there == GW_THERE_ON_LINK &&
	       (keeper->marks & GW_BACKEND_TELLS);
}

/* Has it come from who would have the connection, and was asked? */
static __always_inline bool gw_was_asked(const struct gw_slot *slot,
					 const struct gw_backend *b,
					 __u32 service, __u32 place, __u32 by)
{
	if (!b || !gw_is_to_ask(slot, b, service, place))
		return false;
	gw_keeper_of(b, service, &place);
	return place == by;
}

/* The same of a SYN that is not of an entry; `b`: who the entry names, if it is there. */
static __always_inline const struct gw_backend *
gw_place_syn(const struct gw_slot *slot, const struct gw_told *t, __u32 service,
	     const struct gw_backend *b, __u32 *place, __u32 by,
	     enum gw_reason *reason)
{
	bool mixed = slot->mixed;

	if (!b && mixed) {
		*place = slot->base;
		b = gw_backend_in(service, slot->base);
	}
	if (by && (!mixed || !gw_was_asked(slot, b, service, *place, by))) {
		*reason = GW_REASON_ANSWER_STALE;
		return NULL;
	}
	if (!by && b && mixed && *place == slot->now) {
		*reason = GW_REASON_DIRECTED_NEW;
		return b;
	}
	if (!by && b && gw_is_to_ask(slot, b, service, *place)) {
		*reason = GW_REASON_DIRECTED_ASKED;
		return b;
	}
	*reason = GW_REASON_DIRECTED_NEW;
	*place = gw_begin(slot, t);
	return gw_backend_in(service, *place);
}

/*
 * The back-end of a frame, its number + 1 and the reason; NULL: there is none. A number
 * that is not below GW_MAX_BACKENDS has no back-end. `by`: the number + 1 of who says that
 * it does not know the connection of this SYN.
 */
static __always_inline const struct gw_backend *
gw_place(const struct gw_slot *slot, const struct gw_told *t, __u32 service,
	 __u32 *place, __u32 by, enum gw_reason *reason)
{
	const struct gw_entry *entry = NULL;
	const struct gw_backend *b = NULL;

	if (slot->mixed)
		entry = bpf_map_lookup_elem(&gw_entries, &t->key);
	/* of a back-end that is gone it is none */
	if (entry) {
		*place = entry->backend + 1;
		b = gw_serving(service, entry->backend);
	}
	if (b && (!t->syn || entry->irs == t->irs)) {
		*reason = t->error ? GW_REASON_DIRECTED_ERROR :
				     GW_REASON_DIRECTED_ENTRY;
		return b;
	}
	if (t->syn && entry && !b)
		gw_forget_entry(t);
	if (t->syn)
		return gw_place_syn(slot, t, service, b, place, by, reason);
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
gw_follow_owner(const struct gw_backend *b, const struct gw_told *t, bool asked,
		__u32 service, __u32 slot, __u32 *place)
{
	__u32 named = *place;
	const struct gw_backend *owner = gw_keeper_of(b, service, place);

	if (*place == named)
		return b;
	gw_count(GW_REASON_DIRECTED_OWNER);
	/* who has no share of its own any more begins in this one */
	if (t->syn && !asked && !gw_owner_of(service, *place - 1))
		gw_note_beginning(t, service * gw_table_size + slot,
				  *place - 1);
	return owner;
}

#endif /* GW_PLACE_H */
