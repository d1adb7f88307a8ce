/*
 * Parsing and writing the bytes of llama.cpp's states. The known answers are the first bytes, and the sizes,
 * of states of 3 tokens of SmolLM2-135M that libllama 0.5.0 (commit 0c1e57098) made.
 */
#include "client/llama/llama_state.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "llama_state";

static const struct llama_shape smollm2 = {.n_layers = 30, .n_kv_heads = 3, .head_dim = 64};
static const struct llama_shape small = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 32};

static kvc_llama_layout layout_of(uint32_t n_tokens, uint32_t n_streams, uint32_t dtype, uint32_t transposed)
{
    return (kvc_llama_layout){.struct_bytes = sizeof(kvc_llama_layout),
                              .n_tokens = n_tokens,
                              .n_streams = n_streams,
                              .dtype = dtype,
                              .v_transposed = transposed};
}

/* A state of llama_state_write_headers() with numbers 0. Its end is followed by a page without access. */
struct guarded {
    uint8_t *map, *state;
    size_t map_bytes, n;
};

static struct guarded guarded_new(const kvc_llama_layout *layout, const struct llama_shape *shape)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE), room;
    struct llama_state plan;
    struct guarded g;
    int r = llama_state_plan(layout, shape, &plan, &g.n, NULL);

    assert(r == 0);
    room = (g.n + page - 1) / page * page;
    g.map_bytes = room + page;
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(g.map != MAP_FAILED);
    r = mprotect(g.map + room, page, PROT_NONE);
    assert(r == 0);
    g.state = g.map + room - g.n;
    llama_state_write_headers(&plan, shape, g.state);
    return g;
}

static void guarded_free(struct guarded *g)
{
    (void) munmap(g->map, g->map_bytes);
}

static void check_words(const char *sentence, const char *words)
{
    bool found = strstr(sentence, words) != NULL;

    CU_ASSERT(found);
    if (!found)
        printf("    \"%s\" is not in \"%s\"\n", words, sentence);
}

/* Parses, and checks that a refusal has a sentence with @words and writes nothing. */
static int parse(const uint8_t *state, size_t n, const struct llama_shape *shape, struct llama_state *ret,
                 const char *words)
{
    struct llama_state untouched;
    struct errmsg e = {""};
    int r;

    memset(&untouched, 0x5a, sizeof(untouched));
    *ret = untouched;
    r = llama_state_parse(state, n, shape, ret, &e);
    if (r < 0) {
        CU_ASSERT(memcmp(ret, &untouched, sizeof(untouched)) == 0);
        check_words(e.text, words);
    }
    return r;
}

/* ---- known answers ---- */

static void check_known(const kvc_llama_layout *layout, const char *hex, size_t n_bytes, size_t k)
{
    uint8_t head[96];
    struct llama_state plan, got;
    struct guarded g = guarded_new(layout, &smollm2);
    size_t n = strlen(hex) / 2, bytes;
    int r = llama_state_plan(layout, &smollm2, &plan, &bytes, NULL);

    assert(n <= sizeof(head));
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        head[i] = (uint8_t) strtoul(digits, NULL, 16);
    }
    CU_ASSERT(r == 0 && bytes == n_bytes && plan.k == k);
    CU_ASSERT(memcmp(g.state, head, n) == 0);
    CU_ASSERT_EQUAL(parse(g.state, g.n, &smollm2, &got, ""), 0);
    CU_ASSERT(memcmp(&got, &plan, sizeof(plan)) == 0);
    guarded_free(&g);
}

/* The lines are: magic, id, streams, number of cells; three cells; transposed, 30 layers, type, row bytes. */
static void test_known(void)
{
    const kvc_llama_layout f16 = layout_of(3, 1, KVC_F16, 0), f16_turned = layout_of(3, 1, KVC_F16, 1),
                           f32 = layout_of(3, 1, KVC_F32, 0), bf16 = layout_of(3, 1, KVC_BF16, 0);

    check_known(&f16,
                "d83c14af000000000100000003000000"
                "000000000100000000000000010000000100000000000000020000000100000000000000"
                "000000001e000000010000008001000000000000",
                69900, 72);
    check_known(&f16_turned,
                "d83c14af000000000100000003000000"
                "000000000100000000000000010000000100000000000000020000000100000000000000"
                "010000001e000000010000008001000000000000",
                69900, 72);
    check_known(&f32,
                "d83c14af000000000100000003000000"
                "000000000100000000000000010000000100000000000000020000000100000000000000"
                "000000001e000000000000000003000000000000",
                139020, 72);
    check_known(&bf16,
                "d83c14af000000000100000003000000"
                "000000000100000000000000010000000100000000000000020000000100000000000000"
                "000000001e0000001e0000008001000000000000",
                69900, 72);
}

/* Sequence 2 of a context with 4 streams: 0, 0, 3 and 0 cells. */
static void test_known_streams(void)
{
    static const uint32_t head[] = {0xaf143cd8, 2, 4, 0, 0, 3, 0, 1, 2, 1, 1, 2, 2, 1, 2, 0, 30, 1, 384, 0};
    const kvc_llama_layout layout = layout_of(3, 4, KVC_F16, 0);
    struct guarded g = guarded_new(&layout, &smollm2);
    struct llama_state got;

    CU_ASSERT_EQUAL(g.n, 69912);
    CU_ASSERT_EQUAL(parse(g.state, g.n, &smollm2, &got, ""), 0); /* as written: in stream 0 */
    CU_ASSERT_EQUAL(got.k, 72);

    memmove(g.state + 24, g.state + 16, g.n - 28); /* what follows the number of cells, two streams later */
    memset(g.state + g.n - 4, 0, 4);
    memcpy(g.state, head, sizeof(head));
    CU_ASSERT_EQUAL(parse(g.state, g.n, &smollm2, &got, ""), 0);
    CU_ASSERT_EQUAL(got.k, 80);
    CU_ASSERT(got.layout.n_tokens == 3 && got.layout.n_streams == 4 && got.layout.dtype == KVC_F16);
    guarded_free(&g);
}

/* ---- all layouts ---- */

static void test_all_layouts(void)
{
    static const uint32_t tokens[] = {1, 2, 63, 64, 65}, streams[] = {1, 2, 256};

    for (uint32_t i = 0; i < 5 * 3 * 3 * 2 * 2; i++) {
        kvc_llama_layout layout = layout_of(tokens[i % 5], streams[i / 5 % 3], i / 15 % 3, i / 45 % 2);
        struct llama_state plan, got;
        struct guarded g;
        size_t bytes;
        int r;

        layout.states_rotation = i / 90;
        g = guarded_new(&layout, &small);
        r = llama_state_plan(&layout, &small, &plan, &bytes, NULL);

        CU_ASSERT(r == 0 && bytes == g.n);
        CU_ASSERT_EQUAL(parse(g.state, g.n, &small, &got, ""), 0);
        CU_ASSERT(memcmp(&got, &plan, sizeof(plan)) == 0);
        CU_ASSERT(got.k % 4 == 0 && got.v % 4 == 0 && got.step % 4 == 0);
        CU_ASSERT_EQUAL(got.v + 2 * got.step - 12 + 4 * (layout.n_streams - 1), g.n);
        guarded_free(&g);
    }
}

static void check_plan(kvc_llama_layout layout, const char *words)
{
    struct llama_state plan;
    struct errmsg e = {""};
    size_t bytes = 7;

    CU_ASSERT_EQUAL(llama_state_plan(&layout, &small, &plan, &bytes, &e), -EINVAL);
    check_words(e.text, words);
    CU_ASSERT_EQUAL(bytes, 7);
}

static void test_layouts_refused(void)
{
    kvc_llama_layout most = layout_of(INT32_MAX, 256, KVC_F32, 0), other = layout_of(1, 1, KVC_F16, 0);
    struct llama_state plan;
    size_t bytes;

    other.states_rotation = 2;
    check_plan(other, "states_rotation is 2");
    other.states_rotation = 1;
    other.unused = 1;
    check_plan(other, "unused is 1");

    check_plan(layout_of(0, 1, KVC_F16, 0), "n_tokens is 0");
    check_plan(layout_of(UINT32_C(1) << 31, 1, KVC_F16, 0), "n_tokens is 2147483648");
    check_plan(layout_of(1, 0, KVC_F16, 0), "n_streams is 0");
    check_plan(layout_of(1, 257, KVC_F16, 0), "n_streams is 257");
    check_plan(layout_of(1, 1, 3, 0), "number type 3");
    check_plan(layout_of(1, 1, KVC_F16, 2), "v_transposed is 2");
    CU_ASSERT_EQUAL(llama_state_plan(&most, &small, &plan, &bytes, NULL), 0);
    CU_ASSERT(bytes / (2 * 2 * 2 * 32 * 4) >= (size_t) INT32_MAX);
}

/* ---- damaged states ---- */

static void test_truncated(void)
{
    for (uint32_t transposed = 0; transposed < 2; transposed++) {
        kvc_llama_layout layout = layout_of(2, 3, KVC_F16, transposed);
        struct guarded g = guarded_new(&layout, &small);
        uint8_t *whole = malloc(g.n), *end = g.state + g.n;

        assert(whole);
        memcpy(whole, g.state, g.n);
        for (size_t n = 0; n < g.n; n++) { /* ends at the guard page */
            struct llama_state got;

            memcpy(end - n, whole, n);
            if (parse(end - n, n, &small, &got, "the state ends after") != -EBADMSG)
                CU_FAIL("a truncated state was accepted");
        }
        free(whole);
        guarded_free(&g);
    }
}

static void test_longer(void)
{
    kvc_llama_layout layout = layout_of(2, 1, KVC_F16, 0);
    struct guarded g = guarded_new(&layout, &small);
    struct llama_state got;
    uint8_t *longer = calloc(1, g.n + 8);

    assert(longer);
    memcpy(longer, g.state, g.n);
    CU_ASSERT_EQUAL(parse(longer, g.n + 1, &small, &got, "1 bytes follow the last layer"), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(parse(longer, g.n + 8, &small, &got, "several caches"), -EOPNOTSUPP);
    free(longer);
    guarded_free(&g);
}

/* Every 32-bit field of a state of 2 tokens in the first of 2 streams. */
struct field {
    size_t word;
    uint32_t value;
    int error;
    const char *words;
};

static void check_fields(uint32_t transposed, const struct field *fields, size_t n)
{
    kvc_llama_layout layout = layout_of(2, 2, KVC_F16, transposed);

    for (size_t i = 0; i < n; i++) {
        struct guarded g = guarded_new(&layout, &small);
        struct llama_state got;

        memcpy(g.state + fields[i].word * 4, &fields[i].value, 4);
        CU_ASSERT_EQUAL(parse(g.state, g.n, &small, &got, fields[i].words), fields[i].error);
        guarded_free(&g);
    }
}

/* Words: 0 magic, 1 id, 2 streams, 3 cells, 4 to 9 cells, 10 transposed, 11 layers, then per layer and side 3
 * of a header and 2 x 64 x 2 bytes = 64; the last is the count of stream 1. */
enum {
    WORD_K = 12,
    WORD_K1 = WORD_K + 67,
    WORD_V = WORD_K1 + 67,
    WORD_V1 = WORD_V + 67,
    WORD_END = WORD_V1 + 67
};

static void test_fields(void)
{
    static const struct field fields[] = {
        {0, 0xaf143cd9, -EBADMSG, "begins with af143cd9 instead of af143cd8"},
        {0, 0x67677371, -EBADMSG, "begins with 67677371"}, /* a file of llama_state_seq_save_file() */
        {1, 1, -EBADMSG, "the first of which is 0, instead of position 0 of 1 sequence, which is 1"},
        {2, 0, -EBADMSG, "0 streams instead of 1 to 256"},
        {2, 257, -EBADMSG, "257 streams"},
        {2, 1, -EOPNOTSUPP, "4 bytes follow"},
        {2, 3, -EBADMSG, "ends after"},
        {3, 0, -EBADMSG, "no tokens"},          /* then the position of cell 0 is the count of stream 1 */
        {3, 1, -EINVAL, "a cache of 1 layers"}, /* the number of sequences of cell 1 */
        {3, 3, -EBADMSG, "cell 2 of the state is position 0 of 2 sequences"},
        {3, UINT32_MAX, -EBADMSG, "cell 2 of the state"},
        {4, 1, -EOPNOTSUPP, "cell 0 of the state is at position 1 instead of 0"},
        {4, UINT32_MAX, -EBADMSG, "cell 0 of the state is position -1"},
        {5, 0, -EBADMSG, "of 0 sequences"},
        {5, 2, -EBADMSG, "of 2 sequences"},
        {6, 1, -EBADMSG, "the first of which is 1"},
        {7, 0, -EOPNOTSUPP, "cell 1 of the state is at position 0 instead of 1"},
        {7, 2, -EOPNOTSUPP, "cell 1 of the state is at position 2 instead of 1"},
        {10, 2, -EBADMSG, "2 instead of 0 or 1"},
        {10, 1, -EBADMSG, "values of 0 rows of 128 bytes"},
        {11, 1, -EINVAL, "a cache of 1 layers, but the model has 2"},
        {11, 3, -EINVAL, "a cache of 3 layers"},
        {WORD_K, 8, -EOPNOTSUPP, "keys of type q8_0"},
        {WORD_K, 2, -EOPNOTSUPP, "keys of type q4_0"},
        {WORD_K, 20, -EOPNOTSUPP, "keys of type iq4_nl"},
        {WORD_K, 4, -EBADMSG, "keys of ggml type 4"},
        {WORD_K, UINT32_MAX, -EBADMSG, "keys of ggml type -1"},
        {WORD_K, 30, -EOPNOTSUPP, "keys of ggml type 1, but keys of layer 0 of type 30"},
        {WORD_K, 0, -EINVAL, "128 bytes per token, but the model has 64 numbers of 4 bytes"},
        {WORD_K + 1, 127, -EINVAL, "keys of 127 bytes per token"},
        {WORD_K + 2, 1, -EINVAL, "keys of 4294967424 bytes per token"},
        {WORD_K1, 0, -EOPNOTSUPP, "keys of ggml type 0, but keys of layer 0 of type 1"},
        {WORD_K1 + 1, 256, -EINVAL, "keys of 256 bytes"},
        {WORD_V, 8, -EOPNOTSUPP, "values of type q8_0"},
        {WORD_V, 0, -EOPNOTSUPP, "values of ggml type 0"},
        {WORD_V + 1, 0, -EINVAL, "values of 0 bytes"},
        {WORD_V1 + 2, UINT32_MAX, -EINVAL, "values of"},
        {WORD_END, 1, -EBADMSG, "a second stream of the state has 1 cells"},
    };
    static const struct field transposed[] = {
        {10, 0, -EINVAL, "values of 274877906946 bytes per token"}, /* 64 x 2^32 + 2 */
        {WORD_V + 1, 4, -EBADMSG, "64 rows of 4 bytes per number"},
        {WORD_V + 2, 63, -EINVAL, "63 rows of 2 bytes per number"},
        {WORD_V1 + 2, UINT32_MAX, -EINVAL, "4294967295 rows"},
        {WORD_V1, 8, -EOPNOTSUPP, "values of type q8_0"},
        {WORD_END, 1, -EBADMSG, "a second stream"},
    };

    check_fields(0, fields, sizeof(fields) / sizeof(fields[0]));
    check_fields(1, transposed, sizeof(transposed) / sizeof(transposed[0]));
}

/* Since October 2026 two words behind the number of layers tell how keys and values are rotated. */
static void test_rotation(void)
{
    static const struct field fields[] = {
        {12, 64, -EOPNOTSUPP,
         "rotated the keys of the state by a matrix of 64 dimensions and its values by one of 0"},
        {13, 32, -EOPNOTSUPP, "by one of 32"},
        {14, 8, -EOPNOTSUPP, "keys of type q8_0"},
        {14, 0, -EINVAL, "keys of 128 bytes per token, but the model has 64 numbers of 4 bytes"},
        {14, 4, -EBADMSG, "keys of ggml type 4"},
        {15, 64, -EINVAL, "keys of 64 bytes per token"},
    };
    kvc_llama_layout layout = layout_of(2, 2, KVC_F16, 0);

    layout.states_rotation = 1;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        struct guarded g = guarded_new(&layout, &small);
        struct llama_state got;

        memcpy(g.state + fields[i].word * 4, &fields[i].value, 4);
        CU_ASSERT_EQUAL(parse(g.state, g.n, &small, &got, fields[i].words), fields[i].error);
        guarded_free(&g);
    }
}

/* Cells of M-RoPE models have x, y and a token behind the number of sequences. */
static void test_mrope(void)
{
    static const uint32_t state[] = {0xaf143cd8, 0, 1, 2, 0, 1, 0, 0, 7, 0, 1, 1, 1, 1, 8, 0, 0, 2};
    struct llama_state got;

    CU_ASSERT_EQUAL(parse((const uint8_t *) state, sizeof(state), &small, &got, "M-RoPE"), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(parse((const uint8_t *) state, 60, &small, &got, "cell 1"), -EBADMSG); /* one such cell */
}

const struct test_case test_cases[] = {
    TEST(test_known),       TEST(test_known_streams),
    TEST(test_all_layouts), TEST(test_layouts_refused),
    TEST(test_truncated),   TEST(test_longer),
    TEST(test_fields),      TEST(test_rotation),
    TEST(test_mrope),       TEST_END,
};
