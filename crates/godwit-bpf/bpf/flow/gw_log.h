/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The log of a flow: what its client has said since the connection, or a
 * request, began. A standby that comes later makes a twin from it (docs/design.md,
 * "Re-protection"). It is kept in the kernel, by the owner and by
 * the shadow that may become one: no agent has to live for it. A flow without
 * input has no chunk, and one with more input than its share of memory has no
 * log any more; or only the latest of it, where a twin can begin at a snapshot
 * (GW_LOG_MODE_LATEST).
 */
#ifndef GW_LOG_H
#define GW_LOG_H

#include "base/gw_seq.h"
#include "net/gw_packet.h"

/* With key and list pointers an element is just below 512 bytes. */
#define GW_LOG_CHUNK 400
/* Of all flows together, 64 MiB; a bound for what is in no flow's cap. */
#define GW_LOG_CHUNKS 131072
/* A log does not slide while a twin is being made of it, up to this size: what
 * fits into a message (MAX_INPUT_LEN in godwit-wire). No cap is above it. */
#define GW_LOG_REJOIN_MAX (512u << 10)
/* What one segment may bring or push out: a whole log, and the longest segment
 * that a kernel merges (BIG TCP, 512 KiB). */
#define GW_LOG_PIECES (2 * GW_LOG_REJOIN_MAX / GW_LOG_CHUNK + 2)
/* The number of the last chunk; behind it comes the first, 4 GiB later. */
#define GW_LOG_LAST (0xffffffffu / GW_LOG_CHUNK)
/* How much output a twin may have to repeat: half the sequence space is the
 * most that can be told apart, half of that takes seconds. */
#define GW_LOG_OUTPUT_MAX (1ull << 30)

struct gw_log_key {
	struct gw_flow_key flow;
	__u32 irs; /* a later connection of the four-tuple has its own */
	__u32 chunk;
};

struct gw_log_chunk {
	__u8 bytes[GW_LOG_CHUNK];
};

/*
 * What a segment is kept with. Not on the stack: the way to here takes most of
 * its 512 bytes; and a helper wants a constant place to write to.
 */
struct gw_log_work {
	struct gw_log_chunk piece; /* of the segment, as much as fits a chunk */
	struct gw_log_key key; /* of that chunk */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_LOG_CHUNKS);
	__type(key, struct gw_log_key);
	__type(value, struct gw_log_chunk);
} gw_log SEC(".maps");

/* Belongs to softirqs, as gw_scratch does. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_log_work);
} gw_log_scratch SEC(".maps");

struct gw_log_write {
	struct __sk_buff *skb;
	struct gw_log_work *work;
	__u32 from; /* in the packet */
	__u32 to; /* from where chunks are counted, see gw_log_place() */
	__u32 len;
};

/*
 * Where a byte of the client is in the chunks of its flow. They are counted from
 * what never moves, so two CPUs agree on it, whatever becomes of the log.
 */
static __always_inline __u32 gw_log_place(const struct gw_flow *f, __u32 seq)
{
	return seq - f->birth;
}

/* As much of the segment as goes into one chunk; 1 ends the loop. */
static long gw_log_piece(__u32 n, struct gw_log_write *w)
{
	__u32 at = w->to % GW_LOG_CHUNK, len = GW_LOG_CHUNK - at;
	struct gw_log_work *work = w->work;
	struct gw_log_chunk *chunk;
	struct bpf_dynptr room;

	if (!w->len)
		return 1;
	if (len > w->len)
		len = w->len;
	if (w->to && len > 0u - w->to) /* sequence numbers come round here */
		len = 0u - w->to;
	work->key.chunk = w->to / GW_LOG_CHUNK;
	chunk = bpf_map_lookup_elem(&gw_log, &work->key);
	if (!chunk) {
		bpf_map_update_elem(&gw_log, &work->key, &work->piece,
				    BPF_NOEXIST);
		chunk = bpf_map_lookup_elem(&gw_log, &work->key);
	}
	/* clang-14 keeps another register than the one it has compared */
	asm volatile("" : "+r"(len));
	if (!chunk || !len || len > GW_LOG_CHUNK ||
	    bpf_skb_load_bytes(w->skb, w->from, &work->piece, len))
		return 1;
	/* checked when it runs: the verifier can't add two variables */
	if (bpf_dynptr_from_mem(chunk, sizeof(*chunk), 0, &room) ||
	    bpf_dynptr_write(&room, at, &work->piece, len, 0))
		return 1;
	w->from += len;
	w->to += len;
	w->len -= len;
	return 0;
}

static long gw_log_drop(__u32 n, struct gw_log_key **key)
{
	struct gw_log_key *k = *key;

	bpf_map_delete_elem(&gw_log, k);
	k->chunk = k->chunk < GW_LOG_LAST ? k->chunk + 1 : 0;
	return 0;
}

/* Gives back the chunks from that of `from` up to that of `to`; `k` is of the flow. */
static __always_inline void
gw_log_trim(struct gw_log_key *k, const struct gw_flow *f, __u32 from, __u32 to)
{
	__u32 end = gw_log_place(f, to) / GW_LOG_CHUNK, count;

	k->chunk = gw_log_place(f, from) / GW_LOG_CHUNK;
	count = end - k->chunk;
	if (end < k->chunk)
		count += GW_LOG_LAST + 1;
	if (count)
		bpf_loop(count < GW_LOG_PIECES ? count : GW_LOG_PIECES,
			 gw_log_drop, &k, 0);
}

/* Gives the memory back and leaves `state`. */
static __noinline void gw_log_free(const struct gw_flow_key *key,
				   struct gw_flow *f, __u8 state)
{
	struct gw_log_key k = { .flow = *key, .irs = f->irs };
	__u32 base = f->log.base, top = f->log.top;

	f->log.state = state;
	f->log.is_marked = 0;
	f->log.top = base;
	if (top != base)
		gw_log_trim(&k, f, base, top + GW_LOG_CHUNK - 1);
}

static __always_inline void gw_log_begin(struct gw_flow *f, __u32 base,
					 __u32 base_ack)
{
	f->log.base = base;
	f->log.base_ack = base_ack;
	f->log.end = base;
	f->log.late = base;
	f->log.late_end = base;
	f->log.answered = base_ack;
	f->log.top = base;
	f->log.bytes_out = f->bytes_out;
	f->log.is_marked = 0;
	f->log.state = GW_LOG_KEPT;
}

static __always_inline bool gw_is_log_kept(__u8 state)
{
	return state == GW_LOG_KEPT || state == GW_LOG_BEGUN;
}

/*
 * A request may begin here. A log that is kept goes on until that is known
 * (gw_boundary.h); one that was given up begins, and may be used then.
 */
static __always_inline void gw_log_mark(const struct gw_flow_key *key,
					struct gw_flow *f,
					const struct gw_pkt *p)
{
	if (f->log.state != GW_LOG_KEPT) {
		gw_log_free(key, f, GW_LOG_NONE);
		gw_log_begin(f, p->seq, p->ack);
		f->log.state = GW_LOG_BEGUN;
	}
	f->log.mark = p->seq;
	f->log.mark_ack = p->ack;
	f->log.mark_out = f->bytes_out;
	f->log.is_marked = 1;
}

/*
 * May a request begin here? It is the next byte, the client has acknowledged
 * all that was sent, and something was sent since it last spoke; nothing waits
 * for its window. Only an owner knows what was sent.
 */
static __always_inline bool gw_is_boundary(const struct gw_pkt *p,
					   const struct gw_flow *f,
					   const struct gw_share *s)
{
	return s->log_mode == GW_LOG_MODE_REQUEST && s->role == GW_ROLE_OWNER &&
	       p->seq == f->own.ack && (p->flags & GW_TCP_ACK) &&
	       p->ack == f->own.snd_nxt && p->wnd &&
	       f->log.answered != f->own.snd_nxt;
}

/* The log now reaches from `from` to `to` as well. */
static __always_inline void gw_log_extend(struct gw_flow *f, __u32 from,
					  __u32 to)
{
	if (gw_after(from, f->log.end)) {
		bool none = f->log.late == f->log.late_end;

		f->log.late = none ? from : gw_min_seq(f->log.late, from);
		f->log.late_end = none ? to : gw_max_seq(f->log.late_end, to);
		return;
	}
	f->log.end = gw_max_seq(f->log.end, to);
	if (gw_before(f->log.end, f->log.late))
		return;
	f->log.end = gw_max_seq(f->log.end, f->log.late_end);
	f->log.late = f->log.end;
	f->log.late_end = f->log.end;
}

/* Would a second gap open? There is room for the knowledge of one. */
static __always_inline bool gw_is_log_torn(const struct gw_flow *f, __u32 from,
					   __u32 to)
{
	if (!gw_after(from, f->log.end) || f->log.late == f->log.late_end)
		return false;
	return gw_after(from, f->log.late_end) || gw_before(to, f->log.late);
}

/*
 * Does a log that was given up begin anew? A twin may begin at any later
 * snapshot: with the next byte, behind which nothing is missing.
 */
static __always_inline bool gw_log_is_due(const struct gw_pkt *p,
					  const struct gw_flow *f,
					  const struct gw_share *s)
{
	return s->log_mode == GW_LOG_MODE_LATEST &&
	       f->log.state != GW_LOG_KEPT && !gw_after(p->seq, f->own.ack);
}

static __always_inline __u32 gw_log_room(const struct gw_flow *f,
					 const struct gw_share *s)
{
	if (s->log_mode == GW_LOG_MODE_LATEST && f->phase == GW_PHASE_REJOINING)
		return GW_LOG_REJOIN_MAX;
	return s->log_cap;
}

/*
 * Makes room for the bytes from `from` to `to`: the log begins later from here
 * on. False if it can't, or only behind a gap. Each word moves forward by itself,
 * so another CPU may do the same.
 */
static __always_inline bool gw_log_slide(struct gw_log_key *k,
					 struct gw_flow *f,
					 const struct gw_share *s, __u32 from,
					 __u32 to)
{
	__u32 was = f->log.base, base = to - gw_log_room(f, s);

	if (s->log_mode != GW_LOG_MODE_LATEST ||
	    (gw_after(base, f->log.end) && gw_after(from, f->log.end)))
		return false;
	gw_advance(&f->log.end, base);
	gw_advance(&f->log.base, base);
	gw_log_trim(k, f, was, base);
	f->log.bytes_out = f->bytes_out;
	return true;
}

/*
 * Keeps the payload of a segment that was heard. What our kernel has not
 * acknowledged yet may be written again: a segment with a wrong checksum comes
 * by here too, and is sent again.
 */
static __always_inline void gw_log_keep(struct __sk_buff *skb, struct gw_pkt *p,
					const struct gw_flow_key *key,
					struct gw_flow *f,
					const struct gw_share *s)
{
	__u32 zero = 0, from, to = p->seq + p->len, base;
	struct gw_log_write w = { .skb = skb };
	struct gw_log_work *work;
	__u8 state;

	if (!s->log_cap || (f->flags & (GW_FLOW_OVER | GW_FLOW_SIGNED)))
		return;
	/* said again as ordinary data it would be another stream */
	if (p->flags & GW_TCP_URG) {
		gw_count(GW_REASON_LOG_URGENT);
		gw_log_free(key, f, GW_LOG_URGENT);
		return;
	}
	if (!p->len)
		return;
	work = bpf_map_lookup_elem(&gw_log_scratch, &zero);
	if (!work)
		return;
	if (gw_is_boundary(p, f, s))
		gw_log_mark(key, f, p);
	if (gw_log_is_due(p, f, s))
		gw_log_begin(f, f->own.ack, p->ack);
	f->log.answered = f->own.snd_nxt;
	if (!gw_is_log_kept(f->log.state))
		return;
	from = gw_max_seq(gw_max_seq(p->seq, f->own.ack), f->log.base);
	if (!gw_before(from, to) || gw_is_log_torn(f, from, to))
		return;
	work->key.flow = *key;
	work->key.irs = f->irs;
	if (to - f->log.base > gw_log_room(f, s) &&
	    !gw_log_slide(&work->key, f, s, from, to)) {
		gw_count(GW_REASON_LOG_OVER);
		gw_log_free(key, f, GW_LOG_OVER);
		return;
	}
	from = gw_max_seq(from, f->log.base);
	if (!gw_before(from, to))
		return;
	w.from = p->l4 + p->hdr_len + (from - p->seq);
	w.to = gw_log_place(f, from);
	w.len = to - from;
	w.work = work;
	gw_advance(&f->log.top, to);
	bpf_loop(GW_LOG_PIECES, gw_log_piece, &w, 0);
	/* another CPU may have given back all that was there by then; the rest
	 * is given back below */
	gw_advance(&f->log.top, to);
	if (w.len) {
		gw_count(GW_REASON_LOG_FAILED);
		gw_log_free(key, f, GW_LOG_FAILED);
		return;
	}
	gw_log_extend(f, from, to);
	/* another CPU may have let it slide since, and freed these chunks */
	base = *(volatile __u32 *)&f->log.base;
	if (gw_before(from, base))
		gw_log_trim(&work->key, f, from, base);
	/* the flow may have ended on another CPU, or its log: chunks were freed
	 * before this one was there */
	state = *(volatile __u8 *)&f->log.state;
	if (*(volatile __u32 *)&f->flags & GW_FLOW_OVER)
		state = GW_LOG_NONE;
	if (!gw_is_log_kept(state))
		gw_log_free(key, f, state);
}

static __noinline void gw_log_input(struct __sk_buff *skb, struct gw_pkt *p,
				    const struct gw_flow_key *key,
				    struct gw_flow *f, const struct gw_share *s)
{
	gw_log_keep(skb, p, key, f, s);
	/* clang-14 may leave a pointer to a stack in what is no return value;
	 * the verifier refuses that */
	asm volatile("r0 = 0" ::: "r0");
}

#endif /* GW_LOG_H */
