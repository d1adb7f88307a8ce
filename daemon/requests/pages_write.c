/* RESERVE and ABORT: slots for new pages. commit.c makes pages of them. */
#include <errno.h>
#include <inttypes.h>

#include "daemon/loop/metrics.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/session/reservations.h"
#include "daemon/session/session.h"
#include "daemon/store/reserve.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"

/* ---- reserve ---- */

/* Reserves a slot for a key without a page. */
static int pages_write_reserve_new(struct request *rq, const struct page_context *c,
                                   const struct chunk_key *key, unsigned page_class, struct page_handle *ret)
{
    struct session *x = rq->session;
    struct group *g;
    int r = page_reservation_room(rq);

    if (r < 0)
        return r;

    r = page_group(rq, c->space, page_class, &g);
    if (r < 0)
        return r;

    r = reserve_slot(rq->store, g, x->number, ret, &rq->error);
    if (r < 0)
        return r;

    ret->slot->key = *key;
    reservations_add(x, ret);
    return 0;
}

/* Handles one item. *ret_exists: the key has a page already; *ret is that, and it is held. */
static int pages_write_reserve_item(struct request *rq, const struct page_context *c,
                                    const Kvcobra__ReserveItem *item, struct page_handle *ret,
                                    bool *ret_exists)
{
    struct page_handle present;
    struct chunk_key key;
    int r = page_key(rq, &item->key, &key);

    if (r < 0)
        return r;
    if (item->page_class > PAGE_REST)
        return fail(&rq->error, -EINVAL, "page class %" PRIu32 " is not 0 or 1", item->page_class);

    r = store_find_whole(rq->store, rq->tenant, &key, &present, &rq->error);
    if (r < 0)
        return r;

    *ret_exists = present.slot != NULL;
    if (!*ret_exists)
        return pages_write_reserve_new(rq, c, &key, item->page_class, ret);

    store_hold(rq->store, &present); /* until the reply is filled: a later item must not evict it */
    *ret = present;
    return 0;
}

/* The pages that keys have already. */
static size_t pages_write_find_present(struct request *rq, const struct page_context *c)
{
    struct reply_scratch *scratch = rq->server->scratch;
    const Kvcobra__Reserve *m = rq->message->reserve;

    (void) c;

    for (size_t i = 0; i < m->n_items; i++) {
        struct chunk_key key;

        scratch->found[i] = page_key(rq, &m->items[i]->key, &key) == 0 ? page_find(rq, &key) : PAGE_NONE;
    }
    errmsg_clear(&rq->error); /* a bad key is reported later */
    return m->n_items;
}

/* Undoes the first @n items of the message. */
static void pages_write_undo(struct request *rq, size_t n)
{
    const struct reply_scratch *scratch = rq->server->scratch;

    for (size_t i = 0; i < n; i++) {
        if (scratch->flags[i]) {
            store_unhold(rq->store, &scratch->found[i]);
        } else {
            reservations_take(rq->session, &scratch->found[i]);
            store_discard(rq->store, &scratch->found[i]);
        }
    }
}

/* Fills the first @n items of the reply, and counts the chunks, which the client did not find. */
static void pages_write_fill(struct request *rq, const struct page_context *c, size_t n)
{
    const Kvcobra__Reserve *m = rq->message->reserve;
    struct reply_scratch *scratch = rq->server->scratch;

    for (size_t i = 0; i < n; i++) {
        unsigned page_class = m->items[i]->page_class;
        struct chunk_key key;

        page_ref_fill(rq, i, &scratch->found[i]);
        if (scratch->flags[i])
            store_unhold(rq->store, &scratch->found[i]);
        if (page_key(rq, &m->items[i]->key, &key) < 0)
            continue;
        page_note_lookup(rq, c->space, page_class, &key, false);
        if (!scratch->flags[i] && page_class == PAGE_FIRST)
            page_count_miss(rq, page_miss_reason(rq, c->space, &key));
    }
}

static int pages_write_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__Reserve *m = rq->message->reserve;
    int r = page_context(rq, m->model, &m->table_digest, ret);

    return r < 0 ? r : page_check_writable(rq, ret->table);
}

static int pages_write_reserve(struct request *rq, const struct page_context *c)
{
    const Kvcobra__Reserve *m = rq->message->reserve;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ReserveReply *reply = scratch->body;
    size_t n = 0;
    int r = 0;

    kvcobra__reserve_reply__init(reply);
    for (; n < m->n_items; n++) {
        bool exists = false;

        r = pages_write_reserve_item(rq, c, m->items[n], &scratch->found[n], &exists);
        if (r < 0)
            break;

        scratch->flags[n] = exists;
    }

    if (r == -EINPROGRESS) {
        pages_write_undo(rq, n);
        return extent_wait_begin(rq);
    }

    pages_write_fill(rq, c, n);
    reply->n_slots = reply->n_exists = n;
    reply->slots = scratch->page_pointers;
    reply->exists = scratch->flags;
    reply->end_err = r;
    if (r == -EAGAIN)
        reply->awaited_bytes = share_awaited_bytes(rq->store, rq->tenant);
    if (r < 0)
        rq->reply.message = request_sentence(rq, r);
    metrics_note_error(rq->server->metrics, r);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_RESERVE;
    rq->reply.reserve = reply;
    return 0;
}

static int pages_write_handle_reserve(struct request *rq)
{
    static const struct step_plan plan = {
        .resolve = pages_write_resolve,
        .find = pages_write_find_present,
        .act = pages_write_reserve,
    };

    return request_steps_run(rq, &plan);
}
REQUEST(request_reserve) = {.body = KVCOBRA__REQUEST__BODY_RESERVE,
                            .run = pages_write_handle_reserve,
                            .needs = CONN_OPEN,
                            .sockets = ON_CLIENT};

/* ---- abort ---- */

static int pages_write_handle_abort(struct request *rq)
{
    const Kvcobra__Abort *m = rq->message->abort;
    int r = 0;

    for (size_t i = 0; i < m->n_items; i++) {
        const Kvcobra__AbortItem *item = m->items[i];
        struct page_handle h;

        if (page_resolve_reservation(rq, item->slot, item->generation, &h)) {
            reservations_take(rq->session, &h);
            store_discard(rq->store, &h);
        } else {
            r = fail(&rq->error, -ESTALE,
                     "slot %" PRIu32 " is not a reservation of this session, or was given back", item->slot);
        }
    }

    return r;
}
REQUEST(request_abort) = {.body = KVCOBRA__REQUEST__BODY_ABORT,
                          .run = pages_write_handle_abort,
                          .needs = CONN_OPEN,
                          .sockets = ON_CLIENT};
