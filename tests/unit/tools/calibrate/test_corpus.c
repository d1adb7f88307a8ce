/* The input of calibration: windows of texts, of lines, of generated text, and all of them joined. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "tests/unit/tools/tiny_engine.h"
#include "tools/calibrate/corpus_openings.h"

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

/* Whether both have the same windows, in any order. */
static bool same_windows(const struct corpus *a, const struct corpus *b)
{
    size_t n_found = 0;

    for (size_t i = 0; i < a->n_windows; i++)
        for (size_t j = 0; j < b->n_windows; j++)
            n_found += a->documents[i] == b->documents[j];
    return a->n_windows == b->n_windows && n_found == a->n_windows;
}

/* A text alone is divided into pieces with names of their own; windows of a long text are taken at equal
 * distances, and are windows of the whole text. */
static void test_corpus_pieces_of_text(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0}, whole = {0};
    struct document texts[2] = {make_text(5000, 0), make_text(1200, 100)};
    struct corpus_options o = {.n_tokens = 6 * 256, .window = 256, .n_pieces = 6};
    const struct corpus_options all = {.n_tokens = 5000, .window = 256};
    static const size_t even[] = {0, 4, 7, 10, 13, 16}; /* of 19 */
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 1, &all, &whole, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL_FATAL(c.n_sources, 3);
    CU_ASSERT_EQUAL_FATAL(c.n_windows, 6);
    for (size_t i = 0; i < 6; i++) {
        CU_ASSERT_EQUAL(c.documents[i], whole.documents[even[i]]);
        CU_ASSERT_EQUAL(c.source_of[i], i / 2);
    }
    for (size_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(c.sources[i].windows, 2);
        CU_ASSERT_EQUAL(memcmp(c.sources[i].digest, texts[0].digest, DIGEST_BYTES), 0);
        CU_ASSERT_EQUAL(c.text_of[i], 0);
        CU_ASSERT_EQUAL(memcmp(c.names[i], texts[0].digest, DIGEST_BYTES - 2), 0);
        CU_ASSERT(c.names[i][DIGEST_BYTES - 2] == 3 && c.names[i][DIGEST_BYTES - 1] == i + 1);
    }

    corpus_deinit(&c);
    o.n_tokens = 100000; /* all windows, each once */
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_sources, 6);
    CU_ASSERT(same_windows(&c, &whole));
    corpus_deinit(&c);
    o.n_tokens = 10 * 256;
    o.want_held = true; /* windows that are left over */
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 1, &o, &c, &e), 0);
    CU_ASSERT(c.n_windows == 10 && c.n_held == 4);
    for (size_t i = 0; i < 14; i++)
        for (size_t j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(c.documents[i], c.documents[j]);
    o.want_held = false;
    corpus_deinit(&c);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 2, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_sources, 2); /* two texts are two sources */
    CU_ASSERT_EQUAL(memcmp(c.names[1], texts[1].digest, DIGEST_BYTES), 0);
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
        for (size_t end = at + lengths[i]; at < end; at++)
            text[at] = (char) ('a' + splitmix64_seed(7, at) % 26);
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

/* Each sixth window of a text of lines belongs to the same piece, and none is lost. */
static void test_corpus_pieces_of_lines(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0}, whole = {0};
    _cleanup_(document_deinit) struct document d = make_text(4000, 0);
    struct corpus_options o = {.n_tokens = 100000, .window = 128};
    struct errmsg e = {""};

    d.n_parts = 4000 / 50;
    d.ends = calloc(d.n_parts, sizeof(*d.ends));
    CU_ASSERT_PTR_NOT_NULL_FATAL(d.ends);
    for (size_t i = 0; i < d.n_parts; i++)
        d.ends[i] = 50 * (i + 1);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &d, 1, &o, &whole, &e), 0);
    CU_ASSERT_EQUAL(whole.n_windows, d.n_parts);
    o.n_pieces = 6;
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &d, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_sources, 6);
    CU_ASSERT(same_windows(&c, &whole));
    for (size_t i = 0; i < c.n_windows; i++)
        CU_ASSERT_EQUAL(c.source_of[i], i % 6);
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

/* Windows that repeat earlier ones, of the same text or of another one, are left out. */
static void test_corpus_repeats(void)
{
    enum { STEP = 256 }; /* the tiny model has no BOS */
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0}, alone = {0};
    struct document texts[3] = {make_text(6 * STEP, 0), make_text(4 * STEP, 1), make_text(3 * STEP, 2)};
    struct corpus_options o = {.n_tokens = 100000, .window = STEP};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_bos(en), UINT32_MAX);
    for (size_t i = 2 * STEP; i < 6 * STEP; i++) /* six windows, of which four are copies of the first two */
        texts[0].tokens[i] = texts[0].tokens[i - 2 * STEP];
    memcpy(texts[2].tokens, texts[1].tokens, STEP * sizeof(uint32_t)); /* a window of another text */
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 3, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_windows, 2 + 4 + 2);
    CU_ASSERT(c.repeated[0] == 4 && c.repeated[1] == 0 && c.repeated[2] == 1);
    CU_ASSERT(c.sources[0].windows == 2 && c.sources[1].windows == 4 && c.sources[2].windows == 2);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &texts[2], 1, &o, &alone, &e), 0);
    CU_ASSERT_EQUAL(alone.n_windows, 3);
    CU_ASSERT_EQUAL(alone.documents[2], c.documents[5]); /* the place counts windows that are left out */

    corpus_deinit(&alone);
    for (size_t i = 0; i < 6 * STEP; i++) /* one window repeats as well: 100 different runs of 241 */
        texts[0].tokens[i] = texts[0].tokens[i % 100];
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, texts, 1, &o, &alone, &e), 0);
    CU_ASSERT(alone.n_windows == 1 && alone.repeated[0] == 5);
    corpus_deinit(&alone);
    for (size_t i = 0; i < 6 * STEP; i++) /* 50 of 241 are too few */
        texts[0].tokens[i] = texts[0].tokens[i % 50];
    CU_ASSERT_EQUAL(corpus_from_texts(en, texts, 1, &o, &alone, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "has 1536 tokens, but repeats itself: 6 windows"));
    CU_ASSERT_PTR_NULL(alone.tokens);

    o.window = 18; /* three runs, of which a quarter is none: copies have nothing new all the same */
    for (size_t i = 18; i < texts[1].n_tokens; i++)
        texts[1].tokens[i] = texts[1].tokens[i - 18];
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &texts[1], 1, &o, &alone, &e), 0);
    CU_ASSERT(alone.n_windows == 1 && alone.repeated[0] == 4 * STEP / 18 - 1);
    for (size_t i = 0; i < 3; i++)
        document_deinit(&texts[i]);
}

/* A line is left out if nothing of it is new: lines of a data set often have a beginning in common. */
static void test_corpus_repeated_lines(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus c = {0};
    struct document d = make_text(400, 0);
    size_t ends[] = {100, 200, 300, 400};
    struct corpus_options o = {.n_tokens = 100000, .window = 128};
    struct errmsg e = {""};

    for (size_t i = 100; i < 200; i++) /* a copy */
        d.tokens[i] = d.tokens[i - 100];
    for (size_t i = 200; i < 299; i++) /* a copy but for the last token */
        d.tokens[i] = d.tokens[i - 200];
    d.tokens[299] = d.tokens[99] + 1;
    d.ends = ends;
    d.n_parts = 4;
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &d, 1, &o, &c, &e), 0);
    CU_ASSERT_EQUAL(c.n_windows, 3);
    CU_ASSERT_EQUAL(c.repeated[0], 1);
    CU_ASSERT_EQUAL(corpus_window(&c, 1)[99], d.tokens[299]);
    d.ends = NULL;
    document_deinit(&d);
}

/* What the model writes beside texts depends on the texts and on the seed. */
static void test_corpus_own_seed(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(document_deinit) struct document text = make_text(1000, 0), other = make_text(1000, 1);
    _cleanup_(corpus_deinit) struct corpus a = {0}, again = {0}, b = {0}, less = {0};
    struct corpus_options o = {.n_tokens = 900, .window = 128}, fewer = {.n_tokens = 500, .window = 128};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &text, 1, &o, &a, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &text, 1, &o, &again, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &other, 1, &o, &b, &e), 0);
    CU_ASSERT_EQUAL_FATAL(corpus_from_texts(en, &text, 1, &fewer, &less, &e), 0);
    CU_ASSERT_EQUAL(corpus_own_seed(&a, 5), corpus_own_seed(&again, 5));
    CU_ASSERT_NOT_EQUAL(corpus_own_seed(&a, 5), corpus_own_seed(&a, 6));
    CU_ASSERT_NOT_EQUAL(corpus_own_seed(&a, 5), corpus_own_seed(&b, 5));
    CU_ASSERT_NOT_EQUAL(corpus_own_seed(&a, 5), corpus_own_seed(&less, 5));
}

/* Windows of several pieces, in several rounds of sequences; all kinds as one source. */
static void test_corpus_pieces(void)
{
    _cleanup_(engine_freep) struct engine *en = open_tiny();
    _cleanup_(corpus_deinit) struct corpus a = {0}, one = {0};
    struct corpus_options o = {.n_tokens = 30000, .window = 300, .seed = 5};
    struct progress p = silent();
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &o, &p, &a, &e), 0); /* 200 pieces of 150 tokens */
    CU_ASSERT_EQUAL(a.n_windows, 100);
    CU_ASSERT_EQUAL(a.n_sources, CORPUS_KINDS);
    CU_ASSERT_EQUAL(corpus_tokens(&a), 30000);
    for (size_t i = 0; i < 100; i++) {
        CU_ASSERT_EQUAL(a.source_of[i], i % CORPUS_KINDS);
        CU_ASSERT_EQUAL(corpus_length(&a, i), 300);
        for (size_t j = 0; j < i; j++) /* every piece of every window is text of its own */
            CU_ASSERT(memcmp(corpus_window(&a, i) + 150, corpus_window(&a, j) + 150, 600) != 0 &&
                      memcmp(corpus_window(&a, i), corpus_window(&a, j), 600) != 0);
    }

    o.one_source = true;
    CU_ASSERT_EQUAL_FATAL(corpus_from_model(en, &o, &p, &one, &e), 0);
    CU_ASSERT_EQUAL(one.n_sources, 1);
    CU_ASSERT(one.sources[0].windows == 100 && one.sources[0].tokens == 30000);
    CU_ASSERT_STRING_EQUAL((const char *) one.names[0], "model");
    CU_ASSERT_EQUAL(memcmp(one.tokens, a.tokens, 30000 * sizeof(*a.tokens)), 0); /* the same text */
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
    CU_ASSERT_EQUAL(text.n_sources, 1 + 3); /* three windows are of three kinds */
    CU_ASSERT_EQUAL(text.source_of[2], 1 + 2);
    CU_ASSERT_EQUAL(text.source_of[3], 0);
    CU_ASSERT_STRING_EQUAL((const char *) text.names[1], "model: prose");
    CU_ASSERT_EQUAL(memcmp(text.names[0], d.digest, sizeof(d.digest)), 0);
    CU_ASSERT_EQUAL(text.documents[3], first);
    CU_ASSERT_EQUAL(memcmp(corpus_window(&text, 2), corpus_window(&a, 2), 32 * sizeof(*a.tokens)), 0);
    CU_ASSERT_EQUAL(corpus_length(&text, 2), 32);
    CU_ASSERT_EQUAL(corpus_length(&text, 12), 128);
    CU_ASSERT_EQUAL(corpus_tokens(&text), 96 + 256);
}

const struct test_case test_cases[] = {
    TEST(test_corpus_from_text), TEST(test_corpus_turns),           TEST(test_corpus_pieces_of_text),
    TEST(test_corpus_lines),     TEST(test_corpus_pieces_of_lines), TEST(test_utf8),
    TEST(test_corpus_repeats),   TEST(test_corpus_repeated_lines),  TEST(test_corpus_own_seed),
    TEST(test_corpus_pieces),    TEST(test_corpus_from_model),      TEST_END,
};
const char test_suite[] = "corpus";
