/*
 * Gradients compared with central differences of the binary64 network (oracle.c), over every family, shape
 * and RoPE kind that the tiny model can have; labels, order of calls, refusals.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tests/unit/tools/engine/oracle.h"
#include "tools/engine/backward.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 12, N_LONG = 600 };

static void open_tiny(const struct tiny_gguf *t, unsigned n_threads, struct engine **ret_engine)
{
    _cleanup_(closep) int fd = memfd_create("tiny.gguf", MFD_CLOEXEC);
    const struct engine_options o = {.n_threads = n_threads};
    struct errmsg e = {0};
    char path[64];

    CU_ASSERT_FATAL(fd >= 0);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &o, ret_engine, &e), 0);
}

static void random_tokens(uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint32_t) test_rand_below(TINY_GGUF_VOCAB);
}

/* ---- recorded by the taps ---- */

struct seen {
    size_t floats;           /* of one layer and side */
    uint32_t n_layers, next; /* layers come last to first */
    float *gradient;         /* [n_layers, 2, floats] */
    uint32_t stop_at;
};

static int take(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    struct seen *s = ctx;
    float *to = s->gradient + (size_t) layer * 2 * s->floats;

    (void) n;
    CU_ASSERT_EQUAL(layer + 1, s->next);
    s->next = layer;
    if (layer == s->stop_at)
        return 9;

    memcpy(to, dk, s->floats * sizeof(*to));
    memcpy(to + s->floats, dv, s->floats * sizeof(*to));
    return 0;
}

static void seen_init(struct seen *s, const struct engine *en, size_t n)
{
    const struct geometry *g = engine_geometry(en);

    *s = (struct seen){.floats = n * g->n_kv_heads * g->d,
                       .n_layers = g->n_layers,
                       .next = g->n_layers,
                       .stop_at = UINT32_MAX};
    s->gradient = calloc((size_t) s->n_layers * 2 * s->floats, sizeof(float));
    CU_ASSERT_PTR_NOT_NULL_FATAL(s->gradient);
}

/* ---- central differences ---- */

/* L = sum of log p(label). */
static double log_likelihood(const struct tiny_gguf *t, const uint32_t *tokens, const uint32_t *labels,
                             size_t n, const struct oracle_change *change)
{
    _cleanup_(freep) double *logits = oracle_logits(t, tokens, n, change);
    double sum = 0.0;

    for (size_t m = 0; m < n; m++) {
        const double *z = logits + m * TINY_GGUF_VOCAB;
        double total = 0.0;

        for (size_t i = 0; i < TINY_GGUF_VOCAB; i++)
            total += exp(z[i]); /* a spread of 3: no maximum is needed */
        sum += z[labels[m]] - log(total);
    }

    return sum;
}

/*
 * The difference quotient (L(+h) - L(-h)) / 2h along a unit vector is off by h^2/6 times a third derivative
 * and by 2^-52 |L| / h; with h = 1e-4, |L| < 1e4 and derivatives like the gradient itself that is below 1e-7.
 *
 * The gradient's own error: binary32 sums of up to 512 terms are off by about sqrt(512) 2^-24 = 1.3e-6 of
 * their terms, some 15 of them follow one another in each of three layers, and they add like random numbers:
 * 1e-5 |g| (measured 5e-7). A random unit vector in 768 dimensions sees 0.04 |g|, so a gradient that is wrong
 * by a thousandth fails.
 */
#define STEP 1e-4
#define TOLERANCE 1e-5

static void check_direction(const struct tiny_gguf *t, const uint32_t *tokens, const uint32_t *labels,
                            size_t n, const float *gradient, size_t floats, struct oracle_change *change)
{
    double along = 0.0, length = 0.0, up, down, off;

    for (size_t i = 0; i < floats; i++) {
        along += (double) gradient[i] * (double) change->direction[i];
        length += (double) gradient[i] * (double) gradient[i];
    }

    change->step = STEP;
    up = log_likelihood(t, tokens, labels, n, change);
    change->step = -STEP;
    down = log_likelihood(t, tokens, labels, n, change);
    CU_ASSERT(length > 0);
    off = fabs((up - down) / (2 * STEP) - along) / (TOLERANCE * sqrt(length));
    CU_ASSERT(off < 1);
    if (!(off < 1))
        printf("    layer %u %c: %g by differences, %g by the pass, |g| %g\n", change->layer,
               change->side == SIDE_K ? 'K' : 'V', (up - down) / (2 * STEP), along, sqrt(length));
}

/* A unit vector: @like scaled, or random if NULL. */
static void unit_vector(const float *like, size_t floats, float *ret)
{
    double length = 0.0;

    for (size_t i = 0; i < floats; i++) {
        ret[i] = like ? like[i] : (float) test_rand_normal();
        length += (double) ret[i] * (double) ret[i];
    }

    for (size_t i = 0; i < floats; i++)
        ret[i] = (float) ((double) ret[i] / sqrt(length));
}

static void check_model(const struct tiny_gguf_options *o, size_t n)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(o);
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(backward_freep) struct backward *b = NULL;
    _cleanup_(freep) float *direction = NULL;
    uint32_t tokens[N_LONG], labels[N_LONG];
    struct errmsg e = {0};
    struct seen s;

    open_tiny(t, 2, &en);
    random_tokens(tokens, n);
    random_tokens(labels, n);
    seen_init(&s, en, n);
    CU_ASSERT_EQUAL_FATAL(backward_new(en, n + 3, &b, &e), 0); /* room for more: strides differ from sizes */
    CU_ASSERT_EQUAL_FATAL(backward_run(b, tokens, n, NULL, labels, take, &s, &e), 0);
    CU_ASSERT_EQUAL(s.next, 0);
    direction = calloc(s.floats, sizeof(*direction));
    for (uint32_t i = 0; i < s.n_layers * 2; i++) {
        struct oracle_change c = {.layer = i / 2, .side = (enum side)(i % 2), .direction = direction};
        const float *gradient = s.gradient + i * s.floats;

        unit_vector(gradient, s.floats, direction);
        check_direction(t, tokens, labels, n, gradient, s.floats, &c);
        unit_vector(NULL, s.floats, direction);
        check_direction(t, tokens, labels, n, gradient, s.floats, &c);
    }

    free(s.gradient);
}

typedef struct tiny_gguf_options shape;

static void test_families(void)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3"};

    for (unsigned i = 0; i < 3; i++) {
        check_model(&(shape){.architecture = names[i], .seed = i, .n_layers = 3}, N);
        check_model(&(shape){.architecture = names[i], .seed = i, .untied = true, .type = 8}, N);
    }
}

static void test_shapes(void)
{
    check_model(&(shape){.n_heads = 9, .n_kv_heads = 3, .d = 64, .n_embd = 96, .n_layers = 1}, N);
    check_model(&(shape){.n_heads = 8, .n_kv_heads = 1, .d = 80, .n_embd = 64, .n_layers = 1}, N);
    check_model(&(shape){.n_heads = 2, .n_kv_heads = 2, .d = 256, .n_embd = 64, .n_layers = 1}, N);
}

static void test_rope_kinds(void)
{
    static const char *const names[] = {"llama", "qwen3"};

    for (unsigned i = 0; i < 2; i++) {
        shape o = {.architecture = names[i], .d = 64, .n_embd = 64};

        o.rope_scaling = "yarn";
        check_model(&o, N);
        o.n_rot = 32;
        check_model(&o, N);
        o.n_rot = 24;
        o.rope_scaling = NULL;
        check_model(&o, N);
    }
}

/* One token: its softmax is 1 for any key. */
static void test_one_token(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(shape){.n_layers = 1});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(backward_freep) struct backward *b = NULL;
    uint32_t token = 3, label = 7;
    struct errmsg e = {0};
    double values = 0.0;
    struct seen s;

    open_tiny(t, 1, &en);
    seen_init(&s, en, 1);
    CU_ASSERT_EQUAL_FATAL(backward_new(en, 1, &b, &e), 0);
    CU_ASSERT_EQUAL(backward_run(b, &token, 1, NULL, &label, take, &s, &e), 0);
    for (size_t i = 0; i < s.floats; i++) {
        CU_ASSERT_EQUAL(s.gradient[i], 0.0f);
        values += fabs((double) s.gradient[s.floats + i]);
    }

    CU_ASSERT(values > 0);
    free(s.gradient);
}

/* More tokens than the blocks of the head (128), of the wide activations (512), of a part's queries (64 of
 * 75). */
static void test_long_window(void)
{
    check_model(&(shape){.n_embd = 64, .n_ff = 64}, N_LONG);
}

/* ---- labels, taps, refusals ---- */

/* Labels are sampled from the logits in the order of positions; the same seed gives the same gradients. */
static void test_labels(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){0});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(backward_freep) struct backward *b = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    _cleanup_(freep) float *logits = malloc(200 * TINY_GGUF_VOCAB * sizeof(*logits));
    _cleanup_(freep) float *hidden = malloc(200 * 128 * sizeof(*hidden));
    uint32_t tokens[200], labels[200], again[200];
    struct sampler_state sampler;
    struct errmsg e = {0};
    struct kv_cache ops;
    struct seen first, second;

    open_tiny(t, 2, &en);
    random_tokens(tokens, 200);
    seen_init(&first, en, 200);
    seen_init(&second, en, 200);
    CU_ASSERT_EQUAL_FATAL(backward_new(en, 200, &b, &e), 0);
    sampler_seed(&sampler, 5);
    CU_ASSERT_EQUAL(backward_run(b, tokens, 200, &sampler, labels, take, &first, &e), 0);
    sampler_seed(&sampler, 5);
    CU_ASSERT_EQUAL(backward_run(b, tokens, 200, &sampler, again, take, &second, &e), 0);
    CU_ASSERT_EQUAL(memcmp(labels, again, sizeof(labels)), 0);
    CU_ASSERT_EQUAL(memcmp(first.gradient, second.gradient, first.floats * 4 * sizeof(float)), 0);
    sampler_seed(&sampler, 6);
    second.next = second.n_layers;
    CU_ASSERT_EQUAL(backward_run(b, tokens, 200, &sampler, again, take, &second, &e), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(labels, again, sizeof(labels)), 0);

    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), 200, &c, &e), 0);
    ops = exact_cache_ops(c);
    CU_ASSERT_EQUAL(engine_embed(en, tokens, 200, hidden, &e), 0);
    CU_ASSERT_EQUAL(engine_layers(en, &ops, 0, 2, 200, hidden, &e), 0);
    CU_ASSERT_EQUAL(engine_logits(en, 200, hidden, logits, &e), 0);
    sampler_seed(&sampler, 5);
    for (size_t i = 0; i < 200; i++)
        CU_ASSERT_EQUAL(labels[i],
                        sampler_softmax(logits + i * TINY_GGUF_VOCAB, TINY_GGUF_VOCAB, 1.0f, &sampler));
    free(first.gradient);
    free(second.gradient);
}

struct forward_seen {
    uint32_t next;
    const struct seen *back;
};

static int forward_tap(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v,
                       const float *hidden)
{
    struct forward_seen *f = ctx;

    CU_ASSERT_EQUAL(layer, f->next);
    CU_ASSERT_EQUAL(f->back->next, 2); /* before the backward pass */
    CU_ASSERT(n == N && isfinite(q[0]) && isfinite(k[0]) && isfinite(v[0]) && isfinite(hidden[0]));
    f->next++;
    return 0;
}

static void test_taps(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){0});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(backward_freep) struct backward *b = NULL;
    uint32_t tokens[N] = {1}, labels[N] = {2};
    struct forward_seen f = {0};
    struct errmsg e = {0};
    struct seen s;

    open_tiny(t, 1, &en);
    seen_init(&s, en, N);
    f.back = &s;
    CU_ASSERT_EQUAL_FATAL(backward_new(en, N, &b, &e), 0);
    engine_set_tap(en, forward_tap, &f);
    CU_ASSERT_EQUAL(backward_run(b, tokens, N, NULL, labels, take, &s, &e), 0);
    engine_set_tap(en, NULL, NULL);
    CU_ASSERT_EQUAL(f.next, 2);
    s.next = s.n_layers;
    s.stop_at = 1;
    CU_ASSERT_EQUAL(backward_run(b, tokens, N, NULL, labels, take, &s, &e), 9);
    CU_ASSERT_EQUAL(s.next, 1);
    free(s.gradient);
}

static void test_refusals(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(
        &(struct tiny_gguf_options){.extra_key = "llama.attention.sliding_window", .extra_value = 8});
    _cleanup_(engine_freep) struct engine *en = NULL;
    struct backward *b = NULL;
    uint32_t tokens[9] = {0}, labels[9] = {0};
    struct errmsg e = {0};
    struct seen s;

    open_tiny(t, 1, &en);
    seen_init(&s, en, 9);
    CU_ASSERT_EQUAL(backward_new(en, 0, &b, &e), -EINVAL);
    CU_ASSERT_EQUAL(backward_new(en, 9, &b, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "window"));
    CU_ASSERT_PTR_NULL(b);
    CU_ASSERT_EQUAL_FATAL(backward_new(en, 8, &b, &e), 0);
    CU_ASSERT_EQUAL(backward_run(b, tokens, 0, NULL, labels, take, &s, &e), -EINVAL);
    CU_ASSERT_EQUAL(backward_run(b, tokens, 9, NULL, labels, take, &s, &e), -EINVAL);
    labels[3] = TINY_GGUF_VOCAB;
    CU_ASSERT_EQUAL(backward_run(b, tokens, 8, NULL, labels, take, &s, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "label 259"));
    labels[3] = 0;
    tokens[2] = TINY_GGUF_VOCAB;
    CU_ASSERT_EQUAL(backward_run(b, tokens, 8, NULL, labels, take, &s, &e), -EINVAL);
    CU_ASSERT_EQUAL(s.next, s.n_layers);                                /* no gradients */
    CU_ASSERT(backward_bytes(en, 8) > 8 * 2 * 2 * 128 * sizeof(float)); /* at least the hidden states */
    CU_ASSERT_EQUAL(backward_bytes(en, SIZE_MAX / 8), UINT64_MAX);
    (void) backward_free(b);
    free(s.gradient);
}

const struct test_case test_cases[] = {
    TEST(test_families),  TEST(test_shapes),      TEST(test_rope_kinds),
    TEST(test_one_token), TEST(test_long_window), TEST(test_labels),
    TEST(test_taps),      TEST(test_refusals),    TEST_END,
};
const char test_suite[] = "engine_backward";
