/* Prompts made of pieces, and a subject's greedy answer to one. */
#include "tests/lib/test.h"

#include <string.h>

#include "base/cleanup.h"
#include "tests/unit/tools/tiny_engine.h"
#include "tools/engine/sampler.h"
#include "tools/engine/tokenizer.h"
#include "lab/eval/prompt.h"
#include "tools/eval/subject.h"

enum { TOKENS = 12 };

/* A piece's tokens are its bytes here; the BOS comes first, once. */
static void test_pieces(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(prompt_deinit) struct prompt p = {0};
    _cleanup_(prompt_piece_deinit) struct prompt_piece piece = {0};
    struct errmsg e = {""};
    size_t bos = engine_info(en)->add_bos;

    CU_ASSERT_EQUAL_FATAL(prompt_init(&p, 16, &e), 0);
    CU_ASSERT_EQUAL_FATAL(prompt_piece_init(&piece, en, "ab c", &e), 0);
    CU_ASSERT_EQUAL(piece.n, 4);
    CU_ASSERT_EQUAL(prompt_bos(en), bos);
    for (int round = 0; round < 2; round++) {
        prompt_begin(&p, en);
        prompt_put(&p, piece.tokens, piece.n);
        prompt_put(&p, piece.tokens, 2);
        CU_ASSERT_EQUAL_FATAL(p.n, bos + 6);
        CU_ASSERT(bos == 0 || p.tokens[0] == engine_info(en)->token_bos);
        CU_ASSERT(p.tokens[bos] == 'a' && p.tokens[bos + 3] == 'c' && p.tokens[bos + 5] == 'b');
    }
}

/* The answer is the text of the likeliest tokens, up to the end-of-text token. */
static void test_answer(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(subject_freep) struct subject *s = NULL;
    _cleanup_(prompt_deinit) struct prompt p = {0};
    _cleanup_(prompt_piece_deinit) struct prompt_piece piece = {0};
    char got[PROMPT_ANSWER_BYTES], want[PROMPT_ANSWER_BYTES] = "";
    struct progress line = silent();
    struct prompt_progress pp = {&line, 5};
    float logits[TINY_GGUF_VOCAB];
    struct kv_cache cache;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &s, &e), 0);
    CU_ASSERT_EQUAL_FATAL(prompt_init(&p, 64, &e), 0);
    CU_ASSERT_EQUAL_FATAL(prompt_piece_init(&piece, en, "What is in the box?", &e), 0);
    prompt_begin(&p, en);
    prompt_put(&p, piece.tokens, piece.n);
    CU_ASSERT_EQUAL_FATAL(prompt_ask(en, s, &p, TOKENS, &pp, got, &e), 0);
    CU_ASSERT_EQUAL(pp.done, 5 + (double) p.n);

    CU_ASSERT_EQUAL_FATAL(subject_begin(s, p.n + TOKENS, &cache, &e), 0);
    CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, p.tokens, p.n, logits, &e), 0);
    for (size_t i = 0, n = 0; i < TOKENS; i++) {
        uint32_t token = sampler_greedy(logits, TINY_GGUF_VOCAB);
        size_t bytes;
        const char *text = tokenizer_piece(engine_tokenizer(en), token, &bytes);

        if (token >= 256)
            break;
        memcpy(want + n, text, bytes);
        n += bytes;
        CU_ASSERT_EQUAL_FATAL(engine_forward(en, &cache, &token, 1, logits, &e), 0);
    }
    CU_ASSERT_EQUAL(subject_end(s, false, &e), 0);
    CU_ASSERT_STRING_EQUAL(got, want);
    CU_ASSERT(strlen(got) > 0);
}

const struct test_case test_cases[] = {TEST(test_pieces), TEST(test_answer), TEST_END};
const char test_suite[] = "prompt";
