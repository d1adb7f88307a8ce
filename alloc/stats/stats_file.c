/*
 * Writing a statistics file; alloc/README.md draws its bytes. The SHA-256 at the end names the statistics.
 * Samples are stored in the order of their hashes.
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_format.h"
#include "alloc/stats/stats_internal.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian, and so is memory here");

void stats_file_lay_out(struct stats_header *h)
{
    uint64_t n_hs = (uint64_t) h->n_layers * h->n_kv_heads * 2, triangle = (uint64_t) h->d * (h->d + 1) / 2;
    uint64_t off = sizeof(*h), sums = n_hs * triangle * sizeof(float);
    uint64_t bytes[N_SECTIONS] = {
        [SECTION_FREQ] = h->n_rot / 2 * sizeof(double),
        [SECTION_DOMAINS] = h->n_domains * sizeof(struct stats_stored_domain),
        [SECTION_MEAN] = h->n_domains * n_hs * h->d * sizeof(double),
        [SECTION_SCATTER] = h->n_domains * n_hs * triangle * sizeof(double),
        [SECTION_QUERY] = h->flags & (STATS_FLAG_ATTENTION | STATS_FLAG_OUTPUT) ? sums / 2 : 0,
        [SECTION_METRIC] = h->flags & STATS_FLAG_ATTENTION ? sums : 0,
        [SECTION_OUTPUT] = h->flags & STATS_FLAG_OUTPUT ? sums : 0,
        [SECTION_FISHER] = h->flags & STATS_FLAG_FISHER ? sums : 0,
        [SECTION_DEPTH] = (uint64_t) h->n_layers * 2 * sizeof(struct depth_sums),
        [SECTION_SOURCES] = h->n_sources * sizeof(struct stats_source),
        [SECTION_IDS] = h->n_held * sizeof(struct sample_id),
        [SECTION_DOMAIN_OF] = h->n_held,
        [SECTION_OFFSET] = h->n_held > 0 ? n_hs * h->d * sizeof(float) : 0,
        [SECTION_SCALE] = h->n_held > 0 ? n_hs * sizeof(float) : 0,
        [SECTION_SAMPLES] = n_hs * h->n_held * h->d * sizeof(uint16_t),
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
                 (s->o.want_output ? STATS_FLAG_OUTPUT : 0) | (s->n_fisher > 0 ? STATS_FLAG_FISHER : 0) |
                 (s->mixed_seeds ? STATS_FLAG_MIXED_SEEDS : 0),
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
        .n_domains = s->n_domains,
        .kl_per_distortion = s->kl_per_distortion,
    };
    memcpy(ret->model_digest, s->o.model_digest, DIGEST_BYTES);
    geometry_digest(g, ret->geometry_digest);
    /* stats_alloc() has checked the terminator */
    memcpy(ret->model_name, s->o.model_name, strlen(s->o.model_name) + 1);
    stats_file_lay_out(ret);
}

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

static void stats_file_end_section(struct stats_file_writer *w)
{
    static const uint8_t zeros[STATS_SECTION_ALIGN];

    stats_file_put(w, zeros, -w->at & (STATS_SECTION_ALIGN - 1));
}

static void stats_file_put_section(struct stats_file_writer *w, const struct stats_header *h,
                                   enum stats_section_id section, const void *bytes)
{
    if (h->sections[section].bytes > 0)
        stats_file_put(w, bytes, (size_t) h->sections[section].bytes);
    stats_file_end_section(w);
}

/* Lower triangles of matrices [n, d, d], in binary64 or binary32. @sums may be NULL: absent. */
static void stats_file_put_triangles(struct stats_file_writer *w, const double *sums, size_t n, size_t d,
                                     bool wide)
{
    float row[GEOMETRY_DIM_MAX];

    for (size_t i = 0; sums && i < n * d; i++) {
        const double *from = sums + i * d;
        size_t m = i % d + 1;

        for (size_t j = 0; !wide && j < m; j++)
            row[j] = (float) from[j]; /* exact: the sums are rounded after each window */
        stats_file_put(w, wide ? (const void *) from : row, m * (wide ? sizeof(double) : sizeof(float)));
    }
}

static void stats_file_put_domains(struct stats_file_writer *w, const struct stats *s)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d;

    for (uint32_t i = 0; i < s->n_domains; i++) {
        struct stats_stored_domain x = {.kind = s->domains[i].kind, .n_tokens = s->domains[i].n_tokens};

        memcpy(x.digest, s->domains[i].digest, sizeof(x.digest));
        stats_file_put(w, &x, sizeof(x));
    }

    stats_file_end_section(w);
    for (uint32_t i = 0; i < s->n_domains; i++)
        stats_file_put(w, s->domains[i].mean, n_hs * d * sizeof(double));
    stats_file_end_section(w);
    for (uint32_t i = 0; i < s->n_domains; i++)
        stats_file_put_triangles(w, s->domains[i].scatter, n_hs, d, true);
    stats_file_end_section(w);
}

static void stats_file_put_metrics(struct stats_file_writer *w, const struct stats *s)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d;
    const double *const sums[] = {s->query, s->metric, s->output, s->n_fisher > 0 ? s->fisher : NULL};

    for (size_t i = 0; i < sizeof(sums) / sizeof(*sums); i++) {
        stats_file_put_triangles(w, sums[i], i == 0 ? n_hs / 2 : n_hs, d, false);
        stats_file_end_section(w);
    }
}

static void stats_file_put_samples(struct stats_file_writer *w, const struct stats *s,
                                   const struct stats_header *h, const size_t *slots)
{
    size_t d = s->o.geometry.d;

    for (size_t i = 0; i < s->n_held; i++)
        stats_file_put(w, &s->ids[slots[i]], sizeof(*s->ids));
    stats_file_end_section(w);
    for (size_t i = 0; i < s->n_held; i++)
        stats_file_put(w, &s->domain_of[slots[i]], 1);
    stats_file_end_section(w);
    stats_file_put_section(w, h, SECTION_OFFSET, s->offset);
    stats_file_put_section(w, h, SECTION_SCALE, s->scale);
    for (uint32_t hs = 0; hs < head_side_count(&s->o.geometry); hs++)
        for (size_t i = 0; i < s->n_held; i++)
            stats_file_put(w, stats_sample_rows(s, hs) + slots[i] * d, d * sizeof(uint16_t));
    stats_file_end_section(w);
}

static int stats_file_write_all(const struct stats *s, const struct stats_header *h,
                                struct stats_file_writer *w, uint8_t *ret_digest)
{
    _cleanup_(freep) size_t *slots = calloc(s->n_held + 1, sizeof(*slots));

    if (!slots)
        return -ENOMEM;

    stats_sorted_slots(s, slots);
    (void) crypto_hash_sha256_init(&w->sha);
    stats_file_put(w, h, sizeof(*h));
    stats_file_put_section(w, h, SECTION_FREQ, s->o.geometry.freq);
    stats_file_put_domains(w, s);
    stats_file_put_metrics(w, s);
    stats_file_put_section(w, h, SECTION_DEPTH, s->depth);
    stats_file_put_section(w, h, SECTION_SOURCES, s->sources);
    stats_file_put_samples(w, s, h, slots);
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

    if (s->has_file_digest) {
        memcpy(ret_digest, s->file_digest, DIGEST_BYTES);
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
