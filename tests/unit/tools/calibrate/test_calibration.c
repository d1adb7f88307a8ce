/* Calibration on a small random model: caches, windows, statistics, depth weights. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/api/handles.h"
#include "alloc/moments/moments.h"
#include "alloc/solve/depth.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/tools/tiny_engine.h"
#include "tools/calibrate/cache_batch.h"
#include "tools/calibrate/cache_layer.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/checkpoint.h"
#include "tools/command/progress.h"
#include "tools/engine/backward.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

static void kvc_alloc_freep(kvc_alloc **a)
{
    *a = kvc_alloc_free(*a);
}

static kvc_alloc *new_alloc(void)
{
    kvc_alloc *a = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_alloc_new(&a), 0);
    return a;
}

/* Statistics that belong to @a. */
static kvc_stats *new_stats(kvc_alloc *a, const struct stats_options *o)
{
    struct stats *sums = NULL;
    kvc_stats *s = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(stats_new(o, &sums, &e), 0);
    CU_ASSERT_EQUAL_FATAL(alloc_api_adopt_stats(a, sums, &s), 0);
    return s;
}

/* Sequences in lock step give the same attention as each alone in an exact cache. */
static void test_batch_cache(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    enum { SEQUENCES = 3, TOKENS = 9, Q = 4 * 32, KV = 2 * 32 };
    _cleanup_(batch_cache_freep) struct batch_cache *batch = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    float q[SEQUENCES * Q], k[SEQUENCES * KV], v[SEQUENCES * KV], out[SEQUENCES * Q], want[Q];
    float all[TOKENS][SEQUENCES * (Q + 2 * KV)], got[TOKENS][SEQUENCES * Q];
    struct kv_cache b, x;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(batch_cache_new(&g, SEQUENCES, TOKENS, &batch, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(&g, TOKENS, &exact, &e), 0);
    b = batch_cache_ops(batch);
    x = exact_cache_ops(exact);
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t i = 0; i < SEQUENCES * (Q + 2 * KV); i++)
            all[t][i] = (float) test_rand_normal();
        memcpy(q, all[t], sizeof(q));
        memcpy(k, all[t] + SEQUENCES * Q, sizeof(k));
        memcpy(v, all[t] + SEQUENCES * (Q + KV), sizeof(v));
        for (uint32_t layer = 0; layer < 2; layer++) {
            CU_ASSERT_EQUAL(b.append(b.ctx, layer, k, v, SEQUENCES, &e), 0);
            CU_ASSERT_EQUAL(b.attend(b.ctx, layer, q, SEQUENCES, out, &e), 0);
        }

        memcpy(got[t], out, sizeof(out));
    }

    CU_ASSERT_EQUAL(b.append(b.ctx, 0, k, v, SEQUENCES, &e), -ENOSPC);
    CU_ASSERT_EQUAL(b.append(b.ctx, 0, k, v, SEQUENCES - 1, &e), -EINVAL);
    for (size_t s = 0; s < SEQUENCES; s++) {
        exact_cache_clear(exact);
        for (size_t t = 0; t < TOKENS; t++) {
            CU_ASSERT_EQUAL(x.append(x.ctx, 1, all[t] + SEQUENCES * Q + s * KV,
                                     all[t] + SEQUENCES * (Q + KV) + s * KV, 1, &e),
                            0);
            CU_ASSERT_EQUAL(x.attend(x.ctx, 1, all[t] + s * Q, 1, want, &e), 0);
            for (size_t i = 0; i < Q; i++) /* binary32 sums of at most 32 and 9 terms of size about 1 */
                CU_ASSERT_DOUBLE_EQUAL((double) got[t][s * Q + i], (double) want[i], 2e-5);
        }
    }
}

/* One side of one layer is compressed; sinks and all other vectors are not. */
static void test_layer_cache(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    enum { TOKENS = 10, SINKS = 4, Q = 4 * 32, KV = 2 * 32 };
    _cleanup_(layer_cache_freep) struct layer_cache *c = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    float q[TOKENS * Q], k[TOKENS * KV], v[TOKENS * KV], coded[TOKENS * KV], out[TOKENS * Q],
        want[TOKENS * Q];
    const float *x, *x_hat;
    struct kv_cache ops, oracle;
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, 1, 3, false, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &table, &e), 0);
    CU_ASSERT_EQUAL_FATAL(layer_cache_new(&g, TOKENS, SINKS, &c, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(&g, TOKENS, &exact, &e), 0);
    for (size_t i = 0; i < TOKENS * Q; i++)
        q[i] = (float) test_rand_normal();
    for (size_t i = 0; i < TOKENS * KV; i++) {
        k[i] = (float) test_rand_normal();
        v[i] = (float) test_rand_normal();
    }

    ops = layer_cache_ops(c);
    oracle = exact_cache_ops(exact);
    layer_cache_start(c, table, 1, SIDE_V);
    CU_ASSERT_EQUAL(ops.append(ops.ctx, 1, k, v, TOKENS, &e), 0);
    CU_ASSERT_EQUAL(ops.attend(ops.ctx, 1, q, TOKENS, out, &e), 0);
    layer_cache_vectors(c, &x, &x_hat, &n);
    CU_ASSERT_EQUAL_FATAL(n, TOKENS - SINKS);
    CU_ASSERT_EQUAL(memcmp(x, v + SINKS * KV, (TOKENS - SINKS) * KV * sizeof(*x)), 0);
    memcpy(coded, v, sizeof(coded));
    CU_ASSERT_EQUAL(
        depth_round_trip(table, 1, SIDE_V, v + SINKS * KV, coded + SINKS * KV, TOKENS - SINKS, KV), 0);
    CU_ASSERT_EQUAL(memcmp(x_hat, coded + SINKS * KV, (TOKENS - SINKS) * KV * sizeof(*x)), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(x, x_hat, (TOKENS - SINKS) * KV * sizeof(*x)), 0);
    CU_ASSERT_EQUAL(oracle.append(oracle.ctx, 1, k, coded, TOKENS, &e), 0);
    CU_ASSERT_EQUAL(oracle.attend(oracle.ctx, 1, q, TOKENS, want, &e), 0);
    CU_ASSERT_EQUAL(memcmp(out, want, sizeof(out)), 0);
    layer_cache_start(c, table, 1, SIDE_V); /* another layer: not compressed */
    exact_cache_clear(exact);
    CU_ASSERT_EQUAL(ops.append(ops.ctx, 0, k, v, TOKENS, &e), 0);
    CU_ASSERT_EQUAL(ops.attend(ops.ctx, 0, q, TOKENS, out, &e), 0);
    CU_ASSERT_EQUAL(oracle.append(oracle.ctx, 0, k, v, TOKENS, &e), 0);
    CU_ASSERT_EQUAL(oracle.attend(oracle.ctx, 0, q, TOKENS, want, &e), 0);
    CU_ASSERT_EQUAL(memcmp(out, want, sizeof(out)), 0);
}

/* depth_round_trip() against the formula of table.h in binary64. */
static void test_round_trip(void)
{
    struct geometry g = random_table_geometry(1, 2, 2, 36);
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    float x[5 * 72], x_hat[5 * 72];
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, 2, 2.5, false, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &table, &e), 0);
    for (size_t i = 0; i < 5 * 72; i++)
        x[i] = (float) test_rand_normal();
    CU_ASSERT_EQUAL(depth_round_trip(table, 0, SIDE_K, x, x_hat, 5, 72), 0);
    for (size_t t = 0; t < 5; t++)
        for (uint32_t h = 0; h < 2; h++) {
            const struct codec *c = table_codec(table, 0, h, SIDE_K);
            double want[36];

            for (size_t i = 0; i < 36; i++)
                want[i] = (double) c->mean[i];
            for (unsigned j = 0; j < c->r && c->bits[j / 8] > 0; j++) {
                const struct levels *l = &table->levels[SIDE_K][c->bits[j / 8]];
                double z = 0;

                for (size_t i = 0; i < 36; i++)
                    z += (double) c->enc[j * 36 + i] *
                         ((double) x[t * 72 + h * 36 + i] - (double) c->enc_mean[i]);
                for (size_t i = 0; i < 36; i++)
                    want[i] += (double) c->dec[i * c->r + j] *
                               (double) l->value[levels_quantise(l, c->bits[j / 8], (float) z)];
            }

            for (size_t i = 0; i < 36; i++)
                CU_ASSERT_DOUBLE_EQUAL((double) x_hat[t * 72 + h * 36 + i], want[i], 1e-5);
        }
}

/* KL of one measurement by its definition: whole passes, logits of both, sampler_kl() of every position. */
static double brute_kl(struct engine *en, const struct table *t, uint32_t layer, enum side side,
                       const uint32_t *tokens, size_t n)
{
    const struct engine_info *info = engine_info(en);
    _cleanup_(layer_cache_freep) struct layer_cache *c = NULL;
    _cleanup_(freep) float *hidden = calloc(n * info->n_embd, sizeof(float));
    _cleanup_(freep) float *logits = calloc(2 * n * info->n_vocab, sizeof(float));
    struct errmsg e = {""};
    struct kv_cache ops;
    double sum = 0;

    CU_ASSERT_EQUAL_FATAL(layer_cache_new(engine_geometry(en), n, t->n_sink, &c, &e), 0);
    ops = layer_cache_ops(c);
    for (int changed = 0; changed < 2; changed++) {
        layer_cache_start(c, changed ? t : NULL, layer, side);
        CU_ASSERT_EQUAL(engine_embed(en, tokens, n, hidden, &e), 0);
        CU_ASSERT_EQUAL(engine_layers(en, &ops, 0, engine_geometry(en)->n_layers, n, hidden, &e), 0);
        CU_ASSERT_EQUAL(engine_logits(en, n, hidden, logits + (size_t) changed * n * info->n_vocab, &e), 0);
    }

    for (size_t i = 0; i < n; i++)
        sum += sampler_kl(logits + i * info->n_vocab, logits + (n + i) * info->n_vocab, info->n_vocab);
    return sum / (double) n;
}

/* The whole way: statistics of a text, depth weights, a table; one weight compared with its definition. */
static void test_calibrate(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(kvc_alloc_freep) kvc_alloc *alloc = new_alloc();
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL, *layer_bytes = NULL;
    struct stats *s;
    struct progress p = silent();
    struct stats_options so;
    struct solve_options o;
    struct solve_report report;
    struct errmsg e = {""};
    size_t n_bytes, n = 0;
    double kl, got_kl = 0, D = 0;
    struct corpus_options co = {.n_tokens = 1024, .window = 512, .want_held = true, .seed = 1};
    struct calibration cal = {.en = en, .alloc = alloc, .corpus = &c, .seed = 3, .progress = &p};

    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &co, &p, &c, &e), 0);
    stats_options_default(&so, engine_geometry(en));
    so.n_samples = 512;
    memcpy(so.model_digest, engine_info(en)->model_digest, sizeof(so.model_digest));
    cal.stats = new_stats(alloc, &so);
    s = cal.stats->sums;
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(s), 2 * (512 - 4));
    CU_ASSERT(!stats_has_depth(s));
    CU_ASSERT_EQUAL(calibration_measure_depth(&cal, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    CU_ASSERT(stats_has_depth(s));

    CU_ASSERT_EQUAL_FATAL(depth_layer_table(s, 1, SIDE_K, DEPTH_K_BPD, 3, &layer_bytes, &n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(layer_bytes, n, &t, &e), 0);
    kl = 0;
    for (size_t i = 0; i < c.n_held; i++)
        kl += brute_kl(en, t, 1, SIDE_K, corpus_window(&c, c.n_windows + i), c.window) / (double) c.n_held;
    CU_ASSERT_EQUAL_FATAL(stats_get_depth(s, 1, SIDE_K, &got_kl, &D), 0);
    CU_ASSERT(kl > 0);
    CU_ASSERT_DOUBLE_EQUAL(got_kl, kl, 1e-3 * kl + 1e-8); /* probabilities are stored in binary32 */
    CU_ASSERT(D > 0);

    solve_options_default(&o, 3);
    o.trellis_states = 0;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n_bytes, &report, &e), 0);
    CU_ASSERT(report.bpd_code <= 3);
    CU_ASSERT(report.distortion > 0);
}

/* Adds g g' of the keys of layer 1, head 0, without sinks. */
static int add_outer(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    double *sum = ctx;

    (void) dv;
    for (size_t t = 4; layer == 1 && t < n; t++)
        for (size_t i = 0; i < 32; i++)
            for (size_t j = 0; j < 32; j++)
                sum[i * 32 + j] += (double) dk[t * 64 + i] * (double) dk[t * 64 + j];
    return 0;
}

/* Gradients of every window, labels sampled per window, without sinks; all other sums as without
 * gradients. */
static void test_calibrate_gradients(void)
{
    enum { WINDOW = 100 };
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(kvc_alloc_freep) kvc_alloc *alloc = new_alloc();
    _cleanup_(backward_freep) struct backward *b = NULL;
    uint32_t hs = head_side_index(engine_geometry(en), 1, 0, SIDE_K), labels[WINDOW];
    double want[32 * 32] = {0}, trace = 0;
    struct progress p = silent();
    struct corpus_options co = {.n_tokens = 3 * WINDOW, .window = WINDOW, .seed = 1};
    struct calibration cal = {.en = en, .alloc = alloc, .corpus = &c, .progress = &p};
    struct stats *plain, *s;
    struct stats_options so;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &co, &p, &c, &e), 0);
    stats_options_default(&so, engine_geometry(en));
    so.want_attention = false;
    cal.stats = new_stats(alloc, &so);
    plain = cal.stats->sums;
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    cal = (struct calibration){
        .en = en, .alloc = alloc, .corpus = &c, .gradients = true, .seed = 7, .progress = &p};
    cal.stats = new_stats(alloc, &so);
    s = cal.stats->sums;
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT(!stats_has_fisher(plain));
    CU_ASSERT(stats_has_fisher(s));
    CU_ASSERT_EQUAL(s->n_fisher, stats_tokens(s));
    CU_ASSERT_EQUAL(stats_tokens(s), 3 * (WINDOW - 4));
    CU_ASSERT_EQUAL(
        memcmp(plain->scatter, s->scatter, head_side_count(&so.geometry) * 32 * 32 * sizeof(double)), 0);

    CU_ASSERT_EQUAL_FATAL(backward_new(en, WINDOW, &b, &e), 0);
    for (size_t i = 0; i < 3; i++) {
        struct sampler_state sampler;

        sampler_seed(&sampler, 7 ^ c.documents[i]);
        CU_ASSERT_EQUAL(backward_run(b, corpus_window(&c, i), WINDOW, &sampler, labels, add_outer, want, &e),
                        0);
    }

    for (size_t i = 0; i < 32; i++)
        trace += want[i * 33];
    CU_ASSERT(trace > 0);
    /* sums are rounded to binary32 after each of the three windows, by 2^-24 at most */
    for (size_t i = 0; i < 32 * 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(s->fisher[hs * 32 * 32 + i], want[i], 3 * 0x1p-24 * trace);
}

static unsigned asked, stop_after;

static bool stop_now(void)
{
    return ++asked > stop_after;
}

static void expect_same_bytes(const struct stats *a, const struct stats *b)
{
    uint8_t digest_a[DIGEST_BYTES], digest_b[DIGEST_BYTES];
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(stats_digest(a, digest_a, &e), 0);
    CU_ASSERT_EQUAL(stats_digest(b, digest_b, &e), 0);
    CU_ASSERT_EQUAL(memcmp(digest_a, digest_b, DIGEST_BYTES), 0);
}

/* Expects that a checkpoint of another plan, a truncated one and a missing one are refused. @path has a
 * checkpoint of @plan. */
static void refuse_other_checkpoints(const char *path, struct calibration *cal,
                                     const uint8_t plan[static DIGEST_BYTES])
{
    kvc_stats *s = NULL;
    struct moments *none = NULL;
    uint8_t other[DIGEST_BYTES];
    struct errmsg e = {""};

    cal->seed++;
    checkpoint_plan(cal, true, other);
    CU_ASSERT_EQUAL(checkpoint_load(path, cal, other, &s, &none, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other options"));
    CU_ASSERT_EQUAL(truncate(path, 100), 0);
    CU_ASSERT_EQUAL(checkpoint_load(path, cal, plan, &s, &none, &e), -EBADMSG);
    (void) unlink(path);
    CU_ASSERT_EQUAL(checkpoint_load(path, cal, plan, &s, &none, &e), -ENOENT);
    CU_ASSERT_PTR_NULL(s);
}

/* Stopped between windows, resumed, stopped while measuring depth weights, and resumed again: the same file
 * as in one run, with gradients, replaced samples and depth weights. */
static void test_resume(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(kvc_alloc_freep) kvc_alloc *alloc = new_alloc();
    kvc_stats *whole, *part, *s = NULL;
    struct corpus_options co = {.n_tokens = 5 * 64, .window = 64, .want_held = true, .seed = 1};
    char path[] = "/tmp/kvc-test-resume-XXXXXX";
    uint8_t plan[DIGEST_BYTES];
    struct progress p = silent();
    struct calibration cal;
    struct moments *none = NULL;
    struct stats_options so;
    struct errmsg e = {""};
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &co, &p, &c, &e), 0);
    stats_options_default(&so, engine_geometry(en));
    so.n_samples = 150; /* of 300 */
    so.want_output = true;
    whole = new_stats(alloc, &so);
    part = new_stats(alloc, &so);
    cal = (struct calibration){
        .en = en, .alloc = alloc, .stats = whole, .corpus = &c, .gradients = true, .seed = 9, .progress = &p};
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT_EQUAL(calibration_measure_depth(&cal, &e), 0);

    cal.stats = part;
    cal.n_done = 0;
    cal.stop = stop_now;
    asked = 0;
    stop_after = 2;
    checkpoint_plan(&cal, true, plan);
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), CALIBRATION_STOPPED);
    CU_ASSERT_EQUAL(cal.n_done, 2);
    CU_ASSERT_EQUAL_FATAL(checkpoint_save(path, &cal, plan, &e), 0);
    cal.n_done = 77;
    CU_ASSERT_EQUAL_FATAL(checkpoint_load(path, &cal, plan, &s, &none, &e), 0);
    CU_ASSERT_PTR_NULL(none);
    CU_ASSERT_EQUAL(cal.n_done, 2);
    cal.stats = s;
    asked = 0;
    stop_after = 6; /* three more windows, and three measurements */
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT_EQUAL(calibration_measure_depth(&cal, &e), CALIBRATION_STOPPED);
    CU_ASSERT(!stats_has_depth(s->sums));
    CU_ASSERT_EQUAL_FATAL(checkpoint_save(path, &cal, plan, &e), 0);
    part = kvc_stats_free(part);
    CU_ASSERT_EQUAL_FATAL(checkpoint_load(path, &cal, plan, &part, &none, &e), 0);
    CU_ASSERT_EQUAL(cal.n_done, 5);
    cal.stats = part;
    cal.stop = NULL;
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT_EQUAL(calibration_measure_depth(&cal, &e), 0);
    expect_same_bytes(part->sums, whole->sums);

    refuse_other_checkpoints(path, &cal, plan);
    (void) unlink(path);
}

/* Moments of the same windows have the counts, means and covariances of the statistics. */
static void test_moments_only(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(kvc_alloc_freep) kvc_alloc *alloc = new_alloc();
    _cleanup_(moments_freep) struct moments *m = NULL;
    struct corpus_options co = {.n_tokens = 3 * 64, .window = 64, .seed = 1};
    struct moments_options mo = {.geometry = *engine_geometry(en), .n_sink = 4};
    struct progress p = silent();
    struct calibration cal = {.en = en, .alloc = alloc, .corpus = &c, .progress = &p};
    struct stats *s;
    struct stats_options so;
    struct errmsg e = {""};
    uint32_t hs = head_side_index(engine_geometry(en), 2, 1, SIDE_V);

    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &co, &p, &c, &e), 0);
    stats_options_default(&so, engine_geometry(en));
    so.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(moments_new(&mo, &m, &e), 0);
    cal.stats = new_stats(alloc, &so);
    s = cal.stats->sums;
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    cal = (struct calibration){.en = en, .moments = m, .corpus = &c, .progress = &p};
    CU_ASSERT_EQUAL(calibration_add_windows(&cal, &e), 0);
    CU_ASSERT_EQUAL(moments_count(m, 2, 1), stats_tokens(s));
    for (size_t i = 0; i < 32; i++) {
        const double *row = moments_scatter(m, 2, 1) + (32 + i) * (33 + i) / 2 + 32;

        CU_ASSERT_DOUBLE_EQUAL(moments_mean(m, 2, 1)[32 + i], s->mean[hs * 32 + i], 1e-12);
        for (size_t j = 0; j <= i; j++) /* binary32 products of at most 60 rows on the other side */
            CU_ASSERT_DOUBLE_EQUAL(
                row[j], s->scatter[(hs * 32 + i) * 32 + j],
                1e-5 * sqrt(s->scatter[hs * 32 * 32 + i * 33] * s->scatter[hs * 32 * 32 + j * 33]) + 1e-12);
    }
}

const struct test_case test_cases[] = {
    TEST(test_batch_cache), TEST(test_layer_cache),  TEST(test_round_trip),          TEST(test_calibrate),
    TEST(test_resume),      TEST(test_moments_only), TEST(test_calibrate_gradients), TEST_END,
};
const char test_suite[] = "calibration";
