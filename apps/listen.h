/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What all of these servers need and nothing of Godwit is in. */
#ifndef APPS_LISTEN_H
#define APPS_LISTEN_H

#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

/* A listener at an address and port, or -1. */
static int listen_at(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICHOST,
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	int on = 1;
	int fd;

	if (getaddrinfo(address, port, &hints, &found))
		return -1;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024))
		fd = -1;
	freeaddrinfo(found);
	return fd;
}

/* 0 when all of it is written. */
static int write_all(int fd, const void *bytes, size_t size)
{
	const char *from = bytes;

	while (size > 0) {
		ssize_t put = write(fd, from, size);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return -1;
		from += put;
		size -= (size_t)put;
	}
	return 0;
}

#endif
