/* RESERVE, COMMIT, ABORT: how a page comes into the pool. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "daemon/conn.h"
#include "daemon/page_check.h"
#include "daemon/pages.h"
#include "daemon/server.h"
#include "daemon/session.h"
#include "daemon/space.h"
#include "gpu/device.h"

/* ---- reserve ---------------------------------------------------------------------------------------------------- */

static int check_writable(struct request *rq, const struct table_entry *t)
{
    if (t->state == TABLE_DRAINING && ev_now_ms(rq->server->ev) >= t->drain_until_ms)
        return fail(&rq->error, -ESTALE, "the table was replaced and its drain time is over: new sequences use another");
    return 0;
}

/* One item. *ret_exists: the key is published already, *ret_slot is that page and not ours. */
static int reserve_item(struct request *rq, const struct page_context *c, const Kvcobra__ReserveItem *item,
                        uint32_t *ret_slot, bool *ret_exists)
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
    r = store_find_whole(&s->store, x->tenant, &key, &slot, &rq->error);
    if (r < 0)
        return r;
    *ret_exists = slot != SLOT_NONE;
    if (*ret_exists) {
        store_hold(&s->store, slot); /* until the reply is filled: a later item must not evict it */
        *ret_slot = slot;
        return 0;
    }
    if (x->n_reservations >= s->config->reservations_per_session_max)
        return fail(&rq->error, -EDQUOT, "this session has %" PRIu32 " reservations, which is the most: commit or abort some",
                    x->n_reservations);
    r = tenant_group(x->tenant, c->space, item->page_class, &g);
    if (r == 0)
        r = store_reserve(&s->store, g, x->number, &slot, &rq->error);
    if (r < 0)
        return r;
    pool_slot(&s->store.pool, slot)->key = key;
    session_add_reservation(x, slot);
    *ret_slot = slot;
    return 0;
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
        r = check_writable(rq, c.table);
    if (r < 0)
        return r;
    kvcobra__reserve_reply__init(reply);
    for (; n < m->n_items; n++) {
        bool exists;

        r = reserve_item(rq, &c, m->items[n], &scratch->slots[n], &exists);
        if (r < 0)
            break;
        scratch->flags[n] = exists;
    }
    for (size_t i = 0; i < n; i++) {
        page_ref_fill(rq, i, scratch->slots[i]);
        if (scratch->flags[i])
            store_unhold(&rq->server->store, scratch->slots[i]);
    }
    reply->n_slots = reply->n_exists = n;
    reply->slots = scratch->page_pointers;
    reply->exists = scratch->flags;
    reply->end_err = r;
    if (r < 0)
        rq->reply.message = rq->error.text;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_RESERVE;
    rq->reply.reserve = reply;
    return 0;
}

/* ---- commit ----------------------------------------------------------------------------------------------------- */

/* The reservation that (slot, generation) of a message names, or NULL: nonsense, not ours, or discarded meanwhile. */
static struct slot *own_reservation(const struct request *rq, uint32_t number, uint64_t generation)
{
    struct slot *slot = pool_slot(&rq->server->store.pool, number);

    if (!slot || slot->state != SLOT_RESERVED || slot->session != rq->session->number ||
        slot->generation != generation)
        return NULL;
    return slot;
}

static void discard(struct request *rq, uint32_t number)
{
    session_take_reservation(rq->session, number);
    store_discard(&rq->server->store, number);
}

/*
 * The arena's bytes to the slot, once. read(2), not memcpy: a hole that the client punches meanwhile reads as zeros,
 * where a load through the mapping could fault if memory is short.
 */
static int copy_page(struct request *rq, uint64_t offset, uint32_t number, size_t bytes)
{
    uint8_t *to = pool_slot_data(&rq->server->store.pool, number);
    size_t have = 0;

    if (!rq->session->arena || !range_inside(offset, bytes, extent_bytes(rq->session->arena)))
        return fail(&rq->error, -EINVAL, "a page of %zu bytes at %" PRIu64 " is not inside the arena", bytes, offset);
    while (have < bytes) {
        ssize_t n = pread(extent_fd(rq->session->arena), to + have, bytes - have, (off_t) (offset + have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(&rq->error, n < 0 ? -errno : -EIO, "cannot read the arena: %s", strerror(n < 0 ? errno : EIO));
        have += (size_t) n;
    }
    return 0;
}

/* From here on only the copy is looked at, which no client can write. */
static int publish_item(struct request *rq, const struct page_context *c, const Kvcobra__CommitItem *item,
                        const struct chunk_key *key)
{
    struct store *st = &rq->server->store;
    struct group *g = pool_slot_span(&st->pool, item->slot)->group;
    struct page_expectation x = {
        .layout = &g->space->layout, .model_digest = c->model->digest, .key = key, .page_class = g->page_class,
    };
    uint32_t crc;
    int r = copy_page(rq, item->arena_offset, item->slot, g->page_bytes);

    if (r == 0)
        r = page_check(pool_slot_data(&st->pool, item->slot), &x, &crc, &rq->error);
    if (r < 0)
        return r;
    session_take_reservation(rq->session, item->slot);
    r = store_publish(st, item->slot, key, crc, &rq->error);
    if (r < 0)
        session_add_reservation(rq->session, item->slot);
    return r;
}

/* One item: *ret_slot is the page to lease, hold taken. */
static int commit_item(struct request *rq, const struct page_context *c, const Kvcobra__CommitItem *item,
                       uint32_t *ret_slot)
{
    struct store *st = &rq->server->store;
    struct chunk_key key;
    struct slot *mine;
    uint32_t present;
    int r = page_key(rq, &item->key, &key);

    if (r < 0)
        return r;
    mine = own_reservation(rq, item->slot, item->generation);
    if (mine && memcmp(&mine->key, &key, sizeof(key)) != 0)
        return fail(&rq->error, -EINVAL, "slot %" PRIu32 " was reserved for another key", item->slot);
    if (mine && pool_slot_span(&st->pool, item->slot)->group->space != c->space)
        mine = NULL;
    r = store_find_whole(st, rq->session->tenant, &key, &present, &rq->error);
    if (r < 0)
        return r;
    if (present != SLOT_NONE && (mine || (item->slot == present &&
        pool_slot(&st->pool, present)->generation == item->generation))) {
        /* The first page wins; this committer gets a lease on it. */
        if (mine)
            discard(rq, item->slot);
        store_hold(st, present);
        *ret_slot = present;
        return 0;
    }
    if (!mine)
        return fail(&rq->error, -ESTALE, "slot %" PRIu32 " is no reservation of this session (any more)", item->slot);
    r = publish_item(rq, c, item, &key);
    if (r < 0)
        return r;
    *ret_slot = item->slot;
    return 0;
}

/* All items of a COMMIT are of one table: that of the first slot that means something. */
static int commit_context(struct request *rq, const Kvcobra__Commit *m, struct page_context *ret)
{
    const struct store *st = &rq->server->store;

    for (size_t i = 0; i < m->n_items; i++) {
        const struct slot *slot = pool_slot(&st->pool, m->items[i]->slot);
        ProtobufCBinaryData digest;

        if (!slot || slot->state == SLOT_FREE || slot->generation != m->items[i]->generation ||
            pool_slot_span(&st->pool, m->items[i]->slot)->group->tenant != rq->session->tenant)
            continue;
        digest = bytes_view(pool_slot_span(&st->pool, m->items[i]->slot)->group->space->table_digest, DIGEST_BYTES);
        return page_context(rq, m->model, &digest, ret);
    }
    return fail(&rq->error, -ESTALE, "none of the slots is a reservation of this session (any more)");
}

int handle_commit(struct request *rq)
{
    const Kvcobra__Commit *m = rq->message->commit;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__CommitReply *reply = &scratch->body.commit;
    struct page_context c;
    int r = commit_context(rq, m, &c);

    if (r == 0)
        r = check_writable(rq, c.table);
    if (r == 0)
        r = page_lease_room(rq);
    if (r < 0)
        return r;
    kvcobra__commit_reply__init(reply);
    for (size_t i = 0; i < m->n_items; i++) {
        scratch->slots[i] = SLOT_NONE;
        scratch->errs[i] = commit_item(rq, &c, m->items[i], &scratch->slots[i]);
        page_ref_fill(rq, i, scratch->slots[i]);
    }
    r = page_lease(rq, m->n_items, &reply->lease);
    if (r < 0)
        return r;
    if (rq->error.text[0])
        rq->reply.message = rq->error.text; /* of the last item that failed */
    reply->n_pages = reply->n_errs = m->n_items;
    reply->pages = scratch->page_pointers;
    reply->errs = scratch->errs;
    reply->lease_ms = (uint32_t) rq->server->config->lease_ms;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_COMMIT;
    rq->reply.commit = reply;
    return 0;
}

/* ---- abort ------------------------------------------------------------------------------------------------------ */

int handle_abort(struct request *rq)
{
    const Kvcobra__Abort *m = rq->message->abort;
    int r = 0;

    for (size_t i = 0; i < m->n_items; i++) {
        const Kvcobra__AbortItem *item = m->items[i];

        if (own_reservation(rq, item->slot, item->generation))
            discard(rq, item->slot);
        else
            r = fail(&rq->error, -ESTALE, "slot %" PRIu32 " is no reservation of this session (any more)", item->slot);
    }
    return r;
}
