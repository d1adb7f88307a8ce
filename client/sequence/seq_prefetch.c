/*
 * Chunks of a prompt without a sequence.
 *
 * kvc_model_peek() looks published chunks up: no lease, and no message but for a moved index.
 * kvc_model_prefetch() brings chunks from slower tiers to memory before a sequence matches them. Each part of
 * a prompt is a LEASE that grants nothing, as a post that yields to fetches (connection_post()). No caller
 * waits for the reply, which has nothing in it: a later match finds what arrived.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "client/kvcobra-tiers.h"
#include "client/model/model_filter.h"
#include "client/model/model_tables.h"
#include "client/sequence/reclaim.h"
#include "client/sequence/seq_options.h"
#include "client/sequence/seq_pool.h"
#include "client/sequence/seq_window.h"
#include "proto/index.h"

/* ---- peek ---- */

/* The table of a sequence with these options that would match, and what its keys depend on. */
struct seq_peek_subject {
    uint8_t table_digest[DIGEST_BYTES];
    struct chunk_identity identity; /* borrows table_digest, and the salt of the options */
};

/* A caller that sees no chunk of a moved index may not match at all, and would never see one. */
static enum index_result seq_peek_look_up(struct kvc_model *m, const struct chunk_key *key,
                                          struct index_hit *ret_hit)
{
    enum index_result result = index_lookup(&m->remote.reader, key, ret_hit);

    if (result == INDEX_MOVED && model_remote_open(m) == 0)
        result = index_lookup(&m->remote.reader, key, ret_hit);

    return result;
}

/* Whether the index has chunk number @chunk. A moved index is opened again, once. @m is connected. */
static bool seq_peek_in_memory(struct kvc_model *m, const struct chunk_key *key, size_t chunk,
                               struct index_hit *ret_hit)
{
    return seq_peek_look_up(m, key, ret_hit) == INDEX_FOUND &&
           ret_hit->page_class == (uint32_t) class_of_chunk(chunk);
}

/* Chunks of a text, whose keys are derived as they are needed. */
struct seq_peek_text {
    struct kvc_model *model;
    const struct seq_peek_subject *subject;
    const uint32_t *tokens;
    struct chunk_key *keys; /* [chunks of the text] */
    size_t n_keys;          /* derived */
};

static int seq_peek_text_init(struct seq_peek_text *x, struct kvc_model *m, const struct seq_peek_subject *s,
                              const uint32_t *tokens, size_t n_chunks)
{
    *x = (struct seq_peek_text){.model = m, .subject = s, .tokens = tokens};
    x->keys = calloc(n_chunks > 0 ? n_chunks : 1, sizeof(*x->keys));
    return x->keys ? 0
                   : fail(&m->client->error, -ENOMEM, "out of memory for the keys of %zu chunks", n_chunks);
}

static void seq_peek_text_deinit(struct seq_peek_text *x)
{
    free(x->keys);
}

static const struct chunk_key *seq_peek_key(struct seq_peek_text *x, size_t chunk)
{
    for (; x->n_keys <= chunk; x->n_keys++) {
        struct chunk_key *key = &x->keys[x->n_keys];

        chunk_key_derive(x->model->remote.index_key, &x->subject->identity, x->n_keys > 0 ? key - 1 : NULL,
                         x->tokens + x->n_keys * CHUNK_TOKENS, key);
    }
    return &x->keys[chunk];
}

/* Chunks of the longest text that a match finds: in memory, and in any tier. */
struct seq_peek_counts {
    size_t memory, all;
    bool wants_all; /* else @all is not counted */
};

static bool seq_peek_memory_has(void *ctx, size_t chunk)
{
    struct seq_peek_text *x = ctx;
    struct index_hit hit;

    return seq_peek_in_memory(x->model, seq_peek_key(x, chunk), chunk, &hit);
}

static bool seq_peek_tier_has(void *ctx, size_t chunk)
{
    struct seq_peek_text *x = ctx;

    return seq_peek_memory_has(ctx, chunk) || model_filter_has(x->model, seq_peek_key(x, chunk));
}

/* Counts the chunks of @x, a text of @n_chunks. Without a window what is in memory is at the beginning of
 * what any tier has, so that no chunk is looked up twice. */
static void seq_peek_count(struct seq_peek_text *x, uint32_t window, size_t n_chunks,
                           struct seq_peek_counts *ret)
{
    size_t first;

    ret->memory = seq_window_longest(window, 0, n_chunks, seq_peek_memory_has, x, &first);
    if (ret->wants_all)
        ret->all =
            seq_window_longest(window, window > 0 ? 0 : ret->memory, n_chunks, seq_peek_tier_has, x, &first);
}

/*
 * @o: as read by seq_options_read(). Without a table_digest it is the active table. Return: 0; -ENODATA:
 * there is none; as model_table_active().
 */
static int seq_peek_subject(struct kvc_model *m, const kvc_seq_options *o, struct seq_peek_subject *ret)
{
    int r = 0;

    if (o->table_digest)
        memcpy(ret->table_digest, o->table_digest, DIGEST_BYTES);
    else
        r = model_table_active(m, ret->table_digest);
    if (r == 0)
        ret->identity = seq_pool_identity(m, ret->table_digest, o->salt, o->salt_bytes, o->flags);
    return r;
}

static int seq_peek_chunks(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                           size_t n_chunks, struct seq_peek_counts *ret)
{
    _cleanup_(seq_peek_text_deinit) struct seq_peek_text text = {.keys = NULL};
    struct seq_peek_subject subject;
    int r = seq_peek_subject(m, o, &subject);

    if (r < 0 || reclaim_extent(m) != 0) /* a match finds nothing while the daemon reclaims memory */
        return r;

    r = seq_peek_text_init(&text, m, &subject, tokens, n_chunks);
    if (r == 0)
        seq_peek_count(&text, o->window, n_chunks, ret);
    return r;
}

/* After client_enter(). */
static int seq_peek(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                    struct seq_peek_counts *ret)
{
    kvc_seq_options options;
    int r = seq_options_read(m->client, o, &options);

    if (r < 0)
        return r;

    if (model_is_connected(m))
        r = seq_peek_chunks(m, &options, tokens, n_tokens / CHUNK_TOKENS, ret);
    /* without a daemon or an active table nothing is published for a new sequence */
    if (r < 0 && r != -ENOTCONN && r != -ENODATA)
        return r;

    errmsg_clear(&m->client->error);
    return 0;
}

int kvc_model_peek(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                   size_t *ret_n)
{
    struct seq_peek_counts counts = {0};
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_n || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_peek: tokens or ret_n is NULL");

    r = seq_peek(m, o, tokens, n_tokens, &counts);
    if (r < 0)
        return r;

    *ret_n = counts.memory * CHUNK_TOKENS;
    return 0;
}

int kvc_model_peek_tiers(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                         size_t *ret_memory, size_t *ret_all)
{
    struct seq_peek_counts counts = {.wants_all = true};
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_memory || !ret_all || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_peek_tiers: an argument is NULL");

    r = seq_peek(m, o, tokens, n_tokens, &counts);
    if (r < 0)
        return r;

    *ret_memory = counts.memory * CHUNK_TOKENS;
    *ret_all = counts.all * CHUNK_TOKENS;
    return 0;
}

/* One LEASE that was posted. */
struct seq_prefetch {
    struct connection_post post; /* first member */
    struct seq_prefetch *next;   /* of the client */
    struct kvc_client *client;
    struct kvc_model *model; /* compared only: it may be gone */
    uint64_t number;         /* of the call */
};

/* The chunks of a prompt that a tier has, and a match needs. */
struct seq_prefetch_run {
    struct seq_peek_subject subject;
    size_t first, n;   /* chunks first .. n - 1 */
    size_t first_slow; /* n: all are in memory */
    struct seq_peek_text text;
    struct index_hit *hits; /* [chunks of the text] */
};

static void seq_prefetch_run_deinit(struct seq_prefetch_run *run)
{
    seq_peek_text_deinit(&run->text);
    free(run->hits);
}

/* ---- prefetch: posts ---- */

static void seq_prefetch_free(struct seq_prefetch *p)
{
    struct seq_prefetch **at = &p->client->prefetches;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    reply_deinit(&p->post.reply);
    free(p);
}

static void seq_prefetch_on_done(struct connection_post *post)
{
    seq_prefetch_free((struct seq_prefetch *) post);
}

static size_t seq_prefetch_count(const struct kvc_client *c)
{
    size_t n = 0;

    for (const struct seq_prefetch *p = c->prefetches; p; p = p->next)
        n++;
    return n;
}

static int seq_prefetch_post(struct kvc_model *m, uint64_t number, Kvcobra__Lease *lease)
{
    struct kvc_client *c = m->client;
    struct seq_prefetch *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return fail(&c->error, -ENOMEM, "out of memory for a prefetch");

    p->post = (struct connection_post){
        .body = KVCOBRA__REPLY__BODY_LEASE, .on_done = seq_prefetch_on_done, .yields = true};
    p->client = c;
    p->model = m;
    p->number = number;
    p->next = c->prefetches;
    c->prefetches = p;
    r = connection_post(&c->connection, KVCOBRA__REQUEST__BODY_LEASE, lease, &p->post, &c->error);
    if (r < 0)
        seq_prefetch_free(p);
    return r;
}

/* Posts chunks [first, first + n). */
static int seq_prefetch_part(struct kvc_model *m, const struct seq_prefetch_run *run, size_t first, size_t n,
                             const kvc_seq_options *o, uint64_t number)
{
    Kvcobra__LeaseItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;

    for (size_t i = 0; i < n; i++) {
        size_t chunk = first + i;

        kvcobra__lease_item__init(&items[i]);
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, run->text.keys[chunk].bytes};
        items[i].slot = run->hits[chunk].slot;
        items[i].generation = run->hits[chunk].generation;
        items[i].page_class = (uint32_t) class_of_chunk(chunk);
        pointers[i] = &items[i];
    }

    lease.model = m->remote.handle;
    lease.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) run->subject.table_digest};
    lease.items = pointers;
    lease.n_items = n;
    lease.fetch_ms = seq_options_fetch_ms(o);
    lease.compute_tokens_per_s = o->compute_tokens_per_s;
    lease.is_counted = true; /* the match counts */
    lease.only_fetch = true;
    return seq_prefetch_post(m, number, &lease);
}

/* ---- prefetch: the prompt ---- */

/* Whether a match would find the chunk, and where. */
static bool seq_prefetch_has(void *ctx, size_t chunk)
{
    struct seq_prefetch_run *run = ctx;
    struct kvc_model *m = run->text.model;
    const struct chunk_key *key = seq_peek_key(&run->text, chunk);

    if (seq_peek_in_memory(m, key, chunk, &run->hits[chunk]))
        return true;

    run->hits[chunk] = (struct index_hit){.slot = UINT32_MAX};
    return model_filter_asks(m, key);
}

static int seq_prefetch_find(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                             size_t n_chunks, struct seq_prefetch_run *run)
{
    int r = seq_peek_text_init(&run->text, m, &run->subject, tokens, n_chunks);

    if (r < 0)
        return r;

    run->hits = calloc(n_chunks, sizeof(*run->hits));
    if (!run->hits)
        return fail(&m->client->error, -ENOMEM, "out of memory for the places of %zu chunks", n_chunks);

    run->n = seq_window_longest(o->window, 0, n_chunks, seq_prefetch_has, run, &run->first);
    run->first_slow = run->first;
    while (run->first_slow < run->n && run->hits[run->first_slow].slot != UINT32_MAX)
        run->first_slow++;
    return 0;
}

/* Posts the parts from the first chunk on that is not in memory. */
static int seq_prefetch_start(struct kvc_model *m, const struct seq_prefetch_run *run,
                              const kvc_seq_options *o)
{
    struct kvc_client *c = m->client;
    size_t batch = c->connection.items_per_message, n_running = seq_prefetch_count(c);
    size_t first = run->first + (run->first_slow - run->first) / batch * batch;
    size_t n_parts = (run->n - first + batch - 1) / batch;
    uint64_t number = c->n_prefetches + 1;
    int r = 0;

    if (n_parts > KVC_PREFETCH_PARTS_MAX) /* of millions of tokens, the first ones */
        n_parts = KVC_PREFETCH_PARTS_MAX;
    if (n_running + n_parts > KVC_PREFETCH_PARTS_MAX)
        return fail(&c->error, -EAGAIN,
                    "%zu parts of prompts are being prefetched and %zu more do not fit, the maximum is %d: "
                    "retry later, or cancel one",
                    n_running, n_parts, KVC_PREFETCH_PARTS_MAX);

    c->n_prefetches = number;
    for (; r == 0 && n_parts > 0; n_parts--, first += batch)
        r = seq_prefetch_part(m, run, first, run->n - first < batch ? run->n - first : batch, o, number);
    return r;
}

/* After client_enter(). */
static int seq_prefetch(struct kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                        size_t n_tokens, uint64_t *ret_prefetch)
{
    _cleanup_(seq_prefetch_run_deinit) struct seq_prefetch_run run = {.n = 0};
    size_t n_chunks = n_tokens / CHUNK_TOKENS;
    int r;

    if (n_chunks == 0 || seq_options_fetch_ms(o) == 0 || !model_is_connected(m))
        return 0;

    r = seq_peek_subject(m, o, &run.subject);
    if (r < 0 || reclaim_extent(m) != 0) /* a match finds nothing while the daemon reclaims memory */
        return r;

    r = seq_prefetch_find(m, o, tokens, n_chunks, &run);
    if (r < 0 || run.first_slow == run.n)
        return r;

    r = seq_prefetch_start(m, &run, o);
    if (r == 0)
        *ret_prefetch = m->client->n_prefetches;
    return r;
}

int kvc_model_prefetch(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                       uint64_t *ret_prefetch)
{
    kvc_seq_options options;
    uint64_t number = 0;
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_prefetch || (n_tokens > 0 && !tokens))
        return fail(&m->client->error, -EINVAL, "kvc_model_prefetch: tokens or ret_prefetch is NULL");

    r = seq_options_read(m->client, o, &options);
    if (r < 0)
        return r;

    connection_collect(&m->client->connection); /* what has arrived makes room */
    r = seq_prefetch(m, &options, tokens, n_tokens, &number);
    /* without a daemon or an active table there is nothing to fetch */
    if (r < 0 && r != -ENOTCONN && r != -ENODATA)
        return r;

    errmsg_clear(&m->client->error);
    *ret_prefetch = number;
    return 0;
}

int kvc_model_prefetch_cancel(kvc_model *m, uint64_t prefetch)
{
    struct kvc_client *c;
    int r;

    if (!m)
        return -EINVAL;

    c = m->client;
    r = client_enter(c);
    if (r < 0)
        return r;

    for (struct seq_prefetch *p = c->prefetches, *next; p; p = next) {
        next = p->next;
        if (p->model == m && (prefetch == 0 || p->number == prefetch) &&
            connection_cancel_post(&c->connection, &p->post))
            seq_prefetch_free(p);
    }

    connection_collect(&c->connection);
    return 0;
}
