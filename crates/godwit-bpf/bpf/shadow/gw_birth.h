/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The birth of a twin's socket.
 *
 * Linux 6.18 knows Accurate ECN and lets a request socket say whether it was
 * negotiated (tcp_request_sock.accecn_ok). bpf_sk_assign_tcp_reqsk() leaves that
 * word as the memory was: where the kernel does not clear what it allocates
 * (init_on_alloc), a twin may take its client for one that counts congestion
 * marks in three bits of the header. It acknowledges data late then
 * (gw_ask_quick_ack), sends an option that nobody asked for, and after a
 * takeover takes every ACK of more than seven segments for a sign of
 * congestion: its window stays at some ten segments for good.
 *
 * A connection that came unread from another server (gw_newborn.h) is born in the same
 * way. DEVIATION(RFC 3168 section 6.1.1): one of those that is mended does ECN also if
 * its client does not, because what was negotiated is lost by then.
 *
 * So `born` looks at each of them before anything is sent, and `gw_mend`, a
 * congestion control that the twin has for that moment, sets it right: nothing
 * else may write there.
 */
#ifndef GW_BIRTH_H
#define GW_BIRTH_H

#include "flow/gw_flow.h"
#include "process/gw_process.h"
#include "request/gw_transfer.h"
#include "flow/gw_window.h"

/* include/net/tcp.h: all flags of RFC 3168, of which the first says that it is
 * done at all; and no threshold yet. */
#define GW_ECN_MODE_RFC3168 1
#define GW_ECN_RFC3168_ALL 0xf
#define GW_INFINITE_SSTHRESH 0x7fffffff

#define GW_SOL_TCP 6
#define GW_TCP_CONGESTION 13
#define GW_TCP_BPF_IW 1001
#define GW_CA_NAME_MAX 16

/* Named anew by each loader: the names are the whole machine's. */
const volatile char gw_mend_name[GW_CA_NAME_MAX];

/* include/net/tcp.h */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[GW_CA_NAME_MAX];
};

/* clang would choose between two places first and read then, which the verifier
 * refuses of a context. */
#define gw_read_here(value) asm volatile("" : "+r"(value))

static __always_inline void gw_key_of_socket(const struct bpf_sock_ops *ctx,
					     struct gw_flow_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	if (ctx->family == GW_AF_INET) {
		__u32 client = ctx->remote_ip4, service = ctx->local_ip4;

		gw_read_here(client);
		gw_read_here(service);
		key->client.addr[2] = bpf_htonl(0xffff);
		key->client.addr[3] = client;
		key->service.addr[2] = bpf_htonl(0xffff);
		key->service.addr[3] = service;
	} else {
		for (int i = 0; i < 4; i++) {
			__u32 client = ctx->remote_ip6[i];
			__u32 service = ctx->local_ip6[i];

			gw_read_here(client);
			gw_read_here(service);
			key->client.addr[i] = client;
			key->service.addr[i] = service;
		}
	}
	/* one is in the upper half, the other in host order */
	key->client.port = ctx->remote_port >> 16;
	key->service.port = bpf_htons(ctx->local_port);
}

/* Is this the socket of a twin that takes its client for something else? */
static __always_inline bool gw_is_misborn(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct gw_flow_key key;
	struct tcp_sock *tp;
	struct gw_flow *f;

	if (!sk)
		return false;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !(tp->ecn_flags & ~GW_ECN_RFC3168_ALL) ||
	    bpf_get_netns_cookie(ctx) != gw_netns_cookie)
		return false;
	gw_key_of_socket(ctx, &key);
	if (bpf_map_lookup_elem(&gw_newborns, &key))
		return true;
	f = bpf_map_lookup_elem(&gw_flows, &key);
	return f && (f->flags & (GW_FLOW_TWIN | GW_FLOW_CAME));
}

/* The congestion control that it was born with is begun anew. */
static __always_inline void gw_mend_birth(struct bpf_sock_ops *ctx)
{
	char name[GW_CA_NAME_MAX] = {};

	if (bpf_getsockopt(ctx, GW_SOL_TCP, GW_TCP_CONGESTION, name,
			   sizeof(name)) ||
	    bpf_setsockopt(ctx, GW_SOL_TCP, GW_TCP_CONGESTION,
			   (void *)gw_mend_name, sizeof(gw_mend_name)) ||
	    bpf_setsockopt(ctx, GW_SOL_TCP, GW_TCP_CONGESTION, name,
			   sizeof(name)))
		gw_count(GW_REASON_TWIN_MISBORN);
	else
		gw_count(GW_REASON_TWIN_MENDED);
}

/* A connection that came with a request goes on with the window that it had. */
static __always_inline void gw_keep_window(struct bpf_sock_ops *ctx)
{
	struct gw_flow_key key;
	struct gw_transfer *t;
	__u32 window;

	if (bpf_get_netns_cookie(ctx) != gw_netns_cookie)
		return;
	gw_key_of_socket(ctx, &key);
	t = bpf_map_lookup_elem(&gw_transfers, &key);
	if (!t || t->state != GW_TRANSFER_HERE || !t->window)
		return;
	window = t->window;
	t->window = 0;
	if (!bpf_setsockopt(ctx, GW_SOL_TCP, GW_TCP_BPF_IW, &window,
			    sizeof(window)))
		gw_count(GW_REASON_WINDOW_KEPT);
}

#endif /* GW_BIRTH_H */
