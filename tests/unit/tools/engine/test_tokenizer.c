/*
 * Pre-tokenisers by known cuts, merging compared with the textbook loop, and the tokeniser of the tiny model:
 * control tokens, invalid UTF-8, hostile texts.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/engine/bpe.h"
#include "tools/engine/gguf.h"
#include "tools/engine/pretokenizer.h"
#include "tools/engine/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- cutting ---- */

struct cuts {
    char joined[512]; /* the pieces with "|" between them */
    size_t n_pieces, n_bytes;
};

static int collect(void *ctx, const char *piece, size_t bytes)
{
    struct cuts *c = ctx;
    size_t at = strlen(c->joined);

    CU_ASSERT(bytes > 0);
    if (at + bytes + 2 < sizeof(c->joined)) {
        if (c->n_pieces > 0)
            c->joined[at++] = '|';
        memcpy(c->joined + at, piece, bytes);
        c->joined[at + bytes] = '\0';
    }

    c->n_pieces++;
    c->n_bytes += bytes;
    return 0;
}

static void check_cut(const char *name, const char *text, const char *want)
{
    struct pretokenizer *p = NULL;
    struct cuts c = {.joined = ""};
    struct errmsg e = {0};

    CU_ASSERT_EQUAL_FATAL(pretokenizer_new(name, strlen(name), &p, &e), 0);
    CU_ASSERT_EQUAL(pretokenizer_split(p, text, strlen(text), collect, &c, &e), 0);
    CU_ASSERT_STRING_EQUAL(c.joined, want);
    if (strcmp(c.joined, want) != 0)
        printf("    %s: \"%s\" was cut into \"%s\"\n", name, text, c.joined);
    CU_ASSERT_EQUAL(c.n_bytes, strlen(text));
    (void) pretokenizer_free(p);
}

static void test_gpt2_cuts(void)
{
    check_cut("gpt2", "Hello world", "Hello| world");
    check_cut("gpt2", "it's we'LL", "it|'s| we|'|LL");
    check_cut("gpt-2", "a  b", "a| | b");
    check_cut("gpt2", "end   ", "end|   ");
    check_cut("gpt2", "x = 1234;\n\n\ty", "x| =| 1234|;|\n\n|\t|y");
    check_cut("gpt2", "\xc3\xa9t\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd",
              "\xc3\xa9t\xc3\xa9| \xe4\xbd\xa0\xe5\xa5\xbd");
    check_cut("gpt2",
              "a\xc2\xa0\xc2\xa0"
              "b",
              "a|\xc2\xa0|\xc2\xa0|b"); /* no-break spaces are white space */
    check_cut("gpt2", "", "");
}

/* The patterns of llama.cpp's "default", applied by hand. */
static void test_default_cuts(void)
{
    check_cut("default", "it's we'LL", "it|'|s| we|'|LL");
    check_cut("default", "Hello, world 12345!\n\n x=1", "Hello|,| world| |123|45|!|\n\n| x|=|1");
    check_cut("default", "a+b <= $5.50", "a|+|b| |<=| |$|5|.|50");
    check_cut("default", "\xc2\xbd 1234567", "\xc2\xbd| |123|456|7");
    check_cut("default", "(\"x\") -- y", "(\"|x|\")| |--| y");
}

static void test_smollm_cuts(void)
{
    check_cut("smollm", "of 2018, 3.5", "of| |2|0|1|8|,| |3|.|5");
    check_cut("smollm", "ab12", "ab|1|2");
    check_cut("smollm", "\xd9\xa3\xd9\xa4", "\xd9\xa3|\xd9\xa4"); /* Arabic-Indic digits */
    check_cut("smollm", "4 \xc2\xbd x", "4| \xc2\xbd| x");        /* one half is a number, not a digit */
}

static void test_gpt4_cuts(void)
{
    check_cut("llama-bpe", "I'LL pay 12345 now", "I|'LL| pay| |123|45| now");
    check_cut("qwen2", "I'LL pay 123 now", "I|'LL| pay| |1|2|3| now");
    check_cut("llama-bpe", "foo.bar();\n\n  x", "foo|.bar|();\n\n| | x");
    check_cut("qwen2", "a \n\n b", "a| \n\n| b");
    check_cut("llama-bpe", "(word", "(word");
}

static void test_unknown_name(void)
{
    struct pretokenizer *p = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(pretokenizer_new("tekken", 6, &p, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "tekken"));
    CU_ASSERT_EQUAL(pretokenizer_new("gpt", 3, &p, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NULL(p);
}

/* Every kind of invalid UTF-8 is a piece between valid text. */
static void test_invalid_utf8(void)
{
    check_cut("gpt2", "ab\xff\xfe cd", "ab|\xff\xfe| cd");
    check_cut("gpt2", "a\xc3", "a|\xc3");                               /* cut short */
    check_cut("gpt2", "a\xc0\x80z", "a|\xc0\x80|z");                    /* overlong */
    check_cut("gpt2", "\xed\xa0\x80", "\xed\xa0\x80");                  /* a surrogate */
    check_cut("gpt2", "\xf4\x90\x80\x80!", "\xf4\x90\x80\x80|!");       /* above U+10FFFF */
    check_cut("gpt2", "\xf0\x9f\x99\x82\x82", "\xf0\x9f\x99\x82|\x82"); /* a lone continuation */
}

/* ---- merging ---- */

/* The definition: while there is a pair with a rule, merge the leftmost pair of the lowest rank. */
static size_t merge_slowly(const struct bpe_rule *rules, size_t n_rules, uint32_t *ids, size_t n)
{
    for (;;) {
        const struct bpe_rule *best = NULL;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < n_rules; k++)
                if (rules[k].left == ids[i] && rules[k].right == ids[i + 1] &&
                    (!best || rules[k].rank < best->rank)) {
                    best = &rules[k];
                    at = i;
                }
        if (!best)
            return n;

        ids[at] = best->merged;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
        n--;
    }
}

static void test_merging(void)
{
    struct bpe_scratch s = {0};

    for (unsigned round = 0; round < 400; round++) {
        struct bpe_rule rules[40];
        uint32_t fast[60], slow[60];
        size_t n_rules = test_rand_below(41), n = 1 + test_rand_below(60), n_fast = 0, n_slow;

        for (size_t k = 0; k < n_rules; k++)
            rules[k] = (struct bpe_rule){.left = (uint32_t) test_rand_below(4 + k),
                                         .rank = (uint32_t) k,
                                         .right = (uint32_t) test_rand_below(4 + k),
                                         .merged = (uint32_t) (4 + k)};
        for (size_t i = 0; i < n; i++)
            fast[i] = slow[i] = (uint32_t) test_rand_below(4);
        bpe_sort_rules(rules, n_rules);
        n_slow = merge_slowly(rules, n_rules, slow, n);
        CU_ASSERT_EQUAL_FATAL(bpe_merge(rules, n_rules, &s, fast, n, &n_fast), 0);
        CU_ASSERT_EQUAL_FATAL(n_fast, n_slow);
        CU_ASSERT_EQUAL(memcmp(fast, slow, n_slow * sizeof(*slow)), 0);
    }

    bpe_scratch_deinit(&s);
}

/* ---- tokeniser ---- */

static struct tokenizer *tiny_tokenizer(const char *pre)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
        tiny_gguf_new(&(struct tiny_gguf_options){.n_layers = 1, .pre = pre});
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    struct tokenizer *tok = NULL;
    struct errmsg e = {0};
    size_t n;
    const uint8_t *p = tiny_gguf_bytes(t, &n);

    CU_ASSERT_EQUAL_FATAL(gguf_parse(p, n, "tiny", &g, &e), 0);
    CU_ASSERT_EQUAL_FATAL(tokenizer_new(g, &tok, &e), 0);
    return tok; /* uses no memory of the file */
}

static void check_encoded(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                          const uint32_t *want, size_t n_want)
{
    _cleanup_(freep) uint32_t *ids = NULL;
    struct errmsg e = {0};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(tokenizer_encode(t, text, bytes, special, &ids, &n, &e), 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(ids);
    CU_ASSERT_EQUAL_FATAL(n, n_want);
    CU_ASSERT(n == 0 || memcmp(ids, want, n * sizeof(*ids)) == 0);
}

static void test_control_tokens(void)
{
    _cleanup_(tokenizer_freep) struct tokenizer *t = tiny_tokenizer("smollm");
    const uint32_t with[] = {'a', TINY_GGUF_START, 'b', TINY_GGUF_EOS}, bare[] = {'<', '|', 'i'};
    const uint32_t plain[] = {'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'};
    const char *piece;
    size_t n;

    check_encoded(t, "a<|im_start|>b<|im_end|>", 24, true, with, 4);
    check_encoded(t, "<|im_end|>", 10, false, plain, 10);
    check_encoded(t, "<|i", 3, true, bare, 3);
    check_encoded(t, "", 0, true, NULL, 0);
    CU_ASSERT_EQUAL(tokenizer_size(t), TINY_GGUF_VOCAB);
    piece = tokenizer_piece(t, TINY_GGUF_EOS, &n);
    CU_ASSERT(n == 10 && memcmp(piece, "<|im_end|>", 10) == 0);
    CU_ASSERT_PTR_NULL(tokenizer_piece(t, TINY_GGUF_VOCAB, &n));
}

/* All bytes are decoded to themselves. */
static void test_all_bytes(void)
{
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};

    for (unsigned k = 0; k < 4; k++) {
        _cleanup_(tokenizer_freep) struct tokenizer *t = tiny_tokenizer(pres[k]);

        for (unsigned round = 0; round < 50; round++) {
            uint32_t want[300];
            char text[300];
            size_t n = test_rand_below(301);

            for (size_t i = 0; i < n; i++) {
                text[i] = (char) (round % 2 ? test_rand() : 32 + test_rand_below(96));
                want[i] = (unsigned char) text[i];
            }

            check_encoded(t, text, n, false, want, n);
        }

        for (unsigned b = 0; b < 256; b++) {
            size_t n;
            const char *piece = tokenizer_piece(t, b, &n);

            CU_ASSERT(n == 1 && (unsigned char) piece[0] == b);
        }
    }
}

/* A megabyte of text that makes matchers and merging slow: each must end within seconds, with tokens or an
 * error. */
static void test_hostile_texts(void)
{
    enum { BYTES = 1 << 20 };
    static const char *const units[] = {" ",         "\n",   " \n", "a",   "'",           "<",
                                        "<|im_end|", "\xff", "1",   "\t ", "\xe2\x80\x83"};
    static const char *const pres[] = {"smollm", "llama-bpe"};
    char *text = malloc(BYTES);

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    for (unsigned k = 0; k < 2; k++) {
        _cleanup_(tokenizer_freep) struct tokenizer *t = tiny_tokenizer(pres[k]);

        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            _cleanup_(freep) uint32_t *ids = NULL;
            struct errmsg e = {0};
            clock_t begin = clock();
            size_t n = 0;

            for (size_t i = 0; i < BYTES; i++)
                text[i] = units[u][i % strlen(units[u])];
            CU_ASSERT_EQUAL(tokenizer_encode(t, text, BYTES, true, &ids, &n, &e), 0);
            CU_ASSERT_EQUAL(n, BYTES);
            CU_ASSERT(clock() - begin < 5 * CLOCKS_PER_SEC);
        }
    }

    free(text);
}

const struct test_case test_cases[] = {
    TEST(test_gpt2_cuts),
    TEST(test_default_cuts),
    TEST(test_smollm_cuts),
    TEST(test_gpt4_cuts),
    TEST(test_unknown_name),
    TEST(test_invalid_utf8),
    TEST(test_merging),
    TEST(test_control_tokens),
    TEST(test_all_bytes),
    TEST(test_hostile_texts),
    TEST_END,
};
const char test_suite[] = "engine_tokenizer";
