/*
 * What a program may do wrong, and what it may do: NULL, descriptors that are none,
 * forks, threads. Ends with 0 if every answer was the right one; run as it is, under
 * valgrind and with the address sanitizer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <godwit.h>

#define EXPECT(call, wanted)                                            \
	do {                                                            \
		long got_ = (long)(call);                               \
		if (got_ != (long)(wanted)) {                           \
			fprintf(stderr, "%s:%d: %s is %ld\n", __FILE__, \
				__LINE__, #call, got_);                 \
			exit(1);                                        \
		}                                                       \
	} while (0)

static struct sockaddr_in address = { .sin_family = AF_INET };

static int listener_at_any_port(void)
{
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	EXPECT(bind(fd, (struct sockaddr *)&address, length), 0);
	EXPECT(listen(fd, 128), 0);
	EXPECT(getsockname(fd, (struct sockaddr *)&address, &length), 0);
	return fd;
}

static int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	EXPECT(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void wrong_parameters(int listener)
{
	struct gw_options small = { sizeof(size_t), 0 };
	struct gw_options odd = { sizeof(odd), 1u << 31 };
	struct gw_accepted accepted = GW_ACCEPTED_INIT;
	char byte = 0;
	int fds[2];

	EXPECT(gw_listen(listener, &small), GW_BAD_SIZE);
	EXPECT(gw_listen(listener, &odd), GW_UNSUPPORTED);
	EXPECT(gw_accept(listener, NULL), GW_NULL_PARAMETER);
	accepted.size = 4;
	EXPECT(gw_accept(listener, &accepted), GW_BAD_SIZE);
	EXPECT(gw_export_state(0, NULL, 1, 0), GW_NULL_PARAMETER);
	EXPECT(gw_export_state(0, &byte, GW_MAX_SNAPSHOT + 1, 0), GW_TOO_LARGE);
	EXPECT(gw_export_state(0, &byte, (size_t)-1, 0), GW_TOO_LARGE);
	EXPECT(gw_export_state(0, &byte, 1, 1u << 31), GW_UNSUPPORTED);
	EXPECT(gw_export_state(0, NULL, 1, GW_EXPORT_COMMIT),
	       GW_NULL_PARAMETER);
	EXPECT(gw_export_state(0, &byte, (size_t)-1, GW_EXPORT_COMMIT),
	       GW_TOO_LARGE);
	EXPECT(gw_export_state_at(0, NULL, 1, 0, 0), GW_NULL_PARAMETER);
	EXPECT(gw_export_state_at(0, &byte, (size_t)-1, 0, 0), GW_TOO_LARGE);
	EXPECT(gw_import_state(0, NULL, 1), GW_NULL_PARAMETER);
	EXPECT(gw_import_state(0, &byte, (size_t)-1), GW_TOO_LARGE);
	EXPECT(gw_session_join(0, NULL, 1), GW_NULL_PARAMETER);
	EXPECT(gw_session_join(0, &byte, GW_MAX_SESSION + 1), GW_TOO_LARGE);

	EXPECT(pipe(fds), 0);
	accepted.size = sizeof(accepted);
	for (int i = 0; i < 4; i++) {
		int bad[] = { -1, 12345, fds[0], listener };

		if (bad[i] != listener) {
			EXPECT(gw_listen(bad[i], NULL), GW_BAD_DESCRIPTOR);
			EXPECT(gw_accept(bad[i], &accepted), GW_BAD_DESCRIPTOR);
		}
		EXPECT(gw_session_join(bad[i], &byte, 1), GW_BAD_DESCRIPTOR);
		EXPECT(gw_import_state(bad[i], &byte, 1), GW_BAD_DESCRIPTOR);
		EXPECT(gw_import_state(bad[i], NULL, 0), GW_BAD_DESCRIPTOR);
		EXPECT(gw_export_state(bad[i], &byte, 1, 0), GW_BAD_DESCRIPTOR);
		EXPECT(gw_export_state_at(bad[i], &byte, 1, 0, 0),
		       GW_BAD_DESCRIPTOR);
	}
	EXPECT(gw_close(-1), GW_BAD_DESCRIPTOR);
	EXPECT(gw_close(12345), GW_BAD_DESCRIPTOR);
	EXPECT(gw_close(fds[0]), GW_OK);
	EXPECT(gw_close(fds[1]), GW_OK);
	EXPECT(accepted.fd, -1);
	for (int result = 5; result > -20; result--)
		EXPECT(strlen(gw_result_str(result)) > 3, 1);
}

static int serve_one(int listener)
{
	struct gw_accepted accepted = GW_ACCEPTED_INIT;
	int peer = client();
	char byte;

	EXPECT(gw_accept(listener, &accepted), GW_OK);
	EXPECT(accepted.migrated, 0);
	EXPECT(gw_import_state(accepted.fd, NULL, 0), 0);
	EXPECT(gw_export_state(accepted.fd, "state", 5, 0), GW_OK);
	EXPECT(gw_export_state(accepted.fd, NULL, 0, 0), GW_OK);
	EXPECT(gw_session_join(accepted.fd, "name", 4), GW_OK);
	EXPECT(write(accepted.fd, "!", 1), 1);
	EXPECT(gw_export_state(accepted.fd, "state", 5, 0), GW_OK);
	EXPECT(gw_close(accepted.fd), GW_OK);
	EXPECT(read(peer, &byte, 1), 1);
	EXPECT(read(peer, &byte, 1), 0);
	EXPECT(close(peer), 0);
	return 0;
}

/* A number that was closed behind the library's back is no connection any more. */
static void closed_numbers(int listener)
{
	struct gw_accepted accepted = GW_ACCEPTED_INIT;
	int peer = client();
	char byte;

	EXPECT(gw_accept(listener, &accepted), GW_OK);
	EXPECT(gw_export_state(accepted.fd, "s", 1, 0), GW_OK);
	EXPECT(close(accepted.fd), 0);
	EXPECT(gw_export_state(accepted.fd, "s", 1, 0), GW_BAD_DESCRIPTOR);
	EXPECT(gw_import_state(accepted.fd, &byte, 1), GW_BAD_DESCRIPTOR);
	EXPECT(gw_session_join(accepted.fd, "s", 1), GW_BAD_DESCRIPTOR);
	EXPECT(close(peer), 0);
}

static void *serve_many(void *listener)
{
	for (int i = 0; i < 50; i++)
		serve_one(*(int *)listener);
	return NULL;
}

/* A child starts afresh, with its parent's listener and connections. */
static void forks(int listener)
{
	struct gw_accepted accepted = GW_ACCEPTED_INIT;
	int peer = client();
	int status;

	EXPECT(gw_accept(listener, &accepted), GW_OK);
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();

		if (child == 0) {
			EXPECT(gw_export_state(accepted.fd, "s", 1, 0), GW_OK);
			serve_one(listener);
			_exit(0);
		}
		EXPECT(waitpid(child, &status, 0), child);
		EXPECT(status, 0);
	}
	EXPECT(gw_export_state(accepted.fd, "s", 1, 0), GW_OK);
	EXPECT(gw_close(accepted.fd), GW_OK);
	close(peer);
}

int main(void)
{
	int listener = listener_at_any_port();
	pthread_t threads[4];

	wrong_parameters(listener);
	EXPECT(gw_listen(listener, NULL), GW_OK);
	serve_one(listener);
	closed_numbers(listener);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, serve_many, &listener);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	forks(listener);
	return 0;
}
