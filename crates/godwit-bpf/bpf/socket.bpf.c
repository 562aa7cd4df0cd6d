// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for moving a live socket: they are loaded while an agent moves
 * connections, and see no packet.
 */
#include "handoff/gw_socket.h"

#include <bpf/bpf_tracing.h>

#define GW_LEAST_PAGE 4096

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_congestion);
} gw_congestions SEC(".maps");

/*
 * Where the application of a socket stands, for whoever has it: nothing that the
 * kernel's own answers would not tell, in one instead of four. With an urgent byte
 * under way it is left to them.
 */
static __always_inline int position(struct bpf_sockopt *ctx,
				    const struct bpf_sock *sk,
				    const struct tcp_sock *tp)
{
	struct gw_position *told = ctx->optval;

	if ((void *)(told + 1) > ctx->optval_end || tp->urg_data)
		return 1;
	gw_position_of(sk, tp, told);
	ctx->optlen = sizeof(*told);
	/* clang-14 makes one store of two, which the verifier refuses here. */
	barrier();
	ctx->retval = 0;
	return 1;
}

/*
 * Answers the options of one level, one of them for a socket in repair mode only;
 * whatever else is asked gets the kernel's own answer.
 */
SEC("cgroup/getsockopt")
int hidden(struct bpf_sockopt *ctx)
{
	struct gw_hidden *told = ctx->optval;
	struct bpf_sock *sk = ctx->sk;
	const struct tcp_sock *tp;

	if (ctx->level != GW_SOL_HIDDEN) {
		/*
		 * Of a longer value the kernel shows a program one page, and
		 * wants to hear that it was left alone (bpf docs,
		 * prog_cgroup_sockopt).
		 */
		if (ctx->optlen > GW_LEAST_PAGE)
			ctx->optlen = 0;
		return 1;
	}
	if (!sk || sk->protocol != IPPROTO_TCP)
		return 1;
	tp = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	if (ctx->optname == GW_SO_POSITION)
		return position(ctx, sk, tp);
	if (ctx->optname != GW_SO_HIDDEN ||
	    (void *)(told + 1) > ctx->optval_end)
		return 1;
	if (!BPF_CORE_READ_BITFIELD(tp, repair))
		return 1;
	gw_hidden_of(sk, tp, told);
	ctx->optlen = sizeof(*told);
	/* clang-14 makes one store of two, which the verifier refuses here. */
	barrier();
	ctx->retval = 0;
	return 1;
}

/*
 * A congestion control that a restored socket has for a moment: it takes over
 * what the former kernel had learnt, which no socket option does. The next one
 * goes on from there.
 */
SEC("struct_ops")
void BPF_PROG(gw_carry_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct gw_congestion *former;

	former = bpf_sk_storage_get(&gw_congestions, sk, NULL, 0);
	if (!former)
		return;
	tp->snd_cwnd = former->snd_cwnd;
	tp->snd_ssthresh = former->snd_ssthresh;
	if (former->ecn)
		tp->ecn_flags |= GW_TCP_ECN_OK;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_carry_ssthresh, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_carry_undo_cwnd, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(gw_carry_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

/* include/net/tcp.h */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
};

/* Named anew by each loader: the names are the whole machine's. */
SEC(".struct_ops.link")
struct tcp_congestion_ops gw_carry = {
	.ssthresh = (void *)gw_carry_ssthresh,
	.cong_avoid = (void *)gw_carry_cong_avoid,
	.undo_cwnd = (void *)gw_carry_undo_cwnd,
	.init = (void *)gw_carry_init,
	.name = "gw_carry",
};
