/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The congestion window of a connection that goes with a request: what the origin's kernel
 * has found the way to take goes along in the slip, and is where the target's begins
 * (gw_birth.h), as the way is the same from there on but for its first metres.
 */
#ifndef GW_WINDOW_H
#define GW_WINDOW_H

#include "flow/gw_materialise.h"

/* include/linux/tcp.h */
struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_una;
	__u32 snd_wl1;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 lsndtime; /* when data was sent last, in jiffies */
	__u8 ecn_flags;
} __attribute__((preserve_access_index));

/* include/net/inet_connection_sock.h */
struct inet_connection_sock {
	__u32 icsk_rto; /* in jiffies */
} __attribute__((preserve_access_index));

#define GW_MAX_WINDOW 255

/*
 * Our socket's congestion window in segments; 0: not known, or it has sent nothing for
 * so long that it would begin anew itself (RFC 5681 section 4.1).
 */
static __noinline __u32 gw_own_window(struct __sk_buff *skb,
				      const struct gw_pkt *p)
{
	struct bpf_sock *sk = gw_lookup(skb, p->v6, &p->src, &p->dst);
	const struct tcp_sock *tp;
	__u32 window = 0, idle;

	if (!sk)
		return 0;
	tp = (const struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	if (tp) {
		idle = (__u32)bpf_jiffies64() - BPF_CORE_READ(tp, lsndtime);
		if (idle <=
		    BPF_CORE_READ((const struct inet_connection_sock *)tp,
				  icsk_rto))
			window = BPF_CORE_READ(tp, snd_cwnd);
	}
	bpf_sk_release(sk);
	return window > GW_MAX_WINDOW ? GW_MAX_WINDOW : window;
}

#endif /* GW_WINDOW_H */
