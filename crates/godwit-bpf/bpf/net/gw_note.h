/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the data paths of Godwit say to each other on the link, in frames of their own.
 *
 * A note is written over a client's segment, whose checksum a device may still fill in
 * (CHECKSUM_PARTIAL): what lies there is not used. The longest such segment header, with
 * IPv6, is shorter than a note.
 */
#ifndef GW_NOTE_H
#define GW_NOTE_H

#include "net/gw_key.h"

/* IEEE Std 802: for local experiments. Network byte order follows from bpf_htons. */
#define GW_ETH_P_NOTE 0x88b5
#define GW_NOTE_VERSION 1
/* As 1, with its order and a tag behind it. */
#define GW_NOTE_TAGGED 2

enum gw_note_kind {
	GW_NOTE_LEARN = 1, /* to a director: the connection is `at`'s now */
	GW_NOTE_LOAD = 2, /* to another server: how loaded the sender is */
	/* of a director: do notes arrive? And the answer (gw_reach.h) */
	GW_NOTE_ASK = 3,
	GW_NOTE_ANSWER = 4,
};

/* Behind the Ethernet header; addresses and ports in network byte order. */
struct gw_note {
	__u8 kind; /* enum gw_note_kind */
	__u8 version;
	__u8 at[6]; /* MAC address of a back-end */
	__be32 irs; /* of the client */
	__u32 pad;
	__be32 client[4];
	__be16 client_port;
	__be16 service_port;
	__u32 checksum_v4; /* a TCP checksum over IPv4 would be here */
	__be32 service[4];
	__u64 checksum_v6; /* and one over IPv6 */
};

/* LOAD, from an agent. */
struct gw_load_note {
	__u8 kind;
	__u8 version;
	__u8 load; /* percent */
	__u8 pad[5];
	struct gw_endpoint service; /* that it is about */
};

/* Behind a note: it counts once (gw_is_next), and is its sender's. */
struct gw_note_proof {
	__be64 order; /* grows as long as the sender's machine runs */
	__be64 tag; /* over all before it */
};

/* A LOAD with a tag. */
struct gw_tagged_load {
	struct gw_load_note note;
	__u32 pad;
	struct gw_note_proof proof;
};

/* A LEARN with a tag. */
struct gw_tagged_note {
	struct gw_note note;
	struct gw_note_proof proof;
};

#define GW_QUERY_MAGIC 0x67776173 /* "gwas" */

/* Behind the packet of a question about a SYN, and of the answer (gw_asked.h). */
struct gw_query_proof {
	__be32 magic;
	__be32 time; /* of the director that asks; an answer repeats it */
	__be64 tag;
};

_Static_assert(sizeof(struct gw_load_note) == 28, "the same at all nodes");
_Static_assert(sizeof(struct gw_tagged_load) == 48, "the same at all nodes");
_Static_assert(sizeof(struct gw_tagged_note) == 80, "the same at all nodes");
_Static_assert(sizeof(struct gw_query_proof) == 16, "the same at all nodes");
_Static_assert(sizeof(struct gw_note) == 64, "the same at all nodes");
_Static_assert(__builtin_offsetof(struct gw_note, checksum_v4) == 20 + 16, "");
_Static_assert(__builtin_offsetof(struct gw_note, checksum_v6) == 40 + 16, "");

/* Words that the tags of notes are over, without the kind. */
#define GW_LOAD_WORDS 5
#define GW_LEARN_WORDS GW_TAG_WORDS
#define GW_QUERY_WORDS 6

/* What a question, or its answer, is over. */
struct gw_query {
	__be32 time; /* of the director that asks */
	__be32 seq; /* of the SYN */
	__u32 pad;
	__be16 client_port;
	__be16 service_port;
	__be32 client[4];
	__be32 service[4];
};

_Static_assert(sizeof(struct gw_query) == 8 * GW_QUERY_WORDS, "");
_Static_assert(sizeof(struct gw_tagged_load) == 8 * (GW_LOAD_WORDS + 1), "");
_Static_assert(sizeof(struct gw_tagged_note) == 8 * (GW_LEARN_WORDS + 1), "");

static __always_inline void gw_fill_query(struct gw_query *q,
					  const struct gw_flow_key *key,
					  __u32 seq, __be32 time)
{
	q->time = time;
	q->seq = bpf_htonl(seq);
	q->client_port = key->client.port;
	q->service_port = key->service.port;
	__builtin_memcpy(q->client, key->client.addr, 16);
	__builtin_memcpy(q->service, key->service.addr, 16);
}

#endif /* GW_NOTE_H */
