/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which time stamps of a client can be its own (RFC 7323). One TSval that is
 * far ahead, in a segment that TCP takes, and TCP drops all that the client says
 * (section 5): on the owner and, later, on whoever has taken over.
 */
#ifndef GW_STAMP_H
#define GW_STAMP_H

#include "base/gw_maps.h"
#include "base/gw_seq.h"

/* tcp_paws_check: reordering on the way may cost one tick. */
#define GW_PAWS_WINDOW 1
/* RFC 7323 section 5.5: then the last TSval says nothing any more. */
#define GW_PAWS_IDLE_NS (24 * 86400 * 1000000000ull)
/* A second of the fastest clock (section 5.4: a tick is 1 ms; Linux can do 1 us). */
#define GW_TS_SLACK (1u << 20)
/* How long a client that is refused is silent before it says all again: the
 * shortest retransmission timeout (RFC 6298 section 2.4; Linux: 200 ms), nearly. */
#define GW_TS_ODD_NS 190000000ull

/* tcp_paws_check: a client may say 0 in its SYN, and mean nothing by it. */
static __always_inline bool gw_is_stamp_before(__u32 recent, __u32 ts_val)
{
	return recent && (__s32)(recent - ts_val) > GW_PAWS_WINDOW;
}

/* PAWS: TCP drops it, but for RST. */
static __always_inline bool gw_is_stamp_old(const struct gw_client *c,
					    __u32 ts_val, __u64 now)
{
	return gw_is_stamp_before(c->ts_val, ts_val) &&
	       now - c->heard_ns < GW_PAWS_IDLE_NS;
}

/* One that is not old: after a long silence it may be less than the last. */
static __always_inline void gw_hear_stamp(struct gw_client *c, __u32 ts_val)
{
	if (gw_is_stamp_before(c->ts_val, ts_val))
		c->ts_val = ts_val;
	else
		gw_advance(&c->ts_val, ts_val);
}

/*
 * Is a TSval further ahead than any clock has come since the client last spoke?
 * A client whose clock did jump says it again, and is believed, if nothing was
 * heard by the old clock meanwhile.
 */
static __always_inline bool gw_is_stamp_odd(struct gw_client *c, __u32 ts_val,
					    __u64 now)
{
	__u64 idle = now - c->heard_ns;
	__u64 ahead = ts_val - c->ts_seen;
	__u32 odd = c->ts_odd;

	/* two ticks of the fastest clock each microsecond */
	if (!c->ts_seen || (__s32)ahead <= 0 ||
	    ahead <= GW_TS_SLACK + (idle >> 9))
		return false;
	if (odd && idle > GW_TS_ODD_NS && ts_val - odd <= GW_TS_SLACK)
		return false;
	c->ts_odd = ts_val;
	return true;
}

#endif /* GW_STAMP_H */
