/* See fetch_wait.h. */
#include "daemon/requests/fetch_wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/state.h"
#include "daemon/store/space.h"

struct fetch_wait_page {
    struct offload_waiter waiter; /* first member */
    struct fetch_wait_job *job;
    struct fetch_wait_item item; /* its page is held; PAGE_NONE: not yet, or not at all */
    bool waits;
    struct offload_tier *in_tier; /* the shared tier that has it; NULL: none */
};

struct fetch_wait_job {
    struct job job;
    struct store *store;
    size_t n, n_end; /* pages; those from n_end on are not in the run */
    size_t n_waiting;
    bool goes_past_gaps;
    struct fetch_wait_page pages[];
};

/* ---- the end ---- */

/* The run ends before page @at: what follows is not worth the wait. */
static void fetch_wait_cut(struct fetch_wait_job *j, size_t at)
{
    for (size_t i = at; i < j->n_end; i++) {
        if (!j->pages[i].waits)
            continue;
        offload_waiter_leave(&j->pages[i].waiter);
        j->pages[i].waits = false;
        j->n_waiting--;
    }
    if (at < j->n_end)
        j->n_end = at;
}

static void fetch_wait_release(struct fetch_wait_job *j)
{
    fetch_wait_cut(j, 0);
    for (size_t i = 0; i < j->n; i++)
        if (j->pages[i].item.page.slot)
            store_unhold(j->store, &j->pages[i].item.page);
}

static int fetch_wait_conclude(struct job *job, struct request *rq)
{
    struct fetch_wait_job *j = (struct fetch_wait_job *) job;
    int r = 0;

    if (rq) {
        rq->steps.tier_is_slow = j->n_end < j->n && j->pages[j->n_end].in_tier;
        r = rq->steps.go_on(rq); /* takes holds of its own */
    }

    fetch_wait_release(j);
    return r;
}

static void fetch_wait_on_ended(struct offload_waiter *w, const struct page_handle *page)
{
    struct fetch_wait_page *p = (struct fetch_wait_page *) w;
    struct fetch_wait_job *j = p->job;

    p->waits = false;
    j->n_waiting--;
    p->item.page = *page;
    if (page->slot)
        store_hold(j->store, page);
    else if (!j->goes_past_gaps)
        fetch_wait_cut(j, (size_t) (p - j->pages));
    if (j->n_waiting == 0)
        job_end(&j->job);
}

/* ---- begin ---- */

/* Whether a slower tier has page @i of the request. */
static bool fetch_wait_has(const struct request *rq, size_t i, const struct chunk_key *key)
{
    return (!rq->steps.skips_host && offload_has(rq->server->offload, rq->tenant, key)) ||
           (rq->steps.in_tier && rq->steps.in_tier[i]);
}

/* Holds the pages of the run that are in memory. The run ends at a page that no tier has. */
static int fetch_wait_hold(struct fetch_wait_job *j, struct request *rq, const struct page_context *c,
                           const struct fetch_wait_run *run)
{
    for (; j->n < run->n; j->n++) {
        struct fetch_wait_page *p = &j->pages[j->n];
        int r;

        *p = (struct fetch_wait_page){.item.page = PAGE_NONE};
        r = run->item(rq, c, j->n, &p->item);
        if (r < 0)
            return r;
        if (p->item.page.slot)
            store_hold(j->store, &p->item.page);
        else if (!j->goes_past_gaps && !fetch_wait_has(rq, j->n, &p->item.key))
            break;
    }

    j->n_end = j->n;
    return 0;
}

/* Return: 0: the page is on its way; -EINPROGRESS: a new extent is being made; errno: the run ends here. */
static int fetch_wait_fetch(struct fetch_wait_job *j, struct fetch_wait_page *p, struct request *rq,
                            const struct page_context *c, uint64_t deadline_ms)
{
    struct group *g;
    int r = page_group(rq, c->space, p->item.page_class, &g);

    if (r < 0)
        return r;

    p->job = j;
    p->in_tier = rq->steps.in_tier ? rq->steps.in_tier[p - j->pages] : NULL;
    p->waiter.ended = fetch_wait_on_ended;
    p->waiter.deadline_ms = deadline_ms;
    r = offload_fetch(rq->server->offload, g, &p->item.key, p->in_tier, &p->waiter, &rq->error);
    p->waits = r == 0;
    j->n_waiting += r == 0;
    return r;
}

/* Return: 0; -EINPROGRESS. */
static int fetch_wait_fetch_all(struct fetch_wait_job *j, struct request *rq, const struct page_context *c,
                                uint64_t deadline_ms)
{
    int r = 0;

    for (size_t i = 0; i < j->n_end && r == 0; i++) {
        if (j->pages[i].item.page.slot)
            continue;
        r = fetch_wait_fetch(j, &j->pages[i], rq, c, deadline_ms);
        if (r < 0 && j->goes_past_gaps && r != -EINPROGRESS)
            r = 0;
        else if (r < 0)
            fetch_wait_cut(j, i);
    }

    errmsg_clear(&rq->error); /* the run is shorter: that is no error */
    return r == -EINPROGRESS ? r : 0;
}

/* Whether a slower tier has the first page of the request that is not in memory, or any such page. */
static bool fetch_wait_is_needed(struct request *rq, const struct page_context *c,
                                 const struct fetch_wait_run *run)
{
    bool is_needed = false, is_here = true;

    for (size_t i = 0; i < run->n && !is_needed && (is_here || run->goes_past_gaps); i++) {
        struct fetch_wait_item item;

        if (run->item(rq, c, i, &item) < 0)
            break;
        is_here = item.page.slot != NULL;
        is_needed = !is_here && fetch_wait_has(rq, i, &item.key);
    }

    errmsg_clear(&rq->error); /* the handler reports a bad key later */
    return is_needed;
}

/* Gives back the room of the pages behind the run: the job may wait for long. No page has its address yet. */
static void fetch_wait_shrink(struct fetch_wait_job **j)
{
    struct fetch_wait_job *exact = realloc(*j, sizeof(**j) + (*j)->n * sizeof((*j)->pages[0]));

    if (exact)
        *j = exact;
}

/*
 * Takes the request over before a page is fetched: what a tenant may not wait for is not fetched. Return:
 * REQUEST_PENDING: @j, then NULL, or another job has the request; 0: nothing is waited for.
 */
static int fetch_wait_start(struct fetch_wait_job **j, struct request *rq, const struct page_context *c,
                            uint64_t deadline_ms)
{
    int r = job_begin(&(*j)->job, rq);

    if (r == REQUEST_PENDING && fetch_wait_fetch_all(*j, rq, c, deadline_ms) == -EINPROGRESS) {
        unsigned done = rq->steps.done;

        job_cancel(&(*j)->job);
        rq->steps.done &= ~(unsigned) (STEP_LOOK | STEP_FETCH); /* the answer of the look is not kept */
        if (extent_wait_begin(rq) == REQUEST_PENDING)
            return REQUEST_PENDING;
        rq->steps.done = done;
        r = job_begin(&(*j)->job, rq);
    }
    if (r == REQUEST_PENDING && (*j)->n_waiting > 0) {
        (void) take_ptr(*j);
        return REQUEST_PENDING;
    }

    if (r == REQUEST_PENDING)
        job_cancel(&(*j)->job);
    errmsg_clear(&rq->error); /* the run is shorter: that is no error */
    return 0;
}

uint64_t fetch_wait_client_bytes_per_s(const struct fetch_wait_run *run, const struct page_context *c)
{
    return c->space->layout.page_bytes[PAGE_REST] * (uint64_t) run->compute_tokens_per_s / CHUNK_TOKENS;
}

static void fetch_wait_freep(struct fetch_wait_job **j)
{
    if (!*j)
        return;
    fetch_wait_release(*j);
    free(*j);
}

int fetch_wait_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run)
{
    _cleanup_(fetch_wait_freep) struct fetch_wait_job *j = NULL;
    int r;

    if (!fetch_wait_is_needed(rq, c, run))
        return 0;
    rq->steps.skips_host = offload_skips(rq->server->offload, false, fetch_wait_client_bytes_per_s(run, c));
    if (rq->steps.skips_host && !fetch_wait_is_needed(rq, c, run))
        return 0;

    j = calloc(1, sizeof(*j) + run->n * sizeof(j->pages[0]));
    if (!j)
        return 0; /* nothing is fetched */

    j->store = rq->store;
    j->goes_past_gaps = run->goes_past_gaps;
    j->job.finish = fetch_wait_conclude;
    r = fetch_wait_hold(j, rq, c, run);
    if (r < 0)
        return r;

    fetch_wait_shrink(&j);
    return fetch_wait_start(&j, rq, c, rq->began_ns / 1000000 + run->fetch_ms);
}
