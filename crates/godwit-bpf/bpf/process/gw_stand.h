/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers that stand: stopped by a signal or a debugger, or frozen with their control group
 * (`docker pause`). A signal is seen when it is sent (gw_signal.h). A group that freezes says
 * so, and not who is in it: the agent is told, and looks through all tasks, as it does when it
 * begins and now and then. Nothing tells of a tracer, or of who joins a frozen group.
 */
#ifndef GW_STAND_H
#define GW_STAND_H

#include "process/gw_signal.h"

struct seq_file;

/* include/linux/bpf.h */
struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num; /* 0: the first call of a look */
} __attribute__((preserve_access_index));

/* kernel/bpf/task_iter.c */
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task; /* NULL: there are no more */
} __attribute__((preserve_access_index));

/*
 * 1: the agent was told that a group freezes, and has not looked since. Anybody may freeze
 * the groups that are theirs as often as they like: it is told once a look.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} gw_frozen_told SEC(".maps");

/* Whether it was told before; after this it was, or was not. */
static __always_inline __u32 gw_set_frozen_told(__u32 told)
{
	__u32 first = 0, *known;

	known = bpf_map_lookup_elem(&gw_frozen_told, &first);
	return known ? __sync_lock_test_and_set(known, told) : told;
}

/* A control group of version 2 is about to be frozen, it and each below it. */
static __always_inline int gw_group_freezes(void)
{
	if (!gw_set_frozen_told(1))
		gw_tell_machine(GW_EVENT_FROZEN, 0);
	return 0;
}

static __always_inline bool gw_stands(struct task_struct *task)
{
	return (BPF_CORE_READ(task, __state) &
		(GW_TASK_STOPPED | GW_TASK_TRACED)) ||
	       (BPF_CORE_READ(task, cgroups, dfl_cgrp, flags) & GW_CGRP_FREEZE);
}

/* Writes the number of a process that stands and has a socket of a service. */
static __always_inline int gw_look_at_task(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 pid;

	if (!ctx->meta->seq_num)
		gw_set_frozen_told(0);
	if (!task || task->pid != task->tgid || !gw_stands(task) ||
	    !gw_holds_socket(task, true))
		return 0;
	pid = task->tgid;
	bpf_seq_write(ctx->meta->seq, &pid, sizeof(pid));
	return 0;
}

/* A listener of a service in the hands of a process. */
struct gw_held {
	__u64 inode;
	__u64 pid;
	__u64 stands;
};

struct gw_hands {
	struct gw_browse browse;
	struct seq_file *seq;
	struct gw_held held;
};

static long gw_hands_step(__u32 index, struct gw_hands *h)
{
	struct file *file;

	if (gw_browse_step(&h->browse, &file))
		return 1;
	if (!file || !gw_serves(file, false))
		return 0;
	h->held.inode = BPF_CORE_READ(file, f_inode, i_ino);
	bpf_seq_write(h->seq, &h->held, sizeof(h->held));
	return 0;
}

/* Writes the listeners of services that a process holds. */
static __always_inline int gw_look_at_hands(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_hands h = { .seq = ctx->meta->seq };

	if (!task || task->pid != task->tgid ||
	    !gw_files_of(task, &h.browse.files))
		return 0;
	h.held.pid = task->tgid;
	h.held.stands = gw_stands(task);
	bpf_loop(GW_SENDER_WORDS * 65, gw_hands_step, &h, 0);
	return 0;
}

#endif /* GW_STAND_H */
