/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The head of an HTTP/1.x message (RFC 9112), read byte by byte: as much as is needed
 * to know where the message ends and what a rule asks for. Whatever is not exactly as
 * the grammar has it makes the head a bad one: who reads it differently from the server
 * must not act on it (RFC 9112 section 11.2).
 */
#ifndef GW_HTTP_H
#define GW_HTTP_H

#include "net/gw_packet.h"

/* Longest head that is read; a power of two. */
#define GW_HTTP_MAX 2048
#define GW_FNV_BASIS 0xcbf29ce484222325ull
#define GW_FNV_PRIME 0x100000001b3ull

/* Up to eight characters, as gw_http.first and .last have them. */
#define GW_CHARS(a, b, c, d, e, f, g, h)                          \
	((__u64)(a) << 56 | (__u64)(b) << 48 | (__u64)(c) << 40 | \
	 (__u64)(d) << 32 | (__u64)(e) << 24 | (__u64)(f) << 16 | \
	 (__u64)(g) << 8 | (h))

enum gw_http_at {
	GW_HTTP_START = 0, /* in the first line */
	GW_HTTP_NAME = 1, /* of a field */
	GW_HTTP_VALUE = 2,
	GW_HTTP_LINE_END = 3, /* LF is to come */
	GW_HTTP_HEAD_END = 4, /* the last LF is to come */
};

enum gw_http_field {
	GW_HTTP_OTHER = 0,
	GW_HTTP_CONTENT_LENGTH = 1,
	GW_HTTP_TRANSFER_ENCODING = 2,
	GW_HTTP_AUTHORIZATION = 3,
	GW_HTTP_HOST = 4,
};

enum gw_http_flags {
	GW_HTTP_BAD = 1 << 0,
	GW_HTTP_LENGTH = 1 << 1, /* `body` was said */
	GW_HTTP_CHUNKED = 1 << 2,
	GW_HTTP_ENCODED =
		1 << 3, /* in a way of which only the server knows the end */
	GW_HTTP_BOUND = 1 << 4, /* what it proves holds for its connection */
	GW_HTTP_EXPECT = 1 << 5, /* it waits for a word before its body */
	GW_HTTP_HAS_HOST = 1 << 6,
};

struct gw_http {
	__u64 body; /* Content-Length */
	__u64 path; /* FNV-1a of the target's path */
	__u64 host; /* of the host's name in lower case; 0: none */
	__u64 first; /* of the word at hand: its first eight characters, */
	__u64 last; /* and its last eight, in lower case */
	__u64 method; /* first word of the first line: first eight, likewise */
	__u64 version; /* its last word, if that has eight */
	__u32 word; /* length of that word */
	__u32 len; /* bytes that are here */
	__u32 head; /* length of the head, empty line included; 0: not whole */
	__u32 path_at;
	__u32 path_end;
	__u32 suffix_at; /* behind the last dot of the path; 0: there is none */
	__u32 status; /* of a reply */
	__u32 flags; /* enum gw_http_flags */
	__u8 at; /* enum gw_http_at */
	__u8 field; /* enum gw_http_field */
	__u8 part; /* of the first line */
	__u8 query; /* 1: behind the path */
	__u32 pad;
	__u8 bytes[GW_HTTP_MAX];
};

/* Too big for the stack. One for each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct gw_http);
} gw_heads SEC(".maps");

#define GW_HEAD_REQUEST 0
#define GW_HEAD_REPLY 1

/* RFC 9112 section 2.3; any minor version is framed alike. */
static __always_inline bool gw_is_http_1(__u64 version)
{
	__u64 zero = GW_CHARS('h', 't', 't', 'p', '/', '1', '.', '0');

	return version == zero || version == zero + 1;
}

static __always_inline void gw_http_word(struct gw_http *h)
{
	h->word = 0;
	h->first = 0;
	h->last = 0;
}

static __always_inline __u8 gw_lower(__u8 c)
{
	return c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

static __always_inline void gw_http_letter(struct gw_http *h, __u8 c)
{
	c = gw_lower(c);
	if (h->word < 8)
		h->first = h->first << 8 | c;
	h->last = h->last << 8 | c;
	h->word++;
}

static __always_inline __u64 gw_fnv(__u64 hash, __u8 c)
{
	return (hash ^ c) * GW_FNV_PRIME;
}

/* A character of the path, or of a reply's status. */
static __always_inline void gw_http_path(struct gw_http *h, __u32 i, __u8 c)
{
	h->status = h->status * 10 + (c - '0');
	if (h->query)
		return;
	if (c == '?') {
		h->query = 1;
		h->path_end = i;
		return;
	}
	h->path = gw_fnv(h->path, c);
	if (c == '/')
		h->suffix_at = 0;
	else if (c == '.')
		h->suffix_at = i + 1;
}

static __always_inline void gw_http_start(struct gw_http *h, __u32 i, __u8 c)
{
	if (c == '\r') {
		h->version = h->word == 8 ? h->last : 0;
		h->at = GW_HTTP_LINE_END;
		return;
	}
	if (c < 0x20 || c == 0x7f) {
		h->flags |= GW_HTTP_BAD;
		return;
	}
	if (c != ' ') {
		gw_http_letter(h, c);
		if (h->part == 1)
			gw_http_path(h, i, c);
		return;
	}
	if (h->part == 0) {
		h->method = h->first;
		h->path_at = i + 1;
	} else if (h->part == 1 && !h->query) {
		h->path_end = i;
	}
	if (h->part < 3)
		h->part++;
	gw_http_word(h);
}

/* A second length, or a length beside a coding, is what smuggling is made of. */
static __always_inline void gw_http_named(struct gw_http *h)
{
	__u64 first = h->first, last = h->last;
	__u32 len = h->word;

	h->field = GW_HTTP_OTHER;
	if (len == 14 &&
	    first == GW_CHARS('c', 'o', 'n', 't', 'e', 'n', 't', '-') &&
	    last == GW_CHARS('t', '-', 'l', 'e', 'n', 'g', 't', 'h')) {
		h->field = GW_HTTP_CONTENT_LENGTH;
		if (h->flags &
		    (GW_HTTP_LENGTH | GW_HTTP_CHUNKED | GW_HTTP_ENCODED))
			h->flags |= GW_HTTP_BAD;
		h->flags |= GW_HTTP_LENGTH;
	} else if (len == 17 &&
		   first == GW_CHARS('t', 'r', 'a', 'n', 's', 'f', 'e', 'r')) {
		h->field = GW_HTTP_TRANSFER_ENCODING;
		if (h->flags &
		    (GW_HTTP_LENGTH | GW_HTTP_CHUNKED | GW_HTTP_ENCODED))
			h->flags |= GW_HTTP_BAD;
	} else if (len == 13 &&
		   first == GW_CHARS('a', 'u', 't', 'h', 'o', 'r', 'i', 'z')) {
		h->field = GW_HTTP_AUTHORIZATION;
	} else if (len == 4 &&
		   first == GW_CHARS(0, 0, 0, 0, 'h', 'o', 's', 't')) {
		h->field = GW_HTTP_HOST;
		if (h->flags & GW_HTTP_HAS_HOST)
			h->flags |= GW_HTTP_BAD;
		h->flags |= GW_HTTP_HAS_HOST;
		h->host = GW_FNV_BASIS;
	} else if (len == 6 &&
		   first == GW_CHARS(0, 0, 'e', 'x', 'p', 'e', 'c', 't')) {
		h->flags |= GW_HTTP_EXPECT;
	}
	gw_http_word(h);
}

static __always_inline void gw_http_name(struct gw_http *h, __u8 c)
{
	if (c == '\r' && !h->word) {
		h->at = GW_HTTP_HEAD_END;
	} else if (c == ':' && h->word) {
		gw_http_named(h);
		h->at = GW_HTTP_VALUE;
	} else if (c > 0x20 && c < 0x7f && c != ':') {
		gw_http_letter(h, c);
	} else {
		h->flags |= GW_HTTP_BAD;
	}
}

/* A value is over. */
static __always_inline void gw_http_valued(struct gw_http *h)
{
	switch (h->field) {
	case GW_HTTP_CONTENT_LENGTH:
		if (!h->word)
			h->flags |= GW_HTTP_BAD;
		break;
	case GW_HTTP_TRANSFER_ENCODING:
		h->flags |= h->word == 7 && h->last == GW_CHARS(0, 'c', 'h',
								'u', 'n', 'k',
								'e', 'd') ?
				    GW_HTTP_CHUNKED :
				    GW_HTTP_ENCODED;
		break;
	case GW_HTTP_AUTHORIZATION:
		/* RFC 4559 section 6; NTLM has never had another way */
		if (h->first >> 24 ==
			    GW_CHARS(0, 0, 0, 'n', 't', 'l', 'm', ' ') ||
		    h->first ==
			    GW_CHARS('n', 'e', 'g', 'o', 't', 'i', 'a', 't'))
			h->flags |= GW_HTTP_BOUND;
		break;
	default:
		break;
	}
	h->at = GW_HTTP_LINE_END;
}

static __always_inline void gw_http_value(struct gw_http *h, __u8 c)
{
	if (c == '\r') {
		gw_http_valued(h);
		return;
	}
	if (c == '\n' || !c) {
		h->flags |= GW_HTTP_BAD;
		return;
	}
	if (h->field == GW_HTTP_OTHER || (!h->word && (c == ' ' || c == '\t')))
		return;
	if (h->field == GW_HTTP_CONTENT_LENGTH) {
		if (c < '0' || c > '9' || h->word > 14)
			h->flags |= GW_HTTP_BAD;
		h->body = h->body * 10 + (c - '0');
	}
	/* without the port */
	if (h->field == GW_HTTP_HOST && c == ':')
		h->field = GW_HTTP_OTHER;
	if (h->field == GW_HTTP_HOST)
		h->host = gw_fnv(h->host, gw_lower(c));
	gw_http_letter(h, c);
}

/* One byte; 1 ends the walk. */
static long gw_http_step(__u32 i, struct gw_http **walk)
{
	struct gw_http *h = *walk;
	__u8 c;

	if (i >= h->len || (h->flags & GW_HTTP_BAD))
		return 1;
	c = h->bytes[i & (GW_HTTP_MAX - 1)];
	switch (h->at) {
	case GW_HTTP_START:
		gw_http_start(h, i, c);
		return 0;
	case GW_HTTP_NAME:
		gw_http_name(h, c);
		return 0;
	case GW_HTTP_VALUE:
		gw_http_value(h, c);
		return 0;
	default:
		break;
	}
	if (c != '\n') {
		h->flags |= GW_HTTP_BAD;
		return 1;
	}
	if (h->at == GW_HTTP_HEAD_END) {
		h->head = i + 1;
		return 1;
	}
	h->at = GW_HTTP_NAME;
	gw_http_word(h);
	if (h->part < 2)
		h->flags |= GW_HTTP_BAD;
	return 0;
}

/*
 * Reads the head that begins `skip` bytes into the payload. NULL: there is nothing.
 * What is beyond GW_HTTP_MAX is not seen, so the head is not whole then.
 */
static __noinline struct gw_http *gw_http_read(struct __sk_buff *skb,
					       const struct gw_pkt *p,
					       __u32 skip, __u32 which)
{
	struct gw_http *h = bpf_map_lookup_elem(&gw_heads, &which);
	__u32 len = p->len - skip;

	if (!h || skip >= p->len)
		return NULL;
	__builtin_memset(h, 0, offsetof(struct gw_http, bytes));
	h->path = GW_FNV_BASIS;
	if (len > GW_HTTP_MAX)
		len = GW_HTTP_MAX;
	if (!len ||
	    bpf_skb_load_bytes(skb, p->l4 + p->hdr_len + skip, h->bytes, len))
		return NULL;
	h->len = len;
	bpf_loop(GW_HTTP_MAX, gw_http_step, &h, 0);
	return h;
}

#endif /* GW_HTTP_H */
