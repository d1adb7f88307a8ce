/* The input of calibration: windows of texts, of lines, of generated text, and all of them joined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "tests/unit/tools/tiny_engine.h"

static void test_corpus_from_text(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(document_deinit) struct document text = make_text(5000, 0), shorter = make_text(2000, 0),
                                               shortest = make_text(1200, 0);
    struct corpus_options o = {.n_tokens = 1000, .window = 256, .want_held = true};
    size_t bos = engine_info(en)->add_bos ? 1 : 0;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(corpus_windows(12288, 1024), 12);
    CU_ASSERT_EQUAL(corpus_windows(1025, 512), 3);
    CU_ASSERT_EQUAL(corpus_held(1024), 1);
    CU_ASSERT_EQUAL(corpus_held(2048), 1);
    CU_ASSERT_EQUAL(corpus_held(300), 4);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &text, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_windows, 4);
    CU_ASSERT_EQUAL(c.n_held, 4);
    CU_ASSERT_EQUAL(corpus_tokens(&c), 1024);
    CU_ASSERT_EQUAL(c.n_sources, 1);
    CU_ASSERT(c.sources[0].tokens == 1024 && c.sources[0].windows == 4 && c.sources[0].kind == SOURCE_TEXT);
    for (size_t i = 0; i < 8; i++) { /* consecutive, without overlap */
        CU_ASSERT_EQUAL(corpus_length(&c, i), 256);
        CU_ASSERT_EQUAL(memcmp(corpus_window(&c, i) + bos, text.tokens + i * (256 - bos),
                               (256 - bos) * sizeof(*text.tokens)),
                        0);
        for (size_t j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(c.documents[i], c.documents[j]);
    }

    corpus_deinit(&c);
    o.n_tokens = 4000;
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &shorter, 1, &o, &c, &e), 0); /* all of the text */
    CU_ASSERT_EQUAL(c.n_windows, 2000 / (256 - bos) - 4);
    corpus_deinit(&c);
    CU_ASSERT_EQUAL(corpus_from_texts(en, &shortest, 1, &o, &c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "the text has 1200 tokens"));
    CU_ASSERT_PTR_NULL(c.tokens);
}

/* Windows come from two texts in turn, and from the other one after the end of one. The hash of a window does
 * not depend on other texts. */
static void test_corpus_turns(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0}, alone = {0};
    struct document texts[2] = {make_text(700, 0), make_text(5000, 100)};
    struct corpus_options o = {.n_tokens = 1500, .window = 256};
    size_t bos = engine_info(en)->add_bos ? 1 : 0, step = 256 - bos;
    static const size_t text_of[] = {0, 1, 0, 1, 1, 1}, place_of[] = {0, 0, 1, 1, 2, 3};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 2, &o, &c, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &texts[1], 1, &o, &alone, &e), 0);
    CU_ASSERT_EQUAL_FATAL(c.n_windows, 6);
    for (size_t i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(memcmp(corpus_window(&c, i) + bos, texts[text_of[i]].tokens + place_of[i] * step,
                               step * sizeof(uint32_t)),
                        0);
    CU_ASSERT_EQUAL(c.documents[3], alone.documents[1]);
    CU_ASSERT_EQUAL(c.documents[5], alone.documents[3]);
    CU_ASSERT(c.sources[0].windows == 2 && c.sources[1].windows == 4);
    CU_ASSERT(c.sources[0].tokens == 512 && c.sources[1].tokens == 1024);
    document_deinit(&texts[0]);
    document_deinit(&texts[1]);
}

/* A document per line: each has its own windows, long lines are cut, short ones skipped. */
static void test_corpus_lines(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    _cleanup_(document_deinit) struct document d = {0};
    char path[] = "/tmp/kvc-test-lines-XXXXXX", text[1200] = "";
    struct corpus_options o = {.n_tokens = 100000, .window = 128};
    size_t bos = engine_info(en)->add_bos ? 1 : 0, lengths[] = {40, 5, 300}, at = 0;
    struct errmsg e = {""};
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0);
    for (size_t i = 0; i < 3; i++) { /* the tiny model has one token per byte */
        memset(text + at, 'a' + (int) i, lengths[i]);
        at += lengths[i];
        at += (size_t) snprintf(text + at, sizeof(text) - at, i == 0 ? "\r\n\n" : "\n");
    }

    CU_ASSERT_EQUAL(write(fd, text, at), (ssize_t) at);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(document_load_lines(en, path, &d, &e), 0);
    CU_ASSERT_EQUAL_FATAL(d.n_parts, 3);
    CU_ASSERT_EQUAL(d.ends[0], 40);
    CU_ASSERT_EQUAL(d.ends[1], 45);
    CU_ASSERT_EQUAL(d.n_tokens, 345);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &d, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL_FATAL(c.n_windows, 4); /* 40; 300 in three pieces */
    CU_ASSERT_EQUAL(corpus_length(&c, 0), 40 + bos);
    CU_ASSERT_EQUAL(corpus_length(&c, 1), 128);
    CU_ASSERT_EQUAL(corpus_length(&c, 3), 300 - 2 * (128 - bos) + bos);
    CU_ASSERT_EQUAL(c.sources[0].kind, SOURCE_LINES);
    CU_ASSERT_EQUAL(c.sources[0].tokens, 340 + 4 * bos);
    (void) unlink(path);
}

static void test_utf8(void)
{
    static const struct {
        const char *text;
        size_t bad;
    } cases[] = {
        {"plain", 5},
        {"\xC3\xA9t\xC3\xA9", 5},
        {"\xE2\x82\xAC", 3},
        {"\xF0\x9F\x98\x80!", 5},
        {"caf\xE9", 3},          /* Latin-1 */
        {"a\xC0\xAF", 1},        /* overlong */
        {"\xED\xA0\x80", 0},     /* surrogate */
        {"\xF4\x90\x80\x80", 0}, /* beyond Unicode */
        {"ab\xE2\x82", 2},       /* cut off */
        {"\x80", 0},
        {"\xFF\xFE", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        CU_ASSERT_EQUAL(utf8_error(cases[i].text, strlen(cases[i].text)), cases[i].bad);
}

static void test_corpus_from_model(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus a = {0}, b = {0}, text = {0};
    _cleanup_(document_deinit) struct document d = make_text(5000, 0);
    struct corpus_options o = {.n_tokens = 96, .window = 32, .seed = 5},
                          longer = {.n_tokens = 256, .window = 128};
    struct progress p = silent();
    struct errmsg e = {""};
    uint64_t first;

    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &o, &p, &a, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &o, &p, &b, &e), 0);
    CU_ASSERT_EQUAL(a.n_windows, 3);
    CU_ASSERT_EQUAL(memcmp(a.tokens, b.tokens, 96 * sizeof(*a.tokens)), 0); /* seeded */
    CU_ASSERT_EQUAL(a.sources[0].kind, SOURCE_MODEL);
    CU_ASSERT_NOT_EQUAL(memcmp(corpus_window(&a, 0), corpus_window(&a, 1), 32 * sizeof(*a.tokens)), 0);
    for (size_t i = 0; i < 96; i++) {
        CU_ASSERT(a.tokens[i] < TINY_GGUF_VOCAB);
        CU_ASSERT(i % 32 < 1 ||
                  (a.tokens[i] != engine_info(en)->token_eos && a.tokens[i] != engine_info(en)->token_bos));
    }

    longer.want_held = true;
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &d, 1, &longer, &text, &e), 0);
    first = text.documents[0];
    CU_ASSERT_EQUAL_FATAL(corpus_join(&text, &b, &e), 0); /* generated windows first, held-out ones last */
    CU_ASSERT_EQUAL(text.n_windows, 5);
    CU_ASSERT_EQUAL(text.n_held, 8);
    CU_ASSERT_EQUAL(text.n_sources, 2);
    CU_ASSERT_EQUAL(text.documents[3], first);
    CU_ASSERT_EQUAL(memcmp(corpus_window(&text, 2), corpus_window(&a, 2), 32 * sizeof(*a.tokens)), 0);
    CU_ASSERT_EQUAL(corpus_length(&text, 2), 32);
    CU_ASSERT_EQUAL(corpus_length(&text, 12), 128);
    CU_ASSERT_EQUAL(corpus_tokens(&text), 96 + 256);
}

const struct test_case test_cases[] = {
    TEST(test_corpus_from_text),  TEST(test_corpus_turns),
    TEST(test_corpus_lines),      TEST(test_utf8),
    TEST(test_corpus_from_model), TEST_END,
};
const char test_suite[] = "corpus";
