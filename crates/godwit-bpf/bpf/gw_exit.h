/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Process death (DESIGN section 3): `sched_process_exit` comes before the
 * kernel closes the files of a process (KERNEL-FACTS 1.14). On an owner, the
 * flows of a process that died are silenced here, and with its last listener
 * the whole share, so that no FIN or RST leaves before a standby has taken
 * over. On a shadow its twins leave protection now, and not when what they
 * still have to say has gone out. One that ends as it meant to (code 0) has its
 * kernel say goodbye to its clients; a FIN that a twin owes to that is marked,
 * for the owner's process need not end at all (gw_is_cut_short).
 *
 * All open files are looked at: nothing has to be noted when a connection is
 * accepted, handed to a worker or passed on over a Unix socket.
 */
#ifndef GW_EXIT_H
#define GW_EXIT_H

#include "gw_fence.h"
#include "gw_process.h"
#include "gw_turn.h"

/* Files that others may hold too are searched for again at most so often. */
#define GW_EXIT_SEARCHES 16

struct gw_walk {
	struct gw_files files;
	__u32 searches;
	bool found; /* something of a share */
	bool meant; /* it ends as it meant to */
};

/* A search through all files of the process. */
struct gw_search {
	struct gw_files files;
	struct file *file; /* count this one, or ... */
	struct sock_reuseport *group; /* ... listeners of this group */
	__u32 found;
};

static long gw_search_at(__u32 index, struct gw_search **search)
{
	struct gw_search *q = *search;
	struct file *file = gw_file_at(&q->files, index);
	struct sock *sk;

	if (!file)
		return 0;
	if (file == q->file)
		q->found++;
	if (!q->group)
		return 0;
	sk = gw_tcp_of(file);
	if (sk && BPF_CORE_READ(sk, sk_reuseport_cb) == q->group)
		q->found++;
	return 0;
}

/* The search. Verified once: as a global function, not with each of its callers. */
__noinline int gw_search_files(struct gw_search *q)
{
	if (!q)
		return 0;
	bpf_loop(q->files.count, gw_search_at, &q, 0);
	return 0;
}

static __noinline __u32 gw_search(struct gw_walk *w, struct file *file,
				  struct sock_reuseport *group)
{
	struct gw_search q = { .files = w->files,
			       .file = file,
			       .group = group };

	if (w->searches >= GW_EXIT_SEARCHES)
		return 0;
	w->searches++;
	gw_search_files(&q);
	return q.found;
}

/* Does the file end with this process? */
static __always_inline bool gw_is_sole(struct gw_walk *w, struct file *file)
{
	__u64 references = gw_references(file);

	return references <= 1 || gw_search(w, file, NULL) >= references;
}

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

/* The owner's socket of a flow is about to be closed. */
static __always_inline void gw_orphan(struct gw_walk *w, struct file *file,
				      struct gw_flow *f,
				      const struct gw_share *s,
				      struct gw_tally *t)
{
	__u32 share = f->share;
	struct gw_fence *fence = bpf_map_lookup_elem(&gw_fences, &share);

	if (!fence || !fence->hold_ns || !gw_is_kept(s, f) ||
	    !gw_is_sole(w, file))
		return;
	*(volatile __u64 *)&fence->died_ns = gw_now();
	gw_flag(f, GW_FLOW_ORPHANED);
	t->kept++;
}

/*
 * A connection of the process. One in the accept queue has no file yet: it goes
 * with its listener.
 */
static __noinline void gw_exit_flow(struct gw_walk *w, struct file *file,
				    struct sock *sk)
{
	__u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	struct in6_addr v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr);
	struct gw_flow_key key;
	struct gw_tally *t;
	struct gw_share *s;
	struct gw_flow *f;
	__u32 share;

	gw_endpoint_of(&key.client, family,
		       BPF_CORE_READ(sk, __sk_common.skc_daddr), &v6,
		       BPF_CORE_READ(sk, __sk_common.skc_dport));
	v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_rcv_saddr);
	gw_endpoint_of(&key.service, family,
		       BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr), &v6,
		       bpf_htons(BPF_CORE_READ(sk, __sk_common.skc_num)));
	f = bpf_map_lookup_elem(&gw_flows, &key);
	if (!f || gw_is_over(f))
		return;
	share = f->share;
	s = gw_share_at(share);
	t = bpf_map_lookup_elem(&gw_tallies, &share);
	if (!s || !t)
		return;
	if (w->meant) {
		if (s->role == GW_ROLE_SHADOW && gw_is_sole(w, file))
			gw_flag(f, GW_FLOW_EXITED);
		return;
	}
	w->found = true;
	t->flows++;
	gw_follow(f, s, s->role);
	if (s->role == GW_ROLE_OWNER)
		gw_orphan(w, file, f, s, t);
	else if (s->role == GW_ROLE_SHADOW)
		gw_close_twin(&key, f);
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
static __always_inline bool
gw_is_last_listener(struct gw_walk *w, struct file *file, struct sock *sk)
{
	struct sock_reuseport *group = BPF_CORE_READ(sk, sk_reuseport_cb);

	if (!gw_is_sole(w, file))
		return false;
	return !group ||
	       gw_search(w, NULL, group) >= BPF_CORE_READ(group, num_socks);
}

static __noinline void gw_exit_listener(struct gw_walk *w, struct file *file,
					struct sock *sk)
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
	if (gw_is_last_listener(w, file, sk))
		l.flags |= GW_EXIT_LAST_LISTENER;
	bpf_for_each_map_elem(&gw_services, gw_note_service, &l, 0);
	bpf_for_each_map_elem(&gw_wards, gw_note_service, &l, 0);
	w->found = w->found || l.found;
}

static long gw_exit_file(__u32 index, struct gw_walk *w)
{
	struct file *file = gw_file_at(&w->files, index);
	struct sock *sk = file ? gw_tcp_of(file) : NULL;

	if (!sk || BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie) !=
			   gw_netns_cookie)
		return 0;
	if (BPF_CORE_READ(sk, __sk_common.skc_state) != GW_TCP_LISTEN)
		gw_exit_flow(w, file, sk);
	else if (!w->meant)
		gw_exit_listener(w, file, sk);
	return 0;
}

struct gw_death {
	struct task_struct *task;
	__u32 code;
};

/* What the process held of one share: to the fence, then to the agent. */
static long gw_exit_share(__u32 share, struct gw_death *death)
{
	struct gw_tally *t = bpf_map_lookup_elem(&gw_tallies, &share);
	struct gw_fence *f = bpf_map_lookup_elem(&gw_fences, &share);
	struct gw_share *s = gw_share_at(share);
	struct task_struct *task = death->task;
	struct gw_exit *e;

	if (!t || !f || !s || (!t->flows && !t->flags))
		return 0;
	/* nobody answers a new client either: not even with a RST */
	if ((t->flags & GW_EXIT_LAST_LISTENER) && f->hold_ns &&
	    s->role == GW_ROLE_OWNER && s->generation)
		*(volatile __u64 *)&f->released_ns = gw_now();
	e = bpf_ringbuf_reserve(&gw_exits, sizeof(*e), 0);
	if (e) {
		e->ns = gw_now();
		e->share = share;
		e->pid = BPF_CORE_READ(task, tgid);
		e->flows = t->flows;
		e->kept = t->kept;
		e->flags = t->flags;
		e->code = death->code;
		BPF_CORE_READ_STR_INTO(&e->comm, task, group_leader, comm);
		bpf_ringbuf_submit(e, 0);
	} else {
		gw_count(GW_REASON_EVENT_LOST);
	}
	t->flows = 0;
	t->kept = 0;
	t->flags = 0;
	return 0;
}

/* A tracepoint is not preempted, so the tallies of this CPU are ours. */
static __noinline int gw_process_exit(struct task_struct *task)
{
	struct gw_death death = { .task = task };
	struct gw_walk w = {};

	death.code = gw_exit_code(task);
	w.meant = !death.code;
	if (!gw_is_last_thread(task) || !gw_is_first_of_last(task) ||
	    !gw_files_of(task, &w.files))
		return 0;
	bpf_loop(w.files.count, gw_exit_file, &w, 0);
	if (w.found)
		bpf_loop(GW_MAX_SHARES, gw_exit_share, &death, 0);
	return 0;
}

#endif /* GW_EXIT_H */
