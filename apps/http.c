/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A static HTTP server whose downloads go on anywhere (Figure 4 of the M-TCP
 * paper): its state of a connection is the request and how far the answer has
 * come.
 *
 *   http ADDRESS PORT FOLDER      GET only; the same files on every server
 * One thread per connection; requests come one after the other.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <godwit.h>

#include "listen.h"

/* What is exported. */
struct state {
	char request[1024]; /* as far as it has come */
	uint32_t length; /* of the request */
	uint32_t answering; /* it is complete */
	uint64_t sent; /* of the answer: headers and file */
};

static int keep(int fd, const struct state *state)
{
	return gw_export_state(fd, state, sizeof(*state), 0);
}

/* The file that is asked for, in the folder only; -1 if there is none. */
static int open_file(const char *request, off_t *size)
{
	char path[1024];
	struct stat status;
	int file;

	*size = 0;
	if (sscanf(request, "GET /%1000s HTTP/1.", path) != 1 ||
	    strstr(path, "..") || path[0] == '/')
		return -1;
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file >= 0 && (fstat(file, &status) || !S_ISREG(status.st_mode))) {
		close(file);
		return -1;
	}
	*size = file < 0 ? 0 : status.st_size;
	return file;
}

/* Sends what is left of the answer, a snapshot after each part; 0: all of it. */
static int answer(int fd, struct state *state)
{
	char buffer[16384];
	off_t size;
	int file = open_file(state->request, &size);
	int head = snprintf(buffer, sizeof(buffer),
			    "HTTP/1.1 %s\r\nContent-Length: %lld\r\n\r\n",
			    file < 0 ? "404 Not Found" : "200 OK",
			    (long long)size);
	uint64_t total = (uint64_t)head + (uint64_t)size;
	int result = 0;

	while (!result && state->sent < total) {
		const char *from = buffer + state->sent;
		ssize_t part = head - (ssize_t)state->sent;

		if (part <= 0) {
			from = buffer;
			part = pread(file, buffer, sizeof(buffer),
				     (off_t)state->sent - head);
		}
		/* A file that has become shorter is an answer that is cut. */
		result = part > 0 ? write_all(fd, from, (size_t)part) : -1;
		if (result)
			break;
		state->sent += (uint64_t)part;
		result = keep(fd, state);
	}
	if (file >= 0)
		close(file);
	return result;
}

/* Reads until the request is complete; 0 then. */
static int request(int fd, struct state *state)
{
	while (!strstr(state->request, "\r\n\r\n")) {
		size_t room = sizeof(state->request) - 1 - state->length;
		ssize_t got = read(fd, state->request + state->length, room);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -1;
		state->length += (uint32_t)got;
		state->request[state->length] = '\0';
		if (keep(fd, state))
			return -1;
	}
	state->answering = 1;
	return 0;
}

static void *serve(void *argument)
{
	int fd = (int)(intptr_t)argument;
	struct state state = { 0 };

	/* A fresh connection has no snapshot; one of another program is none. */
	if (gw_import_state(fd, &state, sizeof(state)) != sizeof(state) ||
	    state.length >= sizeof(state.request))
		memset(&state, 0, sizeof(state));
	state.request[sizeof(state.request) - 1] = '\0';
	while (state.answering || !request(fd, &state)) {
		if (answer(fd, &state))
			break;
		memset(&state, 0, sizeof(state));
		if (keep(fd, &state))
			break;
	}
	gw_close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	int listener = argc == 4 ? listen_at(argv[1], argv[2]) : -1;
	pthread_t thread;

	if (listener < 0 || chdir(argv[3]) || gw_listen(listener, NULL)) {
		fprintf(stderr, "usage: %s ADDRESS PORT FOLDER\n", argv[0]);
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		struct gw_accepted new = GW_ACCEPTED_INIT;

		if (gw_accept(listener, &new) == GW_OK &&
		    pthread_create(&thread, NULL, serve,
				   (void *)(intptr_t) new.fd) == 0)
			pthread_detach(thread);
	}
}
