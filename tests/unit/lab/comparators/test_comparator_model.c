/*
 * Formats on the real model. The expected KLs are from a study in Python with other code (2 x 1024 tokens of
 * WikiText-2 test, keys before RoPE, all but four tokens decoded): q4_0 0.088, KIVI-2 0.385, TurboQuant-mse 3
 * 0.227 nats per token. Here are 256 of these tokens, with keys as in the originals: within a factor of 2.5.
 */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "lab/eval/comparator_subject.h"
#include "lab/comparators/comparator.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/subject.h"

enum { FORMATS = 4, TOKENS = 256 };

static void test_figures(void)
{
    static const struct {
        const char *name;
        double kl; /* 0: none known */
    } cases[FORMATS] = {{"q8_0", 0}, {"q4_0", 0.088}, {"turboquant-3", 0.227}, {"kivi-2", 0.385}};
    const char *path = test_model_path(), *text = test_shared_path("text/wikitext-2/test.txt");
    const struct engine_options eo = {0};
    const struct evaluation_options o = {.n_tokens = TOKENS, .window = TOKENS};
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(document_deinit) struct document d = {0};
    _cleanup_(progress_end) struct progress p = {0};
    struct subject *s[FORMATS] = {NULL};
    struct evaluation got[FORMATS];
    struct errmsg e = {""};

    if (!path || !text) {
        test_skip(path ? "no text" : TEST_NO_MODEL);
        return;
    }

    progress_start(&p, "test", "tokens", 0, true);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &eo, &en, &e), 0);
    CU_ASSERT_EQUAL_FATAL(document_load(en, text, &d, &e), 0);
    for (size_t i = 0; i < FORMATS; i++)
        CU_ASSERT_EQUAL_FATAL(comparator_subject_new(en, comparator_find(cases[i].name), NULL, NULL,
                                                     &(struct subject_options){.n_sink = 4}, &s[i], &e),
                              0);
    CU_ASSERT_EQUAL_FATAL(evaluation_run(en, s, FORMATS, d.tokens, d.n_tokens, &o, &p, got, &e), 0);
    for (size_t i = 1; i < FORMATS; i++) {
        double kl = evaluation_kl(&got[i]);

        CU_ASSERT(kl > cases[i].kl / 2.5 && kl < cases[i].kl * 2.5);
        CU_ASSERT(kl > evaluation_kl(&got[i - 1]));
    }

    CU_ASSERT(evaluation_kl(&got[0]) < 0.002); /* 8 bits: 4^-4 of q4_0's error and less */
    for (size_t i = 0; i < FORMATS; i++)
        (void) subject_free(s[i]);
}

const struct test_case test_cases[] = {TEST(test_figures), TEST_END};
const char test_suite[] = "comparator_model";
