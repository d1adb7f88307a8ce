/*
 * Reading a statistics file; alloc/README.md draws its bytes. The header determines every offset: the reader
 * computes where each section must lie and accepts nothing else, so it never uses an unchecked offset.
 */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_format.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/atomic_file.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"
#include "base/half.h"
#include "base/threads.h"

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

    if (h->version != STATS_VERSION)
        return fail(e, -EBADMSG,
                    "the statistics file has version %u, this program reads version %u, which keeps sources "
                    "apart: make a new one with 'kvcobra calibrate MODEL --text FILE -o STATS'; tables of "
                    "the old file stay valid",
                    h->version, STATS_VERSION);
    if (h->flags & ~(STATS_FLAG_ATTENTION | STATS_FLAG_FISHER | STATS_FLAG_OUTPUT | STATS_FLAG_MIXED_SEEDS))
        return fail(e, -EBADMSG, "the statistics file has unknown flags 0x%x", h->flags);
    if (h->key_order != STATS_KEY_ORDER_HALF_SPLIT)
        return fail(e, -EBADMSG, "statistics in key order %u; this program reads half-split (%u) only",
                    h->key_order, STATS_KEY_ORDER_HALF_SPLIT);
    if (h->n_tokens > STATS_TOKENS_MAX || h->n_fisher > STATS_TOKENS_MAX)
        return fail(e, -EBADMSG, "the statistics file counts %llu tokens and %llu gradients, at most 2^48",
                    (unsigned long long) h->n_tokens, (unsigned long long) h->n_fisher);
    if (h->n_held > h->n_samples || h->n_held > h->n_tokens)
        return fail(e, -EBADMSG, "the statistics file has %u samples of %llu tokens, at most %u wanted",
                    h->n_held, (unsigned long long) h->n_tokens, h->n_samples);
    if (h->n_domains > STATS_DOMAINS_MAX || (h->n_domains > 0) != (h->n_tokens > 0))
        return fail(e, -EBADMSG, "the statistics file keeps %llu sources of %llu tokens apart, at most %d",
                    (unsigned long long) h->n_domains, (unsigned long long) h->n_tokens, STATS_DOMAINS_MAX);
    if (h->n_sources > STATS_SOURCES_MAX)
        return fail(e, -EBADMSG, "the statistics file has %llu texts, at most %d are possible",
                    (unsigned long long) h->n_sources, STATS_SOURCES_MAX);
    if (((h->flags & STATS_FLAG_FISHER) != 0) != (h->n_fisher > 0))
        return fail(e, -EBADMSG, "the gradient count of the statistics file does not match its flags");
    if (!(h->kl_per_distortion >= 0) || h->kl_per_distortion > STATS_KL_MAX || signbit(h->kl_per_distortion))
        return fail(e, -EBADMSG, "the statistics file has a KL of %g per distortion", h->kl_per_distortion);
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
    int r;

    if (h->n_rot > GEOMETRY_DIM_MAX || h->d > GEOMETRY_DIM_MAX || h->n_layers > GEOMETRY_LAYERS_MAX ||
        h->n_kv_heads > GEOMETRY_HEADS_MAX)
        return fail(e, -EBADMSG, "the statistics file has an impossible geometry");
    if (!range_inside(sizeof(*h), h->n_rot / 2 * sizeof(double), (uint64_t) h->file_bytes))
        return fail(e, -EBADMSG, "the statistics file is truncated");

    r = geometry_complete(&o.geometry, bytes + sizeof(*h), h->geometry_digest, "statistics file", e);
    if (r != 0)
        return r;

    memcpy(o.model_digest, h->model_digest, DIGEST_BYTES);
    memcpy(o.model_name, h->model_name, sizeof(o.model_name));
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

/* @ret_sums: [n, d, d] from n lower triangles at @from, or NULL: absent. */
static int stats_file_read_triangles(const char *what, const uint8_t *from, bool wide, size_t n, size_t d,
                                     double *ret_sums, struct errmsg *e)
{
    for (size_t m = 0; ret_sums && m < n; m++) {
        double *a = ret_sums + m * d * d;

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j <= i; j++) {
                double x;
                float narrow;

                if (wide) {
                    memcpy(&x, from, sizeof(x));
                } else {
                    memcpy(&narrow, from, sizeof(narrow));
                    x = (double) narrow;
                }
                from += wide ? sizeof(x) : sizeof(narrow);
                if (!isfinite(x))
                    return fail(e, -EBADMSG, "statistics file: %s %zu is not finite", what, m);
                if (i == j && x < 0)
                    return fail(e, -EBADMSG, "statistics file: %s %zu is no sum of squares", what, m);
                a[i * d + j] = a[j * d + i] = x;
            }
    }

    return 0;
}

static int stats_file_read_domain(struct stats *s, const struct stats_header *h, const uint8_t *bytes,
                                  uint32_t i, struct errmsg *e)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d, triangle = d * (d + 1) / 2;
    const uint8_t *from = bytes + h->sections[SECTION_SCATTER].offset + i * n_hs * triangle * sizeof(double);
    struct stats_stored_domain stored;
    struct stats_domain id = {0};
    static const uint8_t zeros[DIGEST_BYTES];
    uint32_t at;

    memcpy(&stored, bytes + h->sections[SECTION_DOMAINS].offset + i * sizeof(stored), sizeof(stored));
    memcpy(id.digest, stored.digest, sizeof(id.digest));
    id.kind = stored.kind;
    if (stored.kind > SOURCE_REST || stored.zero != 0 || stored.n_tokens == 0 ||
        stored.n_tokens > h->n_tokens - s->n_tokens ||
        (stored.kind == SOURCE_REST && memcmp(id.digest, zeros, sizeof(zeros)) != 0) ||
        (i > 0 && stats_domain_compare(&s->domains[i - 1], &id) >= 0))
        return fail(e, -EBADMSG, "statistics file: source %u is unknown, without tokens or out of order", i);
    if (stats_domain_get(s, &id, &at) < 0)
        return fail(e, -ENOMEM, "out of memory for the moments of source %u", i);

    s->domains[at].n_tokens = stored.n_tokens;
    s->n_tokens += stored.n_tokens;
    memcpy(s->domains[at].mean, bytes + h->sections[SECTION_MEAN].offset + i * n_hs * d * sizeof(double),
           n_hs * d * sizeof(double));
    if (!stats_file_doubles_finite(s->domains[at].mean, n_hs * d))
        return fail(e, -EBADMSG, "statistics file: a mean of source %u is not finite", i);

    return stats_file_read_triangles("the covariance of head-side", from, true, n_hs, d,
                                     s->domains[at].scatter, e);
}

/* Domains, and their sum. Sums of hostile numbers may exceed binary64. */
static int stats_file_read_domains(struct stats *s, const struct stats_header *h, const uint8_t *bytes,
                                   struct errmsg *e)
{
    size_t n_hs = head_side_count(&s->o.geometry), d = s->o.geometry.d;

    for (uint32_t i = 0; i < h->n_domains; i++) {
        int r = stats_file_read_domain(s, h, bytes, i, e);

        if (r < 0)
            return r;
    }

    if (s->n_tokens != h->n_tokens)
        return fail(e, -EBADMSG, "statistics file: the sources have %llu tokens, the header says %llu",
                    (unsigned long long) s->n_tokens, (unsigned long long) h->n_tokens);
    if (h->n_domains == 0) /* the sums stay zeros that take no memory: a short file may claim a huge model */
        return 0;

    stats_domain_sum(s);
    if (!stats_file_doubles_finite(s->mean, n_hs * d) || !stats_file_doubles_finite(s->scatter, n_hs * d * d))
        return fail(e, -EBADMSG, "statistics file: the sources together have no finite covariance");

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

static int stats_file_check_ids(const struct stats *s, struct errmsg *e)
{
    for (size_t i = 0; i < s->n_held; i++) {
        const struct sample_id *id = &s->ids[i];

        if ((!s->mixed_seeds && id->hash != stats_token_hash(s->o.seed, id->document, id->position)) ||
            (i > 0 && sample_id_compare(&s->ids[i - 1], id) >= 0))
            return fail(e, -EBADMSG, "statistics file: sampled token %zu is out of the order of hashes", i);
        if (s->domain_of[i] >= s->n_domains)
            return fail(e, -EBADMSG, "statistics file: sampled token %zu is of no source", i);
    }
    return 0;
}

static int stats_file_check_samples(const struct stats *s, struct errmsg *e)
{
    size_t d = s->o.geometry.d, per_hs = s->n_held * d;

    for (uint32_t hs = 0; hs < head_side_count(&s->o.geometry) && per_hs > 0; hs++) {
        int exponent;

        if (!isfinite(s->scale[hs]) || !(s->scale[hs] > 0) || frexpf(s->scale[hs], &exponent) != 0.5f)
            return fail(e, -EBADMSG, "statistics file: the scale of head-side %u is no power of two", hs);
        for (size_t i = 0; i < d; i++)
            if (!isfinite(s->offset[hs * d + i]))
                return fail(e, -EBADMSG, "statistics file: an offset of head-side %u is not finite", hs);
        for (size_t i = 0; i < per_hs; i++)
            if (!isfinite(f16_to_f32(stats_sample_rows(s, hs)[i])))
                return fail(e, -EBADMSG, "statistics file: a sample of head-side %u is not finite", hs);
    }

    return stats_file_check_ids(s, e);
}

/* Copies the sections into the arrays of @s, which have the sizes in the
 * header, and checks their contents. */
static int stats_file_read_sections(struct stats *s, const struct stats_header *h, const uint8_t *bytes,
                                    struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g), d = g->d;
    const struct {
        const char *what;
        enum stats_section_id section;
        double *to;
    } sums[] = {
        {"the query moment of head", SECTION_QUERY, s->query},
        {"the metric of head-side", SECTION_METRIC, s->metric},
        {"the output metric of head-side", SECTION_OUTPUT, s->output},
        {"the Fisher metric of head-side", SECTION_FISHER, s->fisher},
    };
    void *to[N_SECTIONS] = {
        [SECTION_DEPTH] = s->depth,   [SECTION_IDS] = s->ids,     [SECTION_DOMAIN_OF] = s->domain_of,
        [SECTION_OFFSET] = s->offset, [SECTION_SCALE] = s->scale, [SECTION_SAMPLES] = s->samples};
    int r = stats_file_read_domains(s, h, bytes, e); /* before samples, which it would renumber */

    if (r < 0)
        return r;

    s->n_held = h->n_held;
    s->has_offset = h->n_held > 0;
    for (size_t i = 0; i < N_SECTIONS; i++)
        if (to[i] && h->sections[i].bytes > 0)
            memcpy(to[i], bytes + h->sections[i].offset, (size_t) h->sections[i].bytes);
    r = stats_file_read_sources(s, h, bytes, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < (size_t) g->n_layers * 2; i++)
        if (!isfinite(s->depth[i].kl) || !isfinite(s->depth[i].D) || s->depth[i].kl < 0 || s->depth[i].D < 0)
            return fail(e, -EBADMSG, "statistics file: the depth measurement of layer %zu is impossible",
                        i / 2);
    for (size_t i = 0; i < sizeof(sums) / sizeof(*sums); i++) {
        r = stats_file_read_triangles(sums[i].what, bytes + h->sections[sums[i].section].offset, false,
                                      i == 0 ? n_hs / 2 : n_hs, d, sums[i].to, e);
        if (r < 0)
            return r;
    }

    return stats_file_check_samples(s, e);
}

/* A file whose header was checked. Its digest takes about as long as all the rest: two threads share them. */
struct stats_file_parse {
    const uint8_t *bytes;
    size_t n_bytes;
    const struct stats_header *h;
    uint8_t digest[DIGEST_BYTES];
    struct stats *s;
    int result;
    struct errmsg e;
};

enum { PARSE_DIGEST, PARSE_SECTIONS, PARSE_ITEMS };
#define PARSE_ALONE_BYTES ((size_t) 1 << 20) /* a smaller file is not worth a thread */

static int stats_file_parse_sections(struct stats_file_parse *p, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    const struct stats_header *h = p->h;
    struct stats_options o;
    int r = stats_file_read_options(h, p->bytes, &o, e);

    if (r < 0)
        return r;

    r = stats_file_check_gaps(h, p->bytes, e);
    if (r < 0)
        return r;

    r = stats_alloc(&o, h->n_held, &s, e);
    if (r < 0)
        return r == -EINVAL ? -EBADMSG : r;
    if ((h->flags & STATS_FLAG_FISHER) && stats_want_fisher(s) < 0)
        return fail(e, -ENOMEM, "out of memory for the Fisher metric");

    s->n_fisher = h->n_fisher;
    s->kl_per_distortion = h->kl_per_distortion;
    s->mixed_seeds = (h->flags & STATS_FLAG_MIXED_SEEDS) != 0;
    r = stats_file_read_sections(s, h, p->bytes, e);
    if (r < 0)
        return r;

    p->s = take_ptr(s);
    return 0;
}

static void stats_file_parse_item(void *ctx, size_t item, unsigned worker)
{
    struct stats_file_parse *p = ctx;

    (void) worker;
    if (item == PARSE_DIGEST)
        (void) crypto_hash_sha256(p->digest, p->bytes, p->n_bytes - DIGEST_BYTES);
    else
        p->result = stats_file_parse_sections(p, &p->e);
}

int stats_parse(const void *bytes, size_t n_bytes, struct stats **ret_stats, struct errmsg *e)
{
    _cleanup_(threads_freep) struct threads *threads = NULL;
    struct stats_header h;
    struct stats_file_parse p = {.bytes = bytes, .n_bytes = n_bytes, .h = &h};
    int r;

    if (n_bytes < strlen(STATS_MAGIC) || memcmp(bytes, STATS_MAGIC, strlen(STATS_MAGIC)) != 0)
        return fail(e, -EBADMSG, "not a statistics file but %s", file_kind_of(bytes, n_bytes));
    if (n_bytes < sizeof(h) + DIGEST_BYTES)
        return fail(e, -EBADMSG, "not a statistics file: %zu bytes are too few", n_bytes);

    memcpy(&h, bytes, sizeof(h));
    r = stats_file_check_header(&h, n_bytes, e);
    if (r < 0)
        return r;

    if (n_bytes > PARSE_ALONE_BYTES && threads_available() > 1)
        (void) threads_new(PARSE_ITEMS, &threads, NULL); /* without a thread this one does both */
    threads_run(threads, stats_file_parse_item, &p, PARSE_ITEMS);
    if (memcmp(p.digest, p.bytes + n_bytes - DIGEST_BYTES, DIGEST_BYTES) != 0) {
        (void) stats_free(p.s);
        return fail(e, -EBADMSG, "the statistics file is damaged: its SHA-256 does not match");
    }
    if (p.result < 0)
        return fail(e, p.result, "%s", p.e.text);

    memcpy(p.s->file_digest, p.digest, sizeof(p.digest));
    p.s->has_file_digest = true;
    *ret_stats = p.s;
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
