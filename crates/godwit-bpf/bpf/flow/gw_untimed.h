/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flows and transfers that have no timer of their own. The kernel makes a timer with memory that
 * it has at hand, and where many connections come there is none (docs/kernel-facts.md). What
 * those wait for stands in queues, and one clock for all of them ticks while there is any:
 *
 *   ended flows       the oldest first: all wait for as long
 *   watched flows     in turn; each is looked at when it is due (gw_watchdog.h)
 *   transfers         in turn, as these (gw_transfer.h)
 */
#ifndef GW_UNTIMED_H
#define GW_UNTIMED_H

#include "base/gw_clock.h"
#include "base/gw_maps.h"

/* An ended flow stays this long, for segments that are late. */
#define GW_LINGER_NS 3000000000ull

/* With 20 000 ends a second each stays for as long; with more, for less. */
#define GW_UNTIMED_FLOWS 65536
#define GW_UNTIMED_TRANSFERS 16384

/* A busy processor ticks late, and does more at a time then. */
#define GW_TICK_NS 1000000ull
/* Of each queue as many at a tick: some hundred microseconds. */
#define GW_TICK_MOST 512

#define GW_NS_PER_MS 1000000ull

/* Small: the way to here takes most of the stack. */
struct gw_untimed {
	struct gw_flow_key key;
	__u32 irs;
	__u32 due_ms; /* by gw_now() */
};

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, GW_UNTIMED_FLOWS);
	__type(value, struct gw_untimed);
} gw_untimed_ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, GW_UNTIMED_FLOWS);
	__type(value, struct gw_untimed);
} gw_untimed_watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, GW_UNTIMED_TRANSFERS);
	__type(value, struct gw_untimed);
} gw_untimed_moved SEC(".maps");

struct gw_ticker {
	struct bpf_timer timer;
	__u32 armed; /* it ticks */
	__u32 _pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_ticker);
} gw_tickers SEC(".maps");

/* What they are looked at for; each is verified once: gw_watchdog.h, gw_transfer.h */
__noinline int gw_forget_ended(const struct gw_flow_key *key, __u32 irs);
__noinline int gw_watch_due(const struct gw_flow_key *key, __u32 irs);
__noinline int gw_transfer_due(const struct gw_flow_key *key, __u32 irs,
			       __u32 due_ms);

/* A tick's work at one queue. */
struct gw_tick {
	struct gw_untimed at;
	__u32 now_ms;
	__u32 goes_on; /* there is something to wait for */
	__u32 turned; /* since then it was once around: */
	__u32 first_irs, first_due_ms; /* the first that stays */
};

static __always_inline __u32 gw_ms(__u64 ns)
{
	return ns / GW_NS_PER_MS;
}

static __always_inline bool gw_is_due(const struct gw_tick *t)
{
	return (__s32)(t->now_ms - t->at.due_ms) >= 0;
}

static long gw_tick_ended(__u32 i, struct gw_tick *t)
{
	if (bpf_map_peek_elem(&gw_untimed_ended, &t->at))
		return 1;
	t->goes_on = 1;
	/* of a full queue another may be let out meanwhile: this one is nearly as old */
	if (!gw_is_due(t) || bpf_map_pop_elem(&gw_untimed_ended, &t->at))
		return 1;
	gw_forget_ended(&t->at.key, t->at.irs);
	return 0;
}

/* One that is not due stays. Has this tick seen it before? */
static __always_inline bool gw_is_around(struct gw_tick *t)
{
	if (t->turned)
		return t->at.irs == t->first_irs &&
		       t->at.due_ms == t->first_due_ms;
	t->turned = 1;
	t->first_irs = t->at.irs;
	t->first_due_ms = t->at.due_ms;
	return false;
}

static long gw_tick_watched(__u32 i, struct gw_tick *t)
{
	if (bpf_map_pop_elem(&gw_untimed_watched, &t->at))
		return 1;
	t->goes_on = 1;
	if (gw_is_due(t)) {
		gw_watch_due(&t->at.key, t->at.irs);
		return 0;
	}
	bpf_map_push_elem(&gw_untimed_watched, &t->at, BPF_EXIST);
	return gw_is_around(t);
}

static long gw_tick_moved(__u32 i, struct gw_tick *t)
{
	if (bpf_map_pop_elem(&gw_untimed_moved, &t->at))
		return 1;
	t->goes_on = 1;
	if (gw_is_due(t)) {
		gw_transfer_due(&t->at.key, t->at.irs, t->at.due_ms);
		return 0;
	}
	bpf_map_push_elem(&gw_untimed_moved, &t->at, BPF_EXIST);
	return gw_is_around(t);
}

static __always_inline bool gw_is_anything_untimed(struct gw_untimed *at)
{
	return !bpf_map_peek_elem(&gw_untimed_ended, at) ||
	       !bpf_map_peek_elem(&gw_untimed_watched, at) ||
	       !bpf_map_peek_elem(&gw_untimed_moved, at);
}

static int gw_tick(void *map, __u32 *place, struct gw_ticker *ticker)
{
	struct gw_tick t = { .now_ms = gw_ms(gw_now()) };

	bpf_loop(GW_TICK_MOST, gw_tick_ended, &t, 0);
	bpf_loop(GW_TICK_MOST, gw_tick_watched, &t, 0);
	t.turned = 0;
	bpf_loop(GW_TICK_MOST, gw_tick_moved, &t, 0);
	if (!t.goes_on) {
		__sync_lock_test_and_set(&ticker->armed, 0);
		/* who queues one from here on finds the clock at rest */
		if (!gw_is_anything_untimed(&t.at) ||
		    __sync_lock_test_and_set(&ticker->armed, 1))
			return 0;
	}
	if (bpf_timer_start(&ticker->timer, GW_TICK_NS, 0))
		__sync_lock_test_and_set(&ticker->armed, 0);
	return 0;
}

/*
 * The agent starts it once, so that its own timer is there (godwit-bpf, datapath.rs). 0 if it
 * ticks. Verified once.
 */
__noinline int gw_start_ticking(void)
{
	struct gw_ticker *ticker;
	__u32 place = 0;

	ticker = bpf_map_lookup_elem(&gw_tickers, &place);
	if (!ticker)
		return -1;
	if (__sync_lock_test_and_set(&ticker->armed, 1))
		return 0;
	/* it may be there, and be an earlier data path's */
	bpf_timer_init(&ticker->timer, &gw_tickers, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&ticker->timer, gw_tick);
	if (!bpf_timer_start(&ticker->timer, GW_TICK_NS, 0))
		return 0;
	__sync_lock_test_and_set(&ticker->armed, 0);
	return -1;
}

/* It is forgotten in GW_LINGER_NS; if too many wait, the oldest is left to the agent's sweep. */
__noinline int gw_end_untimed(const struct gw_flow_key *key, __u32 irs)
{
	struct gw_untimed at;

	if (!key)
		return -1;
	gw_count(GW_REASON_TIMER_FAILED);
	at.key = *key;
	at.irs = irs;
	at.due_ms = gw_ms(gw_now() + GW_LINGER_NS);
	return bpf_map_push_elem(&gw_untimed_ended, &at, BPF_EXIST);
}

/* It is looked at in `ms`; 0 unless too many wait. */
__noinline int gw_watch_untimed(const struct gw_flow_key *key, __u32 irs,
				__u32 ms)
{
	struct gw_untimed at;

	if (!key)
		return -1;
	gw_count(GW_REASON_TIMER_FAILED);
	at.key = *key;
	at.irs = irs;
	at.due_ms = gw_ms(gw_now()) + ms;
	return bpf_map_push_elem(&gw_untimed_watched, &at, 0);
}

/* As gw_watch_untimed(), at `due_ms`. */
static __always_inline int gw_move_untimed(const struct gw_flow_key *key,
					   __u32 irs, __u32 due_ms)
{
	struct gw_untimed at;

	at.key = *key;
	at.irs = irs;
	at.due_ms = due_ms;
	return bpf_map_push_elem(&gw_untimed_moved, &at, 0);
}

#endif /* GW_UNTIMED_H */
