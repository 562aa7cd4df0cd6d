/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libgodwit: TCP connections that outlive their server.
 *
 * A server registers its listener, accepts from it clients' connections and
 * such as another server of the cluster had, and exports a snapshot of its
 * state of a connection whenever that is worth keeping. Between these calls it
 * uses read, write and epoll as always. Without an agent on the machine each
 * call is what it would be on plain sockets. The contract is docs/libgodwit.md.
 *
 * Every function returns GW_OK (or a size) or one of enum gw_result, all of
 * which are negative, and writes through its pointers only in the first case.
 * All may be called by any thread, none by a signal handler. In a child process
 * the library starts afresh at its first call.
 */
#ifndef GODWIT_H
#define GODWIT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GW_VERSION_MAJOR 0
#define GW_VERSION_MINOR 1
#define GW_VERSION_PATCH 0

/* The largest snapshot and the longest name of a session, in bytes. */
#define GW_MAX_SNAPSHOT (16u << 20)
#define GW_MAX_SESSION 32

/* Why a call did not do what was asked for. Numbers are never used again. */
enum gw_result {
	GW_OK = 0,
	/* A pointer is NULL that may not be. */
	GW_NULL_PARAMETER = -1,
	/* A defect of the library. */
	GW_PANIC = -2,
	/* The descriptor is not open, or not what it has to be. */
	GW_BAD_DESCRIPTOR = -3,
	/* More than GW_MAX_SNAPSHOT or GW_MAX_SESSION. */
	GW_TOO_LARGE = -4,
	/* The process has as many snapshots as it may: earlier ones stay. */
	GW_NO_SPACE = -5,
	/* Another server has the connection now: close it. */
	GW_EMIGRATED = -6,
	/* This release does not do that. */
	GW_UNSUPPORTED = -7,
	/* Nobody waits to be accepted, and the listener does not block. */
	GW_WOULD_BLOCK = -8,
	/* A signal came first. */
	GW_INTERRUPTED = -9,
	/* The structure is smaller than any release's. */
	GW_BAD_SIZE = -10,
	/* A system call failed: errno says why. */
	GW_SYSTEM = -11,
	/*
	 * No standby has the snapshot that was to be safe, and none will serve
	 * the connection from an older one.
	 */
	GW_UNPROTECTED = -12,
	/* The server has not read or written as many bytes as it says. */
	GW_MISPLACED = -13,
};

/* Flags of struct gw_options. */
enum gw_listen_flags {
	/*
	 * The server keeps nothing about a connection that is not in its
	 * bytes: it may be moved as it stands, without a snapshot.
	 */
	GW_LISTEN_STATELESS = 1,
};

/* Set `size` to sizeof(struct gw_options), or use GW_OPTIONS_INIT. */
struct gw_options {
	size_t size;
	/* enum gw_listen_flags, together. */
	unsigned int flags;
};

#define GW_OPTIONS_INIT                      \
	{                                    \
		sizeof(struct gw_options), 0 \
	}

/* Flags of struct gw_accepted. */
enum gw_accept_flags {
	GW_ACCEPT_NONBLOCK = 1,
	GW_ACCEPT_CLOEXEC = 2,
};

/* Set `size` and `flags`, or use GW_ACCEPTED_INIT; the rest is the answer. */
struct gw_accepted {
	size_t size;
	/* In: enum gw_accept_flags, together. */
	unsigned int flags;
	/* The connection: the caller closes it. */
	int fd;
	/* 1 if another server had it, 0 if a client has just connected. */
	int migrated;
	/* Bytes that gw_import_state has for it. */
	size_t snapshot_size;
};

#define GW_ACCEPTED_INIT                                \
	{                                               \
		sizeof(struct gw_accepted), 0, -1, 0, 0 \
	}

/* Flags of gw_export_state. */
enum gw_export_flags {
	/*
	 * The server must never go back from this snapshot: waits until the
	 * standby has it, and all output that the client has not acknowledged.
	 * GW_UNPROTECTED if none is known to have: no agent is there, no standby
	 * in sync, or it does not answer. That takes a second, at most five. As
	 * long as this node owns the service none serves from before, either.
	 */
	GW_EXPORT_COMMIT = 1,
};

/*
 * Registers a listening socket. It stays the caller's, and what it was;
 * `options` may be NULL. Without this call gw_accept registers it.
 */
int gw_listen(int listen_fd, const struct gw_options *options);

/*
 * The next connection of a listener. Waits for one unless the listener is
 * non-blocking (GW_WOULD_BLOCK). A listener that poll or epoll calls readable
 * may have nobody, as ever.
 */
int gw_accept(int listen_fd, struct gw_accepted *accepted);

/*
 * Keeps a snapshot of the server's state of a connection, tied to where the
 * server stands in both streams; `snapshot` may be NULL if `size` is 0. No other
 * thread may be reading or writing the connection.
 */
int gw_export_state(int fd, const void *snapshot, size_t size,
		    unsigned int flags);

/*
 * As gw_export_state without flags, by a server that counts itself how many bytes
 * it has read and written since gw_accept gave it the connection: several times
 * faster, as the kernel is asked once in a millisecond only. GW_MISPLACED if it has
 * counted other bytes: the snapshot is kept where the server stands, and the kernel
 * asked each time from then on.
 */
int gw_export_state_at(int fd, const void *snapshot, size_t size, uint64_t read,
		       uint64_t written);

/*
 * Copies the snapshot that a connection came with, if it has room, and returns
 * its size; 0 for a connection without one. The snapshot is there until the
 * first export. `snapshot` may be NULL if `size` is 0. What is no connection is
 * GW_BAD_DESCRIPTOR, as with every call.
 */
ssize_t gw_import_state(int fd, void *snapshot, size_t size);

/*
 * Has a connection stay together with all others that join a session of that
 * name: they move to another server together, or not at all. No bytes: it leaves
 * its session.
 */
int gw_session_join(int fd, const void *session, size_t size);

/*
 * Closes a connection, as close(2) does, and has the library know it at once.
 * A connection that is closed otherwise is found out later.
 */
int gw_close(int fd);

/* What a result means, in English. Never NULL. */
const char *gw_result_str(int result);

#ifdef __cplusplus
}
#endif

#endif
