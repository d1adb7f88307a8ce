/*
 * A local user without the client socket: connections to the loopback address of the metrics, with hundreds
 * of requests in one packet, or with a body that does not end. It reads no reply.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/attack_client.h"
#include "tests/lib/test.h"

enum { CONNECTIONS = 16, REQUESTS = 300, PAUSE_MS = 20, BODY_BYTES = 32768 };

uint16_t attack_metrics_port;

static int connect_to_metrics(void)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(attack_metrics_port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *) &a, sizeof(a)) < 0) {
        (void) close(fd);
        fd = -1;
    }
    return fd;
}

static size_t make_requests(char *ret, size_t room)
{
    size_t n = 0;

    for (unsigned i = 0; i < REQUESTS; i++)
        n += (size_t) snprintf(ret + n, room - n, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    return n;
}

static size_t make_body(char *ret, size_t room)
{
    size_t n = (size_t) snprintf(ret, room,
                                 "GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n");

    memset(ret + n, 'x', BODY_BYTES);
    return n + BODY_BYTES;
}

void attack_metrics(void)
{
    static char requests[REQUESTS * 64], body[BODY_BYTES + 256];
    size_t n_requests = make_requests(requests, sizeof(requests)), n_body = make_body(body, sizeof(body));
    const struct linger reset = {1, 0}; /* the next connection needs no port that lingers */

    for (;;) {
        int fds[CONNECTIONS];

        for (unsigned i = 0; i < CONNECTIONS; i++) {
            fds[i] = connect_to_metrics();
            if (fds[i] >= 0)
                (void) !send(fds[i], i % 2 ? body : requests, i % 2 ? n_body : n_requests,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        (void) poll(NULL, 0, PAUSE_MS);
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            if (fds[i] < 0)
                continue;
            (void) setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
            (void) close(fds[i]);
        }
    }
}
