// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The data path. Two switchboards on the service interface, `tap` (ingress, and
 * `untunnel` before it) and `gate` (egress); `guard` and `beside` on every other one; `order` and `fence`,
 * by which the agent changes one flow and one share. Read ARCHITECTURE.md, then
 * this, then the header of the role that you are after: gw_owner.h,
 * gw_shadow.h, gw_takeover.h.
 */
#include "share/gw_address.h"
#include "director/gw_asked.h"
#include "shadow/gw_birth.h"
#include "shadow/gw_canary.h"
#include "handoff/gw_handoff.h"
#include "request/gw_hear.h"
#include "shadow/gw_install.h"
#include "share/gw_local.h"
#include "base/gw_moving.h"
#include "handoff/gw_newborn.h"
#include "gw_order.h"
#include "share/gw_own.h"
#include "owner/gw_owner.h"
#include "request/gw_pass.h"
#include "request/gw_path.h"
#include "shadow/gw_shadow.h"
#include "process/gw_signal.h"
#include "process/gw_stand.h"
#include "net/gw_sound.h"
#include "net/gw_tag.h"
#include "share/gw_stray.h"
#include "shadow/gw_suppress.h"
#include "director/gw_untunnel.h"
#include "request/gw_ward.h"

#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A frame in a service's own name: only the peer of the share may send it. */
static __noinline int gw_tap_peer(struct __sk_buff *skb, struct gw_pkt *p,
				  __u32 share)
{
	const struct gw_share *s = gw_share_at(share);
	struct gw_flow_key key;
	int verdict;

	gw_key(&key, &p->dst, &p->src);
	verdict = gw_canary_book(p, &key);
	if (verdict != GW_UNDECIDED)
		return verdict;
	if (!s || !gw_mac_equal(p->smac, s->peer_mac))
		return gw_verdict(GW_REASON_SPOOFED, GW_DROP);
	if (!gw_is_sound(skb, p))
		return gw_verdict(GW_REASON_BAD_CHECKSUM, GW_DROP);
	if (s->role == GW_ROLE_OWNER)
		return gw_gate_twin_ack(skb, p, &key, s);
	if (s->role == GW_ROLE_SHADOW)
		return gw_shadow_owner(skb, p, &key, share, s);
	return gw_verdict(GW_REASON_NOT_OWNER, GW_DROP);
}

static __always_inline bool gw_is_to_group(const struct gw_pkt *p,
					   const struct gw_share *s)
{
	return gw_is_multicast(s) && gw_mac_equal(p->dmac, s->service_mac);
}

/*
 * Is a client's frame for this node, though it is addressed to another? To the
 * service's group it is. To the peer's MAC it is when the switch floods it:
 * that port's link is down and what was learnt there forgotten, so the peer
 * itself will not have it. What it does have besides, TCP takes twice. Behind a director
 * the peer has connections that are none of ours, too: only what is known here counts.
 */
static __always_inline bool gw_is_copied(const struct gw_pkt *p,
					 const struct gw_share *s)
{
	return gw_is_to_group(p, s) || gw_mac_equal(p->dmac, s->peer_mac);
}

/*
 * Is a frame another VLAN's? The kernel has taken its tag off; behind `tap` it is that VLAN's
 * device's, or nobody's. With number 0 it has a priority only, and is ours (IEEE 802.1Q).
 */
static __always_inline bool gw_is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && (skb->vlan_tci & 0xfff);
}

/* The IP layer takes only what is addressed to the host. */
static __noinline bool gw_is_for_us(struct __sk_buff *skb,
				    const struct gw_pkt *p, __u32 share)
{
	const struct gw_share *s;
	struct gw_flow_key key;

	if (skb->pkt_type == GW_PACKET_HOST)
		return true;
	s = gw_share_at(share);
	if (!s || !gw_is_copied(p, s))
		return false;
	gw_key(&key, &p->src, &p->dst);
	if (s->front && !gw_is_known(&key))
		return false;
	if (skb->pkt_type == GW_PACKET_OTHERHOST)
		gw_count(GW_REASON_FLOODED);
	return !bpf_skb_change_type(skb, GW_PACKET_HOST);
}

/*
 * A segment that TCP refuses for its checksum; else GW_UNDECIDED. An owner's
 * kernel counts it, too (TcpInCsumErrors).
 */
static __noinline int gw_refuse_unsound(struct __sk_buff *skb,
					const struct gw_pkt *p, __u32 share)
{
	const struct gw_share *s = gw_share_at(share);

	if (gw_is_sound(skb, p))
		return GW_UNDECIDED;
	return gw_verdict(GW_REASON_BAD_CHECKSUM,
			  s && s->role == GW_ROLE_OWNER ? GW_PASS : GW_DROP);
}

/* A segment of a client. */
static __noinline int gw_tap_client(struct __sk_buff *skb, struct gw_pkt *p,
				    __u32 share)
{
	const struct gw_share *s = gw_share_at(share);
	struct gw_flow_key key;
	int verdict;

	if (!s)
		return gw_verdict(GW_REASON_NOT_OURS, GW_PASS);
	if (gw_is_own_address(p->src.addr))
		return gw_verdict(GW_REASON_OWN_ADDRESS, GW_DROP);
	gw_cut_foreign(skb, p);
	gw_key(&key, &p->src, &p->dst);
	verdict = gw_handoff_client(skb, p, &key, s);
	if (verdict == GW_UNDECIDED)
		verdict = gw_transfer_client(skb, p, &key, share, s);
	if (verdict != GW_UNDECIDED)
		return verdict;
	if (s->front && gw_is_in_the_way(skb, &key, p))
		return gw_end_old_twin(skb, p, &key);
	if (s->front && !(p->flags & GW_TCP_SYN)) {
		/* a frame to us as another server may be about what we took over */
		share = gw_share_of_flow(&key, share);
		s = gw_share_at(share);
		if (!s)
			return gw_verdict(GW_REASON_NOT_OURS, GW_PASS);
	} else if (s->front && s->role == GW_ROLE_OWNER) {
		verdict = gw_spare_twin(skb, p, &key, share);
		if (verdict != GW_UNDECIDED)
			return verdict;
		verdict = gw_tell_beginning(skb, p, &key, share, s);
		if (verdict != GW_UNDECIDED)
			return verdict;
	}
	if (skb->mark == GW_MARK_AGAIN || skb->mark == GW_MARK_TOLD)
		skb->mark = 0;
	if (s->role == GW_ROLE_OWNER)
		return gw_owner_client(skb, p, &key, share, s);
	if (s->role != GW_ROLE_SHADOW)
		return gw_forward(skb, p, s);
	if (!gw_mac_equal(p->smac, s->peer_mac) && !gw_is_copied(p, s)) {
		if (s->front)
			return gw_forward_front(skb, p, &key, s);
		return gw_hand_on(skb, p, s);
	}
	return gw_shadow_client(skb, p, &key, share, s);
}

/* What a client said before this node had its connection, from our own agent. */
static __noinline int gw_tap_replay(struct __sk_buff *skb)
{
	struct gw_pkt p = {};
	int err, verdict;
	struct gw_share *s;
	__u32 share;

	skb->mark = 0;
	err = gw_parse(skb, &p);
	if (err)
		return gw_verdict(err, GW_DROP);
	share = gw_share_in(skb, &p);
	s = gw_share_at(share);
	if (!s)
		return gw_verdict(GW_REASON_REPLAY_NO_FLOW, GW_DROP);
	verdict = gw_bear(skb, &p, s);
	if (verdict != GW_UNDECIDED)
		return verdict;
	return gw_replay(skb, &p, s);
}

SEC("tcx/ingress")
int tap(struct __sk_buff *skb)
{
	struct gw_pkt p = {};
	__u32 share;
	int err;

	if (skb->mark == GW_MARK_DISCARD)
		return gw_verdict(GW_REASON_DISCARDED, GW_DROP);
	if (skb->mark == GW_MARK_REFLECT) {
		skb->mark = 0;
		return gw_verdict(GW_REASON_MARKED, GW_PASS);
	}
	if (skb->mark == GW_MARK_REPLAY)
		return gw_tap_replay(skb);
	if (skb->mark == GW_MARK_CANARY)
		return gw_canary_send(skb);
	if (skb->mark == GW_MARK_CANARY_HEARD)
		return gw_canary_echo(skb);
	if (skb->pkt_type != GW_PACKET_HOST &&
	    skb->pkt_type != GW_PACKET_MULTICAST &&
	    skb->pkt_type != GW_PACKET_OTHERHOST)
		return gw_verdict(GW_REASON_OTHER_HOST, GW_PASS);
	if (gw_is_of_vlan(skb))
		return gw_verdict(GW_REASON_OTHER_VLAN, GW_PASS);
	if (skb->protocol == bpf_htons(GW_ETH_P_NOTE) &&
	    skb->pkt_type == GW_PACKET_HOST)
		return gw_hear_note(skb);
	if (skb->protocol == bpf_htons(GW_ETH_P_SLIP))
		return skb->pkt_type == GW_PACKET_HOST ?
			       gw_hear_server(skb) :
			       gw_verdict(GW_REASON_OTHER_HOST, GW_PASS);
	err = gw_parse(skb, &p);
	/* not understood: the owner's kernel may have it, nobody else's */
	if ((err == GW_REASON_FRAGMENT || err == GW_REASON_IP_OPTIONS) &&
	    gw_is_foreign(p.dst.addr))
		return gw_verdict(err, GW_DROP);
	if (err)
		return gw_verdict(err, GW_PASS);
	share = gw_share_in(skb, &p);
	if (share != GW_NO_SHARE && !gw_is_for_us(skb, &p, share))
		return gw_verdict(GW_REASON_OTHER_HOST, GW_PASS);
	if (share != GW_NO_SHARE && gw_is_canary(&p))
		return gw_canary_hear(skb, &p);
	if (share != GW_NO_SHARE) {
		err = gw_refuse_unsound(skb, &p, share);
		if (err == GW_UNDECIDED && skb->mark == GW_MARK_ASKED)
			err = gw_answer_asked(skb, &p, share);
		if (err != GW_UNDECIDED)
			return err;
		return gw_consult(skb, gw_tap_client(skb, &p, share));
	}
	share = gw_share_out(&p);
	if (share != GW_NO_SHARE && skb->pkt_type == GW_PACKET_HOST)
		return gw_tap_peer(skb, &p, share);
	return gw_verdict(GW_REASON_NOT_OURS, GW_PASS);
}

/*
 * May a segment in a share's name leave this node, by whichever interface? If not, its
 * verdict; else GW_UNDECIDED.
 */
static __always_inline int gw_may_leave(const struct gw_pkt *p,
					const struct gw_flow_key *key,
					__u32 share, const struct gw_share *s)
{
	int why, verdict = gw_handoff_own(key, share, s);

	if (verdict == GW_UNDECIDED)
		verdict = gw_transfer_own(p, key, share, s);
	if (verdict != GW_UNDECIDED || s->role != GW_ROLE_OWNER)
		return verdict;
	why = gw_silenced(share);
	return why ? gw_verdict(why, GW_DROP) : GW_UNDECIDED;
}

/*
 * A frame that Godwit itself has made, final but for the fence: what the agent
 * says for a share, and what the data path says, are segments of its owner too.
 * Who does not own it speaks to the peer alone.
 */
static __noinline int gw_spoken_out(struct __sk_buff *skb)
{
	struct gw_pkt p = {};
	struct gw_share *s;
	int err, why;
	__u32 share;

	err = gw_parse(skb, &p);
	s = err ? NULL : gw_share_named(&p, &share);
	if (s)
		why = s->role == GW_ROLE_OWNER ? gw_silenced(share) : 0;
	else
		why = gw_names_silenced(skb, &p, err);
	if (why)
		return gw_verdict(why, GW_DROP);
	if (s && s->role != GW_ROLE_OWNER && !gw_mac_equal(p.dmac, s->peer_mac))
		return gw_verdict(GW_REASON_NOT_OWNER, GW_DROP);
	if (s && gw_is_asked_for(&p, share, s))
		return gw_verdict(GW_REASON_UNANSWERED, GW_DROP);
	/* a twin's word of a moment ago; what follows would spoil its tag */
	if (s && skb->mark == GW_MARK_PROVED)
		return s->role == GW_ROLE_OWNER ?
			       gw_verdict(GW_REASON_TURNING, GW_DROP) :
			       gw_verdict(GW_REASON_MARKED, GW_PASS);
	if (s && s->role == GW_ROLE_OWNER && gw_catch_up_late(skb, &p, s))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	/* of servers that stand by for each other it may be another share's peer */
	if (s && (s->front || gw_mac_equal(p.dmac, s->peer_mac)) &&
	    gw_put_tag(skb, &p))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	return gw_verdict(GW_REASON_MARKED, GW_PASS);
}

/* Before `tap`, where a director reaches this node by a tunnel. */
SEC("tcx/ingress")
int untunnel(struct __sk_buff *skb)
{
	return gw_untunnel(skb);
}

SEC("tcx/egress")
int gate(struct __sk_buff *skb)
{
	struct gw_flow_key key;
	struct gw_pkt p = {};
	struct gw_share *s;
	int err, verdict;
	__u32 share;

	if (skb->mark == GW_MARK_SPOKEN || skb->mark == GW_MARK_PROVED)
		return gw_spoken_out(skb);
	if (skb->mark == GW_MARK_INJECT) {
		skb->mark = GW_MARK_REFLECT;
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	}
	if (skb->mark == GW_MARK_REPLAY || skb->mark == GW_MARK_CANARY)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (skb->mark == GW_MARK_CANARY_ECHO)
		return gw_canary_out(skb);
	if (skb->mark == GW_MARK_SETTLED)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	err = gw_parse(skb, &p);
	if (err)
		return gw_other_out(skb, &p, err);
	s = gw_share_named(&p, &share);
	if (!s)
		return gw_other_out(skb, &p, GW_REASON_NOT_OURS);
	gw_key(&key, &p.dst, &p.src);
	verdict = gw_canary_own(skb, &p, &key);
	if (verdict == GW_UNDECIDED)
		verdict = gw_may_leave(&p, &key, share, s);
	if (verdict != GW_UNDECIDED)
		return verdict;
	if (s->role == GW_ROLE_OWNER)
		return gw_owner_own(skb, &p, &key, s);
	if (s->role == GW_ROLE_SHADOW)
		return gw_shadow_own(skb, &p, &key, s);
	return gw_verdict(GW_REASON_NOT_OWNER, GW_DROP);
}

/*
 * Egress of every other interface, fail-closed: a flow that Godwit cares for
 * leaves by the service interface, where the gate is, or not at all.
 */
SEC("tcx/egress")
int guard(struct __sk_buff *skb)
{
	struct gw_flow_key key;
	struct gw_pkt p = {};
	struct gw_share *s;
	int err, verdict;
	__u32 share;

	if (gw_is_bare_l3(skb))
		return gw_guard_l3(skb);
	err = gw_parse(skb, &p);
	s = err ? NULL : gw_share_named(&p, &share);
	if (!s) {
		err = err ? err : GW_REASON_NOT_OURS;
		if (!gw_names_silenced(skb, &p, err) &&
		    gw_tells_service(skb, &p, err))
			return gw_told_elsewhere(skb);
		return gw_other_out(skb, &p, err);
	}
	gw_key(&key, &p.dst, &p.src);
	verdict = gw_may_leave(&p, &key, share, s);
	if (verdict != GW_UNDECIDED)
		return verdict;
	if (s->role == GW_ROLE_OWNER && !bpf_map_lookup_elem(&gw_flows, &key))
		verdict = gw_verdict(GW_REASON_OTHER_INTERFACE, GW_PASS);
	else
		verdict = gw_verdict(GW_REASON_WRONG_INTERFACE, GW_DROP);
	return gw_strayed(skb, verdict);
}

/*
 * Ingress of every other interface: a client that comes by it passes no tap, and its answers
 * may still leave by the gate. Everything passes.
 */
SEC("tcx/ingress")
int beside(struct __sk_buff *skb)
{
	const struct gw_share *s;
	struct gw_pkt p = {};
	__u32 share;

	if (skb->pkt_type != GW_PACKET_HOST || gw_is_bare_l3(skb) ||
	    gw_parse(skb, &p))
		return GW_PASS;
	s = gw_share_of(&p.dst, &share);
	if (!s || s->role != GW_ROLE_OWNER)
		return GW_PASS;
	return gw_strayed(skb, gw_verdict(GW_REASON_OTHER_INTERFACE, GW_PASS));
}

SEC("syscall")
int order(struct gw_order *o)
{
	return gw_obey(o);
}

SEC("syscall")
int fence(struct gw_fence_order *o)
{
	return gw_obey_fence(o);
}

SEC("syscall")
int install(struct gw_install *in)
{
	return gw_obey_install(in);
}

/* Before the kernel closes the files of a process that has ended. */
SEC("tp_btf/sched_process_exit")
int process_exit(__u64 *args)
{
	return gw_process_exit((struct task_struct *)args[0]);
}

/* A signal is sent; its sender is the current process, if it is one. */
SEC("tp_btf/signal_generate")
int signal_sent(__u64 *args)
{
	return gw_signal_sent((int)args[0], (struct task_struct *)args[2]);
}

/* Before a signal is acted upon: a handler, a core dump, the end. */
SEC("tp_btf/signal_deliver")
int signal_taken(__u64 *args)
{
	return gw_signal_taken((int)args[0], (struct k_sigaction *)args[2]);
}

SEC("tp_btf/cgroup_freeze")
int group_freezes(__u64 *args)
{
	return gw_group_freezes();
}

/* Of each task, when the agent asks who stands. */
SEC("iter/task")
int standing(struct bpf_iter__task *ctx)
{
	return gw_look_at_task(ctx);
}

/* Of each task, while some stand. */
SEC("iter/task")
int holding(struct bpf_iter__task *ctx)
{
	return gw_look_at_hands(ctx);
}

/* A process of this machine is about to connect. */
SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct gw_endpoint to = { .port = ctx->user_port };

	if (bpf_get_netns_cookie(ctx) != gw_netns_cookie)
		return GW_CONNECT_ALLOWED;
	gw_map_v4(to.addr, ctx->user_ip4);
	return gw_connect_local(&to);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct gw_endpoint to = { .port = ctx->user_port };

	if (bpf_get_netns_cookie(ctx) != gw_netns_cookie)
		return GW_CONNECT_ALLOWED;
	for (int i = 0; i < 4; i++)
		to.addr[i] = ctx->user_ip6[i];
	return gw_connect_local(&to);
}

/* The last descriptor of a socket of this machine is closed. */
SEC("cgroup/sock_release")
int listener_closed(struct bpf_sock *sk)
{
	if (sk->state == GW_TCP_LISTEN && sk->protocol == IPPROTO_TCP &&
	    bpf_get_netns_cookie(sk) == gw_netns_cookie)
		gw_tell_listener();
	return 1;
}

/* A socket of this machine has been established; nothing was sent on it yet. */
SEC("sockops")
int born(struct bpf_sock_ops *ctx)
{
	if (ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	if (gw_is_misborn(ctx))
		gw_mend_birth(ctx);
	gw_keep_window(ctx);
	return 1;
}

SEC("struct_ops")
void BPF_PROG(gw_mend_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;

	tp->ecn_flags = GW_ECN_MODE_RFC3168;
	tp->snd_ssthresh = GW_INFINITE_SSTHRESH;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_mend_ssthresh, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_mend_undo_cwnd, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(gw_mend_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

SEC(".struct_ops.link")
struct tcp_congestion_ops gw_mend = {
	.ssthresh = (void *)gw_mend_ssthresh,
	.cong_avoid = (void *)gw_mend_cong_avoid,
	.undo_cwnd = (void *)gw_mend_undo_cwnd,
	.init = (void *)gw_mend_init,
	.name = "gw_mend",
};
