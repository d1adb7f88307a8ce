/*
 * The engine compared with transformers on a real model: tokens, logits, greedy continuations, and the
 * likelihood of real text. Skipped without the model (KVC_TEST_MODEL, or the path of tools/fetch_model.sh)
 * and without the golden file beside the source tree.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "tools/engine/tokenizer.h"

#include <jansson.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The golden logits are binary32 sums in another order, printed with four decimals. A logit is the end of
 * about 60 additions to a hidden state and a product of 576 terms; each rounds by 2^-24 of its size, and
 * errors of the hidden state are carried, not amplified (residual network). With logits up to 32:
 *
 *     32 * sqrt(60 * 576) * 2^-24 = 3.5e-4
 *
 * for independent roundings; times 4, since they are not quite independent. The test prints the measured
 * difference.
 */
#define LOGIT_TOLERANCE 1.5e-3

enum { N_MAX = 1024, WINDOW = 1024 };

struct golden {
    struct engine *en;
    struct exact_cache *cache;
    json_t *json;
};

static void golden_deinit(struct golden *g)
{
    g->cache = exact_cache_free(g->cache);
    g->en = engine_free(g->en);
    json_decref(g->json);
}

/* False: the test is skipped. */
static bool golden_init(struct golden *g)
{
    struct engine_options o = {0};
    struct errmsg e = {0};
    const char *path = test_model_path();
    const char *file = test_shared_path("golden/smollm2-135m.json");

    if (file)
        g->json = json_load_file(file, 0, NULL);
    if (!g->json) {
        test_skip("no golden file");
        return false;
    }

    if (!path) {
        test_skip(TEST_NO_MODEL);
        return false;
    }

    CU_ASSERT_EQUAL_FATAL(engine_open(path, &o, &g->en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(g->en), N_MAX, &g->cache, &e), 0);
    return true;
}

static uint32_t id_at(const json_t *array, size_t i)
{
    return (uint32_t) json_integer_value(json_array_get(array, i));
}

static void check_ids(const json_t *want, const uint32_t *ids, size_t n)
{
    CU_ASSERT_EQUAL_FATAL(json_array_size(want), n);
    for (size_t i = 0; i < n; i++)
        CU_ASSERT_EQUAL(id_at(want, i), ids[i]);
}

/* Compares the tokens of @text with @want. */
static uint32_t *encode_prompt(struct golden *g, const json_t *prompt, size_t *ret_n)
{
    const json_t *text = json_object_get(prompt, "text");
    struct errmsg e = {0};
    uint32_t *ids = NULL;

    CU_ASSERT_EQUAL_FATAL(tokenizer_encode(engine_tokenizer(g->en), json_string_value(text),
                                           json_string_length(text), true, &ids, ret_n, &e),
                          0);
    check_ids(json_object_get(prompt, "tokens"), ids, *ret_n);
    return ids;
}

static void test_tokens(void)
{
    _cleanup_(golden_deinit) struct golden g = {0};
    const json_t *prompts;

    if (!golden_init(&g))
        return;

    prompts = json_object_get(g.json, "prompts");
    CU_ASSERT_FATAL(json_array_size(prompts) > 0);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        _cleanup_(freep) uint32_t *ids = NULL;
        size_t n;

        ids = encode_prompt(&g, json_array_get(prompts, i), &n);
    }
}

/* The bytes of the tokens are the text. */
static void check_pieces(const struct tokenizer *t, const uint32_t *ids, size_t n, const char *text,
                         size_t bytes)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        size_t piece_bytes;
        const char *piece = tokenizer_piece(t, ids[i], &piece_bytes);

        CU_ASSERT_FATAL(piece_bytes <= bytes - at && memcmp(text + at, piece, piece_bytes) == 0);
        at += piece_bytes;
    }

    CU_ASSERT_EQUAL(at, bytes);
}

static char *read_text(size_t *ret_bytes)
{
    const char *path = test_shared_path("text/wikitext-2/test.txt");
    _cleanup_(fclosep) FILE *f = path ? fopen(path, "rb") : NULL;
    char *text;

    if (!f)
        return NULL;

    text = malloc(1 << 22);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    *ret_bytes = fread(text, 1, 1 << 22, f);
    return text;
}

static void test_text_tokens(void)
{
    _cleanup_(golden_deinit) struct golden g = {0};
    _cleanup_(freep) uint32_t *ids = NULL;
    _cleanup_(freep) char *text = NULL;
    struct errmsg e = {0};
    unsigned char hash[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof(hash) + 1];
    const json_t *want;
    size_t bytes, n;

    if (!golden_init(&g))
        return;

    text = read_text(&bytes);
    if (!text) {
        test_skip("no WikiText-2");
        return;
    }

    want = json_object_get(g.json, "wikitext2_test");
    CU_ASSERT_EQUAL_FATAL(tokenizer_encode(engine_tokenizer(g.en), text, bytes, false, &ids, &n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(n, (size_t) json_integer_value(json_object_get(want, "n_tokens")));
    check_ids(json_object_get(want, "first_tokens"), ids,
              json_array_size(json_object_get(want, "first_tokens")));
    (void) crypto_hash_sha256(hash, (const unsigned char *) ids, n * sizeof(*ids));
    (void) sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
    CU_ASSERT_STRING_EQUAL(hex, json_string_value(json_object_get(want, "sha256_of_uint32le_tokens")));
    check_pieces(engine_tokenizer(g.en), ids, n, text, bytes);
}

/* The ten largest logits in their order. */
static double check_top(const json_t *prompt, const float *logits, size_t n_vocab)
{
    const json_t *ids = json_object_get(prompt, "top_ids"), *values = json_object_get(prompt, "top_logits");
    double worst = 0.0;

    for (size_t k = 0; k < json_array_size(ids); k++) {
        double want = json_number_value(json_array_get(values, k));
        float value = logits[id_at(ids, k)];
        size_t rank = 0;

        for (size_t i = 0; i < n_vocab; i++)
            rank += logits[i] > value;
        CU_ASSERT_EQUAL(rank, k);
        worst = fmax(worst, fabs((double) value - want));
    }

    CU_ASSERT(worst < LOGIT_TOLERANCE);
    return worst;
}

static void test_logits_and_greedy(void)
{
    _cleanup_(golden_deinit) struct golden g = {0};
    _cleanup_(freep) float *logits = NULL;
    const json_t *prompts;
    struct kv_cache cache;
    struct errmsg e = {0};
    double worst = 0.0;
    size_t n_vocab;

    if (!golden_init(&g))
        return;

    n_vocab = engine_info(g.en)->n_vocab;
    logits = malloc(n_vocab * sizeof(*logits));
    CU_ASSERT_PTR_NOT_NULL_FATAL(logits);
    cache = exact_cache_ops(g.cache);
    prompts = json_object_get(g.json, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i), *greedy = json_object_get(prompt, "greedy_24");
        _cleanup_(freep) uint32_t *ids = NULL;
        size_t n;

        ids = encode_prompt(&g, prompt, &n);
        exact_cache_clear(g.cache);
        CU_ASSERT_EQUAL_FATAL(engine_forward(g.en, &cache, ids, n, logits, &e), 0);
        worst = fmax(worst, check_top(prompt, logits, n_vocab));
        for (size_t k = 0; k < json_array_size(greedy); k++) {
            uint32_t token = sampler_greedy(logits, n_vocab);

            CU_ASSERT_EQUAL_FATAL(token, id_at(greedy, k));
            CU_ASSERT_EQUAL_FATAL(engine_forward(g.en, &cache, &token, 1, logits, &e), 0);
        }
    }

    printf("    largest difference of a logit: %.2g (tolerance %.2g)\n", worst, LOGIT_TOLERANCE);
}

static double window_nll(struct golden *g, const uint32_t *ids)
{
    const struct engine_info *info = engine_info(g->en);
    _cleanup_(freep) float *hidden = malloc((size_t) WINDOW * info->n_embd * sizeof(*hidden));
    _cleanup_(freep) float *logits = malloc((size_t) WINDOW * info->n_vocab * sizeof(*logits));
    struct kv_cache cache = exact_cache_ops(g->cache);
    struct errmsg e = {0};
    double sum = 0.0;

    CU_ASSERT_FATAL(hidden && logits);
    exact_cache_clear(g->cache);
    CU_ASSERT_EQUAL_FATAL(engine_embed(g->en, ids, WINDOW, hidden, &e), 0);
    CU_ASSERT_EQUAL_FATAL(
        engine_layers(g->en, &cache, 0, engine_geometry(g->en)->n_layers, WINDOW, hidden, &e), 0);
    CU_ASSERT_EQUAL_FATAL(engine_logits(g->en, WINDOW, hidden, logits, &e), 0);
    for (size_t i = 0; i + 1 < WINDOW; i++)
        sum += sampler_nll(logits + i * info->n_vocab, info->n_vocab, ids[i + 1]);
    return sum;
}

/* The first window only: the others take seconds and test the same. */
static void test_likelihood_of_text(void)
{
    _cleanup_(golden_deinit) struct golden g = {0};
    _cleanup_(freep) uint32_t *ids = NULL;
    _cleanup_(freep) char *text = NULL;
    struct errmsg e = {0};
    double nll, want;
    size_t bytes, n;

    if (!golden_init(&g))
        return;

    text = read_text(&bytes);
    if (!text) {
        test_skip("no WikiText-2");
        return;
    }

    CU_ASSERT_EQUAL_FATAL(tokenizer_encode(engine_tokenizer(g.en), text, 16384, false, &ids, &n, &e), 0);
    CU_ASSERT_FATAL(n >= WINDOW);
    nll = window_nll(&g, ids);
    want = json_number_value(json_array_get(
        json_object_get(json_object_get(g.json, "wikitext2_test"), "nll_sum_of_1023_predictions_per_window"),
        0));
    printf("    NLL of window 0: %.3f, golden %.3f\n", nll, want);
    CU_ASSERT(fabs(nll - want) < 1e-3 * want);
}

const struct test_case test_cases[] = {
    TEST(test_tokens), TEST(test_text_tokens), TEST(test_logits_and_greedy), TEST(test_likelihood_of_text),
    TEST_END,
};
const char test_suite[] = "engine_golden";
