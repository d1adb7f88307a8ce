/*
 * The forward pass compared with a binary64 one (oracle.c), over every family, RoPE kind and number type of
 * the tiny model; and different cuts of a text into passes compared with each other.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tests/unit/tools/engine/oracle.h"
#include "tools/engine/engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N = 40 };

/* ---- the engine ---- */

static int open_tiny(const struct tiny_gguf *t, unsigned n_threads, struct engine **ret_engine,
                     struct errmsg *e)
{
    /* A memory file: a crash leaves no file behind. */
    _cleanup_(closep) int fd = memfd_create("tiny.gguf", MFD_CLOEXEC);
    char path[64];

    CU_ASSERT_FATAL(fd >= 0);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    return engine_open(path, &(struct engine_options){.n_threads = n_threads}, ret_engine, e);
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
    struct errmsg e = {0};
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
    struct errmsg e = {0};
    int r;

    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint32_t) test_rand_below(TINY_GGUF_VOCAB);
    want = oracle_logits(t, tokens, N, NULL);
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
    static const char *const names[] = {"llama", "qwen2", "qwen3"};

    for (unsigned i = 0; i < 3; i++) {
        check_model(&(struct tiny_gguf_options){.architecture = names[i], .seed = i});
        check_model(
            &(struct tiny_gguf_options){.architecture = names[i], .seed = i, .untied = true, .n_layers = 3});
    }
}

static void test_shapes(void)
{
    check_model(&(struct tiny_gguf_options){.n_heads = 9, .n_kv_heads = 3, .d = 64, .n_embd = 96});
    check_model(&(struct tiny_gguf_options){.n_heads = 8, .n_kv_heads = 1, .d = 80, .n_layers = 1});
    check_model(&(struct tiny_gguf_options){.n_heads = 2, .n_kv_heads = 2, .d = 256, .n_layers = 1});
    check_model(&(struct tiny_gguf_options){.architecture = "qwen3", .n_heads = 4, .d = 128, .n_embd = 64});
}

static void test_rope_kinds(void)
{
    static const char *const names[] = {"llama", "qwen2"};

    for (unsigned i = 0; i < 2; i++) {
        check_model(&(struct tiny_gguf_options){.architecture = names[i], .rope_scaling = "linear"});
        check_model(&(struct tiny_gguf_options){.architecture = names[i], .rope_scaling = "yarn", .d = 64});
        check_model(&(struct tiny_gguf_options){.architecture = names[i], .rope_freqs = true});
        check_model(&(struct tiny_gguf_options){.architecture = names[i], .d = 64, .n_rot = 24});
        check_model(&(struct tiny_gguf_options){
            .architecture = names[i], .d = 64, .n_rot = 32, .rope_scaling = "yarn"});
    }
}

static void test_types(void)
{
    static const uint32_t types[] = {0, 1, 3, 8};

    for (unsigned i = 0; i < 4; i++)
        check_model(&(struct tiny_gguf_options){.type = types[i], .seed = i, .untied = i % 2 == 0});
}

/* ---- the steps, the tap, refusals ---- */

struct tapped {
    unsigned calls;
    uint32_t stop_at;
    float first_key;
    float hidden[128]; /* of the first token, after the first layer's attention */
};

static int tap(void *ctx, uint32_t layer, size_t n, const float *q, const float *k, const float *v,
               const float *hidden)
{
    struct tapped *t = ctx;

    CU_ASSERT_EQUAL(layer, t->calls);
    CU_ASSERT_EQUAL(n, 5);
    CU_ASSERT(isfinite(q[0]) && isfinite(v[0]));
    if (layer == 0) {
        t->first_key = k[1]; /* half-split: pair 0 is (0, 16), so number 1 is number 2 of the file */
        memcpy(t->hidden, hidden, sizeof(t->hidden));
    }

    t->calls++;
    return layer == t->stop_at ? 7 : 0;
}

/* The first token sees only itself: the stream becomes x + W_O of the values of @normed, each for its group
 * of heads. */
static void check_first_residual(const struct tiny_gguf *t, const struct geometry *g, const double *x,
                                 const double *normed, const float *got)
{
    double v[128], mixed[128], added[128];

    oracle_product(tiny_gguf_tensor(t, "blk.0.attn_v.weight", NULL), NULL, g->n_kv_heads * g->d, 128, normed,
                   v);
    for (size_t i = 0; i < 128; i++)
        mixed[i] = v[i / g->d / geometry_group(g) * g->d + i % g->d];
    oracle_product(tiny_gguf_tensor(t, "blk.0.attn_output.weight", NULL), NULL, 128, 128, mixed, added);
    for (size_t i = 0; i < 128; i++) /* binary32 sums of 128 terms below 1 */
        CU_ASSERT_DOUBLE_EQUAL((double) got[i], x[i] + added[i], 2e-5);
}

static void test_tap(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
        tiny_gguf_new(&(struct tiny_gguf_options){.n_layers = 3});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[5] = {1, 2, 3, 4, 5};
    struct tapped seen = {.stop_at = 99};
    struct kv_cache ops;
    struct errmsg e = {0};
    double x[128], y[128], key = 0.0;

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), 16, &c, &e), 0);
    ops = exact_cache_ops(c);
    engine_set_tap(en, tap, &seen);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 5, NULL, &e), 0);
    CU_ASSERT_EQUAL(seen.calls, 3);
    for (size_t i = 0; i < 128; i++)
        x[i] = (double) tiny_gguf_tensor(t, "token_embd.weight", NULL)[128 + i];
    oracle_norm(tiny_gguf_tensor(t, "blk.0.attn_norm.weight", NULL), 128, x, y);
    oracle_product(tiny_gguf_tensor(t, "blk.0.attn_k.weight", NULL) + 2 * 128, NULL, 1, 128, y, &key);
    CU_ASSERT_DOUBLE_EQUAL((double) seen.first_key, key, 1e-5);
    check_first_residual(t, engine_geometry(en), x, y, seen.hidden);

    seen = (struct tapped){.stop_at = 1};
    exact_cache_clear(c);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 5, NULL, &e), 7);
    CU_ASSERT_EQUAL(seen.calls, 2);
}

static void test_output_projection(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){.type = 8});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(freep) float *wo = malloc(128 * 128 * sizeof(*wo));
    struct errmsg e = {0};

    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL(engine_output_projection(en, 1, wo, &e), 0);
    CU_ASSERT_EQUAL(
        memcmp(wo, tiny_gguf_tensor(t, "blk.1.attn_output.weight", NULL), 128 * 128 * sizeof(*wo)), 0);
    CU_ASSERT_EQUAL(engine_output_projection(en, 2, wo, &e), -EINVAL);
}

static void check_refused(const struct tiny_gguf_options *o, int want, const char *named)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(o);
    struct engine *en = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(open_tiny(t, 1, &en, &e), want);
    CU_ASSERT_PTR_NULL(en);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, named));
    if (!strstr(e.text, named))
        printf("    \"%s\" does not name %s\n", e.text, named);
}

/* Types of values that llama.cpp takes, too. */
static void test_odd_types(void)
{
    const struct tiny_gguf_options o = {.odd_types = true, .n_layers = 3};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    _cleanup_(engine_freep) struct engine *en = NULL;
    struct errmsg e = {0};

    check_model(&o);
    CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
    CU_ASSERT_EQUAL(engine_info(en)->token_eos, UINT32_MAX);
    CU_ASSERT_EQUAL(engine_info(en)->token_bos, TINY_GGUF_BOS);
    CU_ASSERT_EQUAL(engine_geometry(en)->n_kv_heads, 2);
}

/* A file that names no pre-tokeniser is cut as llama.cpp's "default" cuts it. */
static void test_no_pretokenizer(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
        tiny_gguf_new(&(struct tiny_gguf_options){.no_pre = true});
    _cleanup_(engine_freep) struct engine *en = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(open_tiny(t, 1, &en, &e), 0);
}

/* Files that are no whole model say what they are. */
static void test_other_kinds(void)
{
    check_refused(&(struct tiny_gguf_options){.extra_key = "split.count", .extra_value = 2}, -EOPNOTSUPP,
                  "is part 1 of 2 of a split model");
    check_model(&(struct tiny_gguf_options){.extra_key = "split.count", .extra_value = 1});
    check_model(&(struct tiny_gguf_options){.extra_key = "split.count", .extra_value = 0});
    check_model(&(struct tiny_gguf_options){.extra_key = "general.type", .extra_text = "model"});
    check_refused(&(struct tiny_gguf_options){.extra_key = "general.type", .extra_text = "adapter"},
                  -EOPNOTSUPP, "a LoRA adapter");
    check_refused(&(struct tiny_gguf_options){.extra_key = "adapter.type", .extra_text = "lora"}, -EOPNOTSUPP,
                  "a LoRA adapter");
    check_refused(&(struct tiny_gguf_options){.extra_key = "general.type", .extra_text = "mmproj"},
                  -EOPNOTSUPP, "the projector of a multimodal model");
    check_refused(&(struct tiny_gguf_options){.architecture = "clip"}, -EOPNOTSUPP, "the projector of");
    check_refused(&(struct tiny_gguf_options){.extra_key = "general.type", .extra_text = "imatrix"},
                  -EOPNOTSUPP, "an importance matrix");
    check_refused(&(struct tiny_gguf_options){.architecture = "controlvector"}, -EOPNOTSUPP,
                  "a control vector");
}

static void test_refusals(void)
{
    check_refused(&(struct tiny_gguf_options){.architecture = "gemma2"}, -EOPNOTSUPP, "gemma2");
    check_refused(&(struct tiny_gguf_options){.tokenizer = "llama"}, -EOPNOTSUPP, "SentencePiece");
    check_refused(&(struct tiny_gguf_options){.pre = "deepseek-llm"}, -EOPNOTSUPP, "deepseek-llm");
    check_refused(&(struct tiny_gguf_options){.rope_scaling = "longrope"}, -EOPNOTSUPP, "longrope");
    check_refused(&(struct tiny_gguf_options){.extra_key = "llama.expert_count", .extra_value = 8},
                  -EOPNOTSUPP, "llama.expert_count");
    check_refused(&(struct tiny_gguf_options){.extra_tensor = "blk.0.attn_sub_norm.weight"}, -EOPNOTSUPP,
                  "blk.0.attn_sub_norm.weight");
    check_refused(&(struct tiny_gguf_options){.extra_tensor = "blk.00.attn_norm.weight"}, -EBADMSG,
                  "two ways");
    check_refused(&(struct tiny_gguf_options){.extra_key = "tokenizer.ggml.padding_token_id", .d = 288},
                  -EOPNOTSUPP, "288");
    check_refused(&(struct tiny_gguf_options){.extra_key = "general.alignment", .extra_value = 48}, -EBADMSG,
                  "general.alignment");
}

static void test_sliding_window(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(
        &(struct tiny_gguf_options){.extra_key = "llama.attention.sliding_window", .extra_value = 8});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[9] = {0};
    struct kv_cache ops;
    struct errmsg e = {0};

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
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){0});
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[5] = {1, 2, TINY_GGUF_VOCAB, 3, 4};
    struct kv_cache ops;
    struct errmsg e = {0};

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
    struct tiny_gguf_options o = {.seed = 1};
    uint8_t digests[4][DIGEST_BYTES];

    for (unsigned i = 0; i < 4; i++) {
        _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = NULL;
        _cleanup_(engine_freep) struct engine *en = NULL;
        struct errmsg e = {0};

        o.seed = i == 2 ? 2 : 1;
        o.pre = i == 1 ? "qwen2" : NULL; /* does not affect K and V */
        o.rope_scaling = i == 3 ? "linear" : NULL;
        t = tiny_gguf_new(&o);
        CU_ASSERT_EQUAL_FATAL(open_tiny(t, 1, &en, &e), 0);
        memcpy(digests[i], engine_info(en)->model_digest, DIGEST_BYTES);
    }

    CU_ASSERT_EQUAL(memcmp(digests[0], digests[1], DIGEST_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(digests[0], digests[2], DIGEST_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(digests[0], digests[3], DIGEST_BYTES), 0);
}

/* ---- numbers that are not finite ---- */

/* Opens the model with @value for the last number of a tensor. */
static struct engine *open_damaged(const struct tiny_gguf *t, const char *tensor, float value)
{
    _cleanup_(closep) int fd = memfd_create("damaged.gguf", MFD_CLOEXEC);
    _cleanup_(freep) uint8_t *bytes = NULL;
    struct engine *en = NULL;
    struct errmsg e = {0};
    size_t n_bytes, n;
    const uint8_t *file = tiny_gguf_bytes(t, &n_bytes);
    const float *values = tiny_gguf_tensor(t, tensor, &n);
    char path[64];
    uint8_t *at;

    bytes = malloc(n_bytes);
    assert(fd >= 0 && bytes && values);
    memcpy(bytes, file, n_bytes);
    at = memmem(bytes, n_bytes, values, n * sizeof(float));
    assert(at);
    memcpy(at + (n - 1) * sizeof(float), &value, sizeof(value));
    assert(write(fd, bytes, n_bytes) == (ssize_t) n_bytes);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CU_ASSERT_EQUAL(engine_open(path, NULL, &en, &e), 0);
    return en;
}

static void test_unfinite_numbers(void)
{
    static const struct {
        const char *tensor, *words;
        float value;
    } cases[] = {
        {"blk.1.attn_k.weight", "a key of layer 1 for token 1 ", NAN},
        {"blk.0.attn_k.weight", "a key of layer 0 for token 1 ", INFINITY},
        {"blk.1.attn_v.weight", "a value of layer 1 for token 1 ", -INFINITY},
        {"blk.1.ffn_down.weight", "the output of layer 1 for token 1 ", NAN},
        {"output_norm.weight", "the logits of the next token", NAN},
    };
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){0});
    const uint32_t tokens[] = {1, 2, 3};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(engine_freep) struct engine *en = open_damaged(t, cases[i].tensor, cases[i].value);
        _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
        float logits[TINY_GGUF_VOCAB];
        struct errmsg e = {0};
        struct kv_cache ops;

        CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), N, &c, &e), 0);
        ops = exact_cache_ops(c);
        CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 3, logits, &e), -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].words));
        if (!strstr(e.text, cases[i].words))
            printf("    %s: %s\n", cases[i].tensor, e.text);
    }
}

/* The token is counted from the begin of the text, not of the pass. */
static void test_unfinite_token(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
        tiny_gguf_new(&(struct tiny_gguf_options){.untied = true});
    _cleanup_(engine_freep) struct engine *en = open_damaged(t, "token_embd.weight", NAN);
    _cleanup_(exact_cache_freep) struct exact_cache *c = NULL;
    const uint32_t tokens[] = {1, 2, TINY_GGUF_VOCAB - 1};
    struct errmsg e = {0};
    struct kv_cache ops;

    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(en), N, &c, &e), 0);
    ops = exact_cache_ops(c);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens, 2, NULL, &e), 0);
    CU_ASSERT_EQUAL(engine_forward(en, &ops, tokens + 1, 2, NULL, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "of layer 0 for token 4 "));
}

const struct test_case test_cases[] = {
    TEST(test_families),
    TEST(test_shapes),
    TEST(test_rope_kinds),
    TEST(test_types),
    TEST(test_tap),
    TEST(test_output_projection),
    TEST(test_odd_types),
    TEST(test_no_pretokenizer),
    TEST(test_other_kinds),
    TEST(test_refusals),
    TEST(test_sliding_window),
    TEST(test_bad_calls),
    TEST(test_digest),
    TEST(test_unfinite_numbers),
    TEST(test_unfinite_token),
    TEST_END,
};
const char test_suite[] = "engine_forward";
