/* Sampling and reporting; see watch.h. */
#include "client/model/watch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "gpu/device.h"

enum { PPM = 1000000 };

/* ---- memory ---- */

static void watch_forget_sums(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    w->tokens = 0;
    if (w->layers)
        memset(w->layers, 0, m->geometry.n_layers * sizeof(*w->layers));
}

static void watch_drop_shadow(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    model_table_unref(m, w->shadow);
    w->shadow = NULL;
    free(w->payload);
    w->payload = NULL;
    w->shadow_ppm = 0;
    watch_forget_sums(m);
}

void watch_deinit(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    watch_drop_shadow(m);
    model_table_unref(m, m->canary);
    m->canary = NULL;
    w->moments = moments_free(w->moments);
    chunk_work_deinit(&w->own);
    chunk_work_deinit(&w->other);
    free(w->layers);
    free(w->rows);
    free(w->keys);
    *w = (struct watch){.report_ppm = 0};
}

static int watch_prepare_moments(struct kvc_model *m)
{
    struct moments_options o = {.geometry = m->geometry, .n_sink = m->current->table->n_sink};

    if (m->watch.moments || !m->watch.wants_moments)
        return 0;
    memcpy(o.model_digest, m->model_digest, DIGEST_BYTES);
    return moments_new(&o, &m->watch.moments, NULL);
}

int watch_prepare(struct kvc_model *m)
{
    struct watch *w = &m->watch;
    size_t rows = (size_t) CHUNK_TOKENS * m->geometry.d;

    if (!w->layers) {
        w->layers = calloc(m->geometry.n_layers, sizeof(*w->layers));
        w->rows = malloc(rows * sizeof(float));
        w->keys = malloc(m->shard.n_heads * rows * sizeof(float));
        if (!w->layers || !w->rows || !w->keys || chunk_work_init(&w->own, &m->geometry, m->shard) < 0 ||
            chunk_work_init(&w->other, &m->geometry, m->shard) < 0) {
            chunk_work_deinit(&w->own);
            chunk_work_deinit(&w->other);
            free(w->layers);
            free(w->rows);
            free(w->keys);
            w->layers = NULL;
            w->rows = w->keys = NULL;
            return -ENOMEM;
        }
    }
    return watch_prepare_moments(m);
}

/* ---- what the daemon wants ---- */

static int watch_take_shadow(struct kvc_model *m, const uint8_t *digest, uint32_t ppm)
{
    struct watch *w = &m->watch;
    struct model_table *t;
    int r = model_table_fetch(m, digest, &t);

    if (r < 0)
        return r;
    w->shadow = t;
    w->payload = aligned_alloc(PAGE_ALIGN, t->layout.slot_bytes[PAGE_REST]); /* a multiple of PAGE_ALIGN */
    if (!w->payload || watch_prepare(m) < 0) {
        watch_drop_shadow(m);
        return -ENOMEM;
    }
    memset(w->payload, 0, t->layout.slot_bytes[PAGE_REST]);
    w->shadow_ppm = ppm < PPM ? ppm : PPM;
    return 0;
}

void watch_follow(struct kvc_model *m)
{
    const struct control_page *page;
    uint8_t digest[DIGEST_BYTES];
    uint64_t word;

    if (!model_is_connected(m) || m->client->gpu) /* chunks are measured where the CPU packs them */
        return;
    page = extent_data(m->remote.control);
    word = atomic_load_explicit(&page->shadow[m->remote.control_slot],
                                memory_order_acquire); /* then its digest */
    if (word == m->watch.shadow_word)
        return;
    m->watch.shadow_word = word;
    watch_drop_shadow(m);
    if ((word & 255) == 0 || (word & 255) > CONTROL_DIGESTS_MAX)
        return;
    memcpy(digest, page->models[m->remote.control_slot].digests[(word & 255) - 1], sizeof(digest));
    (void) watch_take_shadow(m, digest, word >> 8 < PPM ? (uint32_t) (word >> 8) : PPM);
    errmsg_clear(&m->client->error);
}

/* ---- choosing ---- */

/* splitmix64: neighbours have nothing in common. */
static uint64_t watch_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct model_table *watch_pick_table(struct kvc_model *m, const void *salt, size_t salt_bytes)
{
    const struct kvc_client *c = m->client;
    const struct control_model *slot;
    uint8_t digest[DIGEST_BYTES];
    uint64_t word, x = m->n_seqs_made++;

    if (!model_is_connected(m))
        return model_table_ref(m->current);
    slot = &((const struct control_page *) extent_data(m->remote.control))->models[m->remote.control_slot];
    word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (control_canary(word) >= CONTROL_DIGESTS_MAX || control_canary_share(word) == 0) {
        model_table_unref(m, m->canary);
        m->canary = NULL;
        return model_table_ref(m->current);
    }
    memcpy(&digest, slot->digests[control_canary(word)], sizeof(digest));
    for (size_t i = 0; i < sizeof(c->connection.token); i++) /* the session's own order of draws */
        x = watch_mix(x ^ c->connection.token[i]);
    for (size_t i = 0; i < salt_bytes; i++)
        x = watch_mix(x ^ ((const uint8_t *) salt)[i]);
    if ((x & 255) >= control_canary_share(word))
        return model_table_ref(m->current);
    if (!m->canary || memcmp(m->canary->table->digest, digest, sizeof(digest)) != 0) {
        struct model_table *t;

        model_table_unref(m, m->canary);
        m->canary = NULL;
        if (model_table_hold(m, digest, &t) < 0) { /* it ended meanwhile */
            errmsg_clear(&m->client->error);
            return model_table_ref(m->current);
        }
        m->canary = t;
    }
    return model_table_ref(m->canary);
}

bool watch_samples(const struct kvc_seq *s, size_t chunk)
{
    const struct watch *w = &s->model->watch;
    uint32_t ppm = w->report_ppm > w->shadow_ppm ? w->report_ppm : w->shadow_ppm;

    if (ppm == 0 || chunk == 0 || s->table != s->model->current || w->tokens >= WATCH_TOKENS_MAX)
        return false;
    return watch_mix(watch_mix(s->number) ^ chunk) % PPM < ppm;
}

/* ---- measuring ---- */

static double watch_squared_distance(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double x = (double) a[i] - b[i];

        sum += x * x;
    }
    return sum;
}

static double watch_squared_signal(const float *x, const float *mean, size_t n, uint32_t d)
{
    double sum = 0;

    for (size_t t = 0; t < n; t++)
        sum += watch_squared_distance(x + t * d, mean, d);
    return sum;
}

static void watch_add_moments(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                              const float *x)
{
    struct watch *w = &s->model->watch;
    size_t rows = (size_t) CHUNK_TOKENS * s->model->geometry.d;

    if (!w->moments || w->moments_tokens >= WATCH_MOMENTS_TOKENS_MAX)
        return;
    if (side == SIDE_K)
        memcpy(w->keys + head * rows, x, rows * sizeof(*x));
    else
        (void) moments_add(w->moments, layer, s->model->shard.first_head + head, 1, CHUNK_TOKENS,
                           w->keys + head * rows, x, NULL); /* the tail holds finite numbers only */
    if (layer == 0 && head == 0 && side == SIDE_V)
        w->moments_tokens += CHUNK_TOKENS;
}

void watch_head(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side, const float *x,
                const uint8_t *payload)
{
    struct watch *w = &s->model->watch;
    uint32_t d = s->model->geometry.d;
    size_t n = (size_t) CHUNK_TOKENS * d;
    struct watch_sums *sums = &w->layers[layer];

    if (w->table != s->table) { /* the sums begin anew with a new current table */
        watch_forget_sums(s->model);
        w->table = s->table;
        for (unsigned i = 0; i < 2; i++) {
            w->coords[i] = s->table->counts[i].coords;
            w->saturated[i] = s->table->counts[i].saturated;
        }
    }
    sums->signal[side] += watch_squared_signal(
        x, table_codec(s->table->table, layer, s->model->shard.first_head + head, side)->mean, CHUNK_TOKENS,
        d);
    chunk_decode(&s->table->layout, payload, layer, head, side, w->rows, d, &w->own);
    sums->error[side] += watch_squared_distance(x, w->rows, n);
    if (w->shadow) {
        struct encode_counts ignored = {0};
        int r = chunk_encode(&w->shadow->layout, layer, head, side, x, d, w->payload, &ignored, &w->other);

        assert(r == 0);
        (void) r;
        chunk_decode(&w->shadow->layout, w->payload, layer, head, side, w->rows, d, &w->own);
        sums->shadow[side] += watch_squared_distance(x, w->rows, n);
    }
    watch_add_moments(s, layer, head, side, x);
    if (layer == 0 && head == 0 && side == SIDE_V)
        w->tokens += CHUNK_TOKENS;
}

/* ---- reporting ---- */

/* Moments to the arena, if there is room. Return: their place, or SIZE_MAX. */
static size_t watch_place_moments(struct kvc_model *m, size_t bytes)
{
    struct kvc_client *c = m->client;
    size_t off;

    if (!m->watch.moments || m->watch.moments_tokens == 0 || !arena_take(&c->session.arena, bytes, &off))
        return SIZE_MAX;
    moments_write(m->watch.moments, (uint8_t *) extent_data(c->session.arena_extent) + off);
    return off;
}

static int watch_send_report(struct kvc_model *m, Kvcobra__LayerSums *sums, Kvcobra__LayerSums **pointers,
                             size_t moments_off, size_t n_moments)
{
    struct watch *w = &m->watch;
    const struct encode_counts *counts = w->table->counts;
    Kvcobra__Report body = KVCOBRA__REPORT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    for (uint32_t i = 0; i < m->geometry.n_layers; i++) {
        const struct watch_sums *l = &w->layers[i];

        kvcobra__layer_sums__init(&sums[i]);
        sums[i].signal_k = l->signal[SIDE_K];
        sums[i].signal_v = l->signal[SIDE_V];
        sums[i].error_k = l->error[SIDE_K];
        sums[i].error_v = l->error[SIDE_V];
        sums[i].shadow_k = l->shadow[SIDE_K];
        sums[i].shadow_v = l->shadow[SIDE_V];
        pointers[i] = &sums[i];
    }
    body.model = m->remote.handle;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, w->table->table->digest};
    body.coded_k = counts[SIDE_K].coords - w->coords[SIDE_K];
    body.coded_v = counts[SIDE_V].coords - w->coords[SIDE_V];
    body.saturated_k = counts[SIDE_K].saturated - w->saturated[SIDE_K];
    body.saturated_v = counts[SIDE_V].saturated - w->saturated[SIDE_V];
    body.tokens = w->tokens;
    body.layers = pointers;
    body.n_layers = m->geometry.n_layers;
    if (w->shadow)
        body.shadow_digest = (ProtobufCBinaryData){DIGEST_BYTES, w->shadow->table->digest};
    body.moments_offset = n_moments > 0 ? moments_off : 0;
    body.moments_bytes = n_moments;
    request.body_case = KVCOBRA__REQUEST__BODY_REPORT;
    request.report = &body;
    return connection_tell(&m->client->connection, &request, &m->client->error);
}

/* What was sent is counted once, taken or refused; only -EAGAIN and a lost connection keep it for later. */
static void watch_begin_anew(struct kvc_model *m, bool moments_sent)
{
    struct watch *w = &m->watch;

    for (unsigned i = 0; i < 2; i++) {
        w->coords[i] = w->table->counts[i].coords;
        w->saturated[i] = w->table->counts[i].saturated;
    }
    watch_forget_sums(m);
    if (!moments_sent)
        return;
    w->moments = moments_free(w->moments);
    w->moments_tokens = 0;
    (void) watch_prepare_moments(m);
}

void watch_report(struct kvc_model *m)
{
    struct watch *w = &m->watch;
    struct kvc_client *c = m->client;
    _cleanup_(freep) Kvcobra__LayerSums *sums = NULL;
    _cleanup_(freep) Kvcobra__LayerSums **pointers = NULL;
    size_t n_moments = moments_bytes(&m->geometry), off;
    int r;

    if (w->tokens == 0 || w->table != m->current || m->geometry.n_layers > WIRE_ITEMS_MAX ||
        !model_is_connected(m) || (w->reported_ms != 0 && clock_ms() - w->reported_ms < WATCH_REPORT_MS))
        return;
    w->reported_ms = clock_ms();
    sums = calloc(m->geometry.n_layers, sizeof(*sums));
    pointers = calloc(m->geometry.n_layers, sizeof(*pointers));
    if (!sums || !pointers)
        return;
    off = watch_place_moments(m, n_moments);
    r = watch_send_report(m, sums, pointers, off, off != SIZE_MAX ? n_moments : 0);
    if (off != SIZE_MAX)
        arena_give(&c->session.arena, off, n_moments);
    if (r == 0 || (r != -EAGAIN && r != -ENOTCONN))
        watch_begin_anew(m, off != SIZE_MAX);
    errmsg_clear(&c->error);
}
