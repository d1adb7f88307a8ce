/* See watch.h. */
#include "client/model/watch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"
#include "client/connection/clock.h"
#include "client/model/model_table.h"
#include "client/model/model_tables.h"
#include "client/model/model_types.h"
#include "gpu/device.h"

enum { PPM = 1000000 };

/* ---- memory ---- */

/* Moves the sums that were not reported to those that were. */
static void watch_keep_sums(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    w->sent_tokens += w->tokens;
    w->tokens = 0;
    for (uint32_t i = 0; w->layers && i < m->geometry.n_layers; i++) {
        for (unsigned side = 0; side < 2; side++) {
            w->sent[i].signal[side] += w->layers[i].signal[side];
            w->sent[i].error[side] += w->layers[i].error[side];
        }
        w->layers[i] = (struct watch_sums){.signal = {0}};
    }
}

static void watch_forget_sums(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    w->tokens = w->sent_tokens = 0;
    if (!w->layers)
        return;

    memset(w->layers, 0, m->geometry.n_layers * sizeof(*w->layers));
    memset(w->sent, 0, m->geometry.n_layers * sizeof(*w->sent));
}

static void watch_drop_shadow(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    model_table_unref(m, w->shadow);
    w->shadow = NULL;
    free(w->payload);
    w->payload = NULL;
    w->shadow_ppm = 0;
    watch_keep_sums(m); /* a report counts as many tokens with the shadow table as without */
}

static void watch_free_work(struct watch *w)
{
    chunk_work_deinit(&w->own);
    chunk_work_deinit(&w->other);
    free(w->layers);
    free(w->sent);
    free(w->rows);
    free(w->keys);
    free(w->values);
    w->layers = w->sent = NULL;
    w->rows = w->keys = w->values = NULL;
}

void watch_deinit(struct kvc_model *m)
{
    struct watch *w = &m->watch;

    watch_drop_shadow(m);
    model_table_unref(m, m->canary);
    m->canary = NULL;
    w->moments = moments_free(w->moments);
    watch_free_work(w);
    *w = (struct watch){.report_ppm = 0};
}

/*
 * Whether moments have the covariance between heads: a table that predicts values from all heads of a layer
 * can be fitted again with it only. It takes so much more room that a large model's moments stay without.
 */
static bool watch_wants_joint(const struct kvc_model *m)
{
    const struct extent *arena = m->client->session.arena_extent;

    return m->current->table->v_from == PREDICT_LAYER && m->shard.n_heads == m->geometry.n_kv_heads &&
           arena && moments_bytes(&m->geometry, true) <= extent_bytes(arena) / 2 && !m->watch.joint_refused;
}

static int watch_prepare_moments(struct kvc_model *m)
{
    struct moments_options o = {.geometry = m->geometry, .n_sink = m->current->table->n_sink};

    if (m->watch.moments || !m->watch.wants_moments)
        return 0;
    memcpy(o.model_digest, m->model_digest, DIGEST_BYTES);
    o.joint = watch_wants_joint(m);
    return moments_new(&o, &m->watch.moments, NULL);
}

static int watch_prepare_work(struct kvc_model *m)
{
    struct watch *w = &m->watch;
    size_t rows = (size_t) CHUNK_TOKENS * m->geometry.d;

    w->layers = calloc(m->geometry.n_layers, sizeof(*w->layers));
    w->sent = calloc(m->geometry.n_layers, sizeof(*w->sent));
    w->rows = malloc(rows * sizeof(float));
    w->keys = malloc(m->shard.n_heads * rows * sizeof(float));
    w->values = malloc(m->shard.n_heads * rows * sizeof(float));
    if (!w->layers || !w->sent || !w->rows || !w->keys || !w->values ||
        chunk_work_init(&w->own, &m->geometry, m->shard) < 0 ||
        chunk_work_init(&w->other, &m->geometry, m->shard) < 0) {
        watch_free_work(w);
        return -ENOMEM;
    }

    return 0;
}

int watch_prepare(struct kvc_model *m)
{
    int r = m->watch.layers ? 0 : watch_prepare_work(m);

    if (r < 0)
        return r;

    return watch_prepare_moments(m);
}

/* ---- the shadow table ---- */

static int watch_set_shadow(struct kvc_model *m, const uint8_t *digest, uint32_t ppm)
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

    if (!model_is_connected(m) || m->client->gpu) /* only chunks that the CPU packs are measured */
        return;

    page = extent_data(m->remote.control);
    /* pairs with the daemon's store of the word: its digest is read after it */
    word = atomic_load_explicit(&page->shadow[m->remote.control_slot], memory_order_acquire);
    if (word == m->watch.shadow_word)
        return;

    m->watch.shadow_word = word;
    watch_drop_shadow(m);
    if ((word & 255) == 0 || (word & 255) > CONTROL_DIGESTS_MAX)
        return;

    memcpy(digest, page->models[m->remote.control_slot].digests[(word & 255) - 1], sizeof(digest));
    (void) watch_set_shadow(m, digest, word >> 8 < PPM ? (uint32_t) (word >> 8) : PPM);
    errmsg_clear(&m->client->error);
}

/* ---- choosing tables and chunks ---- */

/* The next number of splitmix64 after state @x: results of neighbouring numbers are unrelated. */
static uint64_t watch_mix(uint64_t x)
{
    return splitmix64_next(&x);
}

/* The canary's table with one reference; NULL: the daemon ended the trial meanwhile. */
static struct model_table *watch_ref_canary(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t;

    if (m->canary && memcmp(m->canary->table->digest, digest, DIGEST_BYTES) == 0)
        return model_table_ref(m->canary);

    model_table_unref(m, m->canary);
    m->canary = NULL;
    if (model_table_hold(m, digest, &t) < 0) {
        errmsg_clear(&m->client->error);
        return NULL;
    }

    m->canary = t;
    return model_table_ref(m->canary);
}

struct model_table *watch_pick_table(struct kvc_model *m, const void *salt, size_t salt_bytes)
{
    const struct kvc_client *c = m->client;
    const struct control_model *slot;
    struct model_table *canary;
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
    for (size_t i = 0; i < sizeof(c->connection.token); i++) /* each session draws in its own order */
        x = watch_mix(x ^ c->connection.token[i]);
    for (size_t i = 0; i < salt_bytes; i++)
        x = watch_mix(x ^ ((const uint8_t *) salt)[i]);
    canary = (x & 255) < control_canary_share(word) ? watch_ref_canary(m, digest) : NULL;

    return canary ? canary : model_table_ref(m->current);
}

/* Whether @t's chunks can be added: the sums are of one table until they are reported. Then the first chunk
 * decides, so that the canary has its share of reports. A shadow is compared with the current table only. */
static bool watch_measures(const struct kvc_model *m, const struct model_table *t)
{
    const struct watch *w = &m->watch;

    if (t != m->current && (t != m->canary || w->shadow))
        return false;

    return w->tokens == 0 || w->table == t || (w->table != m->current && w->table != m->canary);
}

bool watch_samples(const struct kvc_model *m, const struct model_table *t, uint64_t seq, size_t chunk)
{
    const struct watch *w = &m->watch;
    uint32_t ppm = w->report_ppm > w->shadow_ppm ? w->report_ppm : w->shadow_ppm;

    if (ppm == 0 || chunk == 0 || table_is_exact(t->table) || !watch_measures(m, t))
        return false;
    if (m->remote.opened && w->tokens >= WATCH_TOKENS_MAX)
        return false;

    return watch_mix(watch_mix(seq) ^ chunk) % PPM < ppm;
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

static void watch_add_moments(struct kvc_model *m, const struct watch_chunk *c)
{
    struct watch *w = &m->watch;
    size_t d = m->geometry.d, heads = m->shard.n_heads;
    float *rows = (c->side == SIDE_K ? w->keys : w->values) + c->head * d;

    if (!w->moments || w->moments_tokens >= WATCH_MOMENTS_TOKENS_MAX)
        return;

    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        memcpy(rows + t * heads * d, c->x + t * d, d * sizeof(*rows));
    if (c->side == SIDE_K || c->head + 1 < heads)
        return;

    (void) moments_add(w->moments, c->layer, m->shard.first_head, m->shard.n_heads, CHUNK_TOKENS, w->keys,
                       w->values, NULL); /* cannot fail: appending refused numbers that are not finite */
    if (c->layer == 0)
        w->moments_tokens += CHUNK_TOKENS;
}

/* The sums begin at zero with a new current table. Those of the same table were reported. */
static void watch_begin_table(struct kvc_model *m, struct model_table *t)
{
    struct watch *w = &m->watch;

    if (w->table == t)
        watch_keep_sums(m);
    else
        watch_forget_sums(m);
    w->table = t;
    for (unsigned i = 0; i < 2; i++) {
        w->coords[i] = t->counts[i].coords;
        w->saturated[i] = t->counts[i].saturated;
    }
}

static double watch_shadow_error(struct watch *w, const struct watch_chunk *c, uint32_t d)
{
    struct encode_counts ignored = {0};
    int r = chunk_encode(&w->shadow->layout, c->layer, c->head, c->side, c->x, d, w->payload, &ignored,
                         &w->other);

    assert(r == 0);
    (void) r;
    chunk_decode(&w->shadow->layout, w->payload, c->layer, c->head, c->side, w->rows, d, &w->own);

    return watch_squared_distance(c->x, w->rows, (size_t) CHUNK_TOKENS * d);
}

void watch_add(struct kvc_model *m, const struct watch_chunk *c)
{
    struct watch *w = &m->watch;
    struct watch_sums *sums = &w->layers[c->layer];
    const struct codec *codec =
        table_codec(c->table->table, c->layer, m->shard.first_head + c->head, c->side);
    uint32_t d = m->geometry.d;

    if (w->table != c->table)
        watch_begin_table(m, c->table);

    sums->signal[c->side] += watch_squared_signal(c->x, codec->mean, CHUNK_TOKENS, d);
    chunk_decode(&c->table->layout, c->payload, c->layer, c->head, c->side, w->rows, d, &w->own);
    sums->error[c->side] += watch_squared_distance(c->x, w->rows, (size_t) CHUNK_TOKENS * d);
    if (w->shadow)
        sums->shadow[c->side] += watch_shadow_error(w, c, d);

    watch_add_moments(m, c);
    if (c->layer == 0 && c->head == 0 && c->side == SIDE_V)
        w->tokens += CHUNK_TOKENS;
}

uint64_t watch_fit(const struct kvc_model *m, double ret_error[static 2])
{
    const struct watch *w = &m->watch;
    uint32_t n = m->geometry.n_layers;

    ret_error[SIDE_K] = ret_error[SIDE_V] = 0;
    if (!w->layers || w->table != m->current)
        return 0;

    for (uint32_t i = 0; i < n; i++)
        for (unsigned side = 0; side < 2; side++) {
            double signal = w->layers[i].signal[side] + w->sent[i].signal[side];

            if (signal > 0)
                ret_error[side] += (w->layers[i].error[side] + w->sent[i].error[side]) / signal / n;
        }
    return w->tokens + w->sent_tokens;
}

/* ---- reporting ---- */

/* Writes moments into the arena. Return: their offset; SIZE_MAX: no moments, or no room. */
static size_t watch_place_moments(struct kvc_model *m, size_t bytes)
{
    struct kvc_client *c = m->client;
    size_t off;

    if (!m->watch.moments || m->watch.moments_tokens == 0 || session_arena_take(&c->session, bytes, &off) < 0)
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

    return connection_send(&m->client->connection, KVCOBRA__REQUEST__BODY_REPORT, &body, &m->client->error);
}

/* After a report: sums that were sent are not sent again, also if the daemon refused them. */
static void watch_clear_reported(struct kvc_model *m, bool moments_sent)
{
    struct watch *w = &m->watch;

    watch_begin_table(m, w->table);
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
    bool joint = w->moments && moments_get_options(w->moments)->joint;
    size_t n_moments = moments_bytes(&m->geometry, joint), off;
    int r;

    if (w->tokens == 0 || (w->table != m->current && w->table != m->canary) ||
        m->geometry.n_layers > WIRE_ITEMS_MAX || !model_is_connected(m) ||
        (w->reported_ms != 0 && clock_ms() - w->reported_ms < WATCH_REPORT_MS))
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
    if (r < 0 && joint && off != SIZE_MAX && r != -EAGAIN && r != -ENOTCONN)
        w->joint_refused = true;        /* the next ones are smaller */
    if (r != -EAGAIN && r != -ENOTCONN) /* after these two errors a later call repeats the report */
        watch_clear_reported(m, off != SIZE_MAX);
    errmsg_clear(&c->error);
}
