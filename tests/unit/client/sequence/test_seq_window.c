/* The chunks that a match of a window needs, against a search through all lengths of the text. */
#include <string.h>

#include "client/sequence/seq_window.h"
#include "gpu/page_layout.h"
#include "tests/lib/test.h"

const char test_suite[] = "seq_window";

enum { CHUNKS = 40 };

struct text {
    bool has[CHUNKS];
    unsigned asked[CHUNKS];
};

static bool text_has(void *ctx, size_t chunk)
{
    struct text *t = ctx;

    CU_ASSERT_FATAL(chunk < CHUNKS);
    t->asked[chunk]++;
    return t->has[chunk];
}

/* Whether a token at 64 @n sees positions of existing chunks only. */
static bool is_whole(const struct text *t, uint32_t window, size_t first, size_t n)
{
    for (size_t p = 0; p < n * CHUNK_TOKENS; p++)
        if ((window == 0 || p + window > n * CHUNK_TOKENS) && p / CHUNK_TOKENS >= first &&
            !t->has[p / CHUNK_TOKENS])
            return false;
    return true;
}

static void check(struct text *t, uint32_t window, size_t first)
{
    size_t want = CHUNKS, needed = 99, n;

    memset(t->asked, 0, sizeof(t->asked));
    n = seq_window_longest(window, first, CHUNKS, text_has, t, &needed);
    while (want > first && !is_whole(t, window, first, want))
        want--;
    CU_ASSERT_EQUAL(n, want);
    for (size_t i = 0; i < CHUNKS; i++)
        CU_ASSERT(t->asked[i] <= (i >= first)); /* a question is a look-up in shared memory */

    /* exactly the chunks from @needed on are seen */
    for (size_t p = first * CHUNK_TOKENS; p < n * CHUNK_TOKENS; p++) {
        bool is_seen = window == 0 || p + window > n * CHUNK_TOKENS;

        if (is_seen)
            CU_ASSERT(p / CHUNK_TOKENS >= needed);
        if (p == needed * CHUNK_TOKENS + CHUNK_TOKENS - 1)
            CU_ASSERT(is_seen);
    }
}

static void test_first_chunk(void)
{
    CU_ASSERT_EQUAL(seq_window_first(0, 1000000), 0);
    CU_ASSERT_EQUAL(seq_window_first(128, 0), 0);
    CU_ASSERT_EQUAL(seq_window_first(128, 127), 0);
    CU_ASSERT_EQUAL(seq_window_first(128, 190), 0); /* sees 63 */
    CU_ASSERT_EQUAL(seq_window_first(128, 191), 1); /* sees 64 and later */
    CU_ASSERT_EQUAL(seq_window_first(128, 1024), 14);
    CU_ASSERT_EQUAL(seq_window_first(1, 1024), 16);
    CU_ASSERT_EQUAL(seq_window_first(UINT32_MAX, 1024), 0);
}

static void test_longest(void)
{
    static const uint32_t windows[] = {0, 1, 2, 64, 65, 66, 128, 129, 1000, 4096, UINT32_MAX};

    for (unsigned i = 0; i < 200; i++) {
        uint64_t missing_of_16 = test_rand_below(17);
        struct text t = {0};

        for (size_t c = 0; c < CHUNKS; c++)
            t.has[c] = test_rand_below(16) >= missing_of_16;
        for (size_t w = 0; w < sizeof(windows) / sizeof(*windows); w++)
            for (size_t first = 0; first <= CHUNKS; first += 13)
                check(&t, windows[w], first);
    }
}

static void test_no_chunks(void)
{
    struct text t = {0};
    size_t needed = 99;

    CU_ASSERT_EQUAL(seq_window_longest(128, 0, 0, text_has, &t, &needed), 0);
    CU_ASSERT_EQUAL(needed, 0);
    CU_ASSERT_EQUAL(seq_window_longest(0, 7, 7, text_has, &t, &needed), 7);
    CU_ASSERT_EQUAL(needed, 7);
}

const struct test_case test_cases[] = {TEST(test_first_chunk), TEST(test_longest), TEST(test_no_chunks),
                                       TEST_END};
