/* RESERVE and ABORT: room for pages. What is written there becomes a page in commit.c. */
#include <errno.h>
#include <inttypes.h>

#include "daemon/requests/conn.h"
#include "daemon/requests/pages.h"
#include "daemon/server.h"
#include "daemon/session/session.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"

/* ---- reserve ---- */

int page_check_writable(struct request *rq, const struct table_entry *t)
{
    if (t->state == TABLE_DRAINING && ev_now_ms(rq->server->ev) >= t->drain_until_ms)
        return fail(&rq->error, -ESTALE,
                    "the table was replaced and its drain time is over: new sequences use another");
    return 0;
}

/* One item. *ret_exists: the key is published already, *ret_slot is that page and not ours. */
static int pages_write_reserve_item(struct request *rq, const struct page_context *c,
                                    const Kvcobra__ReserveItem *item, uint32_t *ret_slot, bool *ret_exists)
{
    struct server *s = rq->server;
    struct session *x = rq->session;
    struct chunk_key key;
    struct group *g;
    uint32_t slot;
    int r = page_key(rq, &item->key, &key);

    if (r < 0)
        return r;
    if (item->page_class > PAGE_REST)
        return fail(&rq->error, -EINVAL, "page class %" PRIu32, item->page_class);
    r = store_find_whole(store_of(x->tenant), x->tenant, &key, &slot, &rq->error);
    if (r < 0)
        return r;
    *ret_exists = slot != SLOT_NONE;
    if (*ret_exists) {
        store_hold(store_of(x->tenant), slot); /* until the reply is filled: a later item must not evict it */
        *ret_slot = slot;
        return 0;
    }
    if (x->n_reservations + x->n_copying >= s->config->reservations_per_session_max)
        return fail(&rq->error, -EDQUOT,
                    "this session has %" PRIu32 " reservations, which is the most: commit or abort some",
                    x->n_reservations + x->n_copying);
    r = tenant_group(x->tenant, c->space, item->page_class, &g);
    if (r == 0)
        r = store_reserve(store_of(x->tenant), g, x->number, x->pid, &slot, &rq->error);
    if (r < 0)
        return r;
    if (item->page_class == PAGE_FIRST)
        page_count_miss(rq, page_miss_reason(rq, c->space, &key));
    pool_slot(&store_of(x->tenant)->pool, slot)->key = key;
    session_add_reservation(x, slot);
    *ret_slot = slot;
    return 0;
}

/* What is published already, for recheck_begin(). */
static void pages_write_find_present(struct request *rq, const Kvcobra__Reserve *m)
{
    struct reply_scratch *scratch = rq->server->scratch;

    for (size_t i = 0; i < m->n_items; i++) {
        struct chunk_key key;

        scratch->slots[i] = SLOT_NONE;
        if (page_key(rq, &m->items[i]->key, &key) == 0)
            scratch->slots[i] = store_find(store_of(rq->session->tenant), rq->session->tenant, &key);
    }
    errmsg_clear(&rq->error); /* a bad key is reported where it is met */
}

int handle_reserve(struct request *rq)
{
    const Kvcobra__Reserve *m = rq->message->reserve;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__ReserveReply *reply = &scratch->body.reserve;
    struct page_context c;
    size_t n = 0;
    int r = page_context(rq, m->model, &m->table_digest, &c);

    if (r == 0)
        r = page_check_writable(rq, c.table);
    if (r < 0)
        return r;
    pages_write_find_present(rq, m);
    r = recheck_begin(rq, scratch->slots, m->n_items, handle_reserve);
    if (r != 0)
        return r;
    kvcobra__reserve_reply__init(reply);
    for (; n < m->n_items; n++) {
        bool exists;

        r = pages_write_reserve_item(rq, &c, m->items[n], &scratch->slots[n], &exists);
        if (r < 0)
            break;
        scratch->flags[n] = exists;
    }
    for (size_t i = 0; i < n; i++) {
        page_ref_fill(rq, i, scratch->slots[i]);
        if (scratch->flags[i])
            store_unhold(store_of(rq->session->tenant), scratch->slots[i]);
    }
    reply->n_slots = reply->n_exists = n;
    reply->slots = scratch->page_pointers;
    reply->exists = scratch->flags;
    reply->end_err = r;
    if (r == -EAGAIN)
        reply->awaited_bytes = share_awaited_bytes(store_of(rq->session->tenant), rq->session->tenant);
    if (r < 0)
        rq->reply.message = rq->error.text;
    metrics_note_error(&rq->server->metrics, r);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_RESERVE;
    rq->reply.reserve = reply;
    return 0;
}

/* ---- abort ---- */

struct slot *page_own_reservation(const struct request *rq, uint32_t number, uint64_t generation)
{
    struct slot *slot = pool_slot(&store_of(rq->session->tenant)->pool, number);

    if (!slot || slot->state != SLOT_RESERVED || slot->session != rq->session->number ||
        slot->generation != generation)
        return NULL;
    return slot;
}

int handle_abort(struct request *rq)
{
    const Kvcobra__Abort *m = rq->message->abort;
    int r = 0;

    for (size_t i = 0; i < m->n_items; i++) {
        const Kvcobra__AbortItem *item = m->items[i];

        if (page_own_reservation(rq, item->slot, item->generation)) {
            session_take_reservation(rq->session, item->slot);
            store_discard(store_of(rq->session->tenant), item->slot);
        } else {
            r = fail(&rq->error, -ESTALE, "slot %" PRIu32 " is no reservation of this session (any more)",
                     item->slot);
        }
    }
    return r;
}
