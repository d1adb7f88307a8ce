/*
 * The forward pass against a plain binary64 one, written from the formulas, over every family, RoPE kind and
 * number type that the tiny model can have; and the ways to cut a text into passes against each other.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/engine/engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 40, N_PLANES_MAX = 128 };

/* ---- the oracle ---------------------------------------------------------------------------------------- */

struct oracle {
    const struct tiny_gguf *t;
    const struct tiny_gguf_options *o;
    double freq[N_PLANES_MAX], magnitude;
};

static const float *weights(const struct oracle *r, const char *fmt, unsigned layer)
{
    char name[64];
    int n;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = snprintf(name, sizeof(name), fmt, layer);
#pragma GCC diagnostic pop
    assert(n > 0);
    return tiny_gguf_tensor(r->t, name, NULL);
}

/* y = W x + b */
static void product(const float *w, const float *b, size_t rows, size_t cols, const double *x, double *y)
{
    for (size_t i = 0; i < rows; i++) {
        y[i] = b ? (double) b[i] : 0.0;
        for (size_t k = 0; k < cols; k++)
            y[i] += (double) w[i * cols + k] * x[k];
    }
}

static void norm(const float *w, size_t n, const double *x, double *y)
{
    double s = 0.0;

    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = sqrt(s / (double) n + (double) 1e-5f);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / s * (double) w[i];
}

/* YaRN as its paper gives it: a plane that turns r times in 1024 tokens is kept for r > 32, divided for r <
 * 1. */
static void oracle_rope(struct oracle *r)
{
    const float *factors = weights(r, "rope_freqs.weight", 0);
    unsigned half = r->o->n_rot / 2;
    bool yarn = r->o->rope_scaling && strcmp(r->o->rope_scaling, "yarn") == 0;
    bool linear = r->o->rope_scaling && strcmp(r->o->rope_scaling, "linear") == 0;
    double low = floor(r->o->n_rot * log(1024 / (32 * 2 * M_PI)) / (2 * log(10000.0)));
    double high = ceil(r->o->n_rot * log(1024 / (1 * 2 * M_PI)) / (2 * log(10000.0)));

    r->magnitude = yarn ? 0.1 * log(4.0) + 1.0 : 1.0;
    for (unsigned i = 0; i < half; i++) {
        double theta = pow(10000.0, -2.0 * i / r->o->n_rot), divide;

        divide = i < low ? 0.0 : i > high ? 1.0 : (i - low) / (high - low);
        r->freq[i] = theta / (factors ? (double) factors[i] : 1.0);
        if (linear)
            r->freq[i] /= 4.0;
        if (yarn)
            r->freq[i] *= (1.0 - divide) + divide / 4.0;
    }
}

/* Llama files rotate neighbours, the others the two halves. */
static void turn(const struct oracle *r, double *x, size_t position)
{
    unsigned half = r->o->n_rot / 2;
    bool pairs = strcmp(r->o->architecture, "llama") == 0;

    for (unsigned i = 0; i < half; i++) {
        double *a = pairs ? &x[2 * i] : &x[i], *b = pairs ? &x[2 * i + 1] : &x[i + half];
        double c = cos((double) position * r->freq[i]) * r->magnitude,
               s = sin((double) position * r->freq[i]) * r->magnitude;
        double rotated = *a * c - *b * s;

        *b = *a * s + *b * c;
        *a = rotated;
    }
}

static void oracle_project(const struct oracle *r, unsigned layer, size_t n, const double *x, double *q,
                           double *k, double *v)
{
    const struct tiny_gguf_options *o = r->o;
    size_t n_q = (size_t) o->n_heads * o->d, n_kv = (size_t) o->n_kv_heads * o->d;
    const float *q_norm = weights(r, "blk.%u.attn_q_norm.weight", layer),
                *k_norm = weights(r, "blk.%u.attn_k_norm.weight", layer);

    for (size_t m = 0; m < n; m++) {
        double y[1024];

        norm(weights(r, "blk.%u.attn_norm.weight", layer), o->n_embd, x + m * o->n_embd, y);
        product(weights(r, "blk.%u.attn_q.weight", layer), weights(r, "blk.%u.attn_q.bias", layer), n_q,
                o->n_embd, y, q + m * n_q);
        product(weights(r, "blk.%u.attn_k.weight", layer), weights(r, "blk.%u.attn_k.bias", layer), n_kv,
                o->n_embd, y, k + m * n_kv);
        product(weights(r, "blk.%u.attn_v.weight", layer), weights(r, "blk.%u.attn_v.bias", layer), n_kv,
                o->n_embd, y, v + m * n_kv);
        for (size_t h = 0; h < o->n_heads; h++) {
            if (q_norm)
                norm(q_norm, o->d, q + m * n_q + h * o->d, q + m * n_q + h * o->d);
            turn(r, q + m * n_q + h * o->d, m);
        }
        for (size_t h = 0; h < o->n_kv_heads; h++) {
            if (k_norm)
                norm(k_norm, o->d, k + m * n_kv + h * o->d, k + m * n_kv + h * o->d);
            turn(r, k + m * n_kv + h * o->d, m);
        }
    }
}

/* One query: softmax over all keys up to its own. */
static void oracle_look(const struct oracle *r, const double *q, const double *k, const double *v, size_t m,
                        double *out)
{
    size_t d = r->o->d, n_kv = (size_t) r->o->n_kv_heads * d;
    double sum = 0.0;

    memset(out, 0, d * sizeof(*out));
    for (size_t n = 0; n <= m; n++) {
        double s = 0.0;

        for (size_t i = 0; i < d; i++)
            s += q[i] * k[n * n_kv + i];
        s = exp(s / sqrt((double) d)); /* scores are small here: no maximum is needed */
        sum += s;
        for (size_t i = 0; i < d; i++)
            out[i] += s * v[n * n_kv + i];
    }
    for (size_t i = 0; i < d; i++)
        out[i] /= sum;
}

static void oracle_layer(const struct oracle *r, unsigned layer, size_t n, double *x)
{
    const struct tiny_gguf_options *o = r->o;
    size_t d = o->d, n_q = (size_t) o->n_heads * d, n_kv = (size_t) o->n_kv_heads * d;
    _cleanup_(freep) double *q = calloc(n * n_q, sizeof(double)), *k = calloc(n * n_kv, sizeof(double));
    _cleanup_(freep) double *v = calloc(n * n_kv, sizeof(double));

    assert(q && k && v);
    oracle_project(r, layer, n, x, q, k, v);
    for (size_t m = 0; m < n; m++) {
        double mixed[1024], y[1024], gate[2048], up[2048];

        for (size_t h = 0; h < o->n_heads; h++) {
            size_t kv = h / (o->n_heads / o->n_kv_heads) * d;

            oracle_look(r, q + m * n_q + h * d, k + kv, v + kv, m, mixed + h * d);
        }
        product(weights(r, "blk.%u.attn_output.weight", layer), NULL, o->n_embd, n_q, mixed, y);
        for (size_t i = 0; i < o->n_embd; i++)
            x[m * o->n_embd + i] += y[i];
        norm(weights(r, "blk.%u.ffn_norm.weight", layer), o->n_embd, x + m * o->n_embd, y);
        product(weights(r, "blk.%u.ffn_gate.weight", layer), NULL, o->n_ff, o->n_embd, y, gate);
        product(weights(r, "blk.%u.ffn_up.weight", layer), NULL, o->n_ff, o->n_embd, y, up);
        for (size_t i = 0; i < o->n_ff; i++)
            gate[i] *= up[i] / (1.0 + exp(-gate[i]));
        product(weights(r, "blk.%u.ffn_down.weight", layer), NULL, o->n_embd, o->n_ff, gate, y);
        for (size_t i = 0; i < o->n_embd; i++)
            x[m * o->n_embd + i] += y[i];
    }
}

/* Logits of all tokens, [n, vocabulary]. */
static double *oracle_logits(const struct tiny_gguf *t, const uint32_t *tokens, size_t n)
{
    struct oracle r = { .t = t, .o = tiny_gguf_shape(t) };
    size_t n_embd = r.o->n_embd;
    const float *embd = weights(&r, "token_embd.weight", 0), *head = weights(&r, "output.weight", 0);
    _cleanup_(freep) double *x = calloc(n * n_embd, sizeof(double));
    double *logits = calloc(n * TINY_GGUF_VOCAB, sizeof(double));

    assert(x && logits && n_embd <= 1024 && r.o->n_ff <= 2048 && r.o->n_heads * r.o->d <= 1024);
    oracle_rope(&r);
    for (size_t m = 0; m < n; m++)
        for (size_t i = 0; i < n_embd; i++)
            x[m * n_embd + i] = (double) embd[tokens[m] * n_embd + i];
    for (unsigned layer = 0; layer < r.o->n_layers; layer++)
        oracle_layer(&r, layer, n, x);
    for (size_t m = 0; m < n; m++) {
        double y[1024];

        norm(weights(&r, "output_norm.weight", 0), n_embd, x + m * n_embd, y);
        product(head ? head : embd, NULL, TINY_GGUF_VOCAB, n_embd, y, logits + m * TINY_GGUF_VOCAB);
    }
    return logits;
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static int open_tiny(const struct tiny_gguf *t, unsigned n_threads, struct engine **ret_engine,
                     struct errmsg *e)
{
    _cleanup_(closep) int fd = memfd_create("tiny.gguf", MFD_CLOEXEC); /* a file that no crash leaves behind */
    char path[64];

    CU_ASSERT_FATAL(fd >= 0);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    return engine_open(path, &(struct engine_options) { .n_threads = n_threads }, ret_engine, e);
}

/*
 * Logits here have a spread of 3. A binary32 sum of 512 terms of that size is off by about sqrt(512) * 2^-24
 * * 3 = 4e-6; a few layers of them, seen through softmax with scores up to 10, stay below ten times as much.
 */
#define TOLERANCE 1e-4

static void check_passes(struct engine *en, const uint32_t *tokens, const double *want, size_t piece)
{
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    struct kv_cache ops;
    struct errmsg e = { 0 };
    double worst = 0.0;

    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), N, &c, &e), 0);
    ops = exact_cache_ops(c);
    for (size_t at = 0; at < N; at += piece) {
        size_t n = N - at < piece ? N - at : piece;
        float logits[TINY_GGUF_VOCAB];

        CU_ASSERT_EQUAL_FATAL(engine_forward(en, &ops, tokens + at, n, logits, &e), 0);
        for (size_t i = 0; i < TINY_GGUF_VOCAB; i++)
            worst = fmax(worst, fabs((double) logits[i] - want[(at + n - 1) * TINY_GGUF_VOCAB + i]));
    }
    CU_ASSERT(worst < TOLERANCE);
    if (!(worst < TOLERANCE))
        printf("    pieces of %zu: off by %g\n", piece, worst);
    CU_ASSERT_EQUAL(ops.length(ops.ctx), N);
}

static void check_model(const struct tiny_gguf_options *o)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(o);
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(freep) double *want = NULL;
    uint32_t tokens[N];
    struct errmsg e = { 0 };
    int r;

    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint32_t) test_rand_below(TINY_GGUF_VOCAB);
    want = oracle_logits(t, tokens, N);
    r = open_tiny(t, 2, &en, &e);
    if (r != 0)
        printf("    %s\n", e.text);
    CU_ASSERT_EQUAL_FATAL(r, 0);
    check_passes(en, tokens, want, N); /* OpenBLAS */
    check_passes(en, tokens, want, 1); /* decode */
    check_passes(en, tokens, want, 3); /* both kinds of attention, the matrix-vector path for several */
    check_passes(en, tokens, want, 17);
}

static void test_families(void)
{
    static const char *const names[] = { "llama", "qwen2", "qwen3" };

    for (unsigned i = 0; i < 3; i++) {
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .seed = i });
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .seed = i, .untied = true, .n_layers = 3 });
    }
}

static void test_shapes(void)
{
    check_model(&(struct tiny_gguf_options) { .n_heads = 9, .n_kv_heads = 3, .d = 64, .n_embd = 96 });
    check_model(&(struct tiny_gguf_options) { .n_heads = 8, .n_kv_heads = 1, .d = 80, .n_layers = 1 });
    check_model(&(struct tiny_gguf_options) { .n_heads = 2, .n_kv_heads = 2, .d = 256, .n_layers = 1 });
    check_model(&(struct tiny_gguf_options) { .architecture = "qwen3", .n_heads = 4, .d = 128, .n_embd = 64 });
}

static void test_rope_kinds(void)
{
    static const char *const names[] = { "llama", "qwen2" };

    for (unsigned i = 0; i < 2; i++) {
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .rope_scaling = "linear" });
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .rope_scaling = "yarn", .d = 64 });
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .rope_freqs = true });
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .d = 64, .n_rot = 24 });
        check_model(&(struct tiny_gguf_options) { .architecture = names[i], .d = 64, .n_rot = 32, .rope_scaling = "yarn" });
    }
}

static void test_types(void)
{
    static const uint32_t types[] = { 0, 1, 3, 8 };

    for (unsigned i = 0; i < 4; i++)
        check_model(&(struct tiny_gguf_options) { .type = types[i], .seed = i, .untied = i % 2 == 0 });
}

/* ---- the steps, the tap, refusals ---------------------------------------------------------------------- */

struct tapped {
    unsigned calls;
    uint32_t stop_at;
    float first_key;
};

static int tap(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v)
{
    struct tapped *t = ctx;

    CU_ASSERT_EQUAL(layer, t->calls);
    CU_ASSERT_EQUAL(n, 5);
    CU_ASSERT(isfinite(q[0]) && isfinite(v[0]));
    if (layer == 0)
        t->first_key = k[1]; /* half-split: pair 0 is (0, 16), so number 1 is number 2 of the file */
    t->calls++;
    return layer == t->stop_at ? 7 : 0;
}

static void test_tap(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options) { .n_layers = 3 });
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[5] = { 1, 2, 3, 4, 5 };
    struct tapped seen = { .stop_at = 99 };
    struct kv_cache ops;
    struct errmsg e = { 0 };
    double x[128], y[128], key = 0.0;

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), 16, &c, &e), 0);
    ops = exact_cache_ops(c);
    engine_set_tap(en, tap, &seen);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 5, NULL, &e), 0);
    CU_ASSERT_EQUAL(seen.calls, 3);
    for (size_t i = 0; i < 128; i++)
        x[i] = (double) tiny_gguf_tensor(t, "token_embd.weight", NULL)[128 + i];
    norm(tiny_gguf_tensor(t, "blk.0.attn_norm.weight", NULL), 128, x, y);
    product(tiny_gguf_tensor(t, "blk.0.attn_k.weight", NULL) + 2 * 128, NULL, 1, 128, y, &key);
    CU_ASSERT_DOUBLE_EQUAL((double) seen.first_key, key, 1e-5);

    seen = (struct tapped) { .stop_at = 1 };
    exact_cache_clear(c);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 5, NULL, &e), 7);
    CU_ASSERT_EQUAL(seen.calls, 2);
}

static void test_output_projection(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options) { .type = 8 });
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(freep) float *wo = malloc(128 * 128 * sizeof(*wo));
    struct errmsg e = { 0 };

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL(engine_output_projection(en, 1, wo, &e), 0);
    CU_ASSERT_EQUAL(memcmp(wo, tiny_gguf_tensor(t, "blk.1.attn_output.weight", NULL), 128 * 128 * sizeof(*wo)),
                    0);
    CU_ASSERT_EQUAL(engine_output_projection(en, 2, wo, &e), -EINVAL);
}

static void check_refused(const struct tiny_gguf_options *o, int want, const char *named)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(o);
    struct engine *en = NULL;
    struct errmsg e = { 0 };

    CU_ASSERT_EQUAL(open_tiny(t, 1, &en, &e), want);
    CU_ASSERT_PTR_NULL(en);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, named));
    if (!strstr(e.text, named))
        printf("    \"%s\" does not name %s\n", e.text, named);
}

static void test_refusals(void)
{
    check_refused(&(struct tiny_gguf_options) { .architecture = "gemma2" }, -EOPNOTSUPP, "gemma2");
    check_refused(&(struct tiny_gguf_options) { .tokenizer = "llama" }, -EOPNOTSUPP, "SentencePiece");
    check_refused(&(struct tiny_gguf_options) { .pre = "deepseek-llm" }, -EOPNOTSUPP, "deepseek-llm");
    check_refused(&(struct tiny_gguf_options) { .rope_scaling = "longrope" }, -EOPNOTSUPP, "longrope");
    check_refused(&(struct tiny_gguf_options) { .extra_key = "llama.expert_count", .extra_value = 8 }, -EOPNOTSUPP,
                  "llama.expert_count");
    check_refused(&(struct tiny_gguf_options) { .extra_tensor = "blk.0.attn_sub_norm.weight" }, -EOPNOTSUPP,
                  "blk.0.attn_sub_norm.weight");
    check_refused(&(struct tiny_gguf_options) { .extra_tensor = "blk.00.attn_norm.weight" }, -EBADMSG, "two ways");
    check_refused(&(struct tiny_gguf_options) { .extra_key = "tokenizer.ggml.padding_token_id", .d = 288 }, -EOPNOTSUPP, "288");
    check_refused(&(struct tiny_gguf_options) { .extra_key = "general.alignment", .extra_value = 48 }, -EBADMSG,
                  "general.alignment");
}

static void test_sliding_window(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(
        &(struct tiny_gguf_options) { .extra_key = "llama.attention.sliding_window", .extra_value = 8 });
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[9] = { 0 };
    struct kv_cache ops;
    struct errmsg e = { 0 };

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL(engine_info(en)->window_tokens, 8);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), 16, &c, &e), 0);
    ops = exact_cache_ops(c);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 9, NULL, &e), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 8, NULL, &e), 0);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 1, NULL, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "window"));
}

static void test_bad_calls(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options) { 0 });
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[5] = { 1, 2, TINY_GGUF_VOCAB, 3, 4 };
    struct kv_cache ops;
    struct errmsg e = { 0 };

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), 4, &c, &e), 0);
    ops = exact_cache_ops(c);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 0, NULL, &e), -EINVAL);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 3, NULL, &e), -EINVAL);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 2, NULL, &e), 0);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 2, NULL, &e), 0);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 1, NULL, &e), -ENOSPC);
    CU_ASSERT_EQUAL(engine_layers(en, &ops, 1, 3, 1, NULL, &e), -EINVAL);
    CU_ASSERT_EQUAL(engine_open("/nonexistent/model.gguf", NULL, &en, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "/nonexistent/model.gguf"));
}

/* Another weight, another digest; another vocabulary string or final norm, the same. */
static void test_digest(void)
{
    struct tiny_gguf_options o = { .seed = 1 };
    uint8_t digests[4][DIGEST_BYTES];

    for (unsigned i = 0; i < 4; i++) {
        _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = NULL;
        _cleanup_(engine_freep) struct engine *en = NULL;
        struct errmsg e = { 0 };

        o.seed = i == 2 ? 2 : 1;
        o.pre = i == 1 ? "qwen2" : NULL; /* does not touch K and V */
        o.rope_scaling = i == 3 ? "linear" : NULL;
        t = tiny_gguf_new(&o);
        CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
        memcpy(digests[i], engine_info(en)->model_digest, DIGEST_BYTES);
    }
    CU_ASSERT_EQUAL(memcmp(digests[0], digests[1], DIGEST_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(digests[0], digests[2], DIGEST_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(digests[0], digests[3], DIGEST_BYTES), 0);
}

const struct test_case test_cases[] = {
    TEST(test_families),
    TEST(test_shapes),
    TEST(test_rope_kinds),
    TEST(test_types),
    TEST(test_tap),
    TEST(test_output_projection),
    TEST(test_refusals),
    TEST(test_sliding_window),
    TEST(test_bad_calls),
    TEST(test_digest),
    TEST_END,
};
const char test_suite[] = "engine_forward";
