/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A walk over the open files of a process. It finds TCP sockets of this network
 * namespace, and whether each ends with the process. A tracepoint is not preempted,
 * so the walk has a budget: what is beyond it is not looked at, and whoever walks
 * must then take the worse case for true (gw_exit.h).
 */
#ifndef GW_WALK_H
#define GW_WALK_H

#include "base/gw_reason.h"
#include "process/gw_uring.h"

/*
 * What a walk may cost, in units of some 14 ns on a slow machine, and what each step
 * costs. A process that is killed is walked over twice, in less than 1 ms together:
 * docs/benchmarks.md.
 */
#define GW_WALK_BUDGET 16000
#define GW_WALK_WORD 1
#define GW_WALK_FILE 6
#define GW_WALK_SOCKET 12
#define GW_WALK_FLOW 40

/* Sockets with several references, rings, and SO_REUSEPORT groups in one process. */
#define GW_WALK_SHARED 32
#define GW_WALK_RINGS 4
#define GW_WALK_GROUPS 8

/* How a process ends, and so what follows for what it held. */
enum gw_death {
	/* Code 0. The kernel closes its files, as it was meant to. */
	GW_DEATH_MEANT = 0,
	/* Another code, or a signal of its manager: the same, but for a last listener. */
	GW_DEATH_CODE = 1,
	/* A signal that it caused itself: of one connection the same as a code. */
	GW_DEATH_FAULT = 2,
	/* A signal from somebody else: nothing was meant to end. */
	GW_DEATH_KILLED = 3,
};

/* A socket that several descriptors refer to, some perhaps of other processes. */
struct gw_shared_file {
	__u64 file;
	__u64 socket;
	__u64 references;
	__u64 found;
};

struct gw_group {
	struct sock_reuseport *group;
	__u32 found;
};

struct gw_walk {
	struct gw_files files; /* at hand */
	struct mm_struct *mm;
	__u64 word; /* slots of those that were not looked at yet ... */
	__u32 base; /* ... and where the next word begins */
	__s32 budget;
	__u32 death; /* enum gw_death */
	__u32 flows; /* connections of services that end with the process */
	__u32 shared;
	__u32 rings;
	__u32 groups;
	bool found; /* something of a share */
	bool cut; /* not all was looked at */
	bool by_parent; /* its parent killed it, which need not be its manager */
	bool listened; /* it held a listener of a service */
	bool has_first;
	struct gw_flow_key first; /* a flow whose fate the others decide */
	struct gw_shared_file share[GW_WALK_SHARED];
	struct file *ring[GW_WALK_RINGS];
	struct gw_group group[GW_WALK_GROUPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_walk);
} gw_walks SEC(".maps");

/*
 * What the walk is for: defined by gw_exit.h. Like the others that are no static
 * functions it is verified once and not with each of its callers, so kernel pointers are
 * numbers to it.
 */
int gw_judge(struct gw_walk *w, __u64 socket, bool ends);

static __always_inline void gw_note_ring(struct gw_walk *w, struct file *file)
{
	__u32 n = w->rings;

	if (n >= GW_WALK_RINGS) {
		w->cut = true;
		return;
	}
	w->ring[n] = file;
	w->rings = n + 1;
}

/* One more descriptor of a socket that has several references. */
__noinline int gw_note_shared(struct gw_walk *w, __u64 file, __u64 socket,
			      __u64 references)
{
	__u32 n;

	if (!w)
		return 0;
	n = w->shared;
	for (__u32 i = 0; i < GW_WALK_SHARED; i++) {
		if (i >= n)
			break;
		if (w->share[i].file == file) {
			w->share[i].found++;
			return 0;
		}
	}
	if (n >= GW_WALK_SHARED) {
		w->cut = true;
		return 0;
	}
	w->share[n].file = file;
	w->share[n].socket = socket;
	w->share[n].references = references;
	w->share[n].found = 1;
	w->shared = n + 1;
	return 0;
}

static __always_inline void gw_visit(struct gw_walk *w, struct file *file)
{
	__u32 mode = BPF_CORE_READ(file, f_inode, i_mode);
	__u64 references;
	struct sock *sk;

	w->budget -= GW_WALK_FILE;
	if ((mode & GW_S_IFMT) != GW_S_IFSOCK) {
		if (w->files.is_ring || !gw_is_anonymous(mode))
			return;
		w->budget -= GW_WALK_SOCKET;
		if (gw_is_ring(file))
			gw_note_ring(w, file);
		return;
	}
	w->budget -= GW_WALK_SOCKET;
	sk = gw_tcp_of(file);
	if (!sk || BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie) !=
			   gw_netns_cookie)
		return;
	references = gw_references(file);
	if (references <= 1)
		gw_judge(w, (__u64)sk, true);
	else
		gw_note_shared(w, (__u64)file, (__u64)sk, references);
}

/* The next slot in use, or the next word of them. */
static long gw_step(__u32 index, struct gw_walk **walk)
{
	struct gw_walk *w = *walk;
	struct file *file;
	__u64 word = w->word;
	__u32 slot;

	if (w->budget <= 0) {
		w->cut = true;
		return 1;
	}
	if (!word) {
		if (w->base >= w->files.count)
			return 1;
		w->word = gw_slots_in_use(&w->files, w->base);
		w->base += 64;
		w->budget -= GW_WALK_WORD;
		return 0;
	}
	slot = w->base - 64 + gw_lowest_bit(word);
	w->word = word & (word - 1);
	file = slot < w->files.count ? gw_file_at(&w->files, slot) : NULL;
	if (file)
		gw_visit(w, file);
	return 0;
}

__noinline int gw_walk_files(struct gw_walk *w)
{
	if (!w)
		return 0;
	w->word = 0;
	w->base = 0;
	/* each step but the last takes something from the budget */
	bpf_loop(GW_WALK_BUDGET, gw_step, &w, 0);
	return 0;
}

/* Files of a ring that nobody else has end with it. */
static __always_inline void gw_walk_ring(struct gw_walk *w, __u32 index)
{
	struct file *ring = w->ring[index];

	if (index < w->rings && gw_ends_with(ring, w->mm) &&
	    gw_files_of_ring(ring, &w->files))
		gw_walk_files(w);
}

static __always_inline void gw_judge_shared(struct gw_walk *w, __u32 index)
{
	struct gw_shared_file *shared = &w->share[index];

	if (index < w->shared)
		gw_judge(w, shared->socket,
			 shared->found >= shared->references);
}

/* `w` is new, but says what the end of the process means. */
static __always_inline void gw_walk_all(struct gw_walk *w)
{
	w->budget = GW_WALK_BUDGET;
	gw_walk_files(w);
	for (__u32 i = 0; i < GW_WALK_RINGS; i++)
		gw_walk_ring(w, i);
	for (__u32 i = 0; i < GW_WALK_SHARED; i++)
		gw_judge_shared(w, i);
	if (w->cut)
		gw_count(GW_REASON_EXIT_WALK_CUT);
}

static __always_inline struct gw_walk *gw_new_walk(struct task_struct *task)
{
	__u32 zero = 0;
	struct gw_walk *w = bpf_map_lookup_elem(&gw_walks, &zero);

	if (!w || !gw_files_of(task, &w->files))
		return NULL;
	w->mm = BPF_CORE_READ(task, mm);
	w->death = GW_DEATH_MEANT;
	w->flows = 0;
	w->shared = 0;
	w->rings = 0;
	w->groups = 0;
	w->found = false;
	w->cut = false;
	w->by_parent = false;
	w->listened = false;
	w->has_first = false;
	return w;
}

#endif /* GW_WALK_H */
