/*
 * Gradients of the real model, compared with the engine's forward pass when keys or values are moved along
 * them. test_backward.c has the exact comparison; this test has the sizes of a trained model: keys of large
 * norm, sharp attention, a vocabulary of 49152.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/backward.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 32 };

/* An exact cache that moves the appended vectors of one layer and side. */
struct moving_cache {
    struct kv_cache exact;
    uint32_t layer;
    enum side side;
    const float *direction; /* [N, n_kv_heads, d] */
    float step, *moved;
    size_t row; /* n_kv_heads * d */
};

static int append_moved(void *ctx, uint32_t layer, const float *k, const float *v, size_t n, struct errmsg *e)
{
    struct moving_cache *c = ctx;
    const float *x = c->side == SIDE_K ? k : v;

    if (layer != c->layer)
        return c->exact.append(c->exact.ctx, layer, k, v, n, e);

    for (size_t i = 0; i < n * c->row; i++)
        c->moved[i] = x[i] + c->step * c->direction[i];
    return c->exact.append(c->exact.ctx, layer, c->side == SIDE_K ? c->moved : k,
                           c->side == SIDE_V ? c->moved : v, n, e);
}

static int attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out, struct errmsg *e)
{
    struct moving_cache *c = ctx;

    return c->exact.attend(c->exact.ctx, layer, q, n_q, out, e);
}

struct window {
    struct engine *en;
    struct exact_cache *cache;
    uint32_t tokens[N], labels[N];
    float *hidden, *logits;
};

static double log_likelihood(struct window *w, struct moving_cache *c)
{
    struct kv_cache ops = {.ctx = c, .append = append_moved, .attend = attend};
    const struct engine_info *info = engine_info(w->en);
    struct errmsg e = {""};
    double sum = 0.0;

    exact_cache_clear(w->cache);
    CU_ASSERT_EQUAL_FATAL(engine_embed(w->en, w->tokens, N, w->hidden, &e), 0);
    CU_ASSERT_EQUAL_FATAL(engine_layers(w->en, &ops, 0, engine_geometry(w->en)->n_layers, N, w->hidden, &e),
                          0);
    CU_ASSERT_EQUAL_FATAL(engine_logits(w->en, N, w->hidden, w->logits, &e), 0);
    for (size_t i = 0; i < N; i++)
        sum -= sampler_nll(w->logits + i * info->n_vocab, info->n_vocab, w->labels[i]);
    return sum;
}

struct taken {
    size_t floats;
    float *gradient; /* [n_layers, 2, floats] */
};

static int take(void *ctx, uint32_t layer, size_t n, const float *dk, const float *dv)
{
    struct taken *t = ctx;

    (void) n;
    memcpy(t->gradient + (size_t) layer * 2 * t->floats, dk, t->floats * sizeof(float));
    memcpy(t->gradient + ((size_t) layer * 2 + 1) * t->floats, dv, t->floats * sizeof(float));
    return 0;
}

/*
 * Along its own direction u = g / |g| the derivative is |g|. A step h with 2 h |g| = 0.2 nats: the binary32
 * error of L, a sum of 32 logarithms with errors of about 1e-5 each, is 1e-3 of the difference. The
 * quotient's own error is c h^2 + O(h^4), and the first token's values make c large (2 % of the quotient):
 * (4 q(h/2) - q(h)) / 3 is free of it (Richardson).
 */
static void check_side(struct window *w, struct moving_cache *c, const float *gradient, size_t floats,
                       float *direction)
{
    double length = 0.0, quotient[2], extrapolated;

    for (size_t i = 0; i < floats; i++)
        length += (double) gradient[i] * (double) gradient[i];
    length = sqrt(length);
    CU_ASSERT_FATAL(length > 0);
    for (size_t i = 0; i < floats; i++)
        direction[i] = (float) ((double) gradient[i] / length);
    for (unsigned half = 0; half < 2; half++) {
        double h = 0.1 / length / (half ? 2 : 1), up, down;

        c->step = (float) h;
        up = log_likelihood(w, c);
        c->step = (float) -h;
        down = log_likelihood(w, c);
        quotient[half] = (up - down) / (2 * h);
    }

    extrapolated = (4 * quotient[1] - quotient[0]) / 3;
    CU_ASSERT_DOUBLE_EQUAL(extrapolated, length, 0.01 * length);
    if (!(fabs(extrapolated - length) < 0.01 * length))
        printf("    layer %u %c: |g| %g, by differences %g and %g\n", c->layer, c->side == SIDE_K ? 'K' : 'V',
               length, quotient[0], quotient[1]);
}

static void test_along_the_gradient(void)
{
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *cache = NULL;
    _cleanup_(backward_freep) struct backward *b = NULL;
    _cleanup_(freep) float *hidden = NULL, *logits = NULL, *gradient = NULL, *vectors = NULL;
    uint32_t layers[4] = {0, 1};
    struct sampler_state sampler;
    struct window w = {0};
    struct moving_cache c;
    struct errmsg e = {""};
    struct taken t;
    const char *path = test_model_path();

    if (!path) {
        test_skip(TEST_NO_MODEL);
        return;
    }

    CU_ASSERT_EQUAL_FATAL(engine_open(path, NULL, &en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), N, &cache, &e), 0);
    CU_ASSERT_EQUAL_FATAL(backward_new(en, N, &b, &e), 0);
    layers[2] = engine_geometry(en)->n_layers / 2;
    layers[3] = engine_geometry(en)->n_layers - 1;
    c = (struct moving_cache){.exact = exact_cache_ops(cache),
                              .row = (size_t) engine_geometry(en)->n_kv_heads * engine_geometry(en)->d};
    t.floats = N * c.row;
    w.hidden = hidden = malloc(N * engine_info(en)->n_embd * sizeof(float));
    w.logits = logits = malloc((size_t) N * engine_info(en)->n_vocab * sizeof(float));
    t.gradient = gradient = malloc((size_t) engine_geometry(en)->n_layers * 2 * t.floats * sizeof(float));
    vectors = malloc(2 * t.floats * sizeof(float));
    CU_ASSERT_FATAL(hidden && logits && gradient && vectors);
    w.en = en;
    w.cache = cache;
    c.direction = vectors;
    c.moved = vectors + t.floats;
    for (size_t i = 0; i < N; i++)
        w.tokens[i] = (uint32_t) test_rand_below(engine_info(en)->n_vocab);
    sampler_seed(&sampler, test_rand());
    CU_ASSERT_EQUAL_FATAL(backward_run(b, w.tokens, N, &sampler, w.labels, take, &t, &e), 0);
    for (size_t i = 0; i < 2 * sizeof(layers) / sizeof(layers[0]); i++) {
        c.layer = layers[i / 2];
        c.side = (enum side)(i % 2);
        check_side(&w, &c, gradient + ((size_t) c.layer * 2 + i % 2) * t.floats, t.floats, vectors);
    }
}

const struct test_case test_cases[] = {TEST(test_along_the_gradient), TEST_END};
const char test_suite[] = "engine_backward_model";
