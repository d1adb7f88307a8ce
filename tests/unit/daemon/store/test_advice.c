/* Windows of the last hour and day, and what other capacities would hit. */
#include "daemon/store/advice.h"

#include <math.h>
#include <stdlib.h>

#include "tests/lib/test.h"

const char test_suite[] = "advice";

enum {
    MINUTE = 60 * 1000,
    HOUR = 60 * MINUTE,
    NUMBERS = 32768,         /* of a chunk */
    BYTES = NUMBERS * 3 / 8, /* with 3 bits per number */
    CYCLE = 1000,
};

/* 5 of 1000 keys that are uniformly distributed are 4096 registers' error, six times over */
#define DISTINCT_ERROR 0.1

static struct advice *a;
static uint64_t salt;

static uint64_t hash_of(uint64_t key)
{
    uint64_t z = (key + salt) * UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void begin(uint64_t now_ms)
{
    salt = test_rand();
    a = advice_new(now_ms);
    CU_ASSERT_PTR_NOT_NULL_FATAL(a);
}

static void count_cycle(bool found, uint64_t now_ms)
{
    for (unsigned i = 0; i < CYCLE; i++)
        advice_count(a, hash_of(i), NUMBERS, BYTES, found, now_ms);
}

static bool is_close(uint64_t n, double want)
{
    return fabs((double) n - want) <= DISTINCT_ERROR * want;
}

static void test_none(void)
{
    struct advice_figures f = {.lookups = 7};

    advice_read(NULL, 1 << 20, 0, &f);
    CU_ASSERT(f.lookups == 0 && f.windows[ADVICE_DAY].lookups == 0 && f.bits == 0);
    begin(5);
    advice_read(a, 1 << 20, 5, &f);
    CU_ASSERT(f.lookups == 0 && f.pool_hits[4] == 0 && f.bit_hits[0] == 0 && f.bits == 0);
    CU_ASSERT_EQUAL(f.windows[ADVICE_HOUR].distinct, 0);
    a = advice_free(a);
}

static void test_windows(void)
{
    const uint64_t start = UINT64_C(1000) * HOUR;
    struct advice_figures f;

    begin(start);
    count_cycle(false, start);
    count_cycle(true, start + 30 * MINUTE);
    advice_read(a, 1 << 20, start + 30 * MINUTE, &f);
    for (unsigned w = 0; w < ADVICE_WINDOWS; w++) {
        CU_ASSERT_EQUAL(f.windows[w].lookups, 2 * CYCLE);
        CU_ASSERT_EQUAL(f.windows[w].found, CYCLE);
        CU_ASSERT(is_close(f.windows[w].distinct, CYCLE)); /* the same keys in both cells */
    }

    advice_read(a, 1 << 20, start + 60 * MINUTE, &f);
    CU_ASSERT_EQUAL(f.windows[ADVICE_HOUR].lookups, CYCLE);
    CU_ASSERT_EQUAL(f.windows[ADVICE_DAY].lookups, 2 * CYCLE);
    CU_ASSERT(is_close(f.windows[ADVICE_HOUR].distinct, CYCLE));

    advice_read(a, 1 << 20, start + 90 * MINUTE, &f);
    CU_ASSERT_EQUAL(f.windows[ADVICE_HOUR].lookups, 0);
    CU_ASSERT_EQUAL(f.windows[ADVICE_HOUR].distinct, 0);
    advice_read(a, 1 << 20, start + 23 * HOUR + 59 * MINUTE, &f);
    CU_ASSERT_EQUAL(f.windows[ADVICE_DAY].lookups, 2 * CYCLE);
    advice_read(a, 1 << 20, start + UINT64_C(24) * HOUR, &f);
    CU_ASSERT_EQUAL(f.windows[ADVICE_DAY].lookups, 0);

    count_cycle(true, start + UINT64_C(24) * HOUR); /* the cell of the first hour is used again */
    advice_read(a, 1 << 20, start + UINT64_C(24) * HOUR, &f);
    CU_ASSERT_EQUAL(f.windows[ADVICE_DAY].lookups, CYCLE);
    CU_ASSERT_EQUAL(f.windows[ADVICE_HOUR].found, CYCLE);
    a = advice_free(a);
}

/* No estimate is above the number of chunks that it is a part of. */
static void test_distinct_is_at_most_all(void)
{
    struct advice_figures f;

    begin(0);
    for (unsigned i = 0; i < 50000; i++) {
        advice_count(a, hash_of(i), NUMBERS, BYTES, false, 0);
        if (i % 1000 != 0)
            continue;
        advice_read(a, 1 << 20, 0, &f);
        CU_ASSERT(f.windows[ADVICE_HOUR].distinct <= i + 1);
    }
    a = advice_free(a);
}

/*
 * A cycle of 1000 chunks with 3 bits per number: a pool hits all of the later rounds if it has room for them,
 * and none otherwise. Distances are known to 6 %.
 */
static void test_capacities(void)
{
    const uint64_t cycle_bytes = (uint64_t) CYCLE * BYTES;
    struct advice_figures f;

    begin(0);
    for (unsigned round = 0; round < 5; round++)
        count_cycle(round > 0, 0);
    advice_read(a, cycle_bytes * 2 / 3, 0, &f);
    CU_ASSERT_EQUAL(f.lookups, 5 * CYCLE);
    CU_ASSERT(fabs(f.bits - 3) < 1e-9);
    CU_ASSERT(f.pool_hits[0] == 0 && f.pool_hits[1] == 0); /* 0.5, 1 */
    CU_ASSERT(f.pool_hits[2] == 4 * CYCLE && f.pool_hits[3] == 4 * CYCLE && f.pool_hits[4] == 4 * CYCLE);
    CU_ASSERT(f.bit_hits[0] == 0 && f.bit_hits[1] == 0 && f.bit_hits[2] == 0); /* 16, 4.5, 3 */

    advice_read(a, cycle_bytes * 8 / 10, 0, &f);
    CU_ASSERT_EQUAL(f.bit_hits[2], 0);
    CU_ASSERT_EQUAL(f.bit_hits[3], 4 * CYCLE); /* 2 bits: room for 1.2 of the cycle */
    advice_read(a, cycle_bytes * 16 / 10, 0, &f);
    CU_ASSERT(f.bit_hits[0] == 0 && f.bit_hits[1] == 4 * CYCLE && f.bit_hits[2] == 4 * CYCLE);
    advice_read(a, UINT64_MAX, 0, &f);
    CU_ASSERT_EQUAL(f.pool_hits[0], 4 * CYCLE);
    a = advice_free(a);
}

/* The bits follow a table that replaced another. */
static void test_bits_follow(void)
{
    struct advice_figures f;

    begin(0);
    count_cycle(false, 0);
    for (unsigned i = 0; i < 10000; i++)
        advice_count(a, hash_of(i), NUMBERS, NUMBERS / 4, false, 0); /* 2 bits */
    advice_read(a, 1 << 20, 0, &f);
    CU_ASSERT(f.bits > 1.999 && f.bits < 2.01);
    a = advice_free(a);
}

const struct test_case test_cases[] = {
    TEST(test_none),       TEST(test_windows),     TEST(test_distinct_is_at_most_all),
    TEST(test_capacities), TEST(test_bits_follow), TEST_END,
};
