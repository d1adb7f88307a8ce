/* Greedy generations of the exact model and of a format. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"
#include "lab/eval/comparator_subject.h"
#include "lab/comparators/comparator.h"
#include "tools/eval/continuation.h"
#include "tools/eval/subject.h"

static void test_quantile(void)
{
    size_t x[] = {9, 1, 5, 3}, one[] = {7};

    CU_ASSERT_EQUAL(continuation_quantile(x, 4, 0.25), 1);
    CU_ASSERT_EQUAL(continuation_quantile(x, 4, 0.5), 3); /* the lower of 3 and 5 */
    CU_ASSERT_EQUAL(continuation_quantile(x, 4, 0.75), 5);
    CU_ASSERT_EQUAL(continuation_quantile(x, 4, 0.26), 3);
    CU_ASSERT_EQUAL(continuation_quantile(x, 4, 1), 9);
    CU_ASSERT_EQUAL(continuation_quantile(one, 1, 0.5), 7);
}

static void test_parts(void)
{
    static const size_t firsts[] = {0, 64, 256, 1024, 4096}, ends[] = {64, 256, 1024, 4096, 5000};
    size_t first, end;

    for (size_t i = 0; i < CONTINUATION_PARTS; i++) {
        continuation_part(i, 5000, &first, &end);
        CU_ASSERT(first == firsts[i] && end == ends[i]);
        continuation_part(i, 64, &first, &end);
        CU_ASSERT_EQUAL(end - first, i == 0 ? 64 : 0);
    }
}

static char path[] = "/tmp/kvc-continue-XXXXXX";
enum { PROMPTS = 3, LENGTH = 20, TOKENS = 70 };

static void prompt_of(const struct engine *en, const uint32_t *text, size_t i, uint32_t ret[static LENGTH])
{
    memcpy(ret, text + i * LENGTH, LENGTH * sizeof(*ret));
    if (engine_info(en)->add_bos) {
        memmove(ret + 1, ret, (LENGTH - 1) * sizeof(*ret));
        ret[0] = engine_info(en)->token_bos;
    }
}

/* The likeliest tokens' own -log p. */
static double nll_step_by_step(struct engine *en, struct subject *s, const uint32_t *text, size_t i)
{
    struct kv_cache cache;
    float logits[TINY_GGUF_VOCAB];
    uint32_t first[LENGTH];
    struct errmsg e = {""};
    double nll = 0;

    prompt_of(en, text, i, first);
    CU_ASSERT_EQUAL_FATAL(subject_begin(s, LENGTH + TOKENS, &cache, &e), 0);
    CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, first, LENGTH, logits, &e), 0);
    for (size_t n = 0; n < TOKENS; n++) {
        uint32_t token = sampler_greedy(logits, TINY_GGUF_VOCAB);

        nll += sampler_nll(logits, TINY_GGUF_VOCAB, token);
        CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, &token, 1, logits, &e), 0);
    }
    CU_ASSERT_EQUAL(subject_end(s, false, &e), 0);
    return nll;
}

/* Logits of all positions but the last one's of a text of LENGTH + TOKENS tokens. */
static float *logits_of(struct engine *en, struct subject *s, const uint32_t *tokens)
{
    size_t n = LENGTH + TOKENS - 1, width = engine_info(en)->n_embd;
    float *hidden = calloc(n * width, sizeof(*hidden)),
          *logits = calloc(n * TINY_GGUF_VOCAB, sizeof(*logits));
    struct kv_cache cache;
    struct errmsg e = {""};

    CU_ASSERT_FATAL(hidden && logits);
    CU_ASSERT_EQUAL_FATAL(subject_begin(s, n, &cache, &e), 0);
    CU_ASSERT_EQUAL(engine_embed(en, tokens, n, hidden, &e), 0);
    CU_ASSERT_EQUAL(engine_layers(en, &cache, 0, engine_geometry(en)->n_layers, n, hidden, &e), 0);
    CU_ASSERT_EQUAL(engine_logits(en, n, hidden, logits, &e), 0);
    CU_ASSERT_EQUAL(subject_end(s, false, &e), 0);
    free(hidden);
    return logits;
}

/* Mean KL over the first 64 generated tokens of all prompts, from all logits of the exact model's text. */
static double kl_of_first_part(struct engine *en, struct subject *exact, struct subject *coarse,
                               const uint32_t *text, const struct continuation_options *co)
{
    double sum = 0;

    for (size_t i = 0; i < co->n_prompts; i++) {
        uint32_t tokens[LENGTH + TOKENS] = {0};
        float *logits, *other;

        prompt_of(en, text, i, tokens);
        for (size_t n = LENGTH; n < LENGTH + TOKENS; n++) { /* causal: later tokens do not matter yet */
            logits = logits_of(en, exact, tokens);
            tokens[n] = sampler_greedy(logits + (n - 1) * TINY_GGUF_VOCAB, TINY_GGUF_VOCAB);
            free(logits);
        }
        logits = logits_of(en, exact, tokens);
        other = logits_of(en, coarse, tokens);
        for (size_t n = LENGTH - 1; n < LENGTH - 1 + 64; n++)
            sum += sampler_kl(logits + n * TINY_GGUF_VOCAB, other + n * TINY_GGUF_VOCAB, TINY_GGUF_VOCAB);
        free(logits);
        free(other);
    }

    return sum / (64.0 * (double) co->n_prompts);
}

/*
 * The exact model never differs from itself, and its perplexity on its own text equals the perplexity of the
 * greedy choices, computed here step by step. turboquant-2 differs somewhere, and its text is less likely.
 */
static void test_model(void)
{
    struct tiny_gguf_options o = {0};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(subject_freep) struct subject *exact = NULL;
    _cleanup_(subject_freep) struct subject *same = NULL;
    _cleanup_(subject_freep) struct subject *coarse = NULL;
    _cleanup_(progress_end) struct progress p = {0};
    const struct engine_options eo = {.n_threads = 1};
    const struct continuation_options co = {PROMPTS, LENGTH, TOKENS};
    size_t alike[3][PROMPTS];
    struct continuation got[3] = {{alike[0], 0, {0}}, {alike[1], 0, {0}}, {alike[2], 0, {0}}};
    uint32_t text[PROMPTS * LENGTH];
    struct errmsg e = {""};
    double nll = 0;
    int fd;

    (void) memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
    fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &eo, &en, &e), 0);
    (void) unlink(path);
    for (size_t i = 0; i < PROMPTS * LENGTH; i++)
        text[i] = (uint32_t) test_rand_below(256);
    progress_start(&p, "test", "texts", 0, true);
    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &exact, &e), 0);
    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &same, &e), 0);
    CU_ASSERT_EQUAL_FATAL(comparator_subject_new(en, comparator_find("turboquant-2"), NULL, NULL,
                                                 &(struct subject_options){.n_sink = 0}, &coarse, &e),
                          0);
    CU_ASSERT_EQUAL_FATAL(
        continuation_run(en, exact, (struct subject *[]){same, coarse}, 2, text, &co, &p, got, &e), 0);
    for (size_t i = 0; i < PROMPTS; i++) {
        CU_ASSERT_EQUAL(alike[0][i], TOKENS);
        CU_ASSERT_EQUAL(alike[1][i], TOKENS);
        nll += nll_step_by_step(en, same, text, i);
    }
    CU_ASSERT_DOUBLE_EQUAL(got[0].nll, nll, 1e-4 * nll); /* one pass and many differ by binary32 sums */
    CU_ASSERT_DOUBLE_EQUAL(got[1].nll, got[0].nll, 1e-9);
    CU_ASSERT(alike[2][0] < TOKENS || alike[2][1] < TOKENS || alike[2][2] < TOKENS);
    CU_ASSERT(got[2].nll > got[0].nll);
    for (size_t part = 0; part < 2; part++) { /* 64 and 6 tokens */
        CU_ASSERT(got[0].kl[part] == 0 && got[1].kl[part] == 0);
        CU_ASSERT(got[2].kl[part] > 0);
    }
    CU_ASSERT(got[2].kl[2] == 0);
    CU_ASSERT_DOUBLE_EQUAL(got[2].kl[0], kl_of_first_part(en, exact, coarse, text, &co), 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(subject_charged_bpd(coarse), 2.5, 1e-9);
}

const struct test_case test_cases[] = {TEST(test_quantile), TEST(test_parts), TEST(test_model), TEST_END};
const char test_suite[] = "continuation";
