/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where requests begin and replies end on a connection of HTTP/1.x (RFC 9112), as far
 * as can be told without a doubt. Between the two lies the boundary at which another
 * server may have the connection: the client has all of the last reply, and all of the
 * next request is in the segment at hand.
 *
 *   QUIET    all requests so far are answered; `reply` is where the last reply ends
 *   AWAITED  a request is with the server; its reply begins at `reply`
 *   CHUNKED  the reply has begun, and its next chunk is at `reply`
 *   STAYS    it can't be told, or must not be: the connection stays where it is
 *
 * Nothing here acts: who can't be followed stays, with a reason.
 */
#ifndef GW_TALK_H
#define GW_TALK_H

#include "flow/gw_flow.h"
#include "policy/gw_http.h"

enum gw_talk_state {
	GW_TALK_QUIET = 0,
	GW_TALK_AWAITED = 1,
	GW_TALK_CHUNKED = 2,
	GW_TALK_STAYS = 3,
};

struct gw_talk {
	__u32 irs; /* of the client */
	__u32 next; /* where the client's next request begins */
	__u32 reply;
	__u8 state; /* enum gw_talk_state */
	__u8 head; /* 1: the reply to a HEAD, which has no body */
	__u16 pad;
};

_Static_assert(sizeof(struct gw_talk) == 16, "pinned");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct gw_flow_key);
	__type(value, struct gw_talk);
} gw_talks SEC(".maps");

/* Most chunks of a reply in what a kernel sends at once. */
#define GW_MAX_CHUNKS 64
/* Longest line that says how long a chunk is: eight digits. */
#define GW_CHUNK_LINE 10

static __always_inline struct gw_talk *gw_talk_of(const struct gw_flow_key *key,
						  const struct gw_flow *f)
{
	struct gw_talk *t = bpf_map_lookup_elem(&gw_talks, key);

	return t && t->irs == f->irs ? t : NULL;
}

/* What is known of a connection on which nobody has said anything. */
static __always_inline struct gw_talk *
gw_talk_begin(const struct gw_flow_key *key, const struct gw_flow *f)
{
	struct gw_talk fresh = {
		.irs = f->irs,
		.next = f->irs + 1,
		.reply = f->iss + 1,
	};

	if (f->client.end != f->irs + 1 || f->own.snd_nxt != f->iss + 1 ||
	    bpf_map_update_elem(&gw_talks, key, &fresh, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&gw_talks, key);
}

/* It can't be followed any more: 0, and counted why. */
static __always_inline int gw_talk_stays(struct gw_talk *t,
					 enum gw_reason reason)
{
	t->state = GW_TALK_STAYS;
	gw_count(reason);
	return 0;
}

/* A request that has come with this segment, whatever becomes of it. */
static __always_inline void
gw_talk_asked(struct gw_talk *t, const struct gw_flow *f, __u32 next, bool head)
{
	t->next = next;
	t->reply = f->own.snd_nxt;
	t->head = head;
	t->state = GW_TALK_AWAITED;
}

/* As if the request at a boundary had not been seen: it will be once more. */
static __always_inline void gw_talk_unasked(struct gw_talk *t, __u32 seq)
{
	t->next = seq;
	t->state = GW_TALK_QUIET;
}

static __always_inline bool gw_is_request(const struct gw_http *h)
{
	return !(h->flags & GW_HTTP_BAD) && h->part == 2 && h->head &&
	       h->path_end > h->path_at && gw_is_http_1(h->version);
}

/* Is it one of a kind that only this server can go on with? */
static __always_inline int gw_bound_reason(const struct gw_http *h)
{
	if (h->flags & GW_HTTP_BOUND)
		return GW_REASON_STAYS_BOUND;
	/* a tunnel is no HTTP from then on */
	if (h->method == GW_CHARS(0, 'c', 'o', 'n', 'n', 'e', 'c', 't'))
		return GW_REASON_STAYS_NOT_HTTP;
	if (h->flags & (GW_HTTP_CHUNKED | GW_HTTP_ENCODED))
		return GW_REASON_STAYS_BODY;
	return 0;
}

/*
 * Has the client, with this segment, asked for something that any server may answer?
 * The request's head is read then. NULL: it goes to our server, whatever it is.
 */
static __noinline struct gw_http *gw_talk_request(struct __sk_buff *skb,
						  const struct gw_pkt *p,
						  const struct gw_flow *f,
						  struct gw_talk *t)
{
	const __u8 plain = GW_TCP_ACK | GW_TCP_PSH;
	bool boundary, head;
	struct gw_http *h;
	__u64 whole;
	int why;

	if (t->state == GW_TALK_STAYS || !p->len ||
	    gw_before(gw_seg_end(p), f->client.end))
		return NULL;
	if (p->seq != t->next) {
		/* what a request is made of; or its beginning has not come */
		if (gw_after(gw_seg_end(p), t->next))
			gw_talk_stays(t, GW_REASON_STAYS_GAP);
		return NULL;
	}
	if (t->state != GW_TALK_QUIET) {
		gw_talk_stays(t, GW_REASON_STAYS_PIPELINED);
		return NULL;
	}
	h = gw_http_read(skb, p, 0, GW_HEAD_REQUEST);
	if (!h || !gw_is_request(h)) {
		gw_talk_stays(t, !h || (h->flags & GW_HTTP_BAD) || h->head ?
					 GW_REASON_STAYS_NOT_HTTP :
					 GW_REASON_STAYS_SPANS);
		return NULL;
	}
	why = gw_bound_reason(h);
	whole = h->head + h->body;
	if (!why && whole < p->len)
		why = GW_REASON_STAYS_PIPELINED;
	if (!why && whole > 1u << 30)
		why = GW_REASON_STAYS_BODY;
	if (why) {
		gw_talk_stays(t, why);
		return NULL;
	}
	boundary = p->ack == t->reply && f->own.snd_nxt == t->reply &&
		   f->own.ack == p->seq && f->client.end == p->seq &&
		   (p->flags | plain) == plain &&
		   !(f->flags & (GW_FLOW_OWN_FIN | GW_FLOW_CLIENT_FIN));
	head = h->method == GW_CHARS(0, 0, 0, 0, 'h', 'e', 'a', 'd');
	gw_talk_asked(t, f, p->seq + whole, head);
	if (whole > p->len || (h->flags & GW_HTTP_EXPECT)) {
		gw_count(GW_REASON_KEPT_BODY);
		return NULL;
	}
	if (!boundary) {
		gw_count(GW_REASON_KEPT_BUSY);
		return NULL;
	}
	return h;
}

struct gw_chunks {
	struct __sk_buff *skb;
	struct gw_talk *talk;
	__u32 seq; /* of the first byte of the payload */
	__u32 at; /* its offset in the frame */
	__u32 len;
	__u32 reason; /* not 0: it can't be followed */
};

/* Bytes of a chunk by its first line, line included; 0: it can't be told. */
static __always_inline __u32 gw_chunk_len(const __u8 *line, bool *last)
{
	__u32 len = 0, digits = 0;

	for (int i = 0; i < GW_CHUNK_LINE; i++) {
		__u8 c = gw_lower(line[i]);

		if (c >= '0' && c <= '9') {
			len = len << 4 | (c - '0');
		} else if (c >= 'a' && c <= 'f') {
			len = len << 4 | (c - 'a' + 10);
		} else if (c == '\r' && digits && digits < 8) {
			*last = !len;
			return len + digits + 4;
		} else {
			return 0;
		}
		digits++;
	}
	return 0;
}

/* The next chunk, if its line is in the segment; 1 ends the walk. */
static long gw_chunk_step(__u32 n, struct gw_chunks *c)
{
	__u32 skip = c->talk->reply - c->seq, len;
	__u8 line[GW_CHUNK_LINE] = {};
	bool last = false;

	if (skip >= c->len)
		return 1;
	len = c->len - skip;
	if (len > GW_CHUNK_LINE)
		len = GW_CHUNK_LINE;
	if (len < 3 || bpf_skb_load_bytes(c->skb, c->at + skip, line, len)) {
		c->reason = GW_REASON_STAYS_REPLY;
		return 1;
	}
	len = gw_chunk_len(line, &last);
	/* behind the last chunk may be fields: it is the end if there are none */
	if (!len ||
	    (last && (len != 5 || line[3] != '\r' || line[4] != '\n'))) {
		c->reason = GW_REASON_STAYS_REPLY;
		return 1;
	}
	c->talk->reply += len;
	if (!last)
		return 0;
	c->talk->state = GW_TALK_QUIET;
	return 1;
}

/* Follows the chunks of a reply through a segment of ours. */
static __noinline int gw_talk_chunks(struct __sk_buff *skb,
				     const struct gw_pkt *p, struct gw_talk *t)
{
	struct gw_chunks c = {
		.skb = skb,
		.talk = t,
		.seq = p->seq,
		.at = p->l4 + p->hdr_len,
		.len = p->len,
	};

	if (gw_before(t->reply, p->seq))
		return gw_talk_stays(t, GW_REASON_STAYS_REPLY);
	if (bpf_loop(GW_MAX_CHUNKS, gw_chunk_step, &c, 0) >= GW_MAX_CHUNKS)
		c.reason = GW_REASON_STAYS_REPLY;
	return c.reason ? gw_talk_stays(t, c.reason) : 0;
}

/* Where a reply ends whose head is read (RFC 9112 section 6.3). */
static __always_inline int gw_talk_replied(struct gw_talk *t,
					   const struct gw_http *h, __u32 begin)
{
	bool bare = t->head || h->status == 204 || h->status == 304;

	if (!(h->flags & (GW_HTTP_LENGTH | GW_HTTP_CHUNKED)) && !bare)
		return gw_talk_stays(t, GW_REASON_STAYS_REPLY);
	t->reply = begin + h->head;
	if (!bare && (h->flags & GW_HTTP_CHUNKED)) {
		t->state = GW_TALK_CHUNKED;
		return 0;
	}
	if (!bare)
		t->reply += h->body;
	t->state = GW_TALK_QUIET;
	return 0;
}

static __always_inline bool gw_is_reply(const struct gw_http *h)
{
	return h && h->head && !(h->flags & (GW_HTTP_BAD | GW_HTTP_ENCODED)) &&
	       gw_is_http_1(h->method) && h->body < 1u << 30 &&
	       h->status >= 100 && h->status < 600;
}

/*
 * A segment of our server. One that is sent again is not read again: the place that is
 * looked for is behind it by then.
 */
static __noinline int gw_talk_reply(struct __sk_buff *skb,
				    const struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    const struct gw_flow *f)
{
	struct gw_talk *t = gw_talk_of(key, f);
	struct gw_http *h;
	__u32 skip = 0;

	if (!t || !p->len)
		return 0;
	if (t->state == GW_TALK_CHUNKED)
		return gw_talk_chunks(skb, p, t);
	if (t->state != GW_TALK_AWAITED || p->seq != t->reply)
		return 0;
	h = gw_http_read(skb, p, 0, GW_HEAD_REPLY);
	if (h && gw_is_reply(h) && h->status < 200 && h->status != 101) {
		skip = h->head;
		t->reply = p->seq + skip;
		if (skip == p->len)
			return 0;
		h = gw_http_read(skb, p, skip, GW_HEAD_REPLY);
	}
	if (!h || !gw_is_reply(h) || h->status < 200)
		return gw_talk_stays(t, GW_REASON_STAYS_REPLY);
	gw_talk_replied(t, h, p->seq + skip);
	return t->state == GW_TALK_CHUNKED ? gw_talk_chunks(skb, p, t) : 0;
}

#endif /* GW_TALK_H */
