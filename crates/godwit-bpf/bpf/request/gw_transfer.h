/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Handoff at a request boundary (docs/design.md): a connection goes to another server
 * with its next request, in the data path alone. The request's own segment is the
 * question, with a slip behind it (gw_slip.h); the answer is the same frame, sent back.
 *
 *              origin                                     target
 *   request ─► ASKED ── segment, ASK ───────────────────► socket made of it: HERE
 *              GONE  ◄───────────── segment, ACCEPTED ───
 *              our server's socket is reset                reply to the client
 *   or
 *              HERE  ◄───────────── segment, REFUSED ──── REFUSED
 *              our server has the segment
 *
 * The question commits (docs/adr/0020): from then on only the target's answer, or that it
 * is known to be without power, gives the connection back. While it is open our server's words stay in
 * its socket. A frame that is lost is a segment that is lost: the client says it again,
 * and the same question goes out under the same number, which the target answers as
 * before. So one server answers, once.
 */
#ifndef GW_TRANSFER_H
#define GW_TRANSFER_H

#include "handoff/gw_handoff.h"
#include "policy/gw_rules.h"
#include "request/gw_talk.h"

enum gw_transfer_state {
	GW_TRANSFER_HERE = 1, /* it is ours; what counts is the number */
	GW_TRANSFER_ASKED = 2,
	GW_TRANSFER_GONE = 3,
	GW_TRANSFER_REFUSED = 4, /* it is another's, and we have refused it */
	/* we are its owner's standby (gw_ring.h): */
	GW_TRANSFER_TOLD = 5, /* that one has ASKED */
	GW_TRANSFER_TWIN = 6, /* it has come there with that number */
	/* a question is being accepted, and may yet be ruled out (gw_settle.h) */
	GW_TRANSFER_COMING = 7,
};

struct gw_transfer {
	struct bpf_timer
		timer; /* GONE, REFUSED, TOLD: removes it; ASKED: reminds */
	/* when its client was last heard here; HERE: or a director told whose it is */
	__u64 heard_ns;
	/*
	 * GONE, REFUSED: it may go when nobody was for so long; ASKED: until a reminder; HERE:
	 * until the director is told again
	 */
	__u64 idle_ns;
	__u32 irs; /* of the client */
	__u32 number; /* of the handoff at hand, or of the last one */
	/* ASKED, TOLD: where the request begins; GONE: the client's next byte */
	__u32 seq;
	__u32 refused; /* the last number that we have refused, if ... */
	struct gw_target to; /* ASKED, TOLD, GONE: who has it */
	__u32 state; /* enum gw_transfer_state */
	__u16 why; /* ... this is not 0: enum gw_reason */
	__u8 timed; /* GW_TRANSFER_TIMED */
	union {
		__u8 window; /* HERE: what its socket begins with; 0: as any other */
		__u8 owner; /* TOLD, TWIN: the number of whose twin it is, plus one */
		__u8 lapsed; /* ASKED: 1: the client's next segment decides */
	};
};

_Static_assert(sizeof(struct gw_transfer) == 64, "pinned");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_transfer);
} gw_transfers SEC(".maps");

/*
 * Connections that were passed on with their SYN (gw_steer.h), until their clients say more.
 * Anybody can send SYNs: those that are forgotten here to make room for others begin anew with
 * the next one.
 */
struct gw_passed {
	__u32 irs; /* of the client */
	__u32 at; /* when it was, in 2^30 ns */
	struct gw_target to;
};

_Static_assert(sizeof(struct gw_passed) == 16, "pinned");

/* A client says its SYN again for no longer than a minute, in such units. */
#define GW_PASSED_AGE 60

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_passed);
} gw_passed SEC(".maps");

/* A refusal is remembered for as long as a frame may be under way. */
#define GW_REFUSAL_NS 2000000000ull
/* An entry by which nobody is forwarded: its director knows better by now. */
#define GW_LEARNT_NS 20000000000ull
/* Without a director: as long as any server keeps an idle connection. */
#define GW_FORWARD_NS 3600000000000ull
/* After a FIN of its client, which may wait for the rest of a reply. */
#define GW_ENDING_NS 120000000000ull
/* After a RST of its client, as GW_LINGER_NS. */
#define GW_CLOSING_NS 5000000000ull

/* A question without an answer for so long is settled by the agents ... */
#define GW_UNANSWERED_NS 10000000ull
/* ... who are reminded, at first soon, then at most as seldom as this. */
#define GW_REMIND_NS 1000000000ull

/* The place of a request that is kept while its question is open: gw_settle.h */
static __always_inline __u32 gw_kept_place(const struct gw_flow_key *key,
					   __u32 irs)
{
	return (irs ^ (__u32)key->client.port << 16) * 0x9e3779b1u >> 22;
}

/* How long its timer waits. A standby looks whether the question is its own by now. */
static __always_inline __u64 gw_transfer_wait(const struct gw_transfer *t,
					      __u64 ns)
{
	return t->state == GW_TRANSFER_TOLD ? gw_min_ns(ns, GW_REMIND_NS) : ns;
}

/* Is something here of the connection itself? */
static __always_inline bool gw_is_here(const struct gw_flow_key *key, __u32 irs)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);

	return f && f->irs == irs;
}

/* The agent is told that a question has no answer. */
static __noinline void gw_tell_unanswered(const struct gw_flow_key *key,
					  const struct gw_transfer *t)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	struct gw_event *e;

	if (!f || f->irs != t->irs)
		return;
	e = bpf_ringbuf_reserve(&gw_events, sizeof(*e), 0);
	if (!e) {
		gw_count(GW_REASON_EVENT_LOST);
		return;
	}
	/* when it was put, or heard of here last */
	e->ns = t->heard_ns;
	e->key = *key;
	e->irs = t->irs;
	e->share = f->share;
	e->generation = t->to.node;
	e->kind = GW_EVENT_UNANSWERED;
	e->detail = t->number;
	e->place = gw_kept_place(key, t->irs);
	bpf_ringbuf_submit(e, 0);
	gw_count(GW_REASON_NO_ANSWER);
}

/*
 * Has this node got the connection with its share, while nothing is known here of its handoffs?
 * Nobody could offer it unless the last owner has accepted it.
 */
static __noinline bool gw_is_adopted(const struct gw_flow_key *key, __u32 irs)
{
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	const struct gw_share *s = f ? gw_share_at(f->share) : NULL;

	return s && s->role == GW_ROLE_OWNER && f->irs == irs &&
	       (f->flags & GW_FLOW_TWIN) && !gw_is_over(f);
}

/* Such an entry without a timer is looked at by the agent alone, now and then (sweep.rs). */
#define GW_TRANSFER_LONG_NS 10000000000ull

/* <errno.h>: it is made already */
#define GW_EBUSY 16

/* gw_transfer.timed: its timer was made; the other bits: when it is due without one. */
#define GW_TRANSFER_TIMED 1
#define GW_TRANSFER_DUE(ms) ((__u8)((ms) << 1))

static int gw_transfer_timer(void *map, struct gw_flow_key *key,
			     struct gw_transfer *t)
{
	/* a function that is verified once might write into it */
	struct gw_flow_key own = *key;

	gw_transfer_due(&own, t->irs, 0);
	return 0;
}

/*
 * An entry is looked at in `ns`: by its timer, which it gets now if it has none, or from a queue
 * (gw_untimed.h). Of two CPUs that make the timer at once one finds that it is there. Verified
 * once.
 */
__noinline int gw_transfer_time(const struct gw_flow_key *key, __u64 ns)
{
	struct gw_transfer *t;
	__u32 due_ms;
	int err;

	if (!key)
		return -1;
	t = bpf_map_lookup_elem(&gw_transfers, key);
	if (!t)
		return -1;
	if (!(t->timed & GW_TRANSFER_TIMED)) {
		err = bpf_timer_init(&t->timer, &gw_transfers, 1);
		if (!err || err == -GW_EBUSY) {
			bpf_timer_set_callback(&t->timer, gw_transfer_timer);
			t->timed = GW_TRANSFER_TIMED;
		}
	}
	if (!bpf_timer_start(&t->timer, ns, 0))
		return 0;
	/* another CPU makes it, or there is none */
	gw_count(GW_REASON_TIMER_FAILED);
	due_ms = gw_ms(gw_now() + ns);
	t->timed = GW_TRANSFER_DUE(due_ms);
	if (ns < GW_TRANSFER_LONG_NS)
		gw_move_untimed(key, t->irs, due_ms);
	gw_start_ticking();
	return 0;
}

/* What its time brings: by its timer (0), or `due_ms` if that is what it waits for. Verified once. */
__noinline int gw_transfer_due(const struct gw_flow_key *key, __u32 irs,
			       __u32 due_ms)
{
	__u64 now = gw_now(), due;
	struct gw_transfer *t;

	if (!key)
		return -1;
	t = bpf_map_lookup_elem(&gw_transfers, key);
	if (!t || t->irs != irs)
		return 0;
	if (due_ms ? t->timed != GW_TRANSFER_DUE(due_ms) :
		     !(t->timed & GW_TRANSFER_TIMED))
		return 0;
	if (t->state == GW_TRANSFER_TOLD && gw_is_adopted(key, t->irs)) {
		/* the last owner's question is ours, and its client may say no more */
		t->lapsed = 0;
		t->state = GW_TRANSFER_ASKED;
		t->idle_ns = GW_UNANSWERED_NS;
	}
	if (t->state == GW_TRANSFER_ASKED && !gw_is_here(key, t->irs)) {
		/* nothing is left to be given back: who was asked has it, or nobody */
		t->state = GW_TRANSFER_GONE;
		t->idle_ns = GW_FORWARD_NS;
	}
	if (t->state == GW_TRANSFER_ASKED) {
		/* of one that nobody remembers the client decides */
		if (!t->lapsed)
			gw_tell_unanswered(key, t);
		t->idle_ns = gw_min_ns(t->idle_ns * 2, GW_REMIND_NS);
		return gw_transfer_time(key, t->idle_ns);
	}
	if (t->state != GW_TRANSFER_GONE && t->state != GW_TRANSFER_REFUSED &&
	    t->state != GW_TRANSFER_TOLD)
		return 0;
	due = t->heard_ns + t->idle_ns;
	if (now < due)
		return gw_transfer_time(key, gw_transfer_wait(t, due - now));
	return bpf_map_delete_elem(&gw_transfers, key);
}

/* The entry goes by itself when its client has been silent for `ns`. */
static __always_inline void gw_transfer_expire(const struct gw_flow_key *key,
					       struct gw_transfer *t, __u64 ns)
{
	t->idle_ns = ns;
	gw_transfer_time(key, gw_transfer_wait(t, ns));
}

/* The entry of a connection of which there was none, or of an earlier one. */
static __noinline struct gw_transfer *
gw_transfer_begin(const struct gw_flow_key *key, __u32 irs, __u32 state)
{
	struct gw_transfer fresh = {
		.irs = irs,
		.state = state,
		.heard_ns = gw_now(),
	};

	if (bpf_map_update_elem(&gw_transfers, key, &fresh, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&gw_transfers, key);
}

/* What its client says is another server's, or was refused here. */
static __always_inline bool gw_is_elsewhere(const struct gw_transfer *t)
{
	return t->state == GW_TRANSFER_GONE || t->state == GW_TRANSFER_ASKED ||
	       t->state == GW_TRANSFER_REFUSED;
}

static __always_inline struct gw_transfer *
gw_transfer_of(const struct gw_flow_key *key, __u32 irs)
{
	struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	return t && t->irs == irs ? t : NULL;
}

/* Where it is now: another server may have taken over what that one had. */
static __always_inline void gw_find_mate(__u32 share, struct gw_target *to)
{
	struct gw_mate_key key = { .share = share, .node = to->node };
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	if (mate)
		__builtin_memcpy(to->mac, mate->mac, 6);
}

/*
 * What a director is to know of it: whose it is. It follows those who have taken over by
 * itself, and who has two servers' connections can't be told of one of them.
 */
static __always_inline void gw_lead_to(__u32 share, const struct gw_transfer *t,
				       struct gw_lead *lead)
{
	struct gw_mate_key key = {
		.share = share,
		.node = t->to.node | GW_MATE_ITSELF,
	};
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	__builtin_memcpy(lead->at, mate ? mate->mac : t->to.mac, 6);
	lead->irs = t->irs;
}

/* Is whom we have asked, or given it to, known to be without power? */
static __always_inline bool gw_is_dead(__u32 share, const struct gw_target *to)
{
	struct gw_mate_key key = { .share = share, .node = to->node };
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	return mate && mate->state == GW_MATE_DEAD;
}

/*
 * Is it not known to serve, with nobody in its place? What it had may live, but a client that
 * begins anew is not to wait for it.
 */
static __always_inline bool gw_is_lost(__u32 share, const struct gw_target *to)
{
	struct gw_mate_key key = { .share = share, .node = to->node };
	const struct gw_mate *mate = bpf_map_lookup_elem(&gw_mates, &key);

	if (mate &&
	    (mate->state == GW_MATE_OPEN || mate->state == GW_MATE_UNPROVED))
		return false;
	key.node |= GW_MATE_ITSELF;
	return !bpf_map_lookup_elem(&gw_mates, &key);
}

/* Whose twin it is, by that one's address on the link. */
static __always_inline void gw_note_owner(struct gw_transfer *t,
					  const __u8 *mac)
{
	struct gw_mate_mac key = {};
	const __u32 *node;

	__builtin_memcpy(key.mac, mac, 6);
	node = bpf_map_lookup_elem(&gw_mate_macs, &key);
	t->owner = node ? *node + 1 : 0;
}

/*
 * The question of this node is over, and its target has not accepted. Its standby may own the
 * share later and know only of the question: then it asks this node.
 */
static __always_inline void gw_note_denied(struct gw_transfer *t)
{
	t->refused = t->number;
	t->why = GW_REASON_RULED_OUT;
}

/* Is it the answer "refused" that was given to the question of that number, or got? */
static __always_inline bool gw_is_denied(const struct gw_transfer *t,
					 __u32 number)
{
	return t->why && t->refused == number;
}

/*
 * The twin of a connection ends that has been here before, and goes on at another server. By
 * its twin we knew whose its client's segments are, which a director may still send here:
 * our kernel would reset it. If this node was told of a question and not of its answer, the
 * connection has gone to whom was asked.
 */
static __always_inline bool gw_transfer_part(const struct gw_flow *f,
					     const struct gw_flow_key *key)
{
	struct gw_transfer *t = gw_transfer_of(key, f->irs);
	const struct gw_share *s = gw_share_at(f->share);

	if (!t || !s || s->role == GW_ROLE_OWNER ||
	    (f->flags & GW_FLOW_CLIENT_FIN))
		return false;
	if (t->state == GW_TRANSFER_TWIN && t->owner)
		t->to.node = t->owner - 1;
	else if (t->state != GW_TRANSFER_TOLD)
		return false;
	t->owner = 0;
	gw_find_mate(f->share, &t->to);
	t->seq = f->client.end;
	t->state = GW_TRANSFER_GONE;
	gw_transfer_expire(key, t, GW_FORWARD_NS);
	return true;
}

/* Another connection has these addresses and ports: the earlier one is over, wherever it was. */
static __noinline void gw_forget_earlier(const struct gw_flow_key *key,
					 __u32 irs)
{
	const struct gw_passed *passed = bpf_map_lookup_elem(&gw_passed, key);
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	if (passed && passed->irs != irs)
		bpf_map_delete_elem(&gw_passed, key);
	if (t && t->irs != irs)
		bpf_map_delete_elem(&gw_transfers, key);
}

/* A connection is over, or elsewhere: what was known of its requests goes. */
static __always_inline void gw_transfer_forget(const struct gw_flow_key *key,
					       __u32 irs)
{
	const struct gw_transfer *t = gw_transfer_of(key, irs);

	bpf_map_delete_elem(&gw_talks, key);
	if (t && t->state != GW_TRANSFER_GONE &&
	    t->state != GW_TRANSFER_REFUSED && t->state != GW_TRANSFER_ASKED)
		bpf_map_delete_elem(&gw_transfers, key);
}

#endif /* GW_TRANSFER_H */
