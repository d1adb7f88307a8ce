/* Hits of a cache that drops the least recently used block, against a list that is searched. */
#include <stdbool.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tools/bench/capacity_lru.h"

const char test_suite[] = "capacity_lru";

enum { REQUESTS = 200, DISTINCT = 40, LENGTH_MAX = 8 };

static size_t first[REQUESTS + 1];
static uint32_t blocks[REQUESTS * LENGTH_MAX];
static struct capacity_trace trace = {
    .n_requests = REQUESTS, .n_distinct = DISTINCT, .first = first, .blocks = blocks};

static void fill(void)
{
    for (size_t i = 0; i < REQUESTS; i++) {
        size_t n = test_rand_below(LENGTH_MAX + 1);

        for (size_t k = 0; k < n; k++)
            blocks[first[i] + k] = (uint32_t) test_rand_below(k == 0 ? 4 : DISTINCT);
        first[i + 1] = first[i] + n;
    }
    trace.n_blocks = first[REQUESTS];
}

/* @list: [*n] newest last. */
static bool has(const uint32_t *list, size_t n, uint32_t block)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == block)
            return true;
    return false;
}

static void touch(uint32_t *list, size_t *n, size_t capacity, uint32_t block)
{
    size_t at = 0;

    while (at < *n && list[at] != block)
        at++;
    if (at == *n && *n == capacity)
        at = 0;
    if (at < *n) {
        memmove(list + at, list + at + 1, (*n - at - 1) * sizeof(*list));
        --*n;
    }
    list[(*n)++] = block;
}

static uint64_t expected(size_t capacity)
{
    uint32_t list[DISTINCT];
    uint64_t hits = 0;
    size_t n = 0;

    for (size_t i = 0; i < REQUESTS; i++) {
        size_t at = first[i];

        while (at < first[i + 1] && has(list, n, blocks[at])) {
            at++;
            hits++;
        }
        for (size_t k = first[i]; k < first[i + 1]; k++)
            touch(list, &n, capacity, blocks[k]);
    }
    return hits;
}

static void test_same_as_a_list(void)
{
    for (uint32_t capacity = 1; capacity <= DISTINCT; capacity++) {
        uint64_t hits = 0;

        fill();
        CU_ASSERT_EQUAL(capacity_lru_hits(&trace, capacity, &hits), 0);
        CU_ASSERT_EQUAL(hits, expected(capacity));
    }
}

static void test_ends(void)
{
    uint64_t none = 1, all = 0, many = 0;

    fill();
    CU_ASSERT_EQUAL(capacity_lru_hits(&trace, 0, &none), 0);
    CU_ASSERT_EQUAL(none, 0);
    CU_ASSERT_EQUAL(capacity_lru_hits(&trace, UINT32_MAX, &all), 0);
    CU_ASSERT_EQUAL(capacity_lru_hits(&trace, DISTINCT, &many), 0);
    CU_ASSERT(all > 0 && all == many);
}

const struct test_case test_cases[] = {TEST(test_same_as_a_list), TEST(test_ends), TEST_END};
