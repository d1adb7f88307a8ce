/*
 * Compares pages of an earlier process with their checksums before a client leases them, many at once on a
 * thread. Meanwhile the job holds the pages.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/loop/work.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"

struct recheck_page {        /* of one page */
    struct page_handle page; /* held by the job */
    uint64_t generation;
    uint32_t crc;
    bool whole;
    const uint8_t *payload;
    size_t payload_bytes;
};

struct recheck_job {
    struct job job;
    size_t n, next;
    uint64_t bytes;
    struct recheck_page pages[];
};

static void recheck_add_page(struct store *st, struct recheck_job *j, const struct page_handle *h)
{
    size_t bytes;

    if (!h->slot || !h->slot->unchecked)
        return;

    bytes = h->group->page_bytes - PAGE_HEADER_BYTES;
    j->pages[j->n++] = (struct recheck_page){
        .page = *h,
        .crc = h->slot->payload_crc32c,
        .generation = h->slot->generation,
        .payload = pool_slot_data(&st->pool, h) + PAGE_HEADER_BYTES,
        .payload_bytes = bytes,
    };
    j->bytes += bytes;
}

static bool recheck_compare_slice(struct work_item *work)
{
    struct recheck_job *j = (struct recheck_job *) work;
    uint64_t bytes = 0;

    for (; j->next < j->n && bytes < WORK_SLICE_BYTES; j->next++) {
        struct recheck_page *c = &j->pages[j->next];

        c->whole = crc32c(c->payload, c->payload_bytes) == c->crc;
        bytes += c->payload_bytes;
    }
    return j->next < j->n;
}

/* Applies the results so far, even if the job expired or its client is gone. */
static int recheck_conclude(struct job *job, struct request *rq)
{
    struct recheck_job *j = (struct recheck_job *) job;
    struct store *st = store_of(job->session->tenant);

    for (size_t i = 0; i < j->n; i++) {
        const struct recheck_page *c = &j->pages[i];
        struct page_handle h;

        if (i < j->next && c->whole)
            store_page_checked(st, &c->page, true);
        store_unhold(st, &c->page);
        /* the page may be gone: its last hold may have ended */
        if (i < j->next && !c->whole && store_find_again(st, c->page.number, c->generation, &h))
            store_page_checked(st, &h, false);
    }

    if (!rq)
        return 0;

    /* a damaged page that is held stays unchecked: the request is refused */
    return job->work.expired ? job_expired(rq) : rq->steps.go_on(rq);
}

int recheck_begin(struct request *rq, const struct page_handle *pages, size_t n)
{
    _cleanup_(freep) struct recheck_job *j = NULL;
    struct store *st = rq->store;
    size_t n_unchecked = 0;
    int r;

    for (size_t i = 0; i < n; i++)
        n_unchecked += pages[i].slot && pages[i].slot->unchecked;
    if (n_unchecked == 0)
        return 0;
    if (rq->store->pool.on_gpu)
        return rq->server->recheck_on_gpu(rq, pages, n);

    j = calloc(1, sizeof(*j) + n_unchecked * sizeof(j->pages[0]));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory while checking %zu pages", n_unchecked);

    for (size_t i = 0; i < n; i++)
        recheck_add_page(st, j, &pages[i]);
    if (j->bytes <= rq->server->config->work_inline_bytes)
        return 0;

    j->job.work.run = recheck_compare_slice;
    j->job.finish = recheck_conclude;
    r = job_start(&j->job, rq);
    if (r < 0)
        return r;

    for (size_t i = 0; i < j->n; i++)
        store_hold(st, &j->pages[i].page);
    (void) take_ptr(j);
    return r;
}
