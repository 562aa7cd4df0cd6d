/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A TCP socket as its kernel has it: in repair mode what no socket option
 * tells, else where its application stands. And what user space shares with the
 * programs of socket.bpf.c. Names are the kernel's (struct tcp_sock).
 */
#ifndef GW_SOCKET_H
#define GW_SOCKET_H

#include "base/gw_kernel.h"

/* Level of the socket options that tell struct gw_hidden and gw_position. */
#define GW_SOL_HIDDEN 0x6777
#define GW_SO_HIDDEN 1
#define GW_SO_POSITION 2

enum gw_hidden_flags {
	GW_HIDDEN_URGENT = 1 << 0, /* a byte with the urgent flag waits */
	GW_HIDDEN_OUT_OF_ORDER = 1 << 1, /* segments wait for one before them */
	GW_HIDDEN_SIGNED = 1 << 2, /* it has keys: TCP-MD5 or TCP-AO */
	GW_HIDDEN_LAYERED = 1 << 3, /* the kernel runs a protocol on top */
	GW_HIDDEN_TAKEN = 1 << 4, /* the kernel itself uses it (sockmap) */
};

/* How it stands. ahead_ns: of the last segment's stamp against the clock. */
struct gw_hidden {
	__u64 ahead_ns;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 snd_cwnd; /* segments */
	__u32 snd_ssthresh; /* segments */
	__u32 srtt_us;
	__u32 mdev_us;
	__u32 data_segs_in;
	__u32 flags; /* enum gw_hidden_flags */
	__u32 ts_recent; /* latest TSval of the client; 0: none */
};
const struct gw_hidden *gw_export_hidden __attribute__((unused));
const enum gw_hidden_flags *gw_export_hidden_flags __attribute__((unused));
_Static_assert(sizeof(struct gw_hidden) == 56, "gw_hidden is shared");

/*
 * Where the application stands: what TCP_INFO, SIOCINQ, SIOCOUTQ and SO_COOKIE
 * tell, all of one moment. godwit-sock has the same (stream.rs).
 */
struct gw_position {
	__u64 bytes_acked;
	__u64 bytes_received;
	__u64 cookie; /* 0 if nobody has asked for it yet */
	__u32 unread; /* SIOCINQ */
	__u32 unacked; /* SIOCOUTQ */
	__u32 state;
	__u32 pad;
};
_Static_assert(sizeof(struct gw_position) == 40, "gw_position is shared");

/* What a restored socket begins with. */
struct gw_congestion {
	__u32 snd_cwnd; /* segments */
	__u32 snd_ssthresh; /* segments */
	__u32 ecn; /* whether the two sides do ECN */
};
_Static_assert(sizeof(struct gw_congestion) == 12, "gw_congestion is shared");

/* include/linux/rbtree_types.h */
struct rb_root {
	void *rb_node;
} __attribute__((preserve_access_index));

#define GW_TCP_ECN_OK 1 /* include/net/tcp.h */

/* include/net/inet_connection_sock.h */
struct inet_connection_sock {
	const void *icsk_ulp_ops;
} __attribute__((preserve_access_index));

/* include/linux/tcp.h */
struct tcp_options_received {
	__u32 ts_recent;
} __attribute__((preserve_access_index));

/* include/linux/tcp.h; what is not compiled in has no field */
struct tcp_sock {
	__u64 tcp_wstamp_ns;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 srtt_us; /* eight times the time */
	__u32 mdev_us; /* four times the time */
	__u32 data_segs_in;
	__u16 urg_data;
	__u8 repair : 1;
	__u8 ecn_flags;
	struct tcp_options_received rx_opt;
	struct rb_root out_of_order_queue;
	const void *md5sig_info;
	const void *ao_info;
} __attribute__((preserve_access_index));

/* include/net/sock.h: the one of gw_kernel.h with its user */
struct sock___used {
	void *sk_user_data;
} __attribute__((preserve_access_index));

/* include/net/sock.h: what is at its beginning */
struct sock_common___told {
	unsigned long skc_flags;
	struct {
		__s64 counter;
	} skc_cookie;
} __attribute__((preserve_access_index));

/* include/net/sock.h */
enum sock_flags___told { SOCK_DONE___told = 1 };

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

static __always_inline bool gw_is_signed(const struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return true;
	return bpf_core_field_exists(tp->ao_info) && tp->ao_info;
}

static __always_inline __u32 gw_hidden_flags(const struct bpf_sock *sk,
					     const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = bpf_rdonly_cast(
		sk, bpf_core_type_id_kernel(struct inet_connection_sock));
	const struct sock___used *used =
		bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	__u32 flags = 0;

	if (tp->urg_data)
		flags |= GW_HIDDEN_URGENT;
	if (tp->out_of_order_queue.rb_node)
		flags |= GW_HIDDEN_OUT_OF_ORDER;
	if (gw_is_signed(tp))
		flags |= GW_HIDDEN_SIGNED;
	if (icsk->icsk_ulp_ops)
		flags |= GW_HIDDEN_LAYERED;
	if (used->sk_user_data)
		flags |= GW_HIDDEN_TAKEN;
	return flags;
}

static __always_inline void gw_hidden_of(const struct bpf_sock *sk,
					 const struct tcp_sock *tp,
					 struct gw_hidden *hidden)
{
	__s64 ahead = tp->tcp_wstamp_ns - bpf_ktime_get_ns();

	hidden->ahead_ns = ahead > 0 ? ahead : 0;
	hidden->copied_seq = tp->copied_seq;
	hidden->rcv_nxt = tp->rcv_nxt;
	hidden->snd_una = tp->snd_una;
	hidden->snd_nxt = tp->snd_nxt;
	hidden->write_seq = tp->write_seq;
	hidden->snd_cwnd = tp->snd_cwnd;
	hidden->snd_ssthresh = tp->snd_ssthresh;
	hidden->srtt_us = tp->srtt_us >> 3;
	hidden->mdev_us = tp->mdev_us >> 2;
	hidden->data_segs_in = tp->data_segs_in;
	hidden->flags = gw_hidden_flags(sk, tp);
	hidden->ts_recent = tp->rx_opt.ts_recent;
}

/* As tcp_inq() counts: a FIN is no byte. */
static __always_inline __u32 gw_unread(const struct sock_common___told *sk,
				       const struct tcp_sock *tp)
{
	__u32 unread = tp->rcv_nxt - tp->copied_seq;
	__u32 done =
		bpf_core_enum_value(enum sock_flags___told, SOCK_DONE___told);

	if (unread && sk->skc_flags >> done & 1)
		unread--;
	return unread;
}

/* The kernel has locked the socket: nothing comes in between. */
static __always_inline void gw_position_of(const struct bpf_sock *sk,
					   const struct tcp_sock *tp,
					   struct gw_position *position)
{
	const struct sock_common___told *common = bpf_rdonly_cast(
		sk, bpf_core_type_id_kernel(struct sock_common___told));

	position->bytes_acked = tp->bytes_acked;
	position->bytes_received = tp->bytes_received;
	position->cookie = common->skc_cookie.counter;
	position->unread = gw_unread(common, tp);
	position->unacked = tp->write_seq - tp->snd_una;
	position->state = sk->state;
	position->pad = 0;
}

#endif /* GW_SOCKET_H */
