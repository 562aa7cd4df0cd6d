/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A process and its open files, as the kernel has them (Linux 6.9 and later). */
#ifndef GW_PROCESS_H
#define GW_PROCESS_H

#include "base/gw_kernel.h"
#include "base/gw_maps.h"

/* include/linux/types.h: atomic_t, atomic64_t */
struct gw_atomic {
	int counter;
} __attribute__((preserve_access_index));

struct gw_atomic64 {
	__s64 counter;
} __attribute__((preserve_access_index));

/* include/linux/file_ref.h, Linux 6.13: counts from 0 */
struct gw_file_ref {
	struct gw_atomic64 refcnt;
} __attribute__((preserve_access_index));

/* include/linux/fs.h */
struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
} __attribute__((preserve_access_index));

struct qstr {
	const unsigned char *name;
} __attribute__((preserve_access_index));

struct dentry {
	struct qstr d_name;
} __attribute__((preserve_access_index));

struct path {
	struct dentry *dentry;
} __attribute__((preserve_access_index));

struct file {
	struct gw_file_ref f_ref;
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
} __attribute__((preserve_access_index));

/* before Linux 6.13 */
struct file___counted {
	struct gw_atomic64 f_count;
} __attribute__((preserve_access_index));

/* include/linux/net.h */
struct socket {
	struct sock *sk;
} __attribute__((preserve_access_index));

/* include/linux/fdtable.h */
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
	unsigned long *open_fds;
} __attribute__((preserve_access_index));

struct files_struct {
	struct fdtable *fdt;
} __attribute__((preserve_access_index));

/* include/linux/sched/signal.h */
struct signal_struct {
	struct gw_atomic live;
	int group_exit_code;
	struct task_struct *group_exec_task;
	unsigned int flags;
} __attribute__((preserve_access_index));

/* include/linux/cgroup-defs.h */
struct cgroup {
	unsigned long flags;
} __attribute__((preserve_access_index));

struct css_set {
	struct cgroup *dfl_cgrp; /* of version 2 */
} __attribute__((preserve_access_index));

/* include/linux/mm_types.h */
struct mm_struct;

/* include/linux/nsproxy.h */
struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

/* include/linux/sched.h */
struct task_struct {
	unsigned int __state;
	int exit_code;
	int pid;
	int tgid;
	__u64 start_boottime; /* CLOCK_BOOTTIME, nanoseconds */
	char comm[16];
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct mm_struct *mm; /* NULL behind exit_mm(), before Linux 6.16 */
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
	struct css_set *cgroups;
} __attribute__((preserve_access_index));

/* include/linux/sched.h */
#define GW_TASK_STOPPED 0x4
#define GW_TASK_TRACED 0x8

/* include/linux/cgroup-defs.h */
#define GW_CGRP_FREEZE (1 << 2)

/* include/linux/sched/signal.h */
#define GW_SIGNAL_GROUP_EXIT 0x4
#define GW_SIGNAL_UNKILLABLE 0x40
#define GW_S_IFMT 0170000
#define GW_S_IFSOCK 0140000
#define GW_AF_INET 2
#define GW_AF_INET6 10

/*
 * Open files: those of a process, or those that a ring has registered (gw_uring.h).
 * They stay while one of the threads of the process is in a hook. A table may be
 * replaced by a larger one meanwhile: then the old one is read.
 */
struct gw_files {
	void *slots; /* struct file **, or of a ring struct io_rsrc_node ** */
	unsigned long *open; /* a bit for each slot: is it in use? */
	__u32 count;
	bool is_ring;
};

static __always_inline bool gw_files_of(struct task_struct *task,
					struct gw_files *files)
{
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);

	if (!fdt)
		return false;
	files->slots = BPF_CORE_READ(fdt, fd);
	files->open = BPF_CORE_READ(fdt, open_fds);
	files->count = BPF_CORE_READ(fdt, max_fds);
	files->is_ring = false;
	return files->slots && files->open;
}

/* Which of the slots from `base` on, a multiple of 64, are in use. */
static __always_inline __u64 gw_slots_in_use(const struct gw_files *files,
					     __u32 base)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), files->open + base / 64);
	return word;
}

/* The number of the lowest bit of a word that is not 0. */
static __always_inline __u32 gw_lowest_bit(__u64 word)
{
	__u32 bit = 0;

	for (__u32 half = 32; half; half /= 2)
		if (!(word & ((1ull << half) - 1))) {
			word >>= half;
			bit += half;
		}
	return bit;
}

/* How many descriptors, of this process or of others, refer to the file. */
static __always_inline __u64 gw_references(struct file *file)
{
	struct file___counted *old = (void *)file;

	if (bpf_core_field_exists(file->f_ref))
		return BPF_CORE_READ(file, f_ref.refcnt.counter) + 1;
	return BPF_CORE_READ(old, f_count.counter);
}

/* The TCP socket behind a file, or NULL. */
static __always_inline struct sock *gw_tcp_of(struct file *file)
{
	struct socket *socket;
	struct sock *sk;

	if ((BPF_CORE_READ(file, f_inode, i_mode) & GW_S_IFMT) != GW_S_IFSOCK)
		return NULL;
	socket = BPF_CORE_READ(file, private_data);
	sk = socket ? BPF_CORE_READ(socket, sk) : NULL;
	if (!sk || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return NULL;
	return sk;
}

/* As wait(2) has it: 0, a signal, or a code from the second byte on. */
static __always_inline __u32 gw_exit_code(struct task_struct *task)
{
	struct signal_struct *signal = BPF_CORE_READ(task, signal);

	if (BPF_CORE_READ(signal, flags) & GW_SIGNAL_GROUP_EXIT)
		return BPF_CORE_READ(signal, group_exit_code);
	return BPF_CORE_READ(task, exit_code);
}

/*
 * Is it the last thread of its process? Several that end at the same time may
 * all be; they hold the files until all have passed the hook.
 */
static __always_inline bool gw_is_last_thread(struct task_struct *task)
{
	return !BPF_CORE_READ(task, signal, live.counter);
}

static __always_inline __u64 gw_birth_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime);
}

/*
 * Of threads that are all the last one, the first: the others find the birth of
 * their process noted. A process that comes between, in the same place, has its
 * death told twice, which does no harm.
 */
static __always_inline bool gw_is_first_of_last(struct task_struct *task)
{
	__u64 born = gw_birth_of(task);
	__u32 place = (__u32)BPF_CORE_READ(task, tgid) % GW_LAST_EXITS;
	__u64 *last = bpf_map_lookup_elem(&gw_last_exits, &place);

	return !last || __sync_lock_test_and_set(last, born) != born;
}

/* What is known of the end of a process, if anything is. */
static __always_inline struct gw_ending *gw_ending_of(struct task_struct *task)
{
	__u32 pid = BPF_CORE_READ(task, tgid);
	struct gw_ending *ending = bpf_map_lookup_elem(&gw_endings, &pid);

	return ending && ending->born == gw_birth_of(task) ? ending : NULL;
}

/* Marks a process as dying; false if it was before. */
static __noinline int gw_begins_to_die(struct task_struct *task)
{
	struct gw_ending *ending = gw_ending_of(task), fresh = {};
	__u32 pid;

	if (ending)
		return !__sync_lock_test_and_set(&ending->dying, 1);
	pid = BPF_CORE_READ(task, tgid);
	fresh.born = gw_birth_of(task);
	fresh.dying = 1;
	bpf_map_update_elem(&gw_endings, &pid, &fresh, BPF_ANY);
	return true;
}

#endif /* GW_PROCESS_H */
