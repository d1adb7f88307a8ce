/*
 * FLUSH: an operator makes a prefix unfindable. Keys of chunks are chained, so the page of the prefix's last
 * chunk is enough: without it no client finds what continues the prefix. Pages of earlier chunks stay, since
 * other prompts begin with them.
 *
 * There are two keys: sequences with repeatable attention have keys of their own.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/handlers.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "gpu/page_layout.h"

enum { KEYS = 2 }; /* [0] not repeatable, [1] repeatable */

/* What a request names, and what became of it. */
struct flush {
    struct tenant *tenant;
    const struct table_entry *table;
    struct shard shard;
    struct chunk_key keys[KEYS];
    bool is_first; /* the last chunk is the first one of its sequence */
    uint32_t n_pages, n_held, n_on_the_way;
};

struct flush_job { /* waits for the disk */
    struct job job;
    struct flush flush;
    unsigned n_pending;
    int err; /* of a request to the disk */
};

/* ---- what is flushed ---- */

static int flush_read_shard(struct request *rq, struct flush *f)
{
    const Kvcobra__Flush *m = rq->message->flush;
    uint32_t n = f->table->table->geometry.n_kv_heads;

    f->shard = (struct shard){m->first_kv_head, m->n_kv_heads};
    if (m->n_kv_heads == 0 && m->first_kv_head == 0)
        f->shard.n_heads = n;
    if (f->shard.n_heads == 0 || f->shard.first_head > n || f->shard.n_heads > n - f->shard.first_head)
        return fail(&rq->error, -EINVAL, "%" PRIu32 " KV heads from %" PRIu32 " on, of a table with %" PRIu32,
                    m->n_kv_heads, m->first_kv_head, n);

    return 0;
}

static int flush_read(struct request *rq, struct flush *f)
{
    const Kvcobra__Flush *m = rq->message->flush;
    struct table_entry *table;
    int r;

    f->tenant = devices_find_tenant(&rq->server->devices, m->tenant);
    if (!f->tenant)
        return fail(&rq->error, -ENOENT,
                    "there is no tenant \"%.40s\": \"kvcobra status\" lists those with sessions or pages",
                    m->tenant);

    r = request_find_table(rq, &m->table_digest, &table);
    if (r < 0)
        return r;
    if (!table->table)
        return fail(&rq->error, -ESTALE, "the table is retired or rejected: it has no pages");

    f->table = table;
    if (m->n_tokens == 0 || m->n_tokens % CHUNK_TOKENS != 0)
        return fail(&rq->error, -EINVAL, "%zu tokens are not whole chunks of %d", m->n_tokens, CHUNK_TOKENS);
    if (m->salt.len > CHUNK_SALT_BYTES_MAX)
        return fail(&rq->error, -EINVAL, "the salt has %zu bytes, at most %d", m->salt.len,
                    CHUNK_SALT_BYTES_MAX);
    if (m->parent_keys.len != 0)
        r = request_check_bytes(rq, &m->parent_keys, sizeof(f->keys), "parent keys");
    return r < 0 ? r : flush_read_shard(rq, f);
}

/* At most WIRE_ITEMS_MAX tokens, so sixteen hashes. */
static void flush_derive_keys(const struct request *rq, struct flush *f)
{
    const Kvcobra__Flush *m = rq->message->flush;
    struct chunk_identity id = {
        .table_digest = f->table->digest,
        .model_digest = f->table->model_digest,
        .first_head = f->shard.first_head,
        .n_heads = f->shard.n_heads,
        .salt = m->salt.data,
        .salt_bytes = m->salt.len,
    };
    bool has_parent = m->parent_keys.len > 0;

    if (has_parent)
        memcpy(f->keys, m->parent_keys.data, sizeof(f->keys));
    f->is_first = !has_parent && m->n_tokens == CHUNK_TOKENS;
    for (int i = 0; i < KEYS; i++) {
        id.repeatable = i == 1;
        for (size_t at = 0; at < m->n_tokens; at += CHUNK_TOKENS) {
            struct chunk_key parent = f->keys[i];

            chunk_key_derive(f->tenant->index_key, &id, has_parent || at > 0 ? &parent : NULL, m->tokens + at,
                             &f->keys[i]);
        }
    }
}

/* ---- the answer ---- */

static int flush_reply(struct request *rq, const struct flush *f)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__FlushReply *reply = &scratch->body.flush;

    _Static_assert(sizeof(f->keys) <= sizeof(scratch->digest), "keys fit the scratch");
    memcpy(scratch->digest, f->keys, sizeof(f->keys));
    kvcobra__flush_reply__init(reply);
    reply->keys = bytes_view(scratch->digest, sizeof(f->keys));
    reply->pages = f->n_pages;
    reply->held = f->n_held;
    reply->on_the_way = f->n_on_the_way;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_FLUSH;
    rq->reply.flush = reply;
    if (!rq->message->flush->goes_on)
        log_event(LOG_NOTICE, "flush", "tenant=%s pages=%" PRIu32 " held=%" PRIu32,
                  rq->message->flush->tenant, f->n_pages, f->n_held);
    return 0;
}

/* ---- memory ---- */

static int flush_memory(struct request *rq, struct flush *f)
{
    struct store *st = store_of(f->tenant);

    for (int i = 0; i < KEYS; i++) {
        uint32_t slot = store_find(st, f->tenant, &f->keys[i]);
        int r;

        if (slot == SLOT_NONE)
            continue;

        f->n_held += pool_slot(&st->pool, slot)->holds > 0;
        r = store_forget(st, slot, &rq->error);
        if (r < 0)
            return r;

        f->n_pages++;
    }

    return 0;
}

/* ---- slower tiers ---- */

static int flush_conclude_disk(struct job *job, struct request *rq)
{
    const struct flush_job *j = (const struct flush_job *) job;

    if (!rq)
        return 0;
    if (j->err < 0)
        return fail(&rq->error, j->err,
                    "the page left memory, but the disk tier or the cluster %s and may still have it: flush "
                    "again",
                    j->err == -ENODEV ? "is off" : "did not answer in time");

    return flush_reply(rq, &j->flush);
}

static void flush_on_removed(void *ctx, int err)
{
    struct flush_job *j = ctx;

    j->err = err < 0 ? err : j->err;
    if (--j->n_pending == 0)
        job_end(&j->job);
}

/* A tier of which this daemon or the tenant has none is no failure. */
static void flush_submit_page(struct offload *o, struct flush_job *j, const struct offload_subject *s)
{
    uint32_t n_writes = 0, n_puts = 0;
    int on_disk = offload_flush_page(o, j->flush.tenant, s, flush_on_removed, j, &n_writes);
    int shared = offload_flush_shared(o, j->flush.tenant, s, flush_on_removed, j, &n_puts);

    j->flush.n_on_the_way += n_writes + n_puts;
    j->n_pending += (on_disk == 0) + (shared == 0);
    if (on_disk < 0 && on_disk != -ENOENT)
        j->err = on_disk;
    if (shared < 0 && shared != -ENOENT)
        j->err = shared;
}

static int flush_submit_disk(struct request *rq, struct flush_job *j)
{
    struct page_layout layout;
    struct offload_subject s = {.account = j->flush.tenant->account};
    int r = page_layout_init(&layout, j->flush.table->table, j->flush.shard);

    if (r < 0)
        return fail(&rq->error, r, "pages of these KV heads cannot be stored alone");

    disk_group_id_init(&s.group, s.account->name);
    memcpy(s.group.table_digest, j->flush.table->digest, sizeof(s.group.table_digest));
    s.group.first_head = (uint16_t) j->flush.shard.first_head;
    s.group.n_heads = (uint16_t) j->flush.shard.n_heads;
    s.group.page_class = j->flush.is_first ? PAGE_FIRST : PAGE_REST;
    s.group.page_bytes = layout.page_bytes[s.group.page_class];
    page_layout_deinit(&layout);
    for (int i = 0; i < KEYS; i++) {
        s.key = j->flush.keys[i];
        flush_submit_page(rq->server->offload, j, &s);
    }

    return j->n_pending > 0 || j->err == 0
               ? 0
               : fail(&rq->error, j->err,
                      "the page left memory, but the disk tier or the cluster takes no request now and may "
                      "still have it: flush again");
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

int flush_handle(struct request *rq)
{
    struct flush f = {.n_pages = 0};
    int r = flush_read(rq, &f);

    if (r < 0)
        return r;

    flush_derive_keys(rq, &f);
    if (rq->message->flush->goes_on)
        return flush_reply(rq, &f);

    r = flush_memory(rq, &f);
    if (r < 0)
        return r;

    if (rq->server->offload && !store_of(f.tenant)->pool.on_gpu)
        return flush_disk(rq, &f);

    return flush_reply(rq, &f);
}
