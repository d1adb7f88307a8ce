/*
 * Activations in every form that the public header takes, against the plain form: binary32 rows without gaps,
 * keys before RoPE, half-split. The plain form goes to alloc/stats/stats.h directly.
 */
#include <errno.h>
#include <math.h>

#include "alloc/api/handles.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/half.h"
#include "tests/unit/alloc/api/api_fixture.h"

const char test_suite[] = "stats_input";

enum { Q = API_HEADS * API_DIM, KV = API_KV_HEADS * API_DIM, GAP = 5 };

/* How the vectors of one side are handed over. */
struct form {
    enum kvc_dtype dtype;
    bool heads_first; /* [heads, tokens, GAP more numbers] instead of rows */
    enum kvc_keys keys;
    enum kvc_pairs pairs;
};

static void put_number(void *to, enum kvc_dtype dtype, size_t i, float x)
{
    switch (dtype) {
    case KVC_F16:
        ((uint16_t *) to)[i] = f32_to_f16(x);
        return;
    case KVC_BF16:
        ((uint16_t *) to)[i] = f32_to_bf16(x);
        return;
    case KVC_F32:
        break;
    }
    ((float *) to)[i] = x;
}

/* R(m) x of the textbook, in binary64; plane i is (i, i + d/2). */
static void rotate(const struct geometry *g, double m, const float *x, double *ret)
{
    uint32_t half = g->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        double c = cos(m * g->freq[i]), s = sin(m * g->freq[i]);

        ret[i] = (double) x[i] * c - (double) x[i + half] * s;
        ret[i + half] = (double) x[i] * s + (double) x[i + half] * c;
    }
}

/* Where numbers of head @h lie, and the distances. */
struct places {
    size_t token, head, total;
};

static struct places places_of(const struct form *w, size_t n, size_t n_heads)
{
    if (w->heads_first)
        return (struct places){API_DIM + GAP, n * (API_DIM + GAP), n_heads * n * (API_DIM + GAP)};

    return (struct places){n_heads * API_DIM + GAP, API_DIM, n * (n_heads * API_DIM + GAP)};
}

/* The plain vectors x [n, n_heads, d] in another form; malloc'ed. Gaps hold NaN, which must not be read. */
static void *in_form(const struct geometry *g, const struct form *w, bool rope, const float *x, size_t n,
                     size_t n_heads, uint64_t position)
{
    struct places at = places_of(w, n, n_heads);
    void *to = malloc(at.total * sizeof(float));

    assert(to);
    for (size_t i = 0; i < at.total; i++)
        put_number(to, w->dtype, i, NAN);
    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < n_heads; h++) {
            const float *from = x + (t * n_heads + h) * API_DIM;
            double y[API_DIM];

            for (size_t i = 0; i < API_DIM; i++)
                y[i] = (double) from[i];
            if (rope && w->keys == KVC_KEYS_AFTER_ROPE)
                rotate(g, (double) (position + t), from, y);
            for (size_t i = 0; i < API_DIM; i++) {
                size_t half = API_DIM / 2, to_i = i < half ? 2 * i : 2 * (i - half) + 1;

                if (!rope || w->pairs == KVC_PAIRS_HALF_SPLIT)
                    to_i = i;
                put_number(to, w->dtype, t * at.token + h * at.head + to_i, (float) y[i]);
            }
        }
    return to;
}

/* Multiples of 1/64 up to 4, which bfloat16 and binary16 hold exactly. */
static void make_exact(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = fmaxf(-4, fminf(4, rintf(x[i] * 64) / 64));
}

/* One window in the plain form to @plain, and in the form @w to @s. */
static void add_both(struct api *f, struct stats *plain, kvc_stats *s, const struct form *w,
                     uint64_t document, uint64_t position)
{
    struct errmsg e = {""};

    for (uint32_t layer = 0; layer < API_LAYERS; layer++) {
        kvc_stats_layer x = api_layer(f, document, layer);
        struct places q = places_of(w, API_WINDOW, API_HEADS), kv = places_of(w, API_WINDOW, API_KV_HEADS);
        _cleanup_(freep) void *to_q = NULL, *to_k = NULL, *to_v = NULL, *to_hidden = NULL;
        float squares[API_WINDOW];

        make_exact(f->x.q, API_WINDOW * Q);
        make_exact(f->x.k, API_WINDOW * KV);
        make_exact(f->x.v, API_WINDOW * KV);
        make_exact(f->hidden, API_WINDOW * API_EMBD);
        to_hidden = malloc(sizeof(float) * API_WINDOW * (API_EMBD + GAP));
        assert(to_hidden);
        for (size_t t = 0; t < API_WINDOW; t++) {
            double sum = 0;

            for (size_t i = 0; i < API_EMBD; i++) {
                float h = f->hidden[t * API_EMBD + i];

                put_number(to_hidden, w->dtype, t * (API_EMBD + GAP) + i, h);
                sum += (double) h * (double) h;
            }
            squares[t] = (float) (sum / API_EMBD);
        }
        CU_ASSERT_EQUAL(
            stats_add_layer(plain, document, position, layer, API_WINDOW, x.q, x.k, x.v, squares, &e), 0);

        x.position = position;
        x.dtype = w->dtype;
        x.keys = w->keys;
        x.pairs = w->pairs;
        x.q = to_q = in_form(&f->g, w, true, f->x.q, API_WINDOW, API_HEADS, position);
        x.k = to_k = in_form(&f->g, w, true, f->x.k, API_WINDOW, API_KV_HEADS, position);
        x.v = to_v = in_form(&f->g, w, false, f->x.v, API_WINDOW, API_KV_HEADS, position);
        x.residual = to_hidden;
        x.residual_token_stride = API_EMBD + GAP;
        x.q_token_stride = q.token;
        x.q_head_stride = q.head;
        x.k_token_stride = x.v_token_stride = kv.token;
        x.k_head_stride = x.v_head_stride = kv.head;
        CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    }
    CU_ASSERT_STRING_EQUAL(kvc_alloc_error(f->a), "");
}

/* max |a - b| / max |a| */
static double difference(const double *a, const double *b, size_t n)
{
    double largest = 0, worst = 0;

    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(a[i]));
        worst = fmax(worst, fabs(a[i] - b[i]));
    }
    CU_ASSERT(largest > 0);
    return worst / largest;
}

/* Adds windows in both ways. Bounds of the relative differences of all sums; 0: the same bits. */
static void compare_form(const struct form *w, double bound)
{
    struct api f;
    struct stats *plain = NULL;
    struct stats_options o;
    struct errmsg e = {""};
    size_t n_hs, dd = API_DIM * API_DIM;
    kvc_stats *s;

    api_init(&f);
    s = api_stats(&f, KVC_WITH_OUTPUT | KVC_WITH_ATTENTION);
    o = *stats_get_options(s->sums);
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &plain, &e), 0);
    for (uint32_t layer = 0; layer < API_LAYERS; layer++)
        CU_ASSERT_EQUAL(stats_set_output_projection(plain, layer, f.x.wo, API_EMBD, &e), 0);
    add_both(&f, plain, s, w, 1, 0);
    add_both(&f, plain, s, w, 2, 1000);

    n_hs = head_side_count(&o.geometry);
    CU_ASSERT(difference(plain->mean, s->sums->mean, n_hs * API_DIM) <= bound);
    CU_ASSERT(difference(plain->scatter, s->sums->scatter, n_hs * dd) <= bound);
    CU_ASSERT(difference(plain->query, s->sums->query, n_hs / 2 * dd) <= bound);
    CU_ASSERT(difference(plain->metric, s->sums->metric, n_hs * dd) <= bound);
    CU_ASSERT(difference(plain->output, s->sums->output, n_hs * dd) <= bound);
    if (bound == 0) {
        uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];

        CU_ASSERT_EQUAL(stats_digest(plain, a, &e) | stats_digest(s->sums, b, &e), 0);
        CU_ASSERT_EQUAL(memcmp(a, b, sizeof(a)), 0);
    }
    (void) stats_free(plain);
    api_deinit(&f);
}

static void test_exact_forms(void)
{
    static const enum kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};

    for (size_t d = 0; d < 3; d++)
        for (unsigned bits = 0; bits < 4; bits++) {
            struct form w = {
                .dtype = dtypes[d],
                .heads_first = bits & 1,
                .pairs = bits & 2 ? KVC_PAIRS_INTERLEAVED : KVC_PAIRS_HALF_SPLIT,
            };

            test_rand_restart();
            compare_form(&w, 0);
        }
}

/* Rotated keys are rounded to the number type: binary32 has 2^-24, and attention multiplies errors of
 * scores by less than 100; bfloat16 has 2^-9. */
static void test_rotated_forms(void)
{
    for (unsigned bits = 0; bits < 4; bits++) {
        struct form w = {
            .dtype = KVC_F32,
            .heads_first = bits & 1,
            .keys = KVC_KEYS_AFTER_ROPE,
            .pairs = bits & 2 ? KVC_PAIRS_INTERLEAVED : KVC_PAIRS_HALF_SPLIT,
        };

        test_rand_restart();
        compare_form(&w, 1e-5);
        w.dtype = KVC_BF16;
        test_rand_restart();
        compare_form(&w, 0x1p-7);
    }
}

/* W_O transposed, in bfloat16 and with gaps gives the sums of the plain one. */
static void test_projection_forms(void)
{
    struct api f;
    kvc_stats *plain, *s;
    kvc_stats_options o;
    uint16_t *wo = malloc(sizeof(*wo) * Q * (API_EMBD + GAP));
    kvc_stats_projection p = {.struct_bytes = sizeof(p), .dtype = KVC_BF16, .wo = wo, .n_embd = API_EMBD};

    assert(wo);
    api_init(&f);
    shape_data_draw(&f.x, &f.g);
    for (size_t i = 0; i < API_EMBD * Q; i++) {
        f.x.wo[i] = bf16_to_f32(f32_to_bf16(f.x.wo[i]));
        wo[i % Q * (API_EMBD + GAP) + i / Q] = f32_to_bf16(f.x.wo[i]);
    }
    o = api_options(&f, KVC_WITH_OUTPUT);
    CU_ASSERT_EQUAL_FATAL(kvc_stats_new(f.a, &o, &plain) | kvc_stats_new(f.a, &o, &s), 0);
    p.row_stride = 1;
    p.column_stride = API_EMBD + GAP;
    CU_ASSERT_EQUAL(kvc_stats_set_output_projection(s, &p), 0);
    p = (kvc_stats_projection){.struct_bytes = sizeof(p), .wo = f.x.wo, .n_embd = API_EMBD};
    CU_ASSERT_EQUAL(kvc_stats_set_output_projection(plain, &p), 0);
    CU_ASSERT_EQUAL(memcmp(plain->sums->wo, s->sums->wo, sizeof(double) * API_HEADS * API_DIM * API_DIM), 0);

    p.n_embd = 0;
    EXPECT_REFUSED(&f, kvc_stats_set_output_projection(s, &p), -EINVAL, "n_embd 0");
    p.n_embd = API_EMBD;
    p.layer = API_LAYERS;
    EXPECT_REFUSED(&f, kvc_stats_set_output_projection(s, &p), -EINVAL, "the model has 2 layers");
    p.layer = 0;
    p.row_stride = SIZE_MAX / 4;
    EXPECT_REFUSED(&f, kvc_stats_set_output_projection(s, &p), -EINVAL, "is not a matrix");
    p.row_stride = 0;
    f.x.wo[3] = NAN;
    EXPECT_REFUSED(&f, kvc_stats_set_output_projection(s, &p), -EINVAL, "layer 0 is not finite");
    free(wo);
    api_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_exact_forms),
    TEST(test_rotated_forms),
    TEST(test_projection_forms),
    TEST_END,
};
