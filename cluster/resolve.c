/* See resolve.h. */
#include "cluster/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "cluster/slots.h"
#include "daemon/loop/work.h"

enum { RESOLVER_THREADS = 2, RESOLVER_QUERIES_MAX = 512, RESOLVER_DEADLINE_MS = 10000 };

struct resolver {
    struct work *work;
    struct work_share share;
    unsigned n_queries;
};

struct resolver_query {
    struct work_item item; /* first member */
    struct resolver *resolver;
    char host[HOST_BYTES];
    uint16_t port;
    uint64_t nth;
    struct resolver_answer answer;
    void (*done)(void *ctx, const struct resolver_answer *a); /* NULL: cancelled */
    void *ctx;
};

static int resolver_look_up(const char *host, uint16_t port, uint64_t nth, int flags,
                            struct resolver_answer *ret)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const struct addrinfo *a;
    uint64_t n = 0;
    char service[8];
    int r;

    (void) snprintf(service, sizeof(service), "%u", (unsigned) port);
    r = getaddrinfo(host, service, &hints, &list);
    if (r != 0)
        return r == EAI_NONAME ? -ENOENT : -EAGAIN;

    for (a = list; a; a = a->ai_next)
        n++;
    if (n == 0) {
        freeaddrinfo(list);
        return -ENOENT;
    }

    a = list;
    for (nth %= n; nth > 0; nth--)
        a = a->ai_next;
    *ret = (struct resolver_answer){.address_bytes = a->ai_addrlen};
    memcpy(&ret->address, a->ai_addr, a->ai_addrlen);
    freeaddrinfo(list);
    return 0;
}

bool resolve_read_address(const char *host, uint16_t port, struct resolver_answer *ret)
{
    return resolver_look_up(host, port, 0, AI_NUMERICHOST, ret) == 0;
}

/* ---- queries ---- */

static bool resolver_run(struct work_item *i)
{
    struct resolver_query *q = (struct resolver_query *) i;

    q->answer.result = resolver_look_up(q->host, q->port, q->nth, 0, &q->answer);
    return false;
}

static void resolver_done(struct work_item *i)
{
    struct resolver_query *q = (struct resolver_query *) i;

    q->resolver->n_queries--;
    if (i->expired)
        q->answer.result = -ETIMEDOUT;
    if (q->done)
        q->done(q->ctx, &q->answer);
    free(q);
}

struct resolver_query *resolve_ask(struct resolver *r, const char *host, uint16_t port, uint64_t nth,
                                   void (*done)(void *ctx, const struct resolver_answer *a), void *ctx)
{
    struct resolver_query *q = calloc(1, sizeof(*q));

    if (!q)
        return NULL;

    q->item.run = resolver_run;
    q->item.done = resolver_done;
    q->item.deadline_ms = work_clock_ms() + RESOLVER_DEADLINE_MS;
    q->resolver = r;
    q->port = port;
    q->nth = nth;
    q->done = done;
    q->ctx = ctx;
    (void) snprintf(q->host, sizeof(q->host), "%s", host);
    if (work_submit(r->work, &r->share, &q->item) < 0) {
        free(q);
        return NULL;
    }

    r->n_queries++;
    return q;
}

void resolve_cancel(struct resolver_query *q)
{
    q->done = NULL;
}

/* ---- the resolver ---- */

int resolve_new(struct ev *ev, struct resolver **ret, struct errmsg *e)
{
    _cleanup_(freep) struct resolver *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return fail(e, -ENOMEM, "out of memory");

    err = work_new(ev, RESOLVER_THREADS, RESOLVER_QUERIES_MAX, &r->work, e);
    if (err < 0)
        return err;
    *ret = take_ptr(r);
    return 0;
}

struct resolver *resolve_free(struct resolver *r)
{
    if (!r)
        return NULL;

    r->work = work_free(r->work);
    free(r);
    return NULL;
}

bool resolve_is_busy(const struct resolver *r)
{
    return r->n_queries > 0;
}

void resolve_tick(struct resolver *r, uint64_t now_ms)
{
    work_expire(r->work, now_ms);
}
