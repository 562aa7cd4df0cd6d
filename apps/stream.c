/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A streaming server whose streams go on anywhere.
 *
 *   stream ADDRESS PORT
 *
 * A client sends how many bytes it wants, as a line, and gets them in chunks of
 * 1 KB. After each chunk the server exports its state: how many bytes were asked
 * for and how many were sent. Another stream server goes on from there.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <godwit.h>

#include "listen.h"

#define CHUNK 1024

/* The server's state of a connection, and all of it. */
struct stream {
	uint64_t wanted;
	uint64_t sent;
};

/* Every server has the same bytes at the same place. */
static unsigned char byte_at(uint64_t at)
{
	return (unsigned char)(at * 2654435761u >> 13);
}

/* Reads the line with the number; 0 if the client says something else. */
static uint64_t read_wish(int fd, uint64_t *read_bytes)
{
	char line[32];
	size_t length = 0;

	while (length < sizeof(line) - 1) {
		ssize_t got = read(fd, line + length, 1);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		++*read_bytes;
		if (line[length] == '\n')
			break;
		length++;
	}
	line[length] = '\0';
	return strtoull(line, NULL, 10);
}

static void *serve(void *argument)
{
	int fd = (int)(intptr_t)argument;
	unsigned char chunk[CHUNK];
	struct stream stream = { 0, 0 };
	/* Of this server: what it has read, and where it began to write. */
	uint64_t has_read = 0, begun;

	/* What another server has exported; a fresh connection has nothing. */
	if (gw_import_state(fd, &stream, sizeof(stream)) != sizeof(stream)) {
		stream = (struct stream){ read_wish(fd, &has_read), 0 };
		if (gw_export_state(fd, &stream, sizeof(stream), 0))
			stream.wanted = 0;
	}
	begun = stream.sent;
	while (stream.sent < stream.wanted) {
		uint64_t left = stream.wanted - stream.sent;
		size_t size = left < CHUNK ? (size_t)left : CHUNK;

		for (size_t i = 0; i < size; i++)
			chunk[i] = byte_at(stream.sent + i);
		if (write_all(fd, chunk, size))
			break;
		stream.sent += size;
		/* GW_EMIGRATED: another server goes on, this one is done. */
		if (gw_export_state_at(fd, &stream, sizeof(stream), has_read,
				       stream.sent - begun))
			break;
	}
	gw_close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	int listener = argc == 3 ? listen_at(argv[1], argv[2]) : -1;

	if (listener < 0 || gw_listen(listener, NULL)) {
		fprintf(stderr, "usage: %s ADDRESS PORT (free ones)\n",
			argv[0]);
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		struct gw_accepted accepted = GW_ACCEPTED_INIT;
		int result = gw_accept(listener, &accepted);
		pthread_t thread;

		if (result == GW_INTERRUPTED)
			continue;
		if (result) {
			fprintf(stderr, "accept: %s\n", gw_result_str(result));
			return 1;
		}
		if (pthread_create(&thread, NULL, serve,
				   (void *)(intptr_t)accepted.fd)) {
			gw_close(accepted.fd);
			continue;
		}
		pthread_detach(thread);
	}
}
