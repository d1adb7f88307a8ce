/*
 * COMMIT: makes pages from the bytes that a client wrote to its arena.
 *
 *     claim     on the loop: the message's reservations become COPYING and leave the session's list
 *     copy      on a thread: arena to slot, once; all checks read the copy, which no client can write
 *     conclude  on the loop: publish, or lease the page that another client published meanwhile, or make the
 *               slot a reservation again
 *
 * On a GPU the client wrote the payload into the slot itself and sends its checksum: the page is not copied
 * or checked here, so the message is claimed and concluded at once.
 *
 * A COPYING slot belongs to the job alone. If the connection, the session, the process or the session's time
 * ends meanwhile, commit_conclude() discards the slot. A crash leaves a slot that is not COMMITTED, which the
 * next start makes FREE.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/fd_io.h"
#include "daemon/config/config.h"
#include "daemon/loop/metrics.h"
#include "daemon/loop/work.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/request_steps.h"
#include "daemon/requests/state.h"
#include "daemon/session/reservations.h"
#include "daemon/session/session.h"
#include "daemon/store/device.h"
#include "daemon/store/page_check.h"
#include "daemon/store/space.h"
#include "gpu/device.h"

struct commit_item {         /* one item of the message */
    struct page_handle page; /* COPYING, so it stays; PAGE_NONE: not claimed */
    struct chunk_key key;
    uint8_t *to;
    uint64_t offset;
    size_t bytes;
    uint32_t crc;
    int err;
};

struct commit_job {
    struct job job;
    int arena_fd; /* the session's; -1: it has none */
    uint64_t arena_bytes;
    uint8_t model_digest[DIGEST_BYTES];
    size_t n_items, next;
    uint64_t claimed_bytes;
    struct errmsg error; /* of the last item that failed */
    struct commit_item items[];
};

/* ---- claim ---- */

/*
 * All items of a COMMIT are of one table: that of the first item whose slot and generation name a page of the
 * tenant. Return: 0; -ESTALE.
 */
static int commit_context(struct request *rq, const Kvcobra__Commit *m, struct page_context *ret)
{
    for (size_t i = 0; i < m->n_items; i++) {
        struct page_handle h;

        if (page_resolve(rq, m->items[i]->slot, m->items[i]->generation, &h))
            return page_context_of(rq, m->model, h.group->space, ret);
    }
    return fail(&rq->error, -ESTALE, "none of the slots is a reservation of this session: reserve again");
}

/* Claims one item. commit_conclude() finds the error of an item that cannot be claimed. */
static void commit_claim_item(struct request *rq, const struct page_context *c,
                              const Kvcobra__CommitItem *item, struct commit_job *j, struct commit_item *ret)
{
    struct page_handle h, present;

    *ret = (struct commit_item){.page = PAGE_NONE};
    if (!page_resolve_reservation(rq, item->slot, item->generation, &h))
        return;
    if (item->key.len != CHUNK_KEY_BYTES || memcmp(&h.slot->key, item->key.data, CHUNK_KEY_BYTES) != 0)
        return;
    if (h.group->space != c->space || store_find(rq->store, rq->tenant, &h.slot->key, &present))
        return;

    *ret = (struct commit_item){
        .page = h,
        .key = h.slot->key,
        .to = rq->store->pool.on_gpu ? NULL : pool_slot_data(&rq->store->pool, &h),
        .offset = item->arena_offset,
        .bytes = h.group->page_bytes,
        .crc = item->payload_crc32c,
    };
    reservations_take(rq->session, &h);
    store_claim(&h);
    rq->session->n_copying++;
    j->claimed_bytes += h.group->page_bytes;
}

static struct commit_job *commit_claim(struct request *rq, const struct page_context *c,
                                       const Kvcobra__Commit *m)
{
    struct commit_job *j = calloc(1, sizeof(*j) + m->n_items * sizeof(j->items[0]));

    if (!j)
        return NULL;

    j->job.server = rq->server;
    j->job.session = rq->session;
    j->n_items = m->n_items;
    j->arena_fd = rq->session->arena ? extent_fd(rq->session->arena) : -1;
    j->arena_bytes = rq->session->arena ? extent_bytes(rq->session->arena) : 0;
    memcpy(j->model_digest, c->model->digest, DIGEST_BYTES);
    for (size_t i = 0; i < m->n_items; i++)
        commit_claim_item(rq, c, m->items[i], j, &j->items[i]);
    return j;
}

/* Makes a claimed slot a reservation again, or (@keep false) free. */
static void commit_release_item(struct commit_job *j, struct commit_item *item, bool keep)
{
    struct store *st = store_of(j->job.session->tenant);

    if (!item->page.slot)
        return;

    j->job.session->n_copying--;
    if (keep) {
        store_unclaim(&item->page);
        reservations_add(j->job.session, &item->page);
    } else {
        store_discard(st, &item->page);
    }

    item->page = PAGE_NONE;
}

static void commit_release_all(struct commit_job *j, bool keep)
{
    for (size_t i = 0; i < j->n_items; i++)
        commit_release_item(j, &j->items[i], keep);
}

/* ---- copy ---- */

static int commit_copy_page(const struct commit_job *j, const struct commit_item *c, struct errmsg *e)
{
    int r;

    if (!range_inside(c->offset, c->bytes, j->arena_bytes))
        return fail(e, -EINVAL, "a page of %zu bytes at %" PRIu64 " is not inside the arena", c->bytes,
                    c->offset);

    r = fd_pread_all(j->arena_fd, c->to, c->bytes, c->offset);
    if (r == -ENODATA)
        r = -EIO;
    if (r < 0)
        return fail(e, r, "cannot read the arena: %s", strerror(-r));
    return 0;
}

static void commit_copy_item(struct commit_job *j, struct commit_item *c)
{
    struct page_expectation x = {
        .layout = &c->page.group->space->layout, /* of a space in use, which stays */
        .model_digest = j->model_digest,
        .key = &c->key,
        .page_class = c->page.group->page_class,
    };

    c->err = commit_copy_page(j, c, &j->error);
    if (c->err == 0)
        c->err = page_check(c->to, &x, &c->crc, &j->error);
}

/* One slice: WORK_SLICE_BYTES of pages. */
static bool commit_copy_slice(struct work_item *work)
{
    struct commit_job *j = (struct commit_job *) work;
    uint64_t bytes = 0;

    for (; j->next < j->n_items && bytes < WORK_SLICE_BYTES; j->next++) {
        if (!j->items[j->next].page.slot)
            continue;
        commit_copy_item(j, &j->items[j->next]);
        bytes += j->items[j->next].bytes;
    }
    return j->next < j->n_items;
}

/* ---- conclude ---- */

static int commit_publish_item(struct request *rq, struct commit_item *mine)
{
    int r = store_publish(rq->store, &mine->page, &mine->key, mine->crc, &rq->error);

    if (r < 0)
        return r;

    rq->session->n_copying--;
    offload_note_published(rq->server->offload, &mine->page);
    mine->page = PAGE_NONE;
    return 0;
}

/* Sets the error of an item that was not claimed and whose key has no page. */
static int commit_judge_unclaimed(struct request *rq, const Kvcobra__CommitItem *item,
                                  const struct chunk_key *key)
{
    struct page_handle h;

    if (page_resolve_reservation(rq, item->slot, item->generation, &h) &&
        memcmp(&h.slot->key, key, sizeof(*key)) != 0)
        return fail(&rq->error, -EINVAL, "slot %" PRIu32 " was reserved for another key", item->slot);
    return fail(&rq->error, -ESTALE, "slot %" PRIu32 " is not a reservation of this session: reserve again",
                item->slot);
}

/*
 * Whether the item names a page that exists: its own reservation whose key was published before it was
 * claimed, or a page that RESERVE reported.
 */
static bool commit_names_present(struct request *rq, const Kvcobra__CommitItem *item,
                                 const struct chunk_key *key, const struct page_handle *present)
{
    struct page_handle h;

    if (item->slot == present->number)
        return present->slot->generation == item->generation;
    if (!page_resolve_reservation(rq, item->slot, item->generation, &h) ||
        memcmp(&h.slot->key, key, sizeof(*key)) != 0)
        return false;

    reservations_take(rq->session, &h);
    store_discard(rq->store, &h);
    return true;
}

/* Concludes one item. *ret: the page to lease, held. */
static int commit_conclude_item(struct request *rq, const Kvcobra__CommitItem *item, struct commit_job *j,
                                struct commit_item *mine, struct page_handle *ret)
{
    struct store *st = rq->store;
    struct page_handle present, page = mine->page;
    struct chunk_key key;
    int r = page_key(rq, &item->key, &key);

    if (r == 0)
        r = store_find_whole(st, rq->tenant, &key, &present, &rq->error);
    if (r != 0)
        return r;
    if (present.slot && (page.slot || commit_names_present(rq, item, &key, &present))) {
        commit_release_item(j, mine, false); /* the first page stays, this client gets a lease on it */
        store_hold(st, &present);
        present.slot->was_leased = 1;
        *ret = present;
        return 0;
    }

    if (!page.slot)
        return commit_judge_unclaimed(rq, item, &key);
    if (mine->err < 0) {
        rq->error = j->error;
        return mine->err;
    }

    r = commit_publish_item(rq, mine);
    if (r == 0)
        *ret = page;
    return r;
}

static void commit_fill_reply(struct request *rq, size_t n)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__CommitReply *reply = scratch->body;

    kvcobra__commit_reply__init(reply);
    reply->lease = page_lease(rq, n);
    if (rq->error.text[0])
        rq->reply.message = rq->error.text; /* of the last item that failed */
    reply->n_pages = reply->n_errs = n;
    reply->pages = scratch->page_pointers;
    reply->errs = scratch->errs;
    reply->lease_ms = (uint32_t) rq->server->config->lease_ms;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_COMMIT;
    rq->reply.commit = reply;
}

static int commit_conclude(struct job *job, struct request *rq)
{
    struct commit_job *j = (struct commit_job *) job;
    struct reply_scratch *scratch = job->server->scratch;
    const Kvcobra__Commit *m = rq ? rq->message->commit : NULL;
    struct page_context c;
    int r;

    if (!rq) {
        commit_release_all(j, false);
        return 0;
    }

    r = job->work.expired ? job_expired(rq) : commit_context(rq, m, &c);
    if (r == 0) /* before a page is published: it is not, if its lease could not be recorded */
        r = page_lease_room(rq, j->n_items);
    for (size_t i = 0; r == 0 && i < j->n_items; i++) {
        scratch->found[i] = PAGE_NONE;
        scratch->errs[i] = commit_conclude_item(rq, m->items[i], j, &j->items[i], &scratch->found[i]);
        page_ref_fill(rq, i, &scratch->found[i]);
        metrics_note_error(job->server->metrics, scratch->errs[i]);
    }

    commit_release_all(j, true); /* a failed item keeps its reservation */
    if (r == 0)
        commit_fill_reply(rq, j->n_items);
    return r;
}

/*
 * On a GPU, pages that other clients published under the message's keys are leased, so they must be whole. On
 * the host they are compared when they are leased.
 */
static size_t commit_find_present(struct request *rq, const struct page_context *c)
{
    struct reply_scratch *scratch = rq->server->scratch;
    const Kvcobra__Commit *m = rq->message->commit;
    size_t n = rq->store->pool.on_gpu ? m->n_items : 0;

    (void) c;
    for (size_t i = 0; i < n; i++) {
        struct chunk_key key;

        scratch->found[i] = page_key(rq, &m->items[i]->key, &key) == 0 ? page_find(rq, &key) : PAGE_NONE;
    }
    errmsg_clear(&rq->error); /* a bad key is reported later */
    return n;
}

static int commit_resolve(struct request *rq, struct page_context *ret)
{
    const Kvcobra__Commit *m = rq->message->commit;
    int r = commit_context(rq, m, ret);

    if (r == 0)
        r = page_check_writable(rq, ret->table);
    return r < 0 ? r : page_lease_room(rq, m->n_items);
}

static int commit_act(struct request *rq, const struct page_context *c)
{
    const Kvcobra__Commit *m = rq->message->commit;
    _cleanup_(freep) struct commit_job *j = commit_claim(rq, c, m);
    int r;

    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for a commit of %zu pages", m->n_items);

    j->job.work.run = commit_copy_slice;
    j->job.finish = commit_conclude;
    if (rq->store->pool.on_gpu)
        return commit_conclude(&j->job, rq);

    if (j->claimed_bytes <= rq->server->config->work_inline_bytes) {
        /* the loop copies: this costs less than giving the job to a thread */
        while (commit_copy_slice(&j->job.work))
            ;
        return commit_conclude(&j->job, rq);
    }

    r = job_start(&j->job, rq);
    if (r < 0)
        commit_release_all(j, true);
    else
        (void) take_ptr(j);
    return r;
}

static int commit_handle(struct request *rq)
{
    static const struct step_plan plan = {
        .resolve = commit_resolve,
        .find = commit_find_present,
        .act = commit_act,
    };

    return request_steps_run(rq, &plan);
}
REQUEST(request_commit) = {
    .body = KVCOBRA__REQUEST__BODY_COMMIT, .run = commit_handle, .needs = CONN_OPEN, .sockets = ON_CLIENT};
