/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Process death (docs/design.md): `sched_process_exit` comes before the kernel
 * closes the files of a process (docs/kernel-facts.md), and the signal that kills it
 * (gw_signal.h) before that. On an owner, the flows of a process that died are silenced
 * here, and with its last listener the whole share, so that no FIN or RST leaves before
 * a standby has taken over. On a shadow its twins leave protection now, and not when
 * what they still have to say has gone out.
 *
 * What is a death (enum gw_death)? A process that ends with a code has ended by itself,
 * and one that its manager kills was meant to end: their kernel says goodbye to their
 * clients, and to nobody else's. A FIN that a twin owes to that is marked, for the
 * owner's process need not end at all (gw_is_cut_short). So it is with a process that
 * crashes and has one connection. But if nobody listens any more, the server is gone,
 * whatever its code; only code 0 is its own wish.
 *
 * All open files are looked at (gw_walk.h): nothing has to be noted when a connection
 * is accepted, handed to a worker or passed on over a Unix socket.
 */
#ifndef GW_EXIT_H
#define GW_EXIT_H

#include "share/gw_fence.h"
#include "flow/gw_turn.h"
#include "process/gw_walk.h"

static __always_inline void gw_endpoint_of(struct gw_endpoint *e, __u16 family,
					   __be32 v4, const struct in6_addr *v6,
					   __be16 port)
{
	if (family == GW_AF_INET)
		gw_map_v4(e->addr, v4);
	else
		__builtin_memcpy(e->addr, v6, 16);
	e->port = port;
	e->pad = 0;
}

/* Whose flow it is, if it is one: its key, its share and the tally of that. */
struct gw_victim {
	struct gw_flow_key key;
	struct gw_flow *flow;
	struct gw_share *share;
	struct gw_tally *tally;
};

static __noinline int gw_find_victim(struct gw_victim *v)
{
	__u32 share;

	if (!v)
		return 1;
	v->flow = bpf_map_lookup_elem(&gw_flows, &v->key);
	if (!v->flow || gw_is_over(v->flow))
		return 1;
	share = v->flow->share;
	v->share = gw_share_at(share);
	v->tally = bpf_map_lookup_elem(&gw_tallies, &share);
	return !v->share || !v->tally;
}

/* The owner's socket of a flow is about to be closed. */
static __always_inline void gw_orphan(struct gw_victim *v)
{
	__u32 share = v->flow->share;
	struct gw_fence *fence = bpf_map_lookup_elem(&gw_fences, &share);

	if (!fence || !fence->hold_ns || !gw_is_kept(v->share, v->flow) ||
	    (v->flow->flags & GW_FLOW_ORPHANED))
		return;
	*(volatile __u64 *)&fence->died_ns = gw_now();
	gw_flag(v->flow, GW_FLOW_ORPHANED);
	v->tally->kept++;
}

/* What follows for a connection that ends with its process. */
static __always_inline void gw_lose(struct gw_walk *w, struct gw_victim *v)
{
	bool killed = w->death >= GW_DEATH_FAULT;

	if (v->share->role == GW_ROLE_SHADOW && killed)
		gw_close_twin(&v->key, v->flow);
	else if (v->share->role == GW_ROLE_SHADOW)
		gw_flag(v->flow, GW_FLOW_EXITED);
	else if (v->share->role == GW_ROLE_OWNER && killed)
		gw_orphan(v);
}

/*
 * A connection of the process. One in the accept queue has no file yet: it goes
 * with its listener.
 */
static __noinline void gw_exit_flow(struct gw_walk *w, struct sock *sk,
				    bool ends)
{
	__u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	struct in6_addr v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr);
	struct gw_victim v = {};

	w->budget -= GW_WALK_FLOW;
	gw_endpoint_of(&v.key.client, family,
		       BPF_CORE_READ(sk, __sk_common.skc_daddr), &v6,
		       BPF_CORE_READ(sk, __sk_common.skc_dport));
	v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_rcv_saddr);
	gw_endpoint_of(&v.key.service, family,
		       BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr), &v6,
		       bpf_htons(BPF_CORE_READ(sk, __sk_common.skc_num)));
	if (gw_find_victim(&v))
		return;
	w->found = true;
	v.tally->flows++;
	gw_follow(v.flow, v.share, v.share->role);
	if (!ends)
		return;
	w->flows++;
	if (w->death == GW_DEATH_FAULT && !w->has_first) {
		w->first = v.key;
		w->has_first = true;
		return;
	}
	gw_lose(w, &v);
}

/*
 * Does the end of a process that was killed concern no more than the one connection
 * that it had? One that crashed: what its client has said may be what killed it. One
 * that its parent has killed: if it held no listener, it was made for that connection.
 */
static __always_inline bool gw_is_single(const struct gw_walk *w)
{
	return w->death == GW_DEATH_FAULT && w->flows <= 1 && !w->cut &&
	       !(w->by_parent && w->listened);
}

/* The first connection of such a process, once the others are known. */
static __noinline void gw_exit_first(struct gw_walk *w)
{
	struct gw_victim v = { .key = w->first };

	if (gw_find_victim(&v))
		return;
	if (!gw_is_single(w) || v.share->role == GW_ROLE_SHADOW)
		gw_lose(w, &v);
}

/* A listener of the process. */
struct gw_listener {
	struct gw_endpoint at;
	bool any_v4; /* it serves every IPv4 address ... */
	bool any_v6; /* ... every IPv6 address */
	bool found;
	__u32 flags; /* of enum gw_exit_flags, for the shares that it serves */
};

static long gw_note_service(void *map, const struct gw_endpoint *service,
			    const __u32 *share, struct gw_listener *l)
{
	bool v4 = !service->addr[0] && !service->addr[1] &&
		  service->addr[2] == bpf_htonl(0xffff);
	bool serves = v4 ? l->any_v4 : l->any_v6;
	__u32 index = *share;
	struct gw_tally *t;

	if (service->port != l->at.port)
		return 0;
	if (!serves)
		serves = service->addr[0] == l->at.addr[0] &&
			 service->addr[1] == l->at.addr[1] &&
			 service->addr[2] == l->at.addr[2] &&
			 service->addr[3] == l->at.addr[3];
	t = bpf_map_lookup_elem(&gw_tallies, &index);
	if (!serves || !t)
		return 0;
	t->flags |= l->flags;
	l->found = true;
	return 0;
}

/* Does nobody listen any more where this listener does? */
static __always_inline bool gw_is_last_listener(struct gw_walk *w,
						struct sock *sk)
{
	struct sock_reuseport *group = BPF_CORE_READ(sk, sk_reuseport_cb);
	__u32 n = w->groups, i;

	if (!group)
		return true;
	for (i = 0; i < GW_WALK_GROUPS; i++)
		if (i >= n || w->group[i].group == group)
			break;
	if (i >= GW_WALK_GROUPS)
		return false;
	if (i >= n) {
		w->group[i].group = group;
		w->group[i].found = 0;
		w->groups = n + 1;
	}
	w->group[i].found++;
	return w->group[i].found >= BPF_CORE_READ(group, num_socks);
}

static __noinline void gw_exit_listener(struct gw_walk *w, struct sock *sk,
					bool ends)
{
	__u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	__be32 v4 = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	struct in6_addr v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_rcv_saddr);
	struct gw_listener l = { .flags = GW_EXIT_LISTENED };

	gw_endpoint_of(&l.at, family, v4, &v6,
		       bpf_htons(BPF_CORE_READ(sk, __sk_common.skc_num)));
	if (family == GW_AF_INET) {
		l.any_v4 = !v4;
	} else {
		l.any_v6 = !l.at.addr[0] && !l.at.addr[1] && !l.at.addr[2] &&
			   !l.at.addr[3];
		l.any_v4 = l.any_v6 && !BPF_CORE_READ_BITFIELD_PROBED(
					       &sk->__sk_common, skc_ipv6only);
	}
	w->budget -= GW_WALK_FLOW;
	if (ends && gw_is_last_listener(w, sk))
		l.flags |= GW_EXIT_LAST_LISTENER;
	bpf_for_each_map_elem(&gw_services, gw_note_service, &l, 0);
	bpf_for_each_map_elem(&gw_wards, gw_note_service, &l, 0);
	w->found = w->found || l.found;
	w->listened = w->listened || l.found;
}

__noinline int gw_judge(struct gw_walk *w, __u64 socket, bool ends)
{
	struct sock *sk = (void *)socket;

	if (!w)
		return 0;
	if (BPF_CORE_READ(sk, __sk_common.skc_state) != GW_TCP_LISTEN)
		gw_exit_flow(w, sk, ends);
	else if (w->death != GW_DEATH_MEANT)
		gw_exit_listener(w, sk, ends);
	return 0;
}

struct gw_exit_end {
	struct task_struct *task;
	__u32 code;
	__u32 flags; /* of enum gw_exit_flags, for all shares */
	bool killed;
	bool cut;
};

/* Is the share to be silent now? */
static __always_inline void gw_release_share(const struct gw_share *s,
					     struct gw_fence *f)
{
	if (f->hold_ns && s->role == GW_ROLE_OWNER && s->generation)
		*(volatile __u64 *)&f->released_ns = gw_now();
}

/*
 * Is there something for the agent? While the process dies: what can't wait. In the
 * end: that, and that its listener may have been the last of several.
 */
static __always_inline bool gw_is_worth_telling(const struct gw_tally *t,
						const struct gw_exit_end *end)
{
	const __u32 lost = GW_EXIT_LAST_LISTENER | GW_EXIT_CUT;

	if (t->kept || (t->flags & lost))
		return true;
	if (end->flags & GW_EXIT_DYING)
		return t->flows && (end->flags & GW_EXIT_SERVER);
	return t->flags || (t->flows && end->killed);
}

static __always_inline void gw_tell_exit(const struct gw_tally *t,
					 const struct gw_exit_end *end,
					 __u32 share)
{
	struct gw_exit *e = bpf_ringbuf_reserve(&gw_exits, sizeof(*e), 0);
	struct task_struct *task = end->task;

	if (!e) {
		gw_count(GW_REASON_EVENT_LOST);
		return;
	}
	e->ns = gw_now();
	e->share = share;
	e->pid = BPF_CORE_READ(task, tgid);
	e->flows = t->flows;
	e->kept = t->kept;
	e->flags = t->flags | end->flags;
	e->code = end->code;
	BPF_CORE_READ_STR_INTO(&e->comm, task, group_leader, comm);
	bpf_ringbuf_submit(e, 0);
}

/* What the process held of one share: to the fence, then to the agent. */
static long gw_exit_share(__u32 share, struct gw_exit_end *end)
{
	struct gw_tally *t = bpf_map_lookup_elem(&gw_tallies, &share);
	struct gw_fence *f = bpf_map_lookup_elem(&gw_fences, &share);
	struct gw_share *s = gw_share_at(share);

	if (!t || !f || !s || (!t->flows && !t->flags))
		return 0;
	if (end->cut)
		t->flags |= GW_EXIT_CUT;
	/*
	 * Nobody answers a new client either: not even with a RST. The same for
	 * connections that were not looked at: the agent would silence them next.
	 */
	if ((t->flags & GW_EXIT_LAST_LISTENER) ||
	    (end->cut && end->killed && t->kept))
		gw_release_share(s, f);
	if (gw_is_worth_telling(t, end))
		gw_tell_exit(t, end, share);
	t->flows = 0;
	t->kept = 0;
	t->flags = 0;
	return 0;
}

/* Who has sent the signal that a process dies of. */
static __always_inline __u32 gw_killer_of(struct task_struct *task,
					  __u32 signal)
{
	struct gw_ending *ending = gw_ending_of(task);

	return ending && ending->signal == signal ? ending->sender :
						    GW_SENDER_OTHER;
}

static __always_inline __u32 gw_death_by(__u32 killer)
{
	switch (killer) {
	case GW_SENDER_MANAGER:
		return GW_DEATH_CODE;
	case GW_SENDER_ITSELF:
	case GW_SENDER_PARENT:
		return GW_DEATH_FAULT;
	default:
		return GW_DEATH_KILLED;
	}
}

/*
 * Looks at what a process leaves that has ended, or has just begun to die. A tracepoint
 * is not preempted, so the tallies of this CPU are ours.
 */
static __noinline int gw_process_dies(struct task_struct *task, __u32 code,
				      bool dying)
{
	struct gw_exit_end end = { .task = task, .code = code };
	__u32 signal = code & 0x7f, killer = gw_killer_of(task, signal);
	struct gw_walk *w = gw_new_walk(task);

	if (!w)
		return 0;
	w->by_parent = killer == GW_SENDER_PARENT;
	if (signal)
		w->death = gw_death_by(killer);
	else
		w->death = code ? GW_DEATH_CODE : GW_DEATH_MEANT;
	gw_walk_all(w);
	if (w->has_first)
		gw_exit_first(w);
	if (!w->found)
		return 0;
	end.cut = w->cut;
	end.killed = w->death >= GW_DEATH_FAULT;
	if (end.killed &&
	    (w->death == GW_DEATH_KILLED || w->flows > 1 || w->cut))
		end.flags |= GW_EXIT_SERVER;
	if (dying)
		end.flags |= GW_EXIT_DYING;
	bpf_loop(GW_MAX_SHARES, gw_exit_share, &end, 0);
	return 0;
}

static __always_inline int gw_process_exit(struct task_struct *task)
{
	if (!gw_is_last_thread(task) || !gw_is_first_of_last(task))
		return 0;
	return gw_process_dies(task, gw_exit_code(task), false);
}

#endif /* GW_EXIT_H */
