/* LEASE, RELEASE and KEEP_LEASES: pages that clients found in the index. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/log.h"
#include "daemon/requests/handlers.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/state.h"
#include "daemon/session/reservations.h"
#include "daemon/session/session.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/space.h"

/* Compares the entry that the client read in the index with the daemon's own record. */
static bool pages_read_is_page(const struct request *rq, const struct page_context *c,
                               const Kvcobra__LeaseItem *item, const struct chunk_key *key)
{
    struct page_handle h;

    return page_resolve(rq, item->slot, item->generation, &h) && h.slot->state == SLOT_COMMITTED &&
           memcmp(&h.slot->key, key, sizeof(*key)) == 0 && h.group->space == c->space;
}

/* The leading items that name pages, for recheck_begin(). */
static size_t pages_read_find(struct request *rq, const struct page_context *c, const Kvcobra__Lease *m)
{
    struct reply_scratch *scratch = rq->server->scratch;
    struct chunk_key key;
    size_t n = 0;

    while (n < m->n_items && page_key(rq, &m->items[n]->key, &key) == 0 &&
           pages_read_is_page(rq, c, m->items[n], &key)) {
        scratch->slots[n] = m->items[n]->slot;
        n++;
    }
    errmsg_clear(&rq->error); /* the handler reports a bad key later */
    return n;
}

/*
 * Takes the holds of the leading items that name pages. *ret_n: how many. Return: 0; -EINVAL: a bad key, no
 * hold is taken.
 */
static int pages_read_hold(struct request *rq, const struct page_context *c, const Kvcobra__Lease *m,
                           Kvcobra__LeaseReply *reply, size_t *ret_n)
{
    struct reply_scratch *scratch = rq->server->scratch;
    size_t n = 0;

    for (; n < m->n_items; n++) {
        struct chunk_key key;
        struct page_handle h;
        int r = page_key(rq, &m->items[n]->key, &key);

        if (r < 0) {
            for (size_t i = 0; i < n; i++)
                store_unhold(rq->store, scratch->slots[i]);
            return r;
        }

        if (!pages_read_is_page(rq, c, m->items[n], &key) ||
            !store_page_is_whole(rq->store, m->items[n]->slot)) {
            reply->end_reason = page_miss_reason(rq, c->space, &key);
            page_count_miss(rq, reply->end_reason);
            break;
        }

        scratch->slots[n] = m->items[n]->slot;
        store_hold(rq->store, scratch->slots[n]);
        if (store_resolve(rq->store, scratch->slots[n], &h))
            evict_queue_note_use(h.slot);
        page_ref_fill(rq, n, scratch->slots[n]);
    }

    *ret_n = n;
    return 0;
}

int pages_read_handle_lease(struct request *rq)
{
    const Kvcobra__Lease *m = rq->message->lease;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__LeaseReply *reply = &scratch->body.lease;
    struct page_context c;
    size_t n;
    int r = page_context(rq, m->model, &m->table_digest, &c);

    if (r < 0)
        return r;

    r = page_lease_room(rq);
    if (r < 0)
        return r;

    r = recheck_begin(rq, scratch->slots, pages_read_find(rq, &c, m), pages_read_handle_lease);
    if (r != 0)
        return r;

    kvcobra__lease_reply__init(reply);
    r = pages_read_hold(rq, &c, m, reply, &n);
    if (r < 0)
        return r;

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

int pages_read_handle_release(struct request *rq)
{
    const Kvcobra__Release *m = rq->message->release;
    int r = lease_release(&rq->session->leases, rq->store, m->lease, m->bitmap.data, m->bitmap.len);

    if (r < 0)
        return fail(&rq->error, r, "this session has no lease %" PRIu64 ", or released it", m->lease);
    return 0;
}

int pages_read_handle_keep_leases(struct request *rq)
{
    const Kvcobra__KeepLeases *m = rq->message->keep_leases;
    struct leases *l = &rq->session->leases;
    uint32_t n;

    for (size_t i = 0; i < m->n_leases; i++)
        lease_keep(l, m->leases[i]);
    if (!m->last)
        return 0;

    reservations_discard_earlier(rq->session);
    n = lease_release_unkept(l, rq->store);
    if (n > 0)
        log_event(LOG_INFO, "leases-unheard",
                  "session=%" PRIu32 " pid=%ld leases=%" PRIu32
                  " message=\"the client never received their grants\"",
                  rq->session->number, (long) rq->session->pid, n);
    return 0;
}
