/*
 * PIN: an operator keeps the pages of a prompt in memory for some time (store/kept.h), or no longer. Pages
 * that only a slower tier has are fetched first, by the steps of a LEASE (request_steps.h). Those that are in
 * memory are pinned before, so that what is fetched does not evict them.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/operator/prefix.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/store/kept.h"
#include "daemon/store/space.h"
#include "daemon/tables/tables.h"

#define PIN_MS_MAX (UINT64_C(366) * 24 * 3600 * 1000)
enum { PIN_FETCH_MS = 8000 }; /* less than clients wait for a reply by default */

/* Finds the page of a key, if it can stay: not in an extent that is being emptied. False: none. */
static bool pin_find(const struct request *rq, const struct chunk_key *key, struct page_handle *ret)
{
    return store_find(rq->store, rq->tenant, key, ret) && !pool_extent_is_closed(ret->span->extent);
}

static int pin_check_table(struct request *rq, const struct prefix *p)
{
    for (const struct space *x = p->table->spaces; x; x = x->next)
        if (x->leaves_first)
            return fail(&rq->error, -ESTALE,
                        "the table is being retired, and its pages leave: pin pages of the active table");
    return 0;
}

/* Pins a page, or ends its pin, if it is in memory. *@ret_found: whether it is. */
static int pin_page(struct request *rq, const struct chunk_key *key, uint64_t until_ms, bool *ret_found)
{
    struct page_handle h;

    *ret_found = pin_find(rq, key, &h);
    if (!*ret_found)
        return 0;
    if (until_ms > 0)
        return kept_begin(rq->store, &h, until_ms, &rq->error);

    kept_end(rq->store, &h);
    return 0;
}

/* Both pages of all chunks, whose keys are in the scratch. */
static int pin_pages(struct request *rq, Kvcobra__PinReply *reply)
{
    const Kvcobra__Pin *m = rq->message->pin;
    const struct chunk_key *keys = rq->server->scratch->keys;
    uint64_t until_ms = m->pin_ms > 0 ? ev_now_ms(rq->server->ev) + m->pin_ms : 0;

    kvcobra__pin_reply__init(reply);
    for (size_t i = 0; i < m->prefix->n_tokens / CHUNK_TOKENS; i++) {
        bool any = false;

        for (size_t k = 0; k < PREFIX_KEYS; k++) {
            bool found;
            int r = pin_page(rq, &keys[i * PREFIX_KEYS + k], until_ms, &found);

            rq->server->has_kept |= rq->tenant->kept.n > 0;
            if (r < 0)
                return r;
            reply->pages += found;
            any = any || found;
        }
        reply->missing += !any;
    }
    return 0;
}

/* ---- steps ---- */

/* Also pins what is in memory already. */
static int pin_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__Pin *m = rq->message->pin;
    struct reply_scratch *scratch = rq->server->scratch;
    struct prefix p;
    int r = prefix_read(rq, m->prefix, &p);

    if (r == 0 && m->pin_ms > 0)
        r = pin_check_table(rq, &p);
    if (r == 0)
        r = tables_space(rq->server->tables, p.table, p.shard, &ret->space, &rq->error);
    if (r < 0)
        return r;

    rq->tenant = p.tenant;
    rq->store = store_of(p.tenant);
    for (size_t i = 0; i < p.n_chunks; i++) {
        prefix_next(&p, m->prefix, i);
        memcpy(&scratch->keys[i * PREFIX_KEYS], p.keys, sizeof(p.keys));
    }
    memcpy(scratch->digest, p.keys, sizeof(p.keys));
    return pin_pages(rq, scratch->body);
}

static int pin_item(struct request *rq, const struct page_context *c, size_t i, struct fetch_wait_item *ret)
{
    bool is_first = rq->message->pin->prefix->parent_keys.len == 0 && i < PREFIX_KEYS;

    (void) c;
    ret->key = rq->server->scratch->keys[i];
    ret->page_class = is_first ? PAGE_FIRST : PAGE_REST;
    ret->page = page_find(rq, &ret->key);
    return 0;
}

static struct fetch_wait_run pin_run(const struct request *rq)
{
    const Kvcobra__Pin *m = rq->message->pin;

    return (struct fetch_wait_run){.n = m->prefix->n_tokens / CHUNK_TOKENS * PREFIX_KEYS,
                                   .fetch_ms = m->pin_ms > 0 ? PIN_FETCH_MS : 0,
                                   .goes_past_gaps = true, /* a prompt has one of the two keys of a chunk */
                                   .item = pin_item};
}

/* The pages were pinned by the last pin_resolve(), for which those that were fetched were held. */
static int pin_act(struct request *rq, const struct page_context *c)
{
    const Kvcobra__Pin *m = rq->message->pin;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__PinReply *reply = scratch->body;

    (void) c;
    reply->keys = bytes_view(scratch->digest, sizeof(struct chunk_key[PREFIX_KEYS]));
    reply->pinned_bytes = rq->tenant->kept.bytes;
    reply->limit_bytes = kept_limit_bytes(rq->store, rq->tenant);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_PIN;
    rq->reply.pin = reply;
    log_event(LOG_NOTICE, m->pin_ms > 0 ? "pin" : "unpin",
              "tenant=%s pages=%" PRIu32 " missing=%" PRIu32 " seconds=%" PRIu64 " bytes=%" PRIu64,
              rq->tenant->name, reply->pages, reply->missing, m->pin_ms / 1000, reply->pinned_bytes);
    return 0;
}

static int pin_handle(struct request *rq)
{
    static const struct step_plan plan = {.resolve = pin_resolve, .run = pin_run, .act = pin_act};
    const Kvcobra__Pin *m = rq->message->pin;

    if (m->pin_ms > PIN_MS_MAX)
        return fail(&rq->error, -EINVAL, "a pin of %" PRIu64 " ms is longer than a year", m->pin_ms);
    return request_steps_run(rq, &plan);
}
REQUEST(request_pin) = {
    .body = KVCOBRA__REQUEST__BODY_PIN, .run = pin_handle, .needs = CONN_OPEN, .sockets = ON_OPERATOR};
