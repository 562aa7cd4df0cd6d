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

#include "gw_kernel.h"
#include "gw.h"

/* IEEE Std 802: for local experiments. Network byte order follows from bpf_htons. */
#define GW_ETH_P_NOTE 0x88b5
#define GW_NOTE_VERSION 1

enum gw_note_kind {
	GW_NOTE_LEARN = 1, /* to a director: the connection is `at`'s now */
	GW_NOTE_LOAD = 2, /* to another server: how loaded the sender is */
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

_Static_assert(sizeof(struct gw_load_note) == 28, "the same at all nodes");
_Static_assert(sizeof(struct gw_note) == 64, "the same at all nodes");
_Static_assert(__builtin_offsetof(struct gw_note, checksum_v4) == 20 + 16, "");
_Static_assert(__builtin_offsetof(struct gw_note, checksum_v6) == 40 + 16, "");

#endif /* GW_NOTE_H */
