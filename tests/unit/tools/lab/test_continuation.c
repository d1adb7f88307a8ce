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
#include "tools/lab/comparators/comparator.h"
#include "tools/lab/continuation.h"
#include "tools/lab/subject.h"

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

static char path[] = "/tmp/kvc-continue-XXXXXX";
enum { PROMPTS = 3, LENGTH = 20, TOKENS = 70 };

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
    _cleanup_(progress_end) struct progress p;
    const struct engine_options eo = {.n_threads = 1};
    const struct continuation_options co = {PROMPTS, LENGTH, TOKENS};
    size_t alike[3][PROMPTS];
    struct continuation got[3] = {{alike[0], 0}, {alike[1], 0}, {alike[2], 0}};
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
    CU_ASSERT_EQUAL_FATAL(subject_comparator_new(en, comparator_find("turboquant-2"), NULL, NULL,
                                                 &(struct subject_options){.n_sink = 0}, &coarse, &e),
                          0);
    CU_ASSERT_EQUAL_FATAL(
        continuation_run(en, exact, (struct subject *[]){same, coarse}, 2, text, &co, &p, got, &e), 0);
    for (size_t i = 0; i < PROMPTS; i++) { /* step by step: the likeliest token's own -log p */
        struct kv_cache cache;
        float logits[TINY_GGUF_VOCAB];
        uint32_t first[LENGTH];

        memcpy(first, text + i * LENGTH, sizeof(first));
        if (engine_info(en)->add_bos) {
            memmove(first + 1, first, (LENGTH - 1) * sizeof(*first));
            first[0] = engine_info(en)->token_bos;
        }
        CU_ASSERT_EQUAL(alike[0][i], TOKENS);
        CU_ASSERT_EQUAL(alike[1][i], TOKENS);
        CU_ASSERT_EQUAL_FATAL(subject_begin(same, LENGTH + TOKENS, &cache, &e), 0);
        CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, first, LENGTH, logits, &e), 0);
        for (size_t n = 0; n < TOKENS; n++) {
            uint32_t token = sampler_greedy(logits, TINY_GGUF_VOCAB);

            nll += sampler_nll(logits, TINY_GGUF_VOCAB, token);
            CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, &token, 1, logits, &e), 0);
        }
        CU_ASSERT_EQUAL(subject_end(same, false, &e), 0);
    }
    CU_ASSERT_DOUBLE_EQUAL(got[0].nll, nll, 1e-4 * nll); /* one pass and many differ by binary32 sums */
    CU_ASSERT_DOUBLE_EQUAL(got[1].nll, got[0].nll, 1e-9);
    CU_ASSERT(alike[2][0] < TOKENS || alike[2][1] < TOKENS || alike[2][2] < TOKENS);
    CU_ASSERT(got[2].nll > got[0].nll);
    CU_ASSERT_DOUBLE_EQUAL(subject_charged_bpd(coarse), 2.5, 1e-9);
}

const struct test_case test_cases[] = {TEST(test_quantile), TEST(test_model), TEST_END};
const char test_suite[] = "continuation";
