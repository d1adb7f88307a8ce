/* LEASE and RELEASE: how a page is found again, and what both directions share. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/requests/conn.h"
#include "daemon/loop/log.h"
#include "daemon/requests/pages.h"
#include "daemon/server.h"
#include "daemon/session/session.h"
#include "daemon/store/space.h"

int page_context(struct request *rq, uint32_t model, const ProtobufCBinaryData *table_digest,
                 struct page_context *ret)
{
    struct page_context c = {.model = session_model(rq->session, model)};
    int r;

    if (!c.model)
        return fail(&rq->error, -EINVAL, "this session has no model %" PRIu32, model);
    r = request_table(rq, table_digest, &c.table);
    if (r < 0)
        return r;
    if (memcmp(c.table->model_digest, c.model->digest, DIGEST_BYTES) != 0)
        return fail(&rq->error, -EINVAL, "the table is one of another model");
    r = tables_space(&rq->server->tables, c.table, c.model->shard, &c.space, &rq->error);
    if (r == 0)
        *ret = c;
    return r;
}

int page_key(struct request *rq, const ProtobufCBinaryData *bytes, struct chunk_key *ret)
{
    if (bytes->len != CHUNK_KEY_BYTES)
        return fail(&rq->error, -EINVAL, "a chunk key of %zu bytes instead of %d", bytes->len,
                    CHUNK_KEY_BYTES);
    memcpy(ret->bytes, bytes->data, CHUNK_KEY_BYTES);
    return 0;
}

void page_ref_fill(struct request *rq, size_t i, uint32_t number)
{
    const struct pool *p = &store_of(rq->session->tenant)->pool;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__PageRef *ref = &scratch->pages[i];
    const struct slot *slot = number == SLOT_NONE ? NULL : pool_slot(p, number);

    kvcobra__page_ref__init(ref);
    scratch->page_pointers[i] = ref;
    if (!slot)
        return;
    ref->slot = number;
    ref->generation = slot->generation;
    ref->extent = pool_slot_span(p, number)->extent->id;
    ref->offset = pool_slot_offset(p, number);
    ref->bytes = pool_slot_span(p, number)->group->page_bytes;
}

int page_lease_room(struct request *rq)
{
    int r = leases_make_room(&rq->session->leases);

    return r < 0 ? fail(&rq->error, r, "this session has %" PRIu32 " leases, which is the most: release some",
                        rq->session->leases.n_leases)
                 : 0;
}

int page_lease(struct request *rq, size_t n, uint64_t *ret_lease)
{
    struct reply_scratch *scratch = rq->server->scratch;
    size_t n_held = 0;
    int r;

    for (size_t i = 0; i < n; i++)
        n_held += scratch->slots[i] != SLOT_NONE;
    *ret_lease = 0;
    if (n_held == 0)
        return 0;
    r = leases_add(&rq->session->leases, scratch->slots, (uint32_t) n, ret_lease);
    if (r == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (scratch->slots[i] != SLOT_NONE)
            store_unhold(store_of(rq->session->tenant), scratch->slots[i]);
    return fail(&rq->error, r, "cannot remember a lease: %s", strerror(-r));
}

/* What the index said, against the daemon's own record. */
static bool names_page(struct request *rq, const struct page_context *c, const Kvcobra__LeaseItem *item,
                       const struct chunk_key *key)
{
    const struct pool *p = &store_of(rq->session->tenant)->pool;
    const struct slot *slot = pool_slot(p, item->slot);

    return slot && slot->state == SLOT_COMMITTED && slot->generation == item->generation &&
           memcmp(&slot->key, key, sizeof(*key)) == 0 &&
           pool_slot_span(p, item->slot)->group->space == c->space &&
           pool_slot_span(p, item->slot)->group->tenant == rq->session->tenant;
}

Kvcobra__MissReason page_miss_reason(const struct request *rq, const struct space *space,
                                     const struct chunk_key *key)
{
    const struct tenant *t = rq->session->tenant;
    uint32_t present = store_find(store_of(rq->session->tenant), t, key);

    if (present != SLOT_NONE &&
        pool_slot_span(&store_of(rq->session->tenant)->pool, present)->group->space != space)
        return KVCOBRA__MISS_REASON__MISS_OTHER_TABLE;
    switch (ghosts_find(&t->ghosts, key)) {
    case GHOST_EVICTED:
        return KVCOBRA__MISS_REASON__MISS_EVICTED;
    case GHOST_RETIRED_TABLE:
        return KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE;
    case GHOST_NONE:
        break;
    }
    return KVCOBRA__MISS_REASON__MISS_UNKNOWN;
}

void page_count_miss(struct request *rq, Kvcobra__MissReason reason)
{
    rq->session->tenant->misses_by[reason]++;
}

/* The run of leading items that name pages, for recheck_begin(). */
static size_t find_pages(struct request *rq, const struct page_context *c, const Kvcobra__Lease *m)
{
    struct reply_scratch *scratch = rq->server->scratch;
    struct chunk_key key;
    size_t n = 0;

    while (n < m->n_items && page_key(rq, &m->items[n]->key, &key) == 0 &&
           names_page(rq, c, m->items[n], &key)) {
        scratch->slots[n] = m->items[n]->slot;
        n++;
    }
    errmsg_clear(&rq->error); /* a bad key is reported where it is met */
    return n;
}

int handle_lease(struct request *rq)
{
    const Kvcobra__Lease *m = rq->message->lease;
    struct store *st = store_of(rq->session->tenant);
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__LeaseReply *reply = &scratch->body.lease;
    struct page_context c;
    size_t n = 0;
    int r = page_context(rq, m->model, &m->table_digest, &c);

    if (r == 0)
        r = page_lease_room(rq);
    if (r == 0)
        r = recheck_begin(rq, scratch->slots, find_pages(rq, &c, m), handle_lease);
    if (r != 0)
        return r;
    kvcobra__lease_reply__init(reply);
    for (; n < m->n_items; n++) { /* holds are taken as we go; a bad key later gives them back */
        struct chunk_key key;

        r = page_key(rq, &m->items[n]->key, &key);
        if (r < 0)
            break;
        if (!names_page(rq, &c, m->items[n], &key) || !store_page_is_whole(st, m->items[n]->slot)) {
            reply->end_reason = page_miss_reason(rq, c.space, &key);
            page_count_miss(rq, reply->end_reason);
            break;
        }
        scratch->slots[n] = m->items[n]->slot;
        store_hold(st, scratch->slots[n]);
        evict_note_use(pool_slot(&st->pool, scratch->slots[n]));
        page_ref_fill(rq, n, scratch->slots[n]);
    }
    if (r < 0) {
        for (size_t i = 0; i < n; i++)
            store_unhold(st, scratch->slots[i]);
        return r;
    }
    r = page_lease(rq, n, &reply->lease);
    if (r < 0)
        return r;
    c.space->n_leased += n;
    reply->n_pages = n;
    reply->pages = scratch->page_pointers;
    reply->lease_ms = (uint32_t) rq->server->config->lease_ms;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LEASE;
    rq->reply.lease = reply;
    return 0;
}

int handle_release(struct request *rq)
{
    const Kvcobra__Release *m = rq->message->release;
    int r = leases_release(&rq->session->leases, store_of(rq->session->tenant), m->lease, m->bitmap.data,
                           m->bitmap.len);

    return r < 0 ? fail(&rq->error, r, "there is no lease %" PRIu64 " in this session (any more)", m->lease)
                 : 0;
}

int handle_keep_leases(struct request *rq)
{
    const Kvcobra__KeepLeases *m = rq->message->keep_leases;
    struct leases *l = &rq->session->leases;
    uint32_t n;

    for (size_t i = 0; i < m->n_leases; i++)
        leases_keep(l, m->leases[i]);
    if (!m->last)
        return 0;
    session_drop_earlier(rq->session);
    n = leases_release_others(l, store_of(rq->session->tenant));
    if (n > 0)
        log_event(LOG_INFO, "leases-unheard",
                  "session=%" PRIu32 " pid=%ld leases=%" PRIu32
                  " message=\"their grants never reached the client\"",
                  rq->session->number, (long) rq->session->pid, n);
    return 0;
}
