/*
 * HTTP for Prometheus on a Unix socket or a loopback address, served by libmicrohttpd from the daemon's event
 * loop. The server starts it; metrics_collect.h makes the page.
 *
 * Only GET and HEAD of /metrics; METRICS_CONNECTIONS_MAX connections at a time, each with one request, closed
 * after METRICS_TIMEOUT_S of silence and after METRICS_CONNECTION_MS. Readers of METRICS_PAGE_MS get the same
 * page: what local users request costs the loop one page a second. A new connection above METRICS_KEPT ends
 * the oldest, so that idle connections of a local user do not keep the monitoring out. Other machines cannot
 * reach it: an address that is not loopback is refused.
 */
#pragma once

#include <stdbool.h>

struct config;
struct errmsg;
struct metrics_http;
struct server;

enum {
    METRICS_CONNECTIONS_MAX = 16,
    METRICS_KEPT = 8,
    METRICS_TIMEOUT_S = 5,
    METRICS_CONNECTION_MS = 10000,
    METRICS_PAGE_MS = 1000,
};

/*
 * Checks a socket that the supervisor passed. Return: 0; -EINVAL with a sentence: no listening stream socket,
 * other machines can reach it, or @c has a metrics socket or address too.
 */
int metrics_socket_check(int fd, const struct config *c, struct errmsg *e);

/*
 * A listening TCP socket. @clients_fd: the client socket; -1: not made by another process.
 * Return: 0; -EINVAL with a sentence: the unit forbids network sockets, or has another network than the
 * process that made the client socket; errno with a sentence.
 */
int metrics_listen(const char *address, int clients_fd, int *ret_fd, struct errmsg *e);

/* @fd: listening stream socket, transferred, also on failure. Return: 0; errno with a sentence. */
int metrics_http_new(struct server *s, int fd, struct metrics_http **ret, struct errmsg *e);
struct metrics_http *metrics_http_free(struct metrics_http *h);

/* Called by the timer, so that silent and old connections are closed. @h may be NULL. */
void metrics_http_tick(struct metrics_http *h);
bool metrics_http_is_busy(const struct metrics_http *h);
