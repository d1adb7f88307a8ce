/* Estimated hits of a cache by reuse distances, against a cache that is simulated block by block. */
#include "daemon/store/reuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tools/bench/capacity_lru.h"

const char test_suite[] = "reuse";

enum {
    PERIOD_MS = 1000,
    SMALL_KEYS = 3000, /* all are sampled */
    SMALL = 60000,
    LARGE_KEYS = 100000,
    LARGE = 400000,
};

/*
 * From 3000 keys on. Of 1000 estimates by this test the largest error was 0.028, and their root mean square
 * 0.005. Estimates for smaller capacities are worse, since few sampled keys fit them.
 */
#define ERROR_MAX 0.04

static struct capacity_trace trace;
static uint64_t salt;

static uint64_t hash_of(uint64_t key)
{
    uint64_t z = (key + salt) * UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- traces ---- */

static void begin(size_t n_blocks, uint32_t n_distinct, uint32_t n_requests)
{
    salt = test_rand();
    trace = (struct capacity_trace){.n_distinct = n_distinct};
    trace.blocks = calloc(n_blocks, sizeof(*trace.blocks));
    trace.first = calloc((size_t) n_requests + 1, sizeof(*trace.first));
    assert(trace.blocks && trace.first);
}

static void finish(void)
{
    free(trace.blocks);
    free(trace.first);
}

static void add_block(uint32_t block)
{
    trace.blocks[trace.n_blocks++] = block;
}

static void end_request(void)
{
    trace.first[++trace.n_requests] = trace.n_blocks;
}

/* Requests of one block: the probability of block i is proportional to 1 / (i + 1)^s. */
static void make_zipf(uint32_t n, uint32_t n_distinct, double s)
{
    double *sums = calloc(n_distinct, sizeof(*sums)), sum = 0;

    assert(sums);
    begin(n, n_distinct, n);
    for (uint32_t i = 0; i < n_distinct; i++)
        sums[i] = sum += pow(i + 1.0, -s);
    for (uint32_t i = 0; i < n; i++) {
        double x = sum * ((double) (test_rand() >> 11) * 0x1p-53);
        uint32_t low = 0, high = n_distinct - 1;

        while (low < high) {
            uint32_t mid = (low + high) / 2;

            if (sums[mid] < x)
                low = mid + 1;
            else
                high = mid;
        }
        add_block(low);
        end_request();
    }
    free(sums);
}

/*
 * Conversations: a system prompt that one of 50 groups shares, then turns that repeat all earlier ones. Some
 * 400 conversations run at one time; a request looks up the prompt and the history, and adds blocks.
 */
static void make_conversations(uint32_t n_requests)
{
    enum { GROUPS = 50, PROMPT = 10, RUNNING = 400, TURNS_MAX = 12, ADDED = 4 };
    static uint32_t group[RUNNING], first[RUNNING], n[RUNNING], turns[RUNNING];
    uint32_t next = GROUPS * PROMPT;

    begin((size_t) n_requests * (PROMPT + TURNS_MAX * ADDED), 0, n_requests);
    memset(turns, 0, sizeof(turns));
    for (uint32_t i = 0; i < n_requests; i++) {
        uint32_t c = (uint32_t) test_rand_below(RUNNING);

        if (turns[c] == 0) {
            turns[c] = 1 + (uint32_t) test_rand_below(TURNS_MAX);
            group[c] = (uint32_t) test_rand_below(GROUPS);
            first[c] = next;
            n[c] = 0;
            next += TURNS_MAX * ADDED;
        }
        turns[c]--;
        n[c] += 1 + (uint32_t) test_rand_below(ADDED);
        for (uint32_t k = 0; k < PROMPT; k++)
            add_block(group[c] * PROMPT + k);
        for (uint32_t k = 0; k < n[c]; k++)
            add_block(first[c] + k);
        end_request();
    }
    trace.n_distinct = next;
}

static struct reuse *replay(uint64_t weight)
{
    struct reuse *r = reuse_new(0, PERIOD_MS);

    assert(r);
    for (size_t i = 0; i < trace.n_blocks; i++)
        reuse_note(r, hash_of(trace.blocks[i]), weight, 0);
    CU_ASSERT_EQUAL(reuse_references(r), trace.n_blocks);
    return r;
}

static double exact(uint32_t capacity)
{
    uint64_t hits = 0;

    assert(capacity_lru_hits(&trace, capacity, &hits) == 0);
    return (double) hits;
}

static void check_curve(uint64_t weight)
{
    static const uint32_t capacities[] = {3000, 7000, 15000, 40000, 100000};
    struct reuse *r = replay(weight);

    for (size_t i = 0; i < sizeof(capacities) / sizeof(capacities[0]); i++) {
        double want = exact(capacities[i]) / (double) trace.n_blocks;
        double have = reuse_hits(r, capacities[i] * weight) / (double) trace.n_blocks;

        if (fabs(want - have) > ERROR_MAX)
            CU_FAIL("an estimate is too far from the exact share of hits");
    }
    r = reuse_free(r);
    finish();
}

/* ---- estimates ---- */

/* Every key is sampled: the hits are exact where a bucket of distances ends. */
static void test_small_is_exact(void)
{
    struct reuse *r;

    make_zipf(SMALL, SMALL_KEYS, 0.7);
    r = replay(1);
    for (uint32_t capacity = 1; capacity < 16; capacity++)
        CU_ASSERT_EQUAL(reuse_hits(r, capacity), exact(capacity));
    for (uint32_t capacity = 31; capacity < 2 * SMALL_KEYS; capacity = 2 * capacity + 1)
        CU_ASSERT_EQUAL(reuse_hits(r, capacity), exact(capacity));
    CU_ASSERT_EQUAL(reuse_hits(r, 0), 0);
    CU_ASSERT_EQUAL(reuse_hits(r, UINT64_MAX), exact(UINT32_MAX));
    r = reuse_free(r);
    finish();
}

static void test_zipf(void)
{
    for (unsigned i = 0; i < 3; i++) {
        make_zipf(LARGE, LARGE_KEYS, 0.6 + 0.3 * i);
        check_curve(1);
    }
}

static void test_conversations(void)
{
    make_conversations(30000);
    check_curve(1);
}

/* Capacities are in units of the weight. */
static void test_weights(void)
{
    make_zipf(LARGE / 2, LARGE_KEYS / 2, 0.8);
    check_curve(UINT64_C(10485760));
}

/* Heavy keys take the room of light ones: a cycle of both fits a capacity or does not. */
static void test_mixed_weights(void)
{
    enum { N = 1000, LIGHT = 3, HEAVY = 50 };
    struct reuse *r = reuse_new(0, PERIOD_MS);
    const uint64_t all = (uint64_t) N / 2 * (LIGHT + HEAVY);

    assert(r);
    salt = test_rand();
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < N; i++)
            reuse_note(r, hash_of(i), i % 2 ? HEAVY : LIGHT, 0);
    CU_ASSERT_EQUAL(reuse_hits(r, all * 9 / 10), 0); /* distances are known to 6 % */
    CU_ASSERT_EQUAL(reuse_hits(r, all * 11 / 10), 2 * N);
    r = reuse_free(r);
}

/* ---- time ---- */

static void note_cycle(struct reuse *r, unsigned n, uint64_t now_ms)
{
    for (unsigned i = 0; i < n; i++)
        reuse_note(r, hash_of(i), 1, now_ms);
}

static void test_counts_of_two_periods(void)
{
    struct reuse *r = reuse_new(500, PERIOD_MS);

    assert(r);
    note_cycle(r, 100, 500);
    note_cycle(r, 100, 1499);
    CU_ASSERT_EQUAL(reuse_references(r), 200);
    CU_ASSERT_EQUAL(reuse_hits(r, 1000), 100);
    note_cycle(r, 100, 1500); /* of the next period: the one before still counts */
    CU_ASSERT_EQUAL(reuse_references(r), 300);
    CU_ASSERT_EQUAL(reuse_hits(r, 1000), 200);
    reuse_tick(r, 2500);
    CU_ASSERT_EQUAL(reuse_references(r), 100);
    reuse_tick(r, 9500);
    CU_ASSERT_EQUAL(reuse_references(r), 0);
    CU_ASSERT_EQUAL(reuse_hits(r, 1000), 0);
    r = reuse_free(r);
}

/* A key that was not referenced for a period is a new one. */
static void test_old_keys_leave(void)
{
    struct reuse *r = reuse_new(0, PERIOD_MS);

    assert(r);
    salt = test_rand();
    note_cycle(r, 100, 0);
    note_cycle(r, 50, 600);
    note_cycle(r, 100, 1100); /* 50 of them were referenced 500 ms ago, 50 of them 1100 ms ago */
    CU_ASSERT_EQUAL(reuse_references(r), 250);
    CU_ASSERT_EQUAL(reuse_hits(r, 1000), 100);
    r = reuse_free(r);
}

/* Many keys in one period, few in the next: the sample then has all of the few. */
static void test_sample_begins_again(void)
{
    struct reuse *r = reuse_new(0, PERIOD_MS);
    unsigned rounds = 0;

    assert(r);
    salt = test_rand();
    note_cycle(r, 40 * REUSE_KEYS_MAX, 0);
    for (uint64_t ms = 1500; ms < 5000; ms += 100) /* the keys of the first period leave until 2000 */
        note_cycle(r, 100, ms);
    reuse_tick(r, 5000);
    for (uint64_t ms = 5000; ms < 5900; ms += 100, rounds++)
        note_cycle(r, 100, ms);
    CU_ASSERT_EQUAL(reuse_references(r), (10 + rounds) * 100); /* with those of the period before */
    CU_ASSERT_EQUAL(reuse_hits(r, 1000), (10 + rounds) * 100);
    CU_ASSERT(reuse_hits(r, 60) < 1);
    r = reuse_free(r);
}

const struct test_case test_cases[] = {
    TEST(test_small_is_exact),
    TEST(test_zipf),
    TEST(test_conversations),
    TEST(test_weights),
    TEST(test_mixed_weights),
    TEST(test_counts_of_two_periods),
    TEST(test_old_keys_leave),
    TEST(test_sample_begins_again),
    TEST_END,
};
