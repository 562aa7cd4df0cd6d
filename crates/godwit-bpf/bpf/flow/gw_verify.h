/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What owner and twin have said, as numbers that can be compared. A share of
 * all output is summed up in blocks of 64 KiB of the stream. Which blocks, and
 * what of them is masked, follows from the flow and the position alone, so both
 * sides arrive at the same sums however their segments are cut.
 */
#ifndef GW_VERIFY_H
#define GW_VERIFY_H

#include "flow/gw_flow.h"

#define GW_BLOCK_SHIFT 16
#define GW_NO_BLOCK (~0u)
/* words of one helper call, a power of two */
#define GW_CHUNK_WORDS 32
/* a block holds so many chunks, and one more that is not full */
#define GW_CHUNKS 258
/*
 * A block whose predecessor was not looked at may begin within a header that
 * is masked: its first bytes are read, and not counted.
 */
#define GW_RUN_UP 256
#define GW_MIX 0x9e3779b97f4a7c15ull

struct gw_words_of_chunk {
	__u64 words[GW_CHUNK_WORDS + 1];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_words_of_chunk);
} gw_chunk SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_output);
} gw_new_output SEC(".maps");

/*
 * One byte of output: `l` says where in a line of text it stands, within a
 * header's name, its value, or neither. Returns whether it is masked.
 */
static __always_inline bool gw_read_byte(struct gw_line *l,
					 const struct gw_verify *v, __u8 byte)
{
	__u32 names = l->names, left = 0;
	bool hidden = l->hidden;

	if (byte == '\n' || byte == '\r') {
		l->names = byte == '\n' ? v->masks : 0;
		l->at = 0;
		l->hidden = 0;
		return false;
	}
	if (!names)
		return hidden;
	if (byte >= 'A' && byte <= 'Z')
		byte |= 0x20;
	for (int i = 0; i < GW_MASKS; i++) {
		const struct gw_mask *mask = &v->mask[i];

		if (!(names & (1u << i)))
			continue;
		if (l->at == mask->len && byte == ':')
			l->hidden = 1;
		else if (l->at < mask->len &&
			 mask->name[l->at & (GW_MASK_LEN - 1)] == byte)
			left |= 1u << i;
	}
	l->names = l->hidden ? 0 : left;
	l->at++;
	return hidden;
}

/* The first `count` bytes of a word, those that are masked 0. Verified once. */
__noinline __u64 gw_mask_word(struct gw_line *l, const struct gw_verify *v,
			      __u64 word, __u32 count)
{
	if (!l || !v)
		return 0;
	for (__u32 i = 0; i < 8; i++) {
		if (i >= count)
			break;
		if (gw_read_byte(l, v, word >> (i * 8)))
			word &= ~(0xffull << (i * 8));
	}
	return word;
}

static __always_inline bool gw_has_newline(__u64 word)
{
	__u64 x = word ^ 0x0a0a0a0a0a0a0a0aull;

	return (x - 0x0101010101010101ull) & ~x & 0x8080808080808080ull;
}

static __always_inline __u64 gw_add_word(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * GW_MIX;
	return sum ^ sum >> 29;
}

/* Sums up the first `count` words of a chunk. Verified once. */
__noinline int gw_sum_words(struct gw_output *o,
			    const struct gw_words_of_chunk *c,
			    const struct gw_verify *v, __u32 count)
{
	if (!o || !c || !v)
		return 0;
	for (__u32 i = 0; i < GW_CHUNK_WORDS; i++) {
		__u64 word = c->words[i];

		if (i >= count)
			break;
		if (o->line.names || o->line.hidden ||
		    (v->masks && gw_has_newline(word)))
			word = gw_mask_word(&o->line, v, word, 8);
		if (o->run_up) {
			o->run_up--;
			word = 0;
		}
		o->sum = gw_add_word(o->sum, word);
	}
	return 0;
}

/* One segment's way through one block. */
struct gw_reading {
	struct __sk_buff *skb;
	struct gw_output *o;
	const struct gw_verify *v;
	__u32 at; /* offset in the packet */
	__u32 left;
};

static long gw_read_chunk(__u32 index, struct gw_reading *r)
{
	struct gw_output *o = r->o;
	__u32 have = o->next & 7, len, count, rest, zero = 0;
	struct gw_words_of_chunk *c = bpf_map_lookup_elem(&gw_chunk, &zero);

	if (!c || !r->left)
		return 1;
	len = GW_CHUNK_WORDS * 8 - have;
	if (len > r->left)
		len = r->left;
	c->words[0] = o->tail;
	/* the compiler must not prove what the verifier can't follow */
	asm volatile("" : "+r"(len), "+r"(have));
	if (len < 1 || len > GW_CHUNK_WORDS * 8)
		return 1;
	if (bpf_skb_load_bytes(r->skb, r->at, (__u8 *)c->words + (have & 7),
			       len)) {
		o->block = GW_NO_BLOCK;
		return 1;
	}
	count = (have + len) >> 3;
	rest = (have + len) & 7;
	gw_sum_words(o, c, r->v, count);
	asm volatile("" : "+r"(count));
	if (count > GW_CHUNK_WORDS)
		return 1;
	o->tail = rest ? c->words[count] & ((1ull << rest * 8) - 1) : 0;
	o->next += len;
	r->at += len;
	r->left -= len;
	return 0;
}

/*
 * The sum up to `next`, which may end within a word and within a header. One
 * word with the position, so that a reader never sees half of it.
 */
static __always_inline __u64 gw_sum_so_far(const struct gw_output *o,
					   const struct gw_verify *v)
{
	struct gw_line line = o->line;
	__u32 rest = o->next & 7;
	__u64 sum = o->sum, word = o->tail;

	if (rest) {
		if (v->masks)
			word = gw_mask_word(&line, v, word, rest);
		if (o->run_up)
			word = 0;
		sum = gw_add_word(sum, word ^ (__u64)rest << 56);
	}
	return ((__u64)o->next << 32) | (sum * GW_MIX >> 32);
}

static __always_inline void gw_begin_block(struct gw_output *o, __u32 block,
					   const struct gw_verify *v)
{
	o->sum = block + 1;
	o->tail = 0;
	o->block = block;
	o->next = block << GW_BLOCK_SHIFT;
	o->run_up = block && v->masks ? GW_RUN_UP / 8 : 0;
	/* the stream begins with a line */
	o->line.names = block ? 0 : v->masks;
	o->line.at = 0;
	o->line.hidden = 0;
}

/* What a segment says: output from the stream offset `from` to `to`. */
struct gw_piece {
	__u32 from;
	__u32 to;
	__u32 at; /* offset of `from` in the packet */
	__u32 irs;
	__u32 share;
	__u32 pad;
};

/* The record of a flow; a new one if the block begins here, else NULL. */
static __always_inline struct gw_output *
gw_output_of(const struct gw_flow_key *key, const struct gw_piece *piece,
	     bool begins)
{
	struct gw_output *o = bpf_map_lookup_elem(&gw_outputs, key);
	__u32 zero = 0;

	if (o && o->irs == piece->irs)
		return o;
	if (!begins)
		return NULL;
	o = bpf_map_lookup_elem(&gw_new_output, &zero);
	if (!o)
		return NULL;
	o->irs = piece->irs;
	o->block = GW_NO_BLOCK;
	o->next = piece->from;
	if (bpf_map_update_elem(&gw_outputs, key, o, BPF_ANY)) {
		gw_count(GW_REASON_TABLE_FULL);
		return NULL;
	}
	return bpf_map_lookup_elem(&gw_outputs, key);
}

/* A piece that lies in one block. */
static __noinline void gw_sum_piece(struct __sk_buff *skb,
				    const struct gw_piece *piece,
				    const struct gw_flow_key *key,
				    const struct gw_verify *v)
{
	__u32 block = piece->from >> GW_BLOCK_SHIFT;
	bool begins = piece->from == block << GW_BLOCK_SHIFT;
	struct gw_output *o = gw_output_of(key, piece, begins);
	struct gw_reading r = { .skb = skb, .o = o, .v = v };

	if (!o)
		return;
	if (o->block != block) {
		/* what was said before is no beginning */
		if (!begins || (__s32)(piece->from - o->next) < 0)
			return;
		gw_begin_block(o, block, v);
	}
	if (piece->from > o->next) {
		/* we have missed something: nothing can be said of this block */
		o->block = GW_NO_BLOCK;
		return;
	}
	if (piece->to - piece->from <= o->next - piece->from)
		return;
	r.at = piece->at + (o->next - piece->from);
	r.left = piece->to - o->next;
	bpf_loop(GW_CHUNKS, gw_read_chunk, &r, 0);
	if (o->block == GW_NO_BLOCK)
		return;
	*(volatile __u64 *)&o->latest = gw_sum_so_far(o, v);
	gw_count(GW_REASON_VERIFIED);
	if (!(o->next & ((1u << GW_BLOCK_SHIFT) - 1))) {
		__u32 slot = o->blocks & (GW_OUTPUT_BLOCKS - 1);

		*(volatile __u64 *)&o->block_sums[slot] = o->latest;
		o->blocks++;
		o->block = GW_NO_BLOCK;
	}
}

/* A number that both sides get for a flow. */
static __always_inline __u64 gw_flow_number(const struct gw_flow_key *key,
					    __u32 irs)
{
	const __u32 *words = (const __u32 *)key;
	__u64 h = irs;

	for (int i = 0; i < sizeof(*key) / 4; i++) {
		h = (h ^ words[i]) * GW_MIX;
		h ^= h >> 32;
	}
	return h;
}

static __always_inline bool gw_is_chosen(const struct gw_verify *v, __u64 flow,
					 __u32 block)
{
	__u64 h = (flow ^ block) * GW_MIX;

	return v->part == ~0u || (__u32)(h >> 32) < v->part;
}

/* Sums up what of a piece is chosen. Verified once, whoever calls it. */
__noinline int gw_sum_up(struct __sk_buff *skb, const struct gw_piece *said,
			 const struct gw_flow_key *key)
{
	__u32 block, last, share;
	struct gw_piece piece;
	struct gw_verify *v;
	__u64 flow;

	if (!said || !key)
		return 0;
	piece = *said;
	share = piece.share;
	v = bpf_map_lookup_elem(&gw_verifies, &share);
	if (!v || !v->part)
		return 0;
	flow = gw_flow_number(key, piece.irs);
	block = piece.from >> GW_BLOCK_SHIFT;
	last = (piece.to - 1) >> GW_BLOCK_SHIFT;
	/* a segment is in two blocks at most; the rest of BIG TCP is let be */
	if (block != last)
		piece.to = (block + 1) << GW_BLOCK_SHIFT;
	if (gw_is_chosen(v, flow, block))
		gw_sum_piece(skb, &piece, key, v);
	if (block == last || !gw_is_chosen(v, flow, last))
		return 0;
	piece.from = last << GW_BLOCK_SHIFT;
	piece.to = said->to;
	piece.at += piece.from - said->from;
	gw_sum_piece(skb, &piece, key, v);
	return 0;
}

/* Takes down what a segment with data says. It is not changed. */
static __always_inline void gw_verify(struct __sk_buff *skb,
				      const struct gw_pkt *p,
				      const struct gw_flow_key *key,
				      const struct gw_flow *f)
{
	struct gw_piece said = {
		.from = p->seq - f->iss - 1,
		.to = p->seq - f->iss - 1 + p->len,
		.at = p->l4 + p->hdr_len,
		.irs = f->irs,
		.share = f->share,
	};

	if (p->len)
		gw_sum_up(skb, &said, key);
}

#endif /* GW_VERIFY_H */
