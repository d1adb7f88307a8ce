/* Metrics against triple loops in binary64 that follow the definitions of DESIGN 3.1 literally. */
#include <errno.h>

#include "alloc/math/linalg.h"
#include "alloc/solve/metric.h"
#include "alloc/stats/stats_internal.h"
#include "tests/unit/alloc/shapes.h"

/* y := R(t) x (sense = 1) or R(t)' x (sense = -1) */
static void rotate(const struct geometry *g, double t, double sense, const double *x, double *y)
{
    uint32_t planes = g->n_rot / 2;

    for (uint32_t i = 0; i < g->d; i++)
        y[i] = x[i];
    for (uint32_t i = 0; i < planes; i++) {
        double c = cos(g->freq[i] * t), s = sense * sin(g->freq[i] * t);

        y[i] = x[i] * c - x[i + planes] * s;
        y[i + planes] = x[i + planes] * c + x[i] * s;
    }
}

static void row_of(const float *x, size_t t, size_t width, size_t head, size_t d, double *ret)
{
    for (size_t i = 0; i < d; i++)
        ret[i] = (double) x[t * width + head * d + i];
}

/* p[m][n] of one query head. */
static void attention(const struct geometry *g, const struct shape_data *x, size_t head, double *p)
{
    size_t d = g->d, n = x->n, kv = head / geometry_group(g);

    for (size_t m = 0; m < n; m++) {
        double q[256], rq[256], k[256], rk[256], max = -INFINITY, sum = 0;

        row_of(x->q, m, g->n_heads * d, head, d, q);
        rotate(g, (double) m, 1, q, rq);
        for (size_t j = 0; j <= m; j++) {
            row_of(x->k, j, g->n_kv_heads * d, kv, d, k);
            rotate(g, (double) j, 1, k, rk);
            p[m * n + j] = 0;
            for (size_t i = 0; i < d; i++)
                p[m * n + j] += g->attn_scale * rq[i] * rk[i];
            max = fmax(max, p[m * n + j]);
        }
        for (size_t j = 0; j <= m; j++)
            sum += p[m * n + j] = exp(p[m * n + j] - max);
        for (size_t j = 0; j <= m; j++)
            p[m * n + j] /= sum;
    }
}

/* M of DESIGN 3.1 for one head-side, over all keys. */
static void brute_metric(const struct geometry *g, const struct shape_data *x, size_t n_sink, uint32_t kv,
                         enum side side, double *M)
{
    size_t d = g->d, n = x->n, group = geometry_group(g);
    double *p = calloc(n * n, sizeof(*p));

    memset(M, 0, d * d * sizeof(*M));
    for (size_t h = kv * group; h < (kv + 1) * group; h++) {
        double squares = 0;

        attention(g, x, h, p);
        for (size_t key = n_sink; key < n; key++)
            for (size_t m = key; m < n; m++) {
                double q[256], rq[256], seen[256], prob = p[m * n + key];

                squares += prob * prob;
                row_of(x->q, m, g->n_heads * d, h, d, q);
                rotate(g, (double) m, 1, q, rq);
                rotate(g, (double) key, -1, rq, seen);
                for (size_t i = 0; side == SIDE_K && i < d; i++)
                    for (size_t j = 0; j < d; j++)
                        M[i * d + j] += prob * (1 - prob) * g->attn_scale * g->attn_scale * seen[i] * seen[j];
            }
        for (size_t row = 0; side == SIDE_V && row < x->n_embd; row++)
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++)
                    M[i * d + j] += squares * (double) x->wo[(row * g->n_heads + h) * d + i] *
                                    (double) x->wo[(row * g->n_heads + h) * d + j];
    }
    for (size_t i = 0; i < d * d; i++)
        M[i] /= (double) (n - n_sink);
    free(p);
}

/* The output metric as alloc/README.md, "Metrics", defines it. */
static void brute_output(const struct geometry *g, const struct shape_data *x, const float *residual,
                         size_t n_sink, uint32_t kv, enum side side, double *M)
{
    size_t d = g->d, n = x->n, group = geometry_group(g), width = g->n_kv_heads * d;
    double *p = calloc(n * n, sizeof(*p));

    memset(M, 0, d * d * sizeof(*M));
    for (size_t h = kv * group; h < (kv + 1) * group; h++) {
        double squares = 0;

        attention(g, x, h, p);
        for (size_t m = n_sink; m < n; m++) {
            double o[256] = {0}, q[256], rq[256], seen[256];

            for (size_t j = 0; j <= m; j++)
                for (size_t i = 0; i < d; i++)
                    o[i] += p[m * n + j] * (double) x->v[j * width + kv * d + i];
            row_of(x->q, m, g->n_heads * d, h, d, q);
            rotate(g, (double) m, 1, q, rq);
            for (size_t key = n_sink; key <= m; key++) {
                double relative = p[m * n + key] * p[m * n + key] / (double) residual[m], moved = 0;

                squares += relative;
                rotate(g, (double) key, -1, rq, seen);
                for (size_t row = 0; row < x->n_embd; row++) { /* |W_O,h (v - o)|^2 */
                    double sum = 0;

                    for (size_t i = 0; i < d; i++)
                        sum += (double) x->wo[(row * g->n_heads + h) * d + i] *
                               ((double) x->v[key * width + kv * d + i] - o[i]);
                    moved += sum * sum;
                }
                for (size_t i = 0; side == SIDE_K && i < d; i++)
                    for (size_t j = 0; j < d; j++)
                        M[i * d + j] += relative * moved * g->attn_scale * g->attn_scale * seen[i] * seen[j];
            }
        }
        for (size_t row = 0; side == SIDE_V && row < x->n_embd; row++)
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++)
                    M[i * d + j] += squares * (double) x->wo[(row * g->n_heads + h) * d + i] *
                                    (double) x->wo[(row * g->n_heads + h) * d + j];
    }
    for (size_t i = 0; i < d * d; i++)
        M[i] /= (double) (n - n_sink);
    free(p);
}

static struct stats *stats_of(const struct geometry *g, const struct shape_data *x, uint32_t n_sink,
                              uint32_t stride)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    o.n_sink = n_sink;
    o.key_stride = stride;
    o.n_samples = 16;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x->wo, x->n_embd, &e), 0);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, l, x->n, x->q, x->k, x->v, NULL, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    return s;
}

/* Scores are binary32 sums of d products of size about 1, so p is right to 1e-5; entries must agree to 1e-4
 * of the largest. A missing rotation, sink, group head or scale is wrong by tens of per cent. */
static void check_attention(struct geometry g, size_t n, uint32_t n_sink)
{
    size_t d = g.d;
    double *want = calloc(d * d, sizeof(*want)), *got = calloc(d * d, sizeof(*got));
    struct shape_data x;
    struct stats *s;

    shape_data_init(&x, &g, n);
    shape_data_draw(&x, &g);
    s = stats_of(&g, &x, n_sink, 1);
    for (uint32_t kv = 0; kv < g.n_kv_heads; kv++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            double worst = 0, largest = 0;

            brute_metric(&g, &x, n_sink, kv, (enum side) side, want);
            CU_ASSERT_EQUAL(metric_matrix(s, METRIC_ATTENTION, 0, 0, kv, (enum side) side, NULL, got), 0);
            for (size_t i = 0; i < d * d; i++) {
                worst = fmax(worst, fabs(want[i] - got[i]));
                largest = fmax(largest, fabs(want[i]));
            }
            CU_ASSERT(largest > 0);
            CU_ASSERT(worst <= 1e-4 * largest);
        }
    (void) stats_free(s);
    shape_data_deinit(&x);
    free(want);
    free(got);
}

/* Computing both metrics together changes neither: attention is compared bit for bit, output with its
 * definition. The quadratic forms lose up to 2^-24 of |v|^2 |B|; with the tolerance of check_attention() that
 * is far below a missing centre, head, residual or square. */
static void check_output(struct geometry g, size_t n, uint32_t n_sink, double offset)
{
    size_t d = g.d;
    double *want = calloc(d * d, sizeof(*want)), *got = calloc(d * d, sizeof(*got));
    float *residual = calloc(n, sizeof(*residual));
    struct stats *both = NULL, *alone;
    struct stats_options o;
    struct shape_data x;
    struct errmsg e = {""};

    shape_data_init(&x, &g, n);
    shape_data_draw(&x, &g);
    for (size_t i = 0; i < n * g.n_kv_heads * d; i++)
        x.v[i] += (float) offset;
    for (size_t t = 0; t < n; t++)
        residual[t] = 0.25f + (float) test_rand_uniform();
    alone = stats_of(&g, &x, n_sink, 1);
    o = alone->o;
    o.want_output = true;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &both, &e), 0);
    CU_ASSERT_EQUAL(stats_set_output_projection(both, 0, x.wo, x.n_embd, &e), 0);
    CU_ASSERT_EQUAL(stats_add_layer(both, 0, 0, 0, n, x.q, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_EQUAL(stats_add_layer(both, 0, 0, 0, n, x.q, x.k, x.v, residual, &e), 0);
    CU_ASSERT_EQUAL(memcmp(both->metric, alone->metric, head_side_count(&g) * d * d * sizeof(double)), 0);
    for (uint32_t kv = 0; kv < g.n_kv_heads; kv++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            double worst = 0, largest = 0;

            brute_output(&g, &x, residual, n_sink, kv, (enum side) side, want);
            CU_ASSERT_EQUAL(metric_matrix(both, METRIC_OUTPUT, 1, 0, kv, (enum side) side, NULL, got), 0);
            for (size_t i = 0; i < d * d; i++) {
                worst = fmax(worst, fabs(want[i] - got[i]));
                largest = fmax(largest, fabs(want[i]));
            }
            CU_ASSERT(largest > 0);
            CU_ASSERT(worst <= 1e-4 * largest);
        }
    (void) stats_free(alone);
    (void) stats_free(both);
    shape_data_deinit(&x);
    free(residual);
    free(want);
    free(got);
}

static void test_output(void)
{
    check_output(shape(1, 1, 1, 32, 32), 40, 4, 0);
    check_output(shape(1, 6, 2, 32, 32), 50, 4, 0);   /* grouped */
    check_output(shape(1, 2, 1, 48, 16), 40, 0, 0);   /* partial rotary */
    check_output(shape(1, 4, 1, 36, 0), 300, 2, 0);   /* no rotary; more than one block of keys */
    check_output(shape(1, 2, 1, 32, 32), 150, 4, 30); /* values far from 0: only differences matter */
}

static void test_attention_plain(void)
{
    check_attention(shape(1, 1, 1, 32, 32), 40, 4);
}

static void test_attention_grouped(void)
{
    check_attention(shape(1, 6, 2, 32, 32), 50, 4);
}

static void test_attention_partial_rotary(void)
{
    check_attention(shape(1, 2, 1, 48, 16), 40, 0);
}

static void test_attention_no_rotary(void)
{
    check_attention(shape(1, 2, 2, 36, 0), 33, 2);
}

static void test_attention_many_keys(void) /* more than one block of keys, more than one rank update */
{
    check_attention(shape(1, 4, 1, 32, 32), 300, 4);
}

static void test_attention_all_sinks(void) /* a window of sinks alone adds nothing */
{
    struct geometry g = shape(1, 1, 1, 32, 32);
    struct shape_data x;
    struct stats *s;

    shape_data_init(&x, &g, 3);
    shape_data_draw(&x, &g);
    s = stats_of(&g, &x, 4, 8);
    CU_ASSERT_EQUAL(stats_tokens(s), 0);
    CU_ASSERT_EQUAL(linalg_trace(32, s->metric), 0);
    (void) stats_free(s);
    shape_data_deinit(&x);
}

/* Stride 8 estimates the same sum: the traces of 8 seeds average to it. Key weights here vary little, so one
 * seed is within 20 % and eight are within 8 %. */
static void test_attention_stride(void)
{
    struct geometry g = shape(1, 2, 1, 32, 32);
    struct shape_data x;
    struct stats *all;
    double sum = 0, want;
    struct errmsg e;

    shape_data_init(&x, &g, 200);
    shape_data_draw(&x, &g);
    all = stats_of(&g, &x, 4, 1);
    want = linalg_trace(32, all->metric);
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct stats_options o = all->o;
        struct stats *s = NULL;

        o.key_stride = 8;
        o.seed = seed;
        CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
        CU_ASSERT_EQUAL(stats_set_output_projection(s, 0, x.wo, x.n_embd, &e), 0);
        CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 0, x.n, x.q, x.k, x.v, NULL, &e), 0);
        sum += linalg_trace(32, s->metric) / 8;
        CU_ASSERT_DOUBLE_EQUAL(linalg_trace(32, s->metric), want, 0.2 * want);
        (void) stats_free(s);
    }
    CU_ASSERT_DOUBLE_EQUAL(sum, want, 0.08 * want);
    (void) stats_free(all);
    shape_data_deinit(&x);
}

/* `query`: M = U diag(u_i' E[qq'] u_i) U', U the eigenvectors of the covariance. */
static void test_query(void)
{
    struct geometry g = shape(1, 4, 2, 32, 32);
    double S[32 * 32], U[32 * 32], w[32], M[32 * 32], variance[32];
    struct shape_data x;
    struct stats *s;

    shape_data_init(&x, &g, 64);
    shape_data_draw(&x, &g);
    s = stats_of(&g, &x, 4, 8);
    memcpy(S, s->scatter + 32 * 32 * head_side_index(&g, 0, 1, SIDE_K), sizeof(S));
    memcpy(U, S, sizeof(U));
    CU_ASSERT_EQUAL(linalg_eigen(32, U, w), 0);
    CU_ASSERT_EQUAL(metric_matrix(s, METRIC_QUERY, 0, 0, 1, SIDE_K, S, M), 0);
    metric_query_variance(s, 0, 1, U, variance);
    for (size_t i = 0; i < 32; i++) {
        double want = 0, got = 0;

        for (size_t t = 4; t < 64; t++)
            for (size_t h = 2; h < 4; h++) {
                double dot = 0;

                for (size_t c = 0; c < 32; c++)
                    dot += U[i * 32 + c] * (double) x.q[(t * 4 + h) * 32 + c];
                want += dot * dot / 120;
            }
        for (size_t a = 0; a < 32; a++)
            for (size_t b = 0; b < 32; b++)
                got += U[i * 32 + a] * M[a * 32 + b] * U[i * 32 + b];
        CU_ASSERT_DOUBLE_EQUAL(variance[i], want, 1e-4 * want + 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(got, want, 1e-4 * want + 1e-6);
    }
    CU_ASSERT_EQUAL(metric_matrix(s, METRIC_QUERY, 0, 0, 1, SIDE_V, S, M), 0);
    CU_ASSERT_EQUAL(M[0], 1);
    CU_ASSERT_EQUAL(M[1], 0);
    (void) stats_free(s);
    shape_data_deinit(&x);
}

/* Diagonal gradients of known energy: M^0.75 at the same trace, by hand. */
static void test_fisher(void)
{
    struct geometry g = shape(1, 1, 1, 32, 32);
    double M[32 * 32], trace = 0, powered = 0;
    struct shape_data x;
    struct stats *s;
    struct errmsg e;
    float *gradient = calloc(32 * 32, sizeof(float));

    shape_data_init(&x, &g, 32);
    shape_data_draw(&x, &g);
    s = stats_of(&g, &x, 4, 8);
    CU_ASSERT_NOT_EQUAL(metric_available(s, METRIC_FISHER, &e), 0);
    for (size_t i = 0; i < 32; i++) {
        gradient[i * 32 + i] = (float) (i + 1); /* token i pushes coordinate i: E[gg'] = diag((i+1)^2 / 32) */
        trace += pow((double) (i + 1), 2) / 32;
        powered += pow(pow((double) (i + 1), 2) / 32, 0.75);
    }
    CU_ASSERT_EQUAL(stats_add_fisher(s, 0, SIDE_K, 32, gradient, &e), 0);
    CU_ASSERT_EQUAL(metric_available(s, METRIC_FISHER, &e), 0);
    CU_ASSERT_EQUAL(metric_matrix(s, METRIC_FISHER, 0, 0, 0, SIDE_K, NULL, M), 0);
    for (size_t i = 0; i < 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(M[i * 33], pow(pow((double) (i + 1), 2) / 32, 0.75) * trace / powered,
                               1e-9 * trace);
    CU_ASSERT_EQUAL(metric_matrix(s, METRIC_FISHER, 1, 0, 0, SIDE_K, NULL, M), 0); /* plain */
    for (size_t i = 0; i < 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(M[i * 33], pow((double) (i + 1), 2) / 32, 1e-9 * trace);
    powered = 0;
    for (size_t i = 0; i < 32; i++)
        powered += (double) (i + 1) / sqrt(32);
    CU_ASSERT_EQUAL(metric_matrix(s, METRIC_FISHER, 0.5, 0, 0, SIDE_K, NULL, M), 0);
    for (size_t i = 0; i < 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(M[i * 33], (double) (i + 1) / sqrt(32) * trace / powered, 1e-9 * trace);
    free(gradient);
    (void) stats_free(s);
    shape_data_deinit(&x);
}

static void test_depth_weights(void)
{
    struct geometry g = shape(3, 1, 1, 32, 32);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e;

    stats_options_default(&o, &g);
    o.n_samples = 1;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    CU_ASSERT_EQUAL(stats_set_depth(s, 0, SIDE_K, 0.2, 0.1), 0);
    CU_ASSERT_EQUAL(metric_depth_weight(s, 0, SIDE_K), 1); /* not all measured: weights are 1 */
    CU_ASSERT_EQUAL(stats_set_depth(s, 1, SIDE_K, 0.3, 0.1), 0);
    CU_ASSERT_EQUAL(stats_set_depth(s, 2, SIDE_K, 1e-7, 0.1), 0);
    for (uint32_t l = 0; l < 3; l++)
        CU_ASSERT_EQUAL(stats_set_depth(s, l, SIDE_V, 0.5, 0.25), 0);
    CU_ASSERT_DOUBLE_EQUAL(metric_depth_weight(s, 0, SIDE_K), 2, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(metric_depth_weight(s, 1, SIDE_K), 3, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(metric_depth_weight(s, 2, SIDE_K), 2.5, 1e-12); /* noise: median of 2 and 3 */
    CU_ASSERT_DOUBLE_EQUAL(metric_depth_weight(s, 2, SIDE_V), 2, 1e-12);
    CU_ASSERT_NOT_EQUAL(stats_set_depth(s, 0, SIDE_K, NAN, 1), 0);
    (void) stats_free(s);
}

const struct test_case test_cases[] = {
    TEST(test_output),
    TEST(test_attention_plain),
    TEST(test_attention_grouped),
    TEST(test_attention_partial_rotary),
    TEST(test_attention_no_rotary),
    TEST(test_attention_many_keys),
    TEST(test_attention_all_sinks),
    TEST(test_attention_stride),
    TEST(test_query),
    TEST(test_fisher),
    TEST(test_depth_weights),
    TEST_END,
};
const char test_suite[] = "metric";
