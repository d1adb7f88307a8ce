/* See tier_load.h. */
#include "tools/bench/tier_load.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/sealed_page.h"
#include "tools/bench/tier_place.h"
#include "tools/command/clock.h"
#include "tools/command/operator_tables.h"

enum {
    HEAD_DIM = 64,
    HEAD_SIDE_BYTES = CHUNK_TOKENS * HEAD_DIM, /* of codes: a byte for each number */
    LAYERS_MAX = 32,
    PIECE_PAGES = 8, /* appended at a time: the arena has room for them */
    FETCH_MS = 8000,
    OPEN_THREADS_MAX = 64,
    ASK_MS = 1,
};
static const double OPEN_S = 0.5;

struct bench_shape tier_load_shape(uint64_t page_bytes)
{
    unsigned pairs = (unsigned) (page_bytes / (2 * HEAD_SIDE_BYTES)); /* of K and V: layers times heads */
    unsigned layers = pairs < LAYERS_MAX ? pairs : LAYERS_MAX;

    return (struct bench_shape){.n_layers = layers > 0 ? layers : 1,
                                .n_kv_heads = layers > 0 ? pairs / layers : 1,
                                .d = HEAD_DIM,
                                .n_bands = HEAD_DIM / 8,
                                .bits = 8,
                                .no_sinks = true};
}

/* ---- clients ---- */

static int tier_load_connect(struct tier_load *l, struct tier_client *c, struct errmsg *e)
{
    struct geometry g = bench_geometry(&l->shape);
    kvc_model_id id = bench_model_id(&g);
    int r = client_open(l->place->daemon.socket, &c->handle, e);

    if (r < 0)
        return r;
    r = kvc_model_open(c->handle, &id, &c->model);
    return r < 0 ? fail(e, r, "%s", kvc_last_error(c->handle)) : 0;
}

static void tier_load_disconnect(struct tier_load *l)
{
    for (unsigned i = 0; i < TIER_CLIENTS; i++)
        l->clients[i].handle = kvc_client_free(l->clients[i].handle);
}

int tier_load_again(struct tier_load *l, struct errmsg *e)
{
    int r = tier_place_activate(l->place, l->model.table->bytes, l->model.table->n_bytes, e);

    tier_load_disconnect(l);
    for (unsigned i = 0; i < TIER_CLIENTS && r == 0; i++)
        r = tier_load_connect(l, &l->clients[i], e);
    return r;
}

int tier_load_begin(struct tier_load *l, struct tier_place *p, const struct bench_shape *s, struct errmsg *e)
{
    size_t n = (size_t) PIECE_PAGES * CHUNK_TOKENS * s->n_kv_heads * s->d;
    uint32_t random = 1;
    int r;

    *l = (struct tier_load){.place = p, .shape = *s};
    r = bench_model_init(&l->model, s, 1, e);
    if (r < 0)
        return r;

    l->vectors = calloc(n, sizeof(*l->vectors));
    if (!l->vectors)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) { /* any numbers: their codes must not be equal */
        random = random * 1664525 + 1013904223;
        l->vectors[i] = (float) (random >> 8) / (1 << 23) - 1;
    }
    return tier_load_again(l, e);
}

void tier_load_end(struct tier_load *l)
{
    tier_load_disconnect(l);
    bench_model_deinit(&l->model);
    free(l->vectors);
    free(l->decoded);
    *l = (struct tier_load){.place = NULL};
}

size_t tier_load_page_bytes(const struct tier_load *l)
{
    return l->model.layout.page_bytes[PAGE_REST];
}

/* ---- prompts ---- */

/* One token more than the pages have: a match leaves the last one. NULL: out of memory. */
static uint32_t *tier_load_tokens(uint32_t prompt, size_t n_pages)
{
    size_t n = n_pages * CHUNK_TOKENS + 1;
    uint32_t *tokens = calloc(n, sizeof(*tokens));

    for (size_t i = 0; tokens && i < n; i++)
        tokens[i] = prompt * 1000003 + (uint32_t) i;
    return tokens;
}

static int tier_load_new(const struct tier_client *c, kvc_seq **ret, struct errmsg *e)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_PUBLISH_ALL, .fetch_ms = FETCH_MS};
    int r = kvc_seq_new_with(c->model, &o, ret);

    return r < 0 ? fail(e, r, "%s", kvc_last_error(c->handle)) : 0;
}

int tier_load_publish(struct tier_load *l, uint32_t prompt, size_t n_pages, struct errmsg *e)
{
    _cleanup_(freep) uint32_t *tokens = tier_load_tokens(prompt, n_pages);
    _cleanup_(kvc_seq_freep) kvc_seq *q = NULL;
    const struct tier_client *c = &l->clients[0];
    int r = tokens ? tier_load_new(c, &q, e) : fail(e, -ENOMEM, "out of memory");

    for (size_t at = 0; r == 0 && at < n_pages;) {
        size_t n = n_pages - at < PIECE_PAGES ? n_pages - at : PIECE_PAGES;

        at += n;
        for (uint32_t layer = 0; r == 0 && layer < l->shape.n_layers; layer++)
            r = kvc_seq_append(q, layer, KVC_F32, l->vectors, l->vectors, n * CHUNK_TOKENS);
        if (r == 0)
            r = kvc_seq_commit(q, tokens, at * CHUNK_TOKENS, NULL);
        if (r < 0)
            return fail(e, r, "%s", kvc_last_error(c->handle));
    }
    return r;
}

struct tier_match {
    pthread_t thread;
    bool runs;
    const struct tier_client *client;
    uint32_t *tokens;
    kvc_seq *sequence;
    size_t n_tokens, n_found;
    int err;
};

static void *tier_load_match_one(void *ctx)
{
    struct tier_match *m = ctx;

    m->err = kvc_seq_match(m->sequence, m->tokens, m->n_tokens, &m->n_found);
    return NULL;
}

/* Everything that is not measured is done before. */
static int tier_load_prepare_match(struct tier_load *l, struct tier_match *m, unsigned i, uint32_t prompt,
                                   size_t n_pages, struct errmsg *e)
{
    *m = (struct tier_match){.client = &l->clients[i], .tokens = tier_load_tokens(prompt, n_pages)};
    m->n_tokens = n_pages * CHUNK_TOKENS + 1;
    return m->tokens ? tier_load_new(m->client, &m->sequence, e) : fail(e, -ENOMEM, "out of memory");
}

static int tier_load_check_match(const struct tier_match *m, struct errmsg *e)
{
    if (m->err < 0)
        return fail(e, m->err, "%s", kvc_last_error(m->client->handle));
    if (m->n_found + 1 < m->n_tokens)
        return fail(e, -ENODATA, "%zu of %zu pages of a prompt were found", m->n_found / CHUNK_TOKENS,
                    m->n_tokens / CHUNK_TOKENS);
    return 0;
}

int tier_load_match(struct tier_load *l, uint32_t first, unsigned n, size_t n_pages, double *ret_s,
                    struct errmsg *e)
{
    struct tier_match matches[TIER_CLIENTS] = {{.tokens = NULL}};
    double began;
    int r = 0;

    for (unsigned i = 0; i < n && r == 0; i++)
        r = tier_load_prepare_match(l, &matches[i], i, first + i, n_pages, e);

    began = clock_seconds();
    for (unsigned i = 1; i < n && r == 0; i++) {
        matches[i].runs = pthread_create(&matches[i].thread, NULL, tier_load_match_one, &matches[i]) == 0;
        if (!matches[i].runs)
            r = fail(e, -EAGAIN, "cannot start a thread");
    }
    if (r == 0)
        (void) tier_load_match_one(&matches[0]);
    for (unsigned i = 1; i < n; i++)
        if (matches[i].runs)
            (void) pthread_join(matches[i].thread, NULL);
    *ret_s = clock_seconds() - began;

    for (unsigned i = 0; i < n; i++) {
        if (r == 0)
            r = tier_load_check_match(&matches[i], e);
        matches[i].sequence = kvc_seq_free(matches[i].sequence);
        free(matches[i].tokens);
    }
    return r;
}

/* Room for the decoded vectors of @n tokens. NULL: out of memory. */
static uint16_t *tier_load_room(struct tier_load *l, size_t n)
{
    size_t numbers = 2 * (size_t) l->shape.n_layers * l->shape.n_kv_heads * l->shape.d;

    if (l->n_decoded < n) {
        free(l->decoded);
        l->decoded = calloc(n * numbers, sizeof(*l->decoded));
        l->n_decoded = l->decoded ? n : 0;
    }
    return l->decoded;
}

int tier_load_read(struct tier_load *l, uint32_t prompt, size_t n_pages, double *ret_s, struct errmsg *e)
{
    size_t n = n_pages * CHUNK_TOKENS, side = n * l->shape.n_kv_heads * l->shape.d;
    uint16_t *room = tier_load_room(l, n);
    void *bases[2 * LAYERS_MAX];
    const kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .dtype = KVC_F16};
    struct tier_match m;
    double began;
    int r;

    if (!room)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < 2 * (size_t) l->shape.n_layers; i++)
        bases[i] = room + i * side;

    r = tier_load_prepare_match(l, &m, 0, prompt, n_pages, e);
    began = clock_seconds();
    if (r == 0) {
        (void) tier_load_match_one(&m);
        r = tier_load_check_match(&m, e);
    }
    if (r == 0) {
        r = kvc_seq_read_blocks(m.sequence, 0, n, &to);
        r = r < 0 ? fail(e, r, "%s", kvc_last_error(m.client->handle)) : 0;
    }
    *ret_s = clock_seconds() - began;
    m.sequence = kvc_seq_free(m.sequence);
    free(m.tokens);
    return r;
}

/* ---- opening ---- */

struct tier_opening {
    pthread_t thread;
    bool runs;
    size_t page_bytes;
    double until;
    uint64_t n;
    int err;
    struct errmsg why;
};

static void *tier_load_open_pages(void *ctx)
{
    static const uint8_t secret[SEAL_SECRET_BYTES] = "a secret of the bench";
    static const struct chunk_key key = {{1}};
    static const struct seal_subject subject = {"bench", &key};
    const struct seal_key k = {1, secret};
    struct tier_opening *o = ctx;
    _cleanup_(freep) uint8_t *page = calloc(1, o->page_bytes), *sealed = calloc(1, seal_bytes(o->page_bytes));

    if (!page || !sealed) {
        o->err = fail(&o->why, -ENOMEM, "out of memory");
        return NULL;
    }

    page_header_store(&(struct page_header){.format_version = PAGE_FORMAT_VERSION, .key = key}, page);
    sealed_page_make(seal_cipher_fastest(), &k, &subject, page, o->page_bytes, sealed);
    while (clock_seconds() < o->until) {
        o->err = sealed_page_open(seal_cipher_fastest(), secret, &subject, sealed, sealed + SEAL_HEAD_BYTES,
                                  page, o->page_bytes, &o->why);
        if (o->err < 0)
            break;
        o->n++;
    }
    return NULL;
}

int tier_load_opening_rate(size_t page_bytes, unsigned n_threads, double *ret, struct errmsg *e)
{
    struct tier_opening threads[OPEN_THREADS_MAX] = {{.runs = false}};
    double began = clock_seconds();
    uint64_t n = 0;
    int r = 0;

    if (n_threads > OPEN_THREADS_MAX)
        n_threads = OPEN_THREADS_MAX;
    for (unsigned i = 0; i < n_threads && r == 0; i++) {
        threads[i].page_bytes = page_bytes;
        threads[i].until = began + OPEN_S;
        threads[i].runs = pthread_create(&threads[i].thread, NULL, tier_load_open_pages, &threads[i]) == 0;
        if (!threads[i].runs)
            r = fail(e, -EAGAIN, "cannot start a thread");
    }
    for (unsigned i = 0; i < n_threads; i++) {
        if (threads[i].runs)
            (void) pthread_join(threads[i].thread, NULL);
        if (r == 0 && threads[i].err < 0)
            r = fail(e, threads[i].err, "%s", threads[i].why.text);
        n += threads[i].n;
    }
    *ret = (double) n * (double) page_bytes / (clock_seconds() - began);
    return r;
}

/* ---- a client that asks ---- */

/* The list of aliases is nearly always empty: the answer needs the daemon's loop, and little else. */
static int tier_asker_ask(struct tier_asker *a, kvc_client *c)
{
    const Kvcobra__ListAliases list = KVCOBRA__LIST_ALIASES__INIT;
    _cleanup_(operator_message_freep) Kvcobra__ListAliasesReply *aliases = NULL;
    double began = clock_seconds();
    int r = operator_call(c, KVCOBRA__REQUEST__BODY_LIST_ALIASES, &list.base, &aliases, &a->why);
    size_t n = tier_asker_count(a);

    if (r == 0) {
        a->seconds[n] = clock_seconds() - began;
        __atomic_store_n(&a->n, n + 1, __ATOMIC_RELEASE); /* after the sample, for tier_asker_count() */
    }
    return r;
}

static void *tier_asker_run(void *ctx)
{
    struct tier_asker *a = ctx;
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;

    a->err = client_open(a->socket, &c, &a->why);
    while (a->err == 0 && !__atomic_load_n(&a->stops, __ATOMIC_RELAXED) && a->n < TIER_ANSWERS_MAX) {
        a->err = tier_asker_ask(a, c);
        (void) poll(NULL, 0, ASK_MS); /* the pace of the questions */
    }
    return NULL;
}

int tier_asker_begin(struct tier_asker *a, const char *socket, struct errmsg *e)
{
    a->socket = socket;
    a->stops = false;
    a->n = 0;
    a->err = 0;
    return pthread_create(&a->thread, NULL, tier_asker_run, a) == 0
               ? 0
               : fail(e, -EAGAIN, "cannot start a thread");
}

int tier_asker_end(struct tier_asker *a, struct errmsg *e)
{
    __atomic_store_n(&a->stops, true, __ATOMIC_RELAXED);
    (void) pthread_join(a->thread, NULL);
    if (a->err < 0)
        return fail(e, a->err, "%s", a->why.text);
    return a->n > 0 ? 0 : fail(e, -ENODATA, "kvcobrad answered nothing");
}

size_t tier_asker_count(const struct tier_asker *a)
{
    return __atomic_load_n(&a->n, __ATOMIC_ACQUIRE);
}
