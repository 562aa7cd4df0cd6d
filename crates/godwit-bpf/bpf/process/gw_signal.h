/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Signals that end a process. Who sent the signal decides what its end means: a
 * process that the service's own manager ends was meant to end, one that crashes was
 * not. And a process dies when it takes the signal: a core dump may need seconds
 * before the kernel closes its files (docs/kernel-facts.md).
 */
#ifndef GW_SIGNAL_H
#define GW_SIGNAL_H

#include "process/gw_exit.h"

/* include/uapi/asm-generic/signal.h; the same on all machines that Godwit runs on */
#define GW_SIGKILL 9
#define GW_SIGNALS 31 /* real-time signals have larger numbers */
#define GW_SIGNAL_BIT(signal) (1u << ((signal)-1))
/* SIGCHLD, SIGCONT, SIGURG, SIGWINCH; SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU */
#define GW_NOT_FATAL                                                 \
	(GW_SIGNAL_BIT(17) | GW_SIGNAL_BIT(18) | GW_SIGNAL_BIT(23) | \
	 GW_SIGNAL_BIT(28) | GW_SIGNAL_BIT(19) | GW_SIGNAL_BIT(20) | \
	 GW_SIGNAL_BIT(21) | GW_SIGNAL_BIT(22))

/* SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU */
#define GW_STOPS                                                     \
	(GW_SIGNAL_BIT(19) | GW_SIGNAL_BIT(20) | GW_SIGNAL_BIT(21) | \
	 GW_SIGNAL_BIT(22))

/* How many slots of a sender's files are looked at: it has the interrupts off. */
#define GW_SENDER_WORDS 16

/* include/linux/signal_types.h */
struct gw_sigaction {
	void *sa_handler; /* NULL: SIG_DFL */
} __attribute__((preserve_access_index));

struct k_sigaction {
	struct gw_sigaction sa;
} __attribute__((preserve_access_index));

static __always_inline bool gw_is_fatal(int signal)
{
	if (signal < 1 || signal > 64)
		return false;
	return signal > GW_SIGNALS || !(GW_NOT_FATAL & GW_SIGNAL_BIT(signal));
}

/* One that it may catch, all but SIGSTOP, too: the agent looks whether it stands. */
static __always_inline bool gw_may_stop(int signal)
{
	return signal >= 1 && signal <= GW_SIGNALS &&
	       (GW_STOPS & GW_SIGNAL_BIT(signal));
}

/* The first files of a process, one by one. */
struct gw_browse {
	struct gw_files files;
	__u64 word; /* slots of those that were not looked at yet ... */
	__u32 base; /* ... and where the next word begins */
};

/* Looks for a listener, or any socket, of a service among the files of a process. */
struct gw_holder {
	struct gw_browse browse;
	bool any;
	bool found;
};

static long gw_is_listened_at(void *map, const struct gw_endpoint *service,
			      const __u32 *share, struct gw_endpoint *at)
{
	if (service->port != at->port)
		return 0;
	at->pad = 1;
	return 1;
}

/* A socket that was accepted has its listener's port. */
static __always_inline bool gw_serves(struct file *file, bool any)
{
	struct gw_endpoint at = {};
	struct sock *sk = gw_tcp_of(file);

	if (!sk ||
	    (!any &&
	     BPF_CORE_READ(sk, __sk_common.skc_state) != GW_TCP_LISTEN) ||
	    BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie) !=
		    gw_netns_cookie)
		return false;
	at.port = bpf_htons(BPF_CORE_READ(sk, __sk_common.skc_num));
	bpf_for_each_map_elem(&gw_services, gw_is_listened_at, &at, 0);
	return at.pad;
}

/* The next file, if there is one in this word. 1: there are no more words. */
static __always_inline long gw_browse_step(struct gw_browse *b,
					   struct file **file)
{
	__u64 word = b->word;

	*file = NULL;
	if (!word) {
		if (b->base >= b->files.count ||
		    b->base >= GW_SENDER_WORDS * 64)
			return 1;
		b->word = gw_slots_in_use(&b->files, b->base);
		b->base += 64;
		return 0;
	}
	b->word = word & (word - 1);
	*file = gw_file_at(&b->files, b->base - 64 + gw_lowest_bit(word));
	return 0;
}

static long gw_holder_step(__u32 index, struct gw_holder *h)
{
	struct file *file;

	if (gw_browse_step(&h->browse, &file))
		return 1;
	h->found = file && gw_serves(file, h->any);
	return h->found;
}

static __noinline bool gw_holds_socket(struct task_struct *task, bool any)
{
	struct gw_holder h = { .any = any };

	if (!gw_files_of(task, &h.browse.files))
		return false;
	bpf_loop(GW_SENDER_WORDS * 65, gw_holder_step, &h, 0);
	return h.found;
}

/* Who has sent it, for gw_death_of(). */
static __noinline int gw_sender_of(struct task_struct *victim)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	int sender = BPF_CORE_READ(self, tgid);

	if (sender == BPF_CORE_READ(victim, tgid))
		return GW_SENDER_ITSELF;
	if (gw_holds_socket(self, false))
		return GW_SENDER_MANAGER;
	if (sender == BPF_CORE_READ(victim, real_parent, tgid))
		return GW_SENDER_PARENT;
	return GW_SENDER_OTHER;
}

/*
 * A process that has begun to die dies of its first signal. One that has cleaned up and
 * sends itself the signal that it has caught dies of the one that it was sent.
 */
static __always_inline bool gw_is_settled(const struct gw_ending *ending,
					  const struct gw_ending *fresh)
{
	return ending->dying || (ending->signal == fresh->signal &&
				 fresh->sender == GW_SENDER_ITSELF);
}

/* A signal is sent. Its sender, if it is a process, is the current one. */
static __noinline int gw_signal_sent(int signal, struct task_struct *victim)
{
	__u32 pid = BPF_CORE_READ(victim, tgid);
	struct gw_ending fresh = {}, *ending;

	if (!(gw_is_fatal(signal) || gw_may_stop(signal)) ||
	    BPF_CORE_READ(victim, nsproxy, net_ns, net_cookie) !=
		    gw_netns_cookie)
		return 0;
	if (gw_may_stop(signal)) {
		if (gw_holds_socket(victim, true))
			gw_tell_machine(GW_EVENT_STOPPED, pid);
		return 0;
	}
	fresh.born = BPF_CORE_READ(victim, group_leader, start_boottime);
	fresh.signal = signal;
	fresh.sender = gw_sender_of(victim);
	ending = bpf_map_lookup_elem(&gw_endings, &pid);
	if (ending && ending->born == fresh.born) {
		if (!gw_is_settled(ending, &fresh)) {
			ending->signal = fresh.signal;
			ending->sender = fresh.sender;
		}
	} else if (fresh.sender != GW_SENDER_OTHER) {
		bpf_map_update_elem(&gw_endings, &pid, &fresh, BPF_ANY);
	}
	return 0;
}

/*
 * A thread takes a signal. If that ends the process, its files are looked at now.
 * They are looked at again when they are about to be closed: until then other threads
 * may accept connections, and files may be in use by a system call. Inline: from here to a
 * flow that changes its phase is as deep as the verifier lets calls be (8).
 */
static __always_inline int gw_signal_taken(int signal, struct k_sigaction *ka)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 flags = BPF_CORE_READ(task, signal, flags);

	if (!gw_is_fatal(signal) || BPF_CORE_READ(ka, sa.sa_handler) ||
	    /* the other threads of a process that calls execve(2) */
	    BPF_CORE_READ(task, signal, group_exec_task) ||
	    ((flags & GW_SIGNAL_UNKILLABLE) && signal != GW_SIGKILL))
		return 0;
	if (flags & GW_SIGNAL_GROUP_EXIT)
		signal = BPF_CORE_READ(task, signal, group_exit_code) & 0x7f;
	if (signal && gw_begins_to_die(task))
		gw_process_dies(task, signal, true);
	return 0;
}

#endif /* GW_SIGNAL_H */
