/*
 * PIN: an operator keeps the pages of a prompt in memory for some time (store/kept.h), or no longer. Pages
 * that only the disk has are not fetched: a client that matches the prompt, or asks for it ahead, brings them
 * to memory.
 */
#include <errno.h>
#include <inttypes.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/operator/handlers.h"
#include "daemon/operator/prefix.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/store/kept.h"
#include "daemon/store/space.h"

#define PIN_MS_MAX (UINT64_C(366) * 24 * 3600 * 1000)

/* Finds the page of a key, if it can stay: not in an extent that is being emptied. False: none. */
static bool pin_find(const struct prefix *p, int key, struct page_handle *ret)
{
    return store_find(store_of(p->tenant), p->tenant, &p->keys[key], ret) &&
           !pool_extent_is_closed(ret->span->extent);
}

static int pin_check_table(struct request *rq, const struct prefix *p)
{
    for (const struct space *x = p->table->spaces; x; x = x->next)
        if (x->leaves_first)
            return fail(&rq->error, -ESTALE,
                        "the table is being retired, and its pages leave: pin pages of the active table");
    return 0;
}

/* Both pages of the present chunk. */
static int pin_chunk(struct request *rq, const struct prefix *p, uint64_t until_ms, Kvcobra__PinReply *reply)
{
    struct store *st = store_of(p->tenant);
    bool any = false;

    for (int k = 0; k < PREFIX_KEYS; k++) {
        struct page_handle h;
        int r = 0;

        if (!pin_find(p, k, &h))
            continue;

        any = true;
        if (until_ms > 0)
            r = kept_begin(st, &h, until_ms, &rq->error);
        else
            kept_end(st, &h);
        if (r < 0)
            return r;

        reply->pages++;
    }

    reply->missing += !any;
    return 0;
}

int pin_handle(struct request *rq)
{
    const Kvcobra__Pin *m = rq->message->pin;
    struct server *s = rq->server;
    Kvcobra__PinReply *reply = &s->scratch->body.pin;
    uint64_t until_ms = m->pin_ms > 0 ? ev_now_ms(s->ev) + m->pin_ms : 0;
    struct prefix p;
    int r;

    if (m->pin_ms > PIN_MS_MAX)
        return fail(&rq->error, -EINVAL, "a pin of %" PRIu64 " ms is longer than a year", m->pin_ms);

    r = prefix_read(rq, m->prefix, &p);
    if (r == 0 && until_ms > 0)
        r = pin_check_table(rq, &p);
    if (r < 0)
        return r;

    kvcobra__pin_reply__init(reply);
    for (size_t i = 0; i < p.n_chunks && r == 0; i++) {
        prefix_next(&p, m->prefix, i);
        r = pin_chunk(rq, &p, until_ms, reply);
    }
    s->has_kept |= p.tenant->kept.n > 0;
    if (r < 0)
        return r;

    reply->keys = prefix_keys(rq, &p);
    reply->pinned_bytes = p.tenant->kept.bytes;
    reply->limit_bytes = kept_limit_bytes(store_of(p.tenant), p.tenant);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_PIN;
    rq->reply.pin = reply;
    log_event(LOG_NOTICE, m->pin_ms > 0 ? "pin" : "unpin",
              "tenant=%s pages=%" PRIu32 " missing=%" PRIu32 " seconds=%" PRIu64 " bytes=%" PRIu64,
              p.tenant->name, reply->pages, reply->missing, m->pin_ms / 1000, reply->pinned_bytes);
    return 0;
}
