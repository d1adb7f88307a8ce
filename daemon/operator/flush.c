/*
 * FLUSH: an operator makes a prefix unfindable. Keys of chunks are chained, so without the page of a chunk no
 * client finds what continues it. A request names a prefix and how many of its last chunks lose their pages;
 * pages of earlier chunks stay, since other prompts begin with them (LOOKUP says which do).
 *
 * A flush ends the pins of these pages.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/prefix.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/store/kept.h"

enum { FLUSH_CHUNKS_MAX = WIRE_ITEMS_MAX / CHUNK_TOKENS };

struct flush_chunk {
    struct chunk_key keys[PREFIX_KEYS];
    unsigned page_class;
};

/* What a request names, and what became of it. */
struct flush {
    struct prefix prefix;
    struct flush_chunk chunks[FLUSH_CHUNKS_MAX]; /* whose pages go, in the order of the prompt */
    size_t n_chunks;
    uint32_t n_pages, n_held, n_on_the_way;
};

struct flush_job { /* waits for the disk */
    struct job job;
    struct flush flush;
    unsigned n_pending;
    int err; /* of a request to the disk */
};

/* ---- the answer ---- */

static int flush_reply(struct request *rq, const struct flush *f)
{
    Kvcobra__FlushReply *reply = rq->server->scratch->body;

    kvcobra__flush_reply__init(reply);
    reply->keys = prefix_keys(rq, &f->prefix);
    reply->pages = f->n_pages;
    reply->held = f->n_held;
    reply->on_the_way = f->n_on_the_way;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_FLUSH;
    rq->reply.flush = reply;
    if (!rq->message->flush->goes_on)
        /* the message's name: the tenant may have been forgotten while the tiers answered */
        log_event(LOG_NOTICE, "flush", "tenant=%s pages=%" PRIu32 " held=%" PRIu32,
                  rq->message->flush->prefix->tenant, f->n_pages, f->n_held);
    return 0;
}

/* ---- memory ---- */

static int flush_memory_page(struct request *rq, struct flush *f, const struct chunk_key *key)
{
    struct tenant *t = f->prefix.tenant;
    struct store *st = store_of(t);
    struct page_handle h;
    int r;

    if (!store_find(st, t, key, &h))
        return 0;

    kept_end(st, &h);
    if (!store_find(st, t, key, &h)) /* it left with its pin, since its extent is being emptied */
        return 0;

    f->n_held += h.slot->holds > 0;
    r = store_forget(st, &h, &rq->error);
    f->n_pages += r == 0;
    return r;
}

/* The last chunk first: a failure leaves a prefix of the prompt findable, and nothing behind a gap. */
static int flush_memory(struct request *rq, struct flush *f)
{
    int r = 0;

    for (size_t i = f->n_chunks; i > 0 && r == 0; i--)
        for (int k = 0; k < PREFIX_KEYS && r == 0; k++)
            r = flush_memory_page(rq, f, &f->chunks[i - 1].keys[k]);
    return r;
}

/* ---- slower tiers ---- */

static int flush_conclude_disk(struct job *job, struct request *rq)
{
    const struct flush_job *j = (const struct flush_job *) job;

    if (!rq)
        return 0;
    if (j->err < 0)
        return fail(
            &rq->error, j->err,
            "the pages left memory, but the disk tier or the cluster may still have them (%s): flush again",
            strerror(-j->err));

    return flush_reply(rq, &j->flush);
}

static void flush_on_removed(void *ctx, int err)
{
    struct flush_job *j = ctx;

    j->err = err < 0 ? err : j->err;
    if (--j->n_pending == 0)
        job_end(&j->job);
}

static void flush_submit_page(struct offload *o, struct flush_job *j, const struct offload_subject *s)
{
    unsigned n_pending;
    uint32_t n_puts;
    int r = offload_flush_page(o, j->flush.prefix.tenant, s, flush_on_removed, j, &n_pending, &n_puts);

    j->flush.n_on_the_way += n_puts;
    j->n_pending += n_pending;
    j->err = r < 0 ? r : j->err;
}

static int flush_submit_disk(struct request *rq, struct flush_job *j)
{
    struct prefix at = j->flush.prefix;

    for (size_t n = j->flush.n_chunks * PREFIX_KEYS; n > 0; n--) {
        const struct flush_chunk *c = &j->flush.chunks[(n - 1) / PREFIX_KEYS];
        struct offload_subject s;
        int r;

        memcpy(at.keys, c->keys, sizeof(at.keys));
        at.page_class = c->page_class;
        r = prefix_subject(rq, &at, (n - 1) % PREFIX_KEYS, &s);
        if (r < 0)
            return r; /* all keys or none: nothing is pending */

        flush_submit_page(rq->server->offload, j, &s);
    }

    return j->n_pending > 0 || j->err == 0
               ? 0
               : fail(&rq->error, j->err,
                      "the pages left memory, but the disk tier or the cluster takes no request now and may "
                      "still have them: flush again");
}

static int flush_disk(struct request *rq, const struct flush *f)
{
    _cleanup_(freep) struct flush_job *j = calloc(1, sizeof(*j));
    int r;

    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for a request");

    j->flush = *f;
    j->job.finish = flush_conclude_disk;
    r = job_begin(&j->job, rq);
    if (r < 0)
        return r;

    r = flush_submit_disk(rq, j);
    if (r < 0 || j->n_pending == 0) {
        job_cancel(&j->job);
        return r < 0 ? r : flush_reply(rq, &j->flush);
    }

    (void) take_ptr(j);
    return REQUEST_PENDING;
}

/* Derives the keys of all chunks, and notes those whose pages go. */
static int flush_walk(struct request *rq, struct flush *f)
{
    const Kvcobra__Flush *m = rq->message->flush;
    size_t n = m->chunks == 0 ? 1 : m->chunks;

    if (n > f->prefix.n_chunks)
        return fail(&rq->error, -EINVAL, "%zu chunks of a prefix that has %zu", n, f->prefix.n_chunks);

    f->n_chunks = n;
    for (size_t i = 0; i < f->prefix.n_chunks; i++) { /* at most WIRE_ITEMS_MAX tokens, so sixteen hashes */
        struct flush_chunk *c = &f->chunks[i + n >= f->prefix.n_chunks ? i + n - f->prefix.n_chunks : 0];

        prefix_next(&f->prefix, m->prefix, i);
        memcpy(c->keys, f->prefix.keys, sizeof(c->keys));
        c->page_class = f->prefix.page_class;
    }

    return 0;
}

static int flush_handle(struct request *rq)
{
    struct flush f = {.n_pages = 0};
    int r = prefix_read(rq, rq->message->flush->prefix, &f.prefix);

    if (r == 0)
        r = flush_walk(rq, &f);
    if (r < 0)
        return r;
    if (rq->message->flush->goes_on)
        return flush_reply(rq, &f);

    r = flush_memory(rq, &f);
    if (r < 0)
        return r;

    return prefix_has_tiers(rq, &f.prefix) ? flush_disk(rq, &f) : flush_reply(rq, &f);
}
REQUEST(request_flush) = {
    .body = KVCOBRA__REQUEST__BODY_FLUSH, .run = flush_handle, .needs = CONN_OPEN, .sockets = ON_OPERATOR};
