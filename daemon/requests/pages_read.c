/* LEASE, RELEASE and KEEP_LEASES: pages that clients found in the index. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/session/reservations.h"
#include "daemon/session/session.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/space.h"

/* The pages of the request. Without a fetch, its leading ones. */
static size_t pages_read_find(struct request *rq, const struct page_context *c)
{
    const Kvcobra__Lease *m = rq->message->lease;
    struct reply_scratch *scratch = rq->server->scratch;
    struct chunk_key key;
    size_t n = 0;

    while (!m->only_fetch && n < m->n_items && page_key(rq, &m->items[n]->key, &key) == 0) {
        scratch->found[n] = page_of_item(rq, c, m->items[n], &key);
        if (!scratch->found[n].slot && m->fetch_ms == 0)
            break;
        n++;
    }
    errmsg_clear(&rq->error); /* the handler reports a bad key later */
    return n;
}

/* Item @i of the run. */
static int pages_read_fetch_item(struct request *rq, const struct page_context *c, size_t i,
                                 struct fetch_wait_item *ret)
{
    const Kvcobra__LeaseItem *item = rq->message->lease->items[i];
    int r = page_key(rq, &item->key, &ret->key);

    if (r < 0)
        return r;
    if (item->page_class > PAGE_REST)
        return fail(&rq->error, -EINVAL, "page class %" PRIu32 " is not 0 or 1", item->page_class);

    ret->page_class = item->page_class;
    ret->page = page_of_item(rq, c, item, &ret->key);
    return 0;
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
        struct page_handle *h = &scratch->found[n];
        struct chunk_key key;
        int r = page_key(rq, &m->items[n]->key, &key);

        if (r < 0) {
            for (size_t i = 0; i < n; i++)
                store_unhold(rq->store, &scratch->found[i]);
            return r;
        }

        *h = page_of_item(rq, c, m->items[n], &key);
        if (!h->slot || !store_page_is_whole(rq->store, h)) {
            reply->end_reason = page_miss_reason(rq, c->space, &key);
            if (!m->is_counted)
                page_count_miss(rq, reply->end_reason);
            break;
        }

        store_hold(rq->store, h);
        evict_queue_note_use(h->slot);
        page_ref_fill(rq, n, h);
    }

    *ret_n = n;
    return 0;
}

/* Counts the @n chunks that are leased, unless another client counted them. */
static void pages_read_note(struct request *rq, const Kvcobra__Lease *m, size_t n)
{
    for (size_t i = 0; i < n && !m->is_counted; i++) {
        const struct page_handle *h = &rq->server->scratch->found[i];

        page_note_lookup(rq, h->group->space, h->group->page_class, &h->slot->key, true);
    }
}

static int pages_read_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__Lease *m = rq->message->lease;
    int r = page_context(rq, m->model, &m->table_digest, ret);

    return r < 0 || m->only_fetch ? r : page_lease_room(rq, m->n_items);
}

static struct fetch_wait_run pages_read_run(const struct request *rq)
{
    const Kvcobra__Lease *m = rq->message->lease;

    return (struct fetch_wait_run){.n = m->n_items,
                                   .fetch_ms = m->fetch_ms,
                                   .compute_tokens_per_s = m->compute_tokens_per_s,
                                   .item = pages_read_fetch_item};
}

static int pages_read_lease(struct request *rq, const struct page_context *c)
{
    const Kvcobra__Lease *m = rq->message->lease;
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__LeaseReply *reply = scratch->body;
    size_t n = 0;
    int r;

    kvcobra__lease_reply__init(reply);
    r = m->only_fetch ? 0 : pages_read_hold(rq, c, m, reply, &n);
    if (r < 0)
        return r;

    rq->reply.body_case = KVCOBRA__REPLY__BODY_LEASE;
    rq->reply.lease = reply;
    if (m->only_fetch)
        return 0;

    pages_read_note(rq, m, n);
    reply->lease = page_lease(rq, n);
    c->space->n_leased += n;
    reply->n_pages = n;
    reply->pages = scratch->page_pointers;
    reply->lease_ms = (uint32_t) rq->server->config->lease_ms;
    return 0;
}

static int pages_read_handle_lease(struct request *rq)
{
    static const struct step_plan plan = {
        .resolve = pages_read_resolve,
        .find = pages_read_find,
        .run = pages_read_run,
        .act = pages_read_lease,
    };

    return request_steps_run(rq, &plan);
}
REQUEST(request_lease) = {.body = KVCOBRA__REQUEST__BODY_LEASE,
                          .run = pages_read_handle_lease,
                          .needs = CONN_OPEN,
                          .sockets = ON_CLIENT};

static int pages_read_handle_release(struct request *rq)
{
    const Kvcobra__Release *m = rq->message->release;
    int r = lease_release(&rq->session->leases, rq->store, m->lease, m->bitmap.data, m->bitmap.len);

    if (r < 0)
        return fail(&rq->error, r, "this session has no lease %" PRIu64 ", or released it", m->lease);
    return 0;
}
REQUEST(request_release) = {.body = KVCOBRA__REQUEST__BODY_RELEASE,
                            .run = pages_read_handle_release,
                            .needs = CONN_OPEN,
                            .sockets = ON_CLIENT};

static int pages_read_handle_keep_leases(struct request *rq)
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
        log_client_event(&rq->tenant->account->log, LOG_INFO, "leases-unheard",
                         "session=%" PRIu64 " pid=%ld leases=%" PRIu32
                         " message=\"the client never received their grants\"",
                         rq->session->serial, (long) rq->session->pid, n);
    return 0;
}
REQUEST(request_keep_leases) = {.body = KVCOBRA__REQUEST__BODY_KEEP_LEASES,
                                .run = pages_read_handle_keep_leases,
                                .needs = CONN_OPEN,
                                .sockets = ON_CLIENT};
