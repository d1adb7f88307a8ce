/*
 * Addresses of names. getaddrinfo() waits for name servers, so threads call it; addresses in digits are read
 * on the loop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct errmsg;
struct ev;
struct resolver;
struct resolver_query;

struct resolver_answer {
    int result; /* 0; -ENOENT: no such name; -ETIMEDOUT; -EAGAIN: the look-up failed */
    struct sockaddr_storage address;
    socklen_t address_bytes;
};

/* Return: 0; errno of a thread, with a sentence. */
int resolve_new(struct ev *ev, struct resolver **ret, struct errmsg *e);

/*
 * All queries were cancelled before. Waits for look-ups that run: a process that ends calls it only if
 * resolve_is_busy() is false. NULL is allowed; returns NULL.
 */
struct resolver *resolve_free(struct resolver *r);
bool resolve_is_busy(const struct resolver *r);

/* Return: whether @host is an address in digits; then *ret has it. */
bool resolve_read_address(const char *host, uint16_t port, struct resolver_answer *ret);

/*
 * Looks @host up; @done runs on the loop, not before the call returns. @nth: which of the addresses, counted
 * round: another one after a failure. NULL: out of memory, or too many queries.
 */
struct resolver_query *resolve_ask(struct resolver *r, const char *host, uint16_t port, uint64_t nth,
                                   void (*done)(void *ctx, const struct resolver_answer *a), void *ctx);
void resolve_cancel(struct resolver_query *q); /* done() does not run */

/* At each tick. */
void resolve_tick(struct resolver *r, uint64_t now_ms);
