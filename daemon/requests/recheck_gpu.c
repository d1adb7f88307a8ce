/*
 * recheck.c for pages on a GPU: the mover computes the checksums of an earlier process's pages before a
 * client leases them, with one request per extent. Meanwhile the job holds the pages. Pages without an answer
 * stay unchecked, and the client gets EAGAIN.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/gpu/mover.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"

/* A check of half a GiB takes a tenth of a second, but the mover may have to open the device first. */
enum { CHECK_MS = 30000 };

struct recheck_gpu_page {    /* of one page */
    struct page_handle page; /* held by the job, so its extent stays */
    uint64_t generation;
    uint32_t crc, found;
    uint64_t offset, bytes; /* of the payload in the extent */
    bool answered;
};

struct recheck_gpu_job;

struct recheck_gpu_batch { /* of one extent: pages [first, first + n) */
    struct recheck_gpu_job *job;
    size_t first, n;
};

struct recheck_gpu_job {
    struct job job;
    size_t n, n_batches, n_waiting;
    struct errmsg why;                 /* why the mover did not answer every batch */
    struct recheck_gpu_batch *batches; /* [n] at most */
    struct recheck_gpu_page pages[];
};

static void recheck_gpu_job_freep(struct recheck_gpu_job **j)
{
    if (*j)
        free((*j)->batches);
    free(*j);
}

/* ---- conclude ---- */

static void recheck_gpu_judge(struct store *st, const struct recheck_gpu_page *c)
{
    struct page_handle h;

    if (c->answered && c->found == c->crc)
        store_page_checked(st, &c->page, true);
    store_unhold(st, &c->page);
    /* the page may be gone: its last hold may have ended */
    if (c->answered && c->found != c->crc && store_find_again(st, c->page.number, c->generation, &h))
        store_page_checked(st, &h, false);
}

static int recheck_gpu_retry_later(struct request *rq, const char *why)
{
    return fail(
        &rq->error, -EAGAIN,
        "pages of an earlier kvcobrad must be checked first, which is not possible now (%.250s): retry later",
        why);
}

static int recheck_gpu_conclude(struct job *job, struct request *rq)
{
    struct recheck_gpu_job *j = (struct recheck_gpu_job *) job;
    struct store *st = store_of(job->session->tenant);

    for (size_t i = 0; i < j->n; i++)
        recheck_gpu_judge(st, &j->pages[i]);
    freep(&j->batches);
    j->batches = NULL;
    if (!rq)
        return 0;
    if (j->why.text[0])
        return recheck_gpu_retry_later(rq, j->why.text);

    return rq->steps.go_on(rq); /* a damaged page that is held stays unchecked: the request is refused */
}

static void recheck_gpu_on_checked(void *ctx, struct mover_reply *reply)
{
    struct recheck_gpu_batch *q = ctx;
    struct recheck_gpu_job *j = q->job;
    const Kvcobra__MoverChecked *m = reply->err == 0 ? reply->body->check : NULL;

    if (!m)
        (void) fail(&j->why, reply->err, "%s", reply->message);
    else if (m->n_crc32c != q->n)
        (void) fail(&j->why, -EBADMSG, "kvcobra-mover answered for %zu pages of %zu", m->n_crc32c, q->n);
    for (size_t i = 0; m && m->n_crc32c == q->n && i < q->n; i++) {
        j->pages[q->first + i].found = m->crc32c[i];
        j->pages[q->first + i].answered = true;
    }

    if (--j->n_waiting == 0)
        job_end(&j->job);
}

/* ---- requests to the mover ---- */

static int recheck_gpu_send_batch(struct server *s, const struct device *d, struct recheck_gpu_batch *q)
{
    const struct recheck_gpu_page *pages = &q->job->pages[q->first];
    _cleanup_(freep) Kvcobra__MoverRange *ranges = calloc(q->n, sizeof(*ranges));
    _cleanup_(freep) Kvcobra__MoverRange **pointers = calloc(q->n, sizeof(Kvcobra__MoverRange *));
    Kvcobra__MoverCheck check = KVCOBRA__MOVER_CHECK__INIT;
    Kvcobra__MoverRequest request = KVCOBRA__MOVER_REQUEST__INIT;
    const struct store *st = &d->store;

    if (!ranges || !pointers)
        return -ENOMEM;

    for (size_t i = 0; i < q->n; i++) {
        kvcobra__mover_range__init(&ranges[i]);
        ranges[i].offset = pages[i].offset;
        ranges[i].bytes = pages[i].bytes;
        pointers[i] = &ranges[i];
    }

    check.device = d->number;
    check.extent_bytes = st->pool.extent_bytes;
    check.n_ranges = q->n;
    check.ranges = pointers;
    request.body_case = KVCOBRA__MOVER_REQUEST__BODY_CHECK;
    request.check = &check;
    return mover_ask(s->gpus->mover, &request, &pages->page.span->extent->gpu_fd, 1, CHECK_MS,
                     recheck_gpu_on_checked, q);
}

/* Sends as many batches as the mover accepts. Return: 0: an answer will come; errno of the first. */
static int recheck_gpu_send_all(struct server *s, const struct device *d, struct recheck_gpu_job *j)
{
    int r = 0;

    for (size_t i = 0; i < j->n_batches && r == 0; i++) {
        r = recheck_gpu_send_batch(s, d, &j->batches[i]);
        j->n_waiting += r == 0;
    }
    if (r < 0 && j->n_waiting > 0)
        (void) fail(&j->why, r, "the queue of kvcobra-mover is full");
    return j->n_waiting > 0 ? 0 : r;
}

static int recheck_gpu_by_extent(const void *a, const void *b)
{
    const struct recheck_gpu_page *x = a, *y = b;
    uint64_t a_id = x->page.span->extent->id, b_id = y->page.span->extent->id;

    return (a_id > b_id) - (a_id < b_id);
}

/* The unchecked ones of @pages, sorted by extent. */
static int recheck_gpu_collect(struct store *st, const struct page_handle *pages, size_t n,
                               struct recheck_gpu_job *j)
{
    for (size_t i = 0; i < n; i++) {
        const struct page_handle *h = &pages[i];

        if (h->slot && h->slot->unchecked)
            j->pages[j->n++] = (struct recheck_gpu_page){
                .page = *h,
                .crc = h->slot->payload_crc32c,
                .generation = h->slot->generation,
                .offset = pool_slot_offset(&st->pool, h) + PAGE_HEADER_BYTES,
                .bytes = h->group->page_bytes - PAGE_HEADER_BYTES,
            };
    }

    qsort(j->pages, j->n, sizeof(j->pages[0]), recheck_gpu_by_extent);
    j->batches = calloc(j->n, sizeof(j->batches[0]));
    for (size_t i = 0; j->batches && i < j->n; i++) {
        if (i == 0 || j->pages[i].page.span->extent != j->pages[i - 1].page.span->extent)
            j->batches[j->n_batches++] = (struct recheck_gpu_batch){.job = j, .first = i};
        j->batches[j->n_batches - 1].n++;
    }

    return j->batches ? 0 : -ENOMEM;
}

int recheck_gpu_begin(struct request *rq, const struct page_handle *pages, size_t n)
{
    struct device *d = rq->tenant->device;
    struct store *st = rq->store;
    _cleanup_(recheck_gpu_job_freep) struct recheck_gpu_job *j = NULL;
    struct errmsg why;
    int r = gpu_open_check(d, &why); /* a restored session may be on a GPU that is unavailable now */

    if (r < 0)
        return recheck_gpu_retry_later(rq, why.text);

    j = calloc(1, sizeof(*j) + n * sizeof(j->pages[0]));
    if (!j || recheck_gpu_collect(st, pages, n, j) < 0)
        return fail(&rq->error, -ENOMEM, "out of memory while checking %zu pages", n);

    j->job.finish = recheck_gpu_conclude;
    j->job.extra_bytes = j->n * sizeof(j->batches[0]);
    r = job_begin(&j->job, rq);
    if (r < 0)
        return r;

    r = recheck_gpu_send_all(rq->server, d, j);
    if (r < 0) {
        job_cancel(&j->job);
        return recheck_gpu_retry_later(rq, strerror(-r));
    }

    for (size_t i = 0; i < j->n; i++)
        store_hold(st, &j->pages[i].page);
    (void) take_ptr(j);
    return REQUEST_PENDING;
}
