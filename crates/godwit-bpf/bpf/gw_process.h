/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A process and its open files, as the kernel has them (Linux 6.9 and later). */
#ifndef GW_PROCESS_H
#define GW_PROCESS_H

#include "gw_kernel.h"
#include "gw_maps.h"

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
} __attribute__((preserve_access_index));

struct file {
	struct gw_file_ref f_ref;
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
} __attribute__((preserve_access_index));

struct files_struct {
	struct fdtable *fdt;
} __attribute__((preserve_access_index));

/* include/linux/sched/signal.h */
struct signal_struct {
	struct gw_atomic live;
	int group_exit_code;
	unsigned int flags;
} __attribute__((preserve_access_index));

/* include/linux/sched.h */
struct task_struct {
	int exit_code;
	int tgid;
	__u64 start_boottime; /* CLOCK_BOOTTIME, nanoseconds */
	char comm[16];
	struct task_struct *group_leader;
	struct files_struct *files;
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

#define GW_SIGNAL_GROUP_EXIT 4 /* include/linux/sched/signal.h */
#define GW_S_IFMT 0170000
#define GW_S_IFSOCK 0140000
#define GW_AF_INET 2
#define GW_AF_INET6 10

/* The files of a process. They stay while one of its threads is in a hook. */
struct gw_files {
	struct file **fd;
	__u32 count;
};

static __always_inline bool gw_files_of(struct task_struct *task,
					struct gw_files *files)
{
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);

	if (!fdt)
		return false;
	files->fd = BPF_CORE_READ(fdt, fd);
	files->count = BPF_CORE_READ(fdt, max_fds);
	return files->fd;
}

static __always_inline struct file *gw_file_at(const struct gw_files *files,
					       __u32 index)
{
	struct file *file = NULL;

	bpf_probe_read_kernel(&file, sizeof(file), files->fd + index);
	return file;
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

/*
 * Of threads that are all the last one, the first: the others find the birth of
 * their process noted. A process that comes between, in the same place, has its
 * death told twice, which does no harm.
 */
static __always_inline bool gw_is_first_of_last(struct task_struct *task)
{
	__u64 born = BPF_CORE_READ(task, group_leader, start_boottime);
	__u32 place = (__u32)BPF_CORE_READ(task, tgid) % GW_LAST_EXITS;
	__u64 *last = bpf_map_lookup_elem(&gw_last_exits, &place);

	return !last || __sync_lock_test_and_set(last, born) != born;
}

#endif /* GW_PROCESS_H */
