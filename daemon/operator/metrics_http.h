/*
 * Where monitoring asks: HTTP on a Unix socket or a loopback address, served by libmicrohttpd from the
 * daemon's own loop.
 *
 * GET /metrics and nothing else; METRICS_CONNECTIONS_MAX at a time, each METRICS_TIMEOUT_S long at most.
 * Other machines cannot reach it: an address that is not loopback is refused.
 */
#pragma once

#include <stdbool.h>

struct errmsg;
struct metrics_http;
struct server;

enum { METRICS_CONNECTIONS_MAX = 16, METRICS_TIMEOUT_S = 5 };

/* Whether a socket that somebody else made may be served. Return: 0; -EINVAL with a sentence. */
int metrics_socket_check(int fd, struct errmsg *e);

/* A listening TCP socket. Return: 0; errno with a sentence. */
int metrics_listen(const char *address, int *ret_fd, struct errmsg *e);

/* @fd: listening stream socket, owned from now on, also on failure. Return: 0; errno with a sentence. */
int metrics_http_new(struct server *s, int fd, struct metrics_http **ret, struct errmsg *e);
struct metrics_http *metrics_http_free(struct metrics_http *h);

/* Once in a while, so that silent connections end. NULL is fine. */
void metrics_http_tick(struct metrics_http *h);
bool metrics_http_is_busy(const struct metrics_http *h);
