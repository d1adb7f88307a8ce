/*
 * The statistics file; alloc/README.md draws its bytes. The header determines every offset: the reader
 * computes where each section must lie and accepts nothing else, so it never uses an unchecked offset. The
 * SHA-256 at the end names the statistics. Samples are stored in the order of their hashes: windows added or
 * merged in any order give the same sample sections.
 */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats_format.h"
#include "alloc/stats_internal.h"
#include "alloc/stats_sample.h"
#include "base/atomic_file.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian, and so is memory here");

/* Computes the sections and the size from the other fields of the header. No overflow: geometry_validate()
 * and the limits of stats_alloc() bound every factor. */
static void stats_file_lay_out(struct stats_header *h)
{
    uint64_t n_hs = (uint64_t) h->n_layers * h->n_kv_heads * 2, dd = (uint64_t) h->d * h->d * sizeof(double);
    uint64_t off = sizeof(*h);
    uint64_t bytes[N_SECTIONS] = {
        [SECTION_FREQ] = h->n_rot / 2 * sizeof(double),
        [SECTION_MEAN] = n_hs * h->d * sizeof(double),
        [SECTION_SCATTER] = n_hs * dd,
        [SECTION_QUERY] = h->flags & (STATS_FLAG_ATTENTION | STATS_FLAG_OUTPUT) ? n_hs / 2 * dd : 0,
        [SECTION_METRIC] = h->flags & STATS_FLAG_ATTENTION ? n_hs * dd : 0,
        [SECTION_OUTPUT] = h->flags & STATS_FLAG_OUTPUT ? n_hs * dd : 0,
        [SECTION_FISHER] = h->flags & STATS_FLAG_FISHER ? n_hs * dd : 0,
        [SECTION_DEPTH] = (uint64_t) h->n_layers * 2 * sizeof(struct depth_sums),
        [SECTION_SOURCES] = h->n_sources * sizeof(struct stats_source),
        [SECTION_IDS] = h->n_held * sizeof(struct sample_id),
        [SECTION_SAMPLES] = n_hs * h->n_held * h->d * sizeof(float),
    };

    for (size_t i = 0; i < N_SECTIONS; i++) {
        h->sections[i] = (struct stats_section){off, bytes[i]};
        off = (off + bytes[i] + STATS_SECTION_ALIGN - 1) & ~(uint64_t) (STATS_SECTION_ALIGN - 1);
    }

    h->file_bytes = off + DIGEST_BYTES;
}

static void stats_file_make_header(const struct stats *s, struct stats_header *ret)
{
    const struct geometry *g = &s->o.geometry;

    *ret = (struct stats_header){
        .magic = STATS_MAGIC,
        .version = STATS_VERSION,
        .flags = (s->o.want_attention ? STATS_FLAG_ATTENTION : 0) |
                 (s->o.want_output ? STATS_FLAG_OUTPUT : 0) | (s->n_fisher > 0 ? STATS_FLAG_FISHER : 0),
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .d = g->d,
        .n_rot = g->n_rot,
        .key_order = STATS_KEY_ORDER_HALF_SPLIT,
        .attn_scale = g->attn_scale,
        .n_sink = s->o.n_sink,
        .n_samples = s->o.n_samples,
        .key_stride = s->o.key_stride,
        .n_held = (uint32_t) s->n_held,
        .seed = s->o.seed,
        .n_tokens = s->n_tokens,
        .n_fisher = s->n_fisher,
        .n_sources = s->n_sources,
    };
    memcpy(ret->model_digest, s->o.model_digest, DIGEST_BYTES);
    geometry_digest(g, ret->geometry_digest);
    /* stats_alloc() has checked the terminator */
    memcpy(ret->model_name, s->o.model_name, strlen(s->o.model_name) + 1);
    stats_file_lay_out(ret);
}

/* ---- writing ---- */

/* Hashes bytes and, unless @file is NULL, writes them. */
struct stats_file_writer {
    crypto_hash_sha256_state sha;
    struct atomic_file *file; /* or NULL */
    size_t at;
};

static void stats_file_put(struct stats_file_writer *w, const void *bytes, size_t n)
{
    (void) crypto_hash_sha256_update(&w->sha, bytes, n);
    if (w->file)
        atomic_file_put(w->file, bytes, n);
    w->at += n;
}

static void stats_file_put_section(struct stats_file_writer *w, const struct stats_header *h,
                                   enum stats_section_id section, const void *bytes)
{
    static const uint8_t zeros[STATS_SECTION_ALIGN];

    if (h->sections[section].bytes > 0)
        stats_file_put(w, bytes, (size_t) h->sections[section].bytes);
    stats_file_put(w, zeros, -w->at & (STATS_SECTION_ALIGN - 1));
}

static int stats_file_write_all(const struct stats *s, const struct stats_header *h,
                                struct stats_file_writer *w, uint8_t *ret_digest)
{
    size_t d = s->o.geometry.d;
    _cleanup_(freep) size_t *slots = calloc(s->n_held + 1, sizeof(*slots));
    _cleanup_(freep) struct sample_id *ids = calloc(s->n_held + 1, sizeof(*ids));
    static const uint8_t zeros[STATS_SECTION_ALIGN];

    if (!slots || !ids)
        return -ENOMEM;

    stats_sorted_slots(s, slots);
    for (size_t i = 0; i < s->n_held; i++)
        ids[i] = s->ids[slots[i]];
    (void) crypto_hash_sha256_init(&w->sha);
    stats_file_put(w, h, sizeof(*h));
    stats_file_put_section(w, h, SECTION_FREQ, s->o.geometry.freq);
    stats_file_put_section(w, h, SECTION_MEAN, s->mean);
    stats_file_put_section(w, h, SECTION_SCATTER, s->scatter);
    stats_file_put_section(w, h, SECTION_QUERY, s->query);
    stats_file_put_section(w, h, SECTION_METRIC, s->metric);
    stats_file_put_section(w, h, SECTION_OUTPUT, s->output);
    stats_file_put_section(w, h, SECTION_FISHER, s->fisher);
    stats_file_put_section(w, h, SECTION_DEPTH, s->depth);
    stats_file_put_section(w, h, SECTION_SOURCES, s->sources);
    stats_file_put_section(w, h, SECTION_IDS, ids);
    for (uint32_t hs = 0; hs < head_side_count(&s->o.geometry); hs++)
        for (size_t i = 0; i < s->n_held; i++)
            stats_file_put(w, stats_sample_rows(s, hs) + slots[i] * d, d * sizeof(float));
    stats_file_put(w, zeros, -w->at & (STATS_SECTION_ALIGN - 1));
    (void) crypto_hash_sha256_final(&w->sha, ret_digest);
    return 0;
}

int stats_digest(const struct stats *s, uint8_t ret_digest[static DIGEST_BYTES], struct errmsg *e)
{
    struct stats_file_writer w = {.file = NULL};
    struct stats_header h;
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;
    if (s->cross) { /* statistics made of moments have no file; the moments have one */
        memcpy(ret_digest, s->moments_digest, DIGEST_BYTES);
        return 0;
    }

    stats_file_make_header(s, &h);
    r = stats_file_write_all(s, &h, &w, ret_digest);
    return r < 0 ? fail(e, r, "out of memory for the digest of the statistics") : 0;
}

uint64_t stats_file_bytes(const struct stats *s)
{
    struct stats_header h;

    stats_file_make_header(s, &h);
    return h.file_bytes;
}

int stats_put(const struct stats *s, struct atomic_file *f, struct errmsg *e)
{
    struct stats_file_writer w = {.file = f};
    uint8_t digest[DIGEST_BYTES];
    struct stats_header h;
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;
    if (s->cross)
        return fail(e, -EINVAL, "statistics made of moments have no file of their own: save the moments");

    stats_file_make_header(s, &h);
    r = stats_file_write_all(s, &h, &w, digest);
    if (r < 0)
        return fail(e, r, "out of memory for writing statistics");

    atomic_file_put(f, digest, sizeof(digest));
    return 0;
}

int stats_save(const struct stats *s, const char *path, struct errmsg *e)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.fd = -1};
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;

    r = atomic_file_start(path, &f, e);
    if (r < 0)
        return r;

    r = stats_put(s, &f, e);
    if (r < 0)
        return r;

    return atomic_file_commit(&f, e);
}

/* ---- reading ---- */

static bool stats_file_all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static int stats_file_check_header(const struct stats_header *h, size_t n_bytes, struct errmsg *e)
{
    struct stats_header expected = *h;

    if (memcmp(h->magic, STATS_MAGIC, sizeof(h->magic)) != 0)
        return fail(e, -EBADMSG, "not a statistics file: it does not begin with " STATS_MAGIC);
    if (h->version != STATS_VERSION)
        return fail(e, -EBADMSG,
                    "the statistics file has version %u; this program reads version %u: calibrate again",
                    h->version, STATS_VERSION);
    if (h->flags & ~(STATS_FLAG_ATTENTION | STATS_FLAG_FISHER | STATS_FLAG_OUTPUT))
        return fail(e, -EBADMSG, "the statistics file has unknown flags 0x%x", h->flags);
    if (h->key_order != STATS_KEY_ORDER_HALF_SPLIT)
        return fail(e, -EBADMSG, "statistics in key order %u; this program reads half-split (%u) only",
                    h->key_order, STATS_KEY_ORDER_HALF_SPLIT);
    if (h->n_held > h->n_samples || h->n_held > h->n_tokens)
        return fail(e, -EBADMSG, "the statistics file has %u samples of %llu tokens, at most %u wanted",
                    h->n_held, (unsigned long long) h->n_tokens, h->n_samples);
    if (h->n_sources > STATS_SOURCES_MAX)
        return fail(e, -EBADMSG, "the statistics file has %llu texts, at most %d are possible",
                    (unsigned long long) h->n_sources, STATS_SOURCES_MAX);
    if (((h->flags & STATS_FLAG_FISHER) != 0) != (h->n_fisher > 0))
        return fail(e, -EBADMSG, "the gradient count of the statistics file does not match its flags");
    if (!stats_file_all_zero(h->zero, sizeof(h->zero)))
        return fail(e, -EBADMSG, "the statistics file has bytes other than zero in reserved fields");

    stats_file_lay_out(&expected);
    if (memcmp(&expected, h, sizeof(*h)) != 0)
        return fail(e, -EBADMSG, "the sections of the statistics file are not where its header puts them");
    if (h->file_bytes != n_bytes)
        return fail(e, -EBADMSG,
                    "the statistics file has %zu bytes, its header says %llu: it is truncated or has more",
                    n_bytes, (unsigned long long) h->file_bytes);

    return 0;
}

/* Refuses bytes other than zero after the name and between sections: one set of statistics has one encoding,
 * so its digest can be its name. */
static int stats_file_check_gaps(const struct stats_header *h, const uint8_t *bytes, struct errmsg *e)
{
    size_t name = strnlen(h->model_name, sizeof(h->model_name));

    if (!stats_file_all_zero((const uint8_t *) h->model_name + name, sizeof(h->model_name) - name))
        return fail(e, -EBADMSG, "the statistics file has bytes after the model's name");

    for (size_t i = 0; i < N_SECTIONS; i++) {
        uint64_t end = h->sections[i].offset + h->sections[i].bytes;
        uint64_t next = i + 1 < N_SECTIONS ? h->sections[i + 1].offset : h->file_bytes - DIGEST_BYTES;

        if (!stats_file_all_zero(bytes + end, (size_t) (next - end)))
            return fail(e, -EBADMSG, "the statistics file has bytes between its sections");
    }

    return 0;
}

static int stats_file_read_options(const struct stats_header *h, const uint8_t *bytes,
                                   struct stats_options *ret, struct errmsg *e)
{
    struct stats_options o = {
        .geometry = {.n_layers = h->n_layers,
                     .n_heads = h->n_heads,
                     .n_kv_heads = h->n_kv_heads,
                     .d = h->d,
                     .n_rot = h->n_rot,
                     .attn_scale = h->attn_scale},
        .n_sink = h->n_sink,
        .n_samples = h->n_samples,
        .key_stride = h->key_stride,
        .want_attention = (h->flags & STATS_FLAG_ATTENTION) != 0,
        .want_output = (h->flags & STATS_FLAG_OUTPUT) != 0,
        .seed = h->seed,
    };
    uint8_t digest[DIGEST_BYTES];
    struct errmsg why = {""};

    if (h->n_rot > GEOMETRY_DIM_MAX || h->d > GEOMETRY_DIM_MAX || h->n_layers > GEOMETRY_LAYERS_MAX ||
        h->n_kv_heads > GEOMETRY_HEADS_MAX)
        return fail(e, -EBADMSG, "the statistics file has an impossible geometry");
    if (!range_inside(sizeof(*h), h->n_rot / 2 * sizeof(double), (uint64_t) h->file_bytes))
        return fail(e, -EBADMSG, "the statistics file is truncated");

    memcpy(o.geometry.freq, bytes + sizeof(*h), h->n_rot / 2 * sizeof(double));
    memcpy(o.model_digest, h->model_digest, DIGEST_BYTES);
    memcpy(o.model_name, h->model_name, sizeof(o.model_name));
    if (geometry_validate(&o.geometry, &why) < 0)
        return fail(e, -EBADMSG, "the statistics file has an impossible geometry: %.300s", why.text);

    geometry_digest(&o.geometry, digest);
    if (memcmp(digest, h->geometry_digest, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "the geometry of the statistics file does not match its digest");

    *ret = o;
    return 0;
}

static bool stats_file_doubles_finite(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* @sums: [n_matrices, d, d], or NULL: absent */
static int stats_file_check_matrices(const char *what, const double *sums, size_t n_matrices, size_t d,
                                     struct errmsg *e)
{
    for (size_t m = 0; sums && m < n_matrices; m++) {
        const double *a = sums + m * d * d;

        if (!stats_file_doubles_finite(a, d * d))
            return fail(e, -EBADMSG, "statistics file: %s %zu is not finite", what, m);

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j <= i; j++)
                if (a[i * d + j] != a[j * d + i] || (i == j && a[i * d + i] < 0))
                    return fail(e, -EBADMSG, "statistics file: %s %zu is not a symmetric sum of squares",
                                what, m);
    }

    return 0;
}

static int stats_file_read_sources(struct stats *s, const struct stats_header *h, const uint8_t *bytes,
                                   struct errmsg *e)
{
    for (size_t i = 0; i < h->n_sources; i++) {
        struct stats_source source;

        memcpy(&source, bytes + h->sections[SECTION_SOURCES].offset + i * sizeof(source), sizeof(source));
        if (source.kind > SOURCE_MODEL || (i > 0 && stats_source_compare(&s->sources[i - 1], &source) >= 0))
            return fail(e, -EBADMSG, "statistics file: text %zu is unknown or out of order", i);
        if (stats_add_source(s, &source, e) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int stats_file_check_samples(const struct stats *s, struct errmsg *e)
{
    size_t per_hs = s->n_held * s->o.geometry.d;

    for (size_t i = 0; i < s->n_held; i++) {
        const struct sample_id *id = &s->ids[i];

        if (id->hash != stats_token_hash(s->o.seed, id->document, id->position) ||
            (i > 0 && sample_id_compare(&s->ids[i - 1], id) >= 0))
            return fail(e, -EBADMSG, "statistics file: sampled token %zu is out of the order of hashes", i);
    }

    for (uint32_t hs = 0; hs < head_side_count(&s->o.geometry) && per_hs > 0; hs++)
        for (size_t i = 0; i < per_hs; i++)
            if (!isfinite(stats_sample_rows(s, hs)[i]))
                return fail(e, -EBADMSG, "statistics file: a sample of head-side %u is not finite", hs);
    return 0;
}

/* Copies the sections into the arrays of @s, which have the sizes in the
 * header, and checks their contents. */
static int stats_file_read_sections(struct stats *s, const struct stats_header *h, const uint8_t *bytes,
                                    struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g);
    void *to[N_SECTIONS] = {
        [SECTION_MEAN] = s->mean,     [SECTION_SCATTER] = s->scatter, [SECTION_QUERY] = s->query,
        [SECTION_METRIC] = s->metric, [SECTION_OUTPUT] = s->output,   [SECTION_FISHER] = s->fisher,
        [SECTION_DEPTH] = s->depth,   [SECTION_IDS] = s->ids,         [SECTION_SAMPLES] = s->samples};
    int r = 0;

    for (size_t i = 0; i < N_SECTIONS; i++)
        if (to[i] && h->sections[i].bytes > 0)
            memcpy(to[i], bytes + h->sections[i].offset, (size_t) h->sections[i].bytes);
    r = stats_file_read_sources(s, h, bytes, e);
    if (r < 0)
        return r;
    if (!stats_file_doubles_finite(s->mean, n_hs * g->d))
        return fail(e, -EBADMSG, "statistics file: a mean is not finite");

    for (size_t i = 0; i < (size_t) g->n_layers * 2; i++)
        if (!isfinite(s->depth[i].kl) || !isfinite(s->depth[i].D) || s->depth[i].kl < 0 || s->depth[i].D < 0)
            return fail(e, -EBADMSG, "statistics file: the depth measurement of layer %zu is impossible",
                        i / 2);
    if ((r = stats_file_check_matrices("the covariance of head-side", s->scatter, n_hs, g->d, e)) < 0 ||
        (r = stats_file_check_matrices("the query moment of head", s->query, n_hs / 2, g->d, e)) < 0 ||
        (r = stats_file_check_matrices("the metric of head-side", s->metric, n_hs, g->d, e)) < 0 ||
        (r = stats_file_check_matrices("the output metric of head-side", s->output, n_hs, g->d, e)) < 0 ||
        (r = stats_file_check_matrices("the Fisher metric of head-side", s->fisher, n_hs, g->d, e)) < 0)
        return r;

    return stats_file_check_samples(s, e);
}

int stats_parse(const void *bytes, size_t n_bytes, struct stats **ret_stats, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    struct stats_options o;
    struct stats_header h;
    uint8_t digest[DIGEST_BYTES];
    int r;

    if (n_bytes < sizeof(h) + DIGEST_BYTES)
        return fail(e, -EBADMSG, "not a statistics file: %zu bytes are too few", n_bytes);

    memcpy(&h, bytes, sizeof(h));
    r = stats_file_check_header(&h, n_bytes, e);
    if (r < 0)
        return r;

    (void) crypto_hash_sha256(digest, bytes, n_bytes - DIGEST_BYTES);
    if (memcmp(digest, (const uint8_t *) bytes + n_bytes - DIGEST_BYTES, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "the statistics file is damaged: its SHA-256 does not match");

    r = stats_file_read_options(&h, bytes, &o, e);
    if (r < 0)
        return r;

    r = stats_file_check_gaps(&h, bytes, e);
    if (r < 0)
        return r;

    r = stats_alloc(&o, h.n_held, &s, e);
    if (r < 0)
        return r == -EINVAL ? -EBADMSG : r;
    if ((h.flags & STATS_FLAG_FISHER) && stats_want_fisher(s) < 0)
        return fail(e, -ENOMEM, "out of memory for the Fisher metric");

    s->n_tokens = h.n_tokens;
    s->n_fisher = h.n_fisher;
    s->n_held = h.n_held;
    r = stats_file_read_sections(s, &h, bytes, e);
    if (r < 0)
        return r;

    *ret_stats = take_ptr(s);
    return 0;
}

int stats_load(const char *path, struct stats **ret_stats, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg why = {""};
    size_t n;
    int r = atomic_file_read(path, STATS_FILE_BYTES_MAX, &bytes, &n, e);

    if (r < 0)
        return r;

    r = stats_parse(bytes, n, ret_stats, &why);
    return r < 0 ? fail(e, r, "%.120s: %.240s", path, why.text) : 0;
}

/* ---- getters ---- */

const struct stats_options *stats_get_options(const struct stats *s)
{
    return &s->o;
}

uint64_t stats_tokens(const struct stats *s)
{
    return s->n_tokens;
}

size_t stats_samples(const struct stats *s)
{
    return s->n_held;
}

bool stats_has_fisher(const struct stats *s)
{
    return s->n_fisher > 0;
}

bool stats_is_moments(const struct stats *s)
{
    return s->cross != NULL;
}

bool stats_has_queries(const struct stats *s)
{
    return s->query != NULL;
}
