/* Statistics: moments against two-pass binary64, sampling, merging, the file. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/plane_energy.h"
#include "tests/unit/alloc/shapes.h"

#define LAYERS 2
#define HEADS 4
#define KV_HEADS 2
#define D 32
#define WIDTH (KV_HEADS * D)

static struct stats *make_stats(uint32_t n_samples, bool attention)
{
    struct geometry g = shape(LAYERS, HEADS, KV_HEADS, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = n_samples;
    o.want_attention = attention;
    o.seed = 7;
    (void) snprintf(o.model_name, sizeof(o.model_name), "tiny");
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    return s;
}

/* A window of numbers that depend on (document, layer) only. */
static void window_data(struct shape_data *x, uint64_t document, uint32_t layer)
{
    uint64_t state = document * 977 + layer + 1;
    float *parts[] = {x->q, x->k, x->v};
    size_t sizes[] = {x->n * HEADS * D, x->n * WIDTH, x->n * WIDTH};

    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < sizes[p]; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            parts[p][i] = (float) ((double) (state >> 40) / (double) (1 << 24) - 0.5) * (float) (1 + i % 7);
        }
}

static void set_projections(struct stats *s)
{
    struct geometry g = s->o.geometry;
    struct shape_data x;
    struct errmsg e;

    shape_data_init(&x, &g, 1);
    for (size_t i = 0; i < (size_t) x.n_embd * HEADS * D; i++)
        x.wo[i] = (float) ((double) (i * 2654435761u % 1000) / 1000.0 - 0.5);
    for (uint32_t l = 0; l < LAYERS; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x.wo, x.n_embd, &e), 0);
    shape_data_deinit(&x);
}

static void add_window(struct stats *s, uint64_t document, size_t n)
{
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    if (s->o.want_attention && !s->wo)
        set_projections(s);
    shape_data_init(&x, &g, n);
    for (uint32_t l = 0; l < LAYERS; l++) {
        window_data(&x, document, l);
        CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, l, n, x.q, x.k, x.v, NULL, &e), 0);
        CU_ASSERT_STRING_EQUAL(e.text, "");
    }
    shape_data_deinit(&x);
}

/* Stored numbers are binary16 of (x - offset) / scale: half a unit in the last place is 2^-11 of the number,
 * and 2^-25 scales for the smallest ones. */
static bool same_vector(const float *stored, const float *x, const struct stats *s, size_t hs)
{
    for (size_t i = 0; i < D; i++) {
        double away = fabs((double) x[i] - (double) s->offset[hs * D + i]);

        if (fabs((double) stored[i] - (double) x[i]) > 0x1p-10 * away + 0x1p-20 * (double) s->scale[hs])
            return false;
    }
    return true;
}

/* Whether the samples of two head-sides are the same up to three roundings: one each, and one after a merge.
 * Numbers are below 4 scales from any window's mean, half a unit in the last place is 2^-11 of that. */
static bool same_samples(const struct stats *a, const size_t *slots_a, const struct stats *b,
                         const size_t *slots_b, size_t n, uint32_t hs)
{
    float *x = stats_sample_load(a, hs), *y = stats_sample_load(b, hs);
    bool same = x && y;

    for (size_t i = 0; same && i < n; i++)
        for (size_t j = 0; j < D; j++)
            same = same && fabs((double) x[slots_a[i] * D + j] - (double) y[slots_b[i] * D + j]) <
                               3 * 4 * 0x1p-11 * (double) fmaxf(a->scale[hs], b->scale[hs]);
    free(x);
    free(y);
    return same;
}

/* Mean and covariance over three windows, sinks left out, against two passes in binary64. */
static void test_moments(void)
{
    struct stats *s = make_stats(64, false);
    size_t n[] = {300, 5, 70}, total = 0, n_sink = s->o.n_sink;
    double mean[D] = {0}, cov[D][D] = {{0}};
    struct shape_data x;
    struct geometry g = s->o.geometry;

    for (uint64_t doc = 0; doc < 3; doc++)
        add_window(s, doc, n[doc]);
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t doc = 0; doc < 3; doc++) {
            shape_data_init(&x, &g, n[doc]);
            window_data(&x, doc, 1);
            for (size_t t = n_sink; t < n[doc]; t++) {
                const float *v = x.v + t * WIDTH + D; /* head 1 */

                total += pass == 0;
                for (size_t i = 0; i < D; i++) {
                    mean[i] += pass == 0 ? (double) v[i] : 0;
                    for (size_t j = 0; pass == 1 && j < D; j++)
                        cov[i][j] += ((double) v[i] - mean[i] / (double) total) *
                                     ((double) v[j] - mean[j] / (double) total);
                }
            }
            shape_data_deinit(&x);
        }
    CU_ASSERT_EQUAL(stats_tokens(s), total);
    CU_ASSERT_EQUAL(total, 300 + 5 + 70 - 3 * n_sink);
    /* binary32 products of at most 256 rows: relative error below
     * 256 * 2^-24 = 1.5e-5 of the largest entry */
    for (size_t i = 0; i < D; i++) {
        size_t hs = head_side_index(&g, 1, 1, SIDE_V);

        CU_ASSERT_DOUBLE_EQUAL(s->mean[hs * D + i], mean[i] / (double) total, 1e-12);
        for (size_t j = 0; j < D; j++)
            CU_ASSERT_DOUBLE_EQUAL(s->scatter[(hs * D + i) * D + j], cov[i][j],
                                   1.5e-5 * sqrt(cov[i][i] * cov[j][j]) + 1e-9);
    }
    (void) stats_free(s);
}

/* A mean 1000 times the deviation: differences of raw moments in binary32 would leave no digit. */
static void test_large_mean(void)
{
    struct geometry g = shape(1, 1, 1, 32, 32);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e;
    size_t n = 2000;
    float *x = calloc(n * 32, sizeof(*x));

    stats_options_default(&o, &g);
    o.want_attention = false;
    o.n_sink = 0;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    for (size_t i = 0; i < n * 32; i++)
        x[i] = 900.0f + (float) (i / 32 % 2 ? 0.5 : -0.5);
    for (int half = 0; half < 2; half++)
        CU_ASSERT_EQUAL(stats_add_layer(s, 0, (uint64_t) half * n / 2, 0, n / 2, NULL, x, x, NULL, &e), 0);
    CU_ASSERT_DOUBLE_EQUAL(s->mean[3], 900.0, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(s->scatter[3 * 32 + 5] / (double) n, 0.25, 1e-9);
    free(x);
    (void) stats_free(s);
}

/* The samples are the tokens with the smallest hashes, the same in all layers and heads, and never sinks. */
static void test_sampling(void)
{
    struct stats *s = make_stats(50, false);
    struct geometry g = s->o.geometry;
    struct shape_data x;
    uint64_t worst = 0;
    size_t n_below = 0;

    for (uint64_t doc = 0; doc < 4; doc++)
        add_window(s, doc, 100);
    CU_ASSERT_EQUAL(stats_samples(s), 50);
    for (size_t i = 0; i < 50; i++) {
        struct sample_id id = s->ids[i];

        CU_ASSERT(id.position >= s->o.n_sink && id.position < 100);
        CU_ASSERT_EQUAL(id.hash, stats_token_hash(7, id.document, id.position));
        worst = id.hash > worst ? id.hash : worst;
        shape_data_init(&x, &g, 100);
        for (uint32_t l = 0; l < LAYERS; l++) {
            window_data(&x, id.document, l);
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                float row[D];

                sample_code_get(s, head_side_index(&g, l, h, SIDE_K), i, row);
                CU_ASSERT(same_vector(row, x.k + id.position * WIDTH + h * D, s,
                                      head_side_index(&g, l, h, SIDE_K)));
                sample_code_get(s, head_side_index(&g, l, h, SIDE_V), i, row);
                CU_ASSERT(same_vector(row, x.v + id.position * WIDTH + h * D, s,
                                      head_side_index(&g, l, h, SIDE_V)));
            }
        }
        shape_data_deinit(&x);
    }
    for (uint64_t doc = 0; doc < 4; doc++)
        for (uint64_t t = s->o.n_sink; t < 100; t++)
            n_below += stats_token_hash(7, doc, t) <= worst;
    CU_ASSERT_EQUAL(n_below, 50);
    (void) stats_free(s);
}

static void test_add_refuses(void)
{
    struct stats *s = make_stats(8, false);
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    shape_data_init(&x, &g, 10);
    window_data(&x, 0, 0);
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 1, 10, NULL, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "layer 0 of the window comes next"));
    x.v[3 * WIDTH + D + 1] = NAN;
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 0, 10, NULL, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "a value of layer 0 head 1 is not finite at token 3"));
    x.v[3 * WIDTH + D + 1] = 0;
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 0, 10, NULL, x.k, x.v, NULL, &e), 0);
    CU_ASSERT_EQUAL(stats_save(s, "never-written", &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "layers 1 to 1 of it are missing"));
    x.k[0] = INFINITY; /* the statistics now hold half a window and cannot be saved */
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 1, 10, NULL, x.k, x.v, NULL, &e), -EINVAL);
    x.k[0] = 0;
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 1, 10, NULL, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "failed after its first layer"));
    CU_ASSERT_EQUAL(access("never-written", F_OK), -1);
    shape_data_deinit(&x);
    (void) stats_free(s);
}

static void test_same_token_twice(void)
{
    struct stats *s = make_stats(8, false);
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    add_window(s, 3, 20);
    shape_data_init(&x, &g, 20);
    window_data(&x, 3, 0);
    CU_ASSERT_EQUAL(stats_add_layer(s, 3, 0, 0, 20, NULL, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "of document 3 was added before"));
    shape_data_deinit(&x);
    (void) stats_free(s);
}

/* The bytes that stats_save() writes. */
static void *image_of(const struct stats *s, size_t *ret_n)
{
    char path[] = "/tmp/kvc-test-stats-XXXXXX";
    int fd = mkstemp(path);
    struct errmsg e = {""};
    void *bytes = NULL;

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL(stats_save(s, path, &e), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_read(path, 1 << 30, &bytes, ret_n, &e), 0);
    (void) unlink(path);
    return bytes;
}

/* Two halves merged in either order have the tokens of the whole, and its vectors and moments up to rounding:
 * sums of metrics to binary32, half a unit of which is 2^-24, after each of four windows and a merge. */
static void test_merge(void)
{
    struct stats *whole = make_stats(40, true), *a = make_stats(40, true), *b = make_stats(40, true),
                 *c = make_stats(40, true);
    struct errmsg e = {""};
    size_t n_hs = head_side_count(&whole->o.geometry), slots_whole[40], slots_a[40], row, column;

    for (uint64_t doc = 0; doc < 4; doc++) {
        add_window(whole, doc, 60);
        add_window(doc < 2 ? a : b, doc, 60);
        if (doc < 2)
            add_window(c, doc, 60);
    }
    CU_ASSERT_EQUAL(stats_set_depth(a, 1, SIDE_K, 0.5, 2.0), 0);
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), 0);
    CU_ASSERT_EQUAL(stats_merge(b, c, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(a), stats_tokens(whole));
    stats_sorted_slots(whole, slots_whole);
    stats_sorted_slots(a, slots_a);
    for (size_t i = 0; i < 40; i++) {
        CU_ASSERT_EQUAL(sample_id_compare(&whole->ids[slots_whole[i]], &a->ids[slots_a[i]]), 0);
    }
    for (uint32_t hs = 0; hs < n_hs; hs++)
        CU_ASSERT(same_samples(whole, slots_whole, a, slots_a, 40, hs));
    for (size_t i = 0; i < n_hs * D * D; i++) {
        CU_ASSERT_DOUBLE_EQUAL(a->scatter[i], whole->scatter[i], 1e-9 * fabs(whole->scatter[i]) + 1e-7);
        CU_ASSERT_DOUBLE_EQUAL(b->scatter[i], whole->scatter[i], 1e-9 * fabs(whole->scatter[i]) + 1e-7);
        row = i / D * D, column = i / (D * D) * D * D + i % D * D;
        CU_ASSERT_DOUBLE_EQUAL(a->metric[i], whole->metric[i],
                               5 * 0x1p-24 *
                                   sqrt(whole->metric[row + i / D % D] * whole->metric[column + i % D]));
    }
    CU_ASSERT_DOUBLE_EQUAL(a->depth[1 * 2 + SIDE_K].kl, 0.5, 0);
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL); /* tokens are in both */
    (void) stats_free(whole);
    (void) stats_free(a);
    (void) stats_free(b);
    (void) stats_free(c);
}

/* Windows [first, end) of six, each with its own text and one common text. */
static struct stats *make_part(size_t first, size_t end)
{
    struct stats *s = make_stats(40, false);
    struct errmsg e = {""};

    for (uint64_t doc = first; doc < end; doc++) {
        struct stats_source own = {
            .digest = {(uint8_t) doc}, .bytes = 9, .tokens = 56, .windows = 1, .window = 60};
        struct stats_source shared = {.digest = {200}, .bytes = 9, .tokens = 1, .windows = 1, .window = 60};

        add_window(s, doc, 60);
        CU_ASSERT_EQUAL(stats_add_source(s, &own, &e), 0);
        CU_ASSERT_EQUAL(stats_add_source(s, &shared, &e), 0);
    }
    return s;
}

/* (a + b) + c, a + (b + c), c + (b + a): the tokens of the union with the smallest hashes and the same texts,
 * bit for bit, and the same vectors up to rounding. */
static void test_merge_any_grouping(void)
{
    struct stats *whole = make_part(0, 6);
    struct errmsg e = {""};
    size_t slots_whole[40], slots[40];

    stats_sorted_slots(whole, slots_whole);
    for (int grouping = 0; grouping < 3; grouping++) {
        struct stats *a = make_part(0, 1), *b = make_part(1, 4), *c = make_part(4, 6);
        struct stats *sum = grouping == 2 ? c : a;

        if (grouping == 0)
            CU_ASSERT_EQUAL(stats_merge(a, b, &e) | stats_merge(a, c, &e), 0);
        if (grouping == 1)
            CU_ASSERT_EQUAL(stats_merge(b, c, &e) | stats_merge(a, b, &e), 0);
        if (grouping == 2)
            CU_ASSERT_EQUAL(stats_merge(b, a, &e) | stats_merge(c, b, &e), 0);
        CU_ASSERT_EQUAL(stats_tokens(sum), stats_tokens(whole));
        stats_sorted_slots(sum, slots);
        for (size_t i = 0; i < 40; i++) {
            CU_ASSERT_EQUAL(sample_id_compare(&whole->ids[slots_whole[i]], &sum->ids[slots[i]]), 0);
        }
        CU_ASSERT(same_samples(whole, slots_whole, sum, slots, 40, 5));
        CU_ASSERT_EQUAL_FATAL(sum->n_sources, 7);
        CU_ASSERT_EQUAL(memcmp(sum->sources, whole->sources, 7 * sizeof(*sum->sources)), 0);
        CU_ASSERT(sum->sources[6].tokens == 6 && sum->sources[6].windows == 6);
        (void) stats_free(a);
        (void) stats_free(b);
        (void) stats_free(c);
    }
    (void) stats_free(whole);
}

/* Statistics loaded from a file have room for its samples and grow to n_samples as windows are added. */
static void test_loaded_grows(void)
{
    struct stats *s = make_stats(300, false), *back = NULL, *whole = make_stats(300, false);
    struct errmsg e = {""};
    uint8_t digest[DIGEST_BYTES], want[DIGEST_BYTES];
    size_t n;
    void *bytes;

    add_window(s, 0, 30);
    add_window(whole, 0, 30);
    bytes = image_of(s, &n);
    CU_ASSERT_EQUAL_FATAL(stats_parse(bytes, n, &back, &e), 0);
    for (uint64_t doc = 1; doc < 5; doc++) {
        add_window(back, doc, 100);
        add_window(whole, doc, 100);
    }
    CU_ASSERT_EQUAL(stats_samples(back), 300);
    CU_ASSERT_EQUAL(stats_digest(back, digest, &e) | stats_digest(whole, want, &e), 0);
    CU_ASSERT_EQUAL(memcmp(digest, want, sizeof(digest)), 0);
    free(bytes);
    (void) stats_free(s);
    (void) stats_free(back);
    (void) stats_free(whole);
}

/* Whether the digest of @s is that of the file it would be saved to, and not @before, which it becomes. */
static bool digest_follows(const struct stats *s, uint8_t before[static DIGEST_BYTES])
{
    uint8_t digest[DIGEST_BYTES] = {0};
    struct errmsg e = {""};
    size_t n;
    _cleanup_(freep) uint8_t *bytes = image_of(s, &n);
    bool follows = stats_digest(s, digest, &e) == 0 && memcmp(digest, before, DIGEST_BYTES) != 0 &&
                   memcmp(digest, bytes + n - DIGEST_BYTES, DIGEST_BYTES) == 0;

    memcpy(before, digest, DIGEST_BYTES);
    return follows;
}

/* The digest that a file was read with is forgotten by everything that adds to the statistics. */
static void test_digest_after_loading(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats(30, false), *more = make_stats(30, false);
    struct stats *back = NULL;
    struct stats_source source = {.tokens = 3, .windows = 1, .window = 3, .bytes = 9};
    uint8_t digest[DIGEST_BYTES] = {0};
    static float gradient[10 * WIDTH];
    struct errmsg e = {""};
    _cleanup_(freep) void *bytes = NULL;
    size_t n;

    add_window(s, 0, 80);
    add_window(more, 1, 80);
    bytes = image_of(s, &n);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL_FATAL(stats_parse(bytes, n, &back, &e), 0);
        CU_ASSERT_TRUE(digest_follows(back, digest));
        if (i == 0)
            CU_ASSERT_EQUAL(stats_set_depth(back, 0, SIDE_V, 0.25, 3.0), 0);
        if (i == 1)
            CU_ASSERT_EQUAL(stats_add_source(back, &source, &e), 0);
        if (i == 2)
            CU_ASSERT_EQUAL(stats_merge(back, more, &e), 0);
        for (uint32_t hs = 0; i == 3 && hs < 2 * LAYERS; hs++)
            CU_ASSERT_EQUAL(stats_add_fisher(back, hs / 2, (enum side)(hs % 2), 10, gradient, &e), 0);
        CU_ASSERT_TRUE(digest_follows(back, digest));
        back = stats_free(back);
    }
}

static void test_merge_refuses(void)
{
    struct stats *a = make_stats(8, false), *b = make_stats(8, false), *c = make_stats(9, false);
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(stats_merge(a, c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different numbers of tokens: 8 and 9"));
    b->o.model_digest[0] ^= 1;
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different models"));
    b->o.model_digest[0] ^= 1;
    b->o.geometry.attn_scale *= 2;
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different geometries"));
    b->o.geometry.attn_scale /= 2;
    (void) stats_free(a);
    (void) stats_free(b);
    (void) stats_free(c);
}

static void test_file_round_trip(void)
{
    struct stats *s = make_stats(30, true), *back = NULL;
    float gradient[10 * WIDTH];
    struct errmsg e = {""};
    uint8_t digest[DIGEST_BYTES];
    size_t n, n_again;
    void *bytes, *again;

    add_window(s, 0, 80);
    for (size_t i = 0; i < 10 * WIDTH; i++)
        gradient[i] = (float) (i % 13);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int side = 0; side < 2; side++)
            CU_ASSERT_EQUAL(stats_add_fisher(s, l, (enum side) side, 10, gradient, &e), 0);
    CU_ASSERT_EQUAL(stats_set_depth(s, 0, SIDE_V, 0.25, 3.0), 0);
    bytes = image_of(s, &n);
    CU_ASSERT_EQUAL(stats_digest(s, digest, &e), 0);
    CU_ASSERT_EQUAL(memcmp(digest, (uint8_t *) bytes + n - DIGEST_BYTES, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL_FATAL(stats_parse(bytes, n, &back, &e), 0);
    CU_ASSERT_EQUAL(back->n_held, 30);
    CU_ASSERT_EQUAL(back->n_fisher, 10);
    CU_ASSERT_EQUAL(memcmp(back->fisher, s->fisher, 8 * D * D * sizeof(double)), 0);
    again = image_of(back, &n_again);
    CU_ASSERT_EQUAL(n, n_again);
    CU_ASSERT_EQUAL(memcmp(bytes, again, n), 0);
    add_window(back, 1, 80); /* loaded statistics accept more windows */
    CU_ASSERT_EQUAL(back->n_held, 30);
    free(bytes);
    free(again);
    (void) stats_free(s);
    (void) stats_free(back);
}

/* The sampled tokens do not depend on the order of windows, and their vectors up to rounding. */
static void test_order_of_windows(void)
{
    struct stats *a = make_stats(30, false), *b = make_stats(30, false);
    size_t slots_a[30], slots_b[30];

    for (uint64_t doc = 0; doc < 3; doc++) {
        add_window(a, doc, 50);
        add_window(b, 2 - doc, 50);
    }
    stats_sorted_slots(a, slots_a);
    stats_sorted_slots(b, slots_b);
    for (size_t i = 0; i < 30; i++)
        CU_ASSERT_EQUAL(sample_id_compare(&a->ids[slots_a[i]], &b->ids[slots_b[i]]), 0);
    for (uint32_t hs = 0; hs < 2 * LAYERS * KV_HEADS; hs++)
        CU_ASSERT(same_samples(a, slots_a, b, slots_b, 30, hs));
    (void) stats_free(a);
    (void) stats_free(b);
}

/* Each changed bit and each shorter length is refused. */
static void test_damaged_file(void)
{
    struct stats *s = make_stats(4, false), *back = NULL;
    struct errmsg e;
    uint8_t *bytes;
    size_t n;

    add_window(s, 0, 10);
    bytes = image_of(s, &n);
    for (size_t i = 0; i < n; i += i < 600 ? 1 : 997) {
        bytes[i] ^= 0x10;
        CU_ASSERT_EQUAL(stats_parse(bytes, n, &back, &e), -EBADMSG);
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += 1 + cut / 8)
        CU_ASSERT_EQUAL(stats_parse(bytes, cut, &back, &e), -EBADMSG);
    CU_ASSERT_PTR_NULL(back);
    CU_ASSERT_EQUAL(stats_parse(bytes, n, &back, &e), 0);
    free(bytes);
    (void) stats_free(s);
    (void) stats_free(back);
}

static void test_plane_energy(void)
{
    struct stats *s = make_stats(4, true);
    double key[D / 2], query[D / 2], want_key = 0, want_query = 0;
    struct shape_data x;

    add_window(s, 0, 40);
    shape_data_init(&x, &s->o.geometry, 40);
    window_data(&x, 0, 1);
    for (size_t t = 4; t < 40; t++) { /* plane 3 of KV head 1: coordinates 3 and 19; query heads 2 and 3 */
        for (size_t c = 3; c < D; c += D / 2) {
            want_key += pow((double) x.k[t * WIDTH + D + c], 2) / 36;
            for (size_t h = 2; h < 4; h++)
                want_query += pow((double) x.q[(t * HEADS + h) * D + c], 2) / 72;
        }
    }
    plane_energy(s, 1, 1, key, query);
    CU_ASSERT_DOUBLE_EQUAL(key[3], want_key, 1e-5 * want_key);
    CU_ASSERT_DOUBLE_EQUAL(query[3], want_query, 1e-5 * want_query);
    shape_data_deinit(&x);
    (void) stats_free(s);
}

/* 12288 tokens or 2 GiB: 32 layers x 8 heads x 2 sides x 128 numbers of 2 bytes are 128 KiB a token, 80
 * layers 320 KiB. A model of 32 such layers calibrates within 4 GiB, beside its weights. */
static void test_samples_default(void)
{
    struct geometry tiny = shape(LAYERS, HEADS, KV_HEADS, D, D), middle = shape(32, 32, 8, 128, 128),
                    large = shape(80, 64, 8, 128, 128);
    struct stats_options o;

    CU_ASSERT_EQUAL(stats_samples_default(&tiny), 12288);
    CU_ASSERT_EQUAL(stats_samples_default(&middle), 12288);
    CU_ASSERT_EQUAL(stats_samples_default(&large), 6553);
    stats_options_default(&o, &middle);
    o.want_attention = false;
    o.want_output = true;
    CU_ASSERT(stats_bytes(&o) + stats_window_bytes(&o, 2048) < (uint64_t) 4 << 30);
}

const struct test_case test_cases[] = {
    TEST(test_moments),
    TEST(test_large_mean),
    TEST(test_sampling),
    TEST(test_add_refuses),
    TEST(test_same_token_twice),
    TEST(test_merge),
    TEST(test_merge_any_grouping),
    TEST(test_loaded_grows),
    TEST(test_digest_after_loading),
    TEST(test_merge_refuses),
    TEST(test_file_round_trip),
    TEST(test_order_of_windows),
    TEST(test_damaged_file),
    TEST(test_plane_energy),
    TEST(test_samples_default),
    TEST_END,
};
const char test_suite[] = "stats";
