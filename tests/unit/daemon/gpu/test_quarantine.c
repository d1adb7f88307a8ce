/*
 * The quarantine, with a clock that is a variable and lists that are literals. The random case compares with
 * the rule itself: a list requested after the end of a session does not name it, and the session is released
 * at the first tick at least the delay later.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "daemon/gpu/quarantine.h"

const char test_suite[] = "quarantine";

enum { N_MAX = 8, DELAY = 2000, PATIENCE = 30000, SESSIONS = 64 };

enum fate { PENDING = 0, RELEASED, RETIRED };

static enum fate fates[SESSIONS];
static struct quarantine q;

static void set_fate(uint32_t session, enum fate fate)
{
    assert(session < SESSIONS && fates[session] == PENDING); /* once */
    for (uint32_t i = 0; i < q.n; i++)
        assert(q.entries[i].session != session);
    fates[session] = fate;
}

static void on_release(void *ctx, uint32_t session)
{
    assert(ctx == fates);
    set_fate(session, RELEASED);
}

static void on_retire(void *ctx, uint32_t session, const char *why)
{
    assert(ctx == fates && why[0]);
    set_fate(session, RETIRED);
}

static void setup(void)
{
    const struct quarantine_owner owner = {on_release, on_retire, fates};

    memset(fates, 0, sizeof(fates));
    assert(quarantine_init(&q, &owner, N_MAX, DELAY, PATIENCE, NULL) == 0);
}

static void list(uint64_t now, const uint32_t *pids, size_t n)
{
    CU_ASSERT_TRUE_FATAL(quarantine_needs_list(&q));
    quarantine_requested(&q);
    CU_ASSERT_FALSE(quarantine_needs_list(&q)); /* one request at a time */
    quarantine_listed(&q, pids, n, now);
}

static void test_released_when_unlisted_and_late_enough(void)
{
    setup();
    CU_ASSERT_FALSE(quarantine_needs_list(&q));
    quarantine_add(&q, 5, 700, 1000);
    quarantine_tick(&q, 1000 + DELAY); /* no list said that it is unlisted */
    CU_ASSERT_EQUAL(fates[5], PENDING);
    list(4000, NULL, 0);
    CU_ASSERT_FALSE(quarantine_needs_list(&q)); /* every entry is known */
    quarantine_tick(&q, 4000 + DELAY - 1);
    CU_ASSERT_EQUAL(fates[5], PENDING);
    quarantine_tick(&q, 4000 + DELAY);
    CU_ASSERT_EQUAL(fates[5], RELEASED);
    CU_ASSERT_EQUAL(q.n, 0);
    quarantine_deinit(&q);
}

static void test_waits_while_it_is_listed(void)
{
    uint64_t now = 1000;

    setup();
    quarantine_add(&q, 0, 700, now);
    quarantine_add(&q, 1, 701, now);
    for (unsigned i = 0; i < 10; i++) { /* far longer than the patience, but the driver answers */
        now += PATIENCE / 2;
        list(now, (const uint32_t[]){3, 700, 90}, 3);
        quarantine_tick(&q, now);
    }
    CU_ASSERT_EQUAL(fates[0], PENDING);
    CU_ASSERT_EQUAL(fates[1], RELEASED);
    list(now, (const uint32_t[]){3, 90}, 2);
    quarantine_tick(&q, now + DELAY);
    CU_ASSERT_EQUAL(fates[0], RELEASED);
    quarantine_deinit(&q);
}

/* A list that was pending when the process ended may be older than its last kernel. */
static void test_list_requested_before_the_end_does_not_count(void)
{
    setup();
    quarantine_add(&q, 0, 700, 1000);
    quarantine_requested(&q);
    quarantine_add(&q, 1, 701, 1001);
    quarantine_listed(&q, NULL, 0, 1002);
    quarantine_tick(&q, 1002 + DELAY);
    CU_ASSERT_EQUAL(fates[0], RELEASED);
    CU_ASSERT_EQUAL(fates[1], PENDING);
    list(4000, NULL, 0);
    quarantine_tick(&q, 4000 + DELAY);
    CU_ASSERT_EQUAL(fates[1], RELEASED);
    quarantine_deinit(&q);
}

static void test_no_answer_in_time_retires(void)
{
    setup();
    quarantine_add(&q, 0, 700, 1000);
    quarantine_requested(&q);
    quarantine_unanswered(&q);
    CU_ASSERT_TRUE(quarantine_needs_list(&q));
    quarantine_requested(&q); /* never answered */
    quarantine_tick(&q, 1000 + PATIENCE - 1);
    CU_ASSERT_EQUAL(fates[0], PENDING);
    quarantine_tick(&q, 1000 + PATIENCE);
    CU_ASSERT_EQUAL(fates[0], RETIRED);
    quarantine_deinit(&q);
}

/* A request without an answer does not make the process unlisted: only the next list does. */
static void test_unanswered_is_requested_again(void)
{
    setup();
    quarantine_add(&q, 0, 700, 1000);
    quarantine_requested(&q);
    quarantine_unanswered(&q);
    quarantine_tick(&q, 1000 + DELAY);
    CU_ASSERT_EQUAL(fates[0], PENDING);
    list(1500, NULL, 0);
    quarantine_tick(&q, 1500 + DELAY);
    CU_ASSERT_EQUAL(fates[0], RELEASED);
    quarantine_deinit(&q);
}

static void test_impossible_lists_retire_all(void)
{
    setup();
    quarantine_add(&q, 0, 700, 1000);
    quarantine_add(&q, 1, 701, 1000);
    list(1000, (const uint32_t[]){701}, 1);
    quarantine_retire_all(&q, "an MPS server came");
    CU_ASSERT_EQUAL(fates[0], RETIRED); /* although it was unlisted: an MPS server may run its kernels */
    CU_ASSERT_EQUAL(fates[1], RETIRED);
    CU_ASSERT_EQUAL(q.n, 0);
    quarantine_deinit(&q);
}

static void test_beyond_the_limit_retires_at_once(void)
{
    setup();
    for (uint32_t i = 0; i < N_MAX; i++)
        quarantine_add(&q, i, 700 + (pid_t) i, 1000);
    for (uint32_t i = 0; i < N_MAX; i++)
        CU_ASSERT_EQUAL(fates[i], PENDING);
    quarantine_add(&q, N_MAX, 900, 1000);
    CU_ASSERT_EQUAL(fates[N_MAX], RETIRED);
    CU_ASSERT_EQUAL(q.n, N_MAX);
    list(1000, NULL, 0);
    quarantine_tick(&q, 1000 + DELAY);
    for (uint32_t i = 0; i < N_MAX; i++)
        CU_ASSERT_EQUAL(fates[i], RELEASED);
    quarantine_deinit(&q);

    assert(quarantine_init(&q, &(struct quarantine_owner){on_release, on_retire, fates}, 0, DELAY, PATIENCE,
                           NULL) == 0);
    quarantine_add(&q, 20, 1, 1000);
    CU_ASSERT_EQUAL(fates[20], RETIRED);
    quarantine_deinit(&q);
}

/* Session i has pid 100 + i. The test computes the expected state of each session by the rule. */
static void test_random_histories(void)
{
    uint64_t now = 1, requested_at = 0, gone[SESSIONS], unlisted[SESSIONS];
    uint32_t n_born = 0;

    setup();
    while (n_born < SESSIONS || q.n > 0) {
        now += test_rand_below(900);
        if (n_born < SESSIONS && q.n < N_MAX && test_rand_below(3) == 0) {
            gone[n_born] = now;
            unlisted[n_born] = 0;
            quarantine_add(&q, n_born, 100 + (pid_t) n_born, now);
            n_born++;
        }
        if (requested_at == 0 && quarantine_needs_list(&q)) {
            quarantine_requested(&q);
            requested_at = now++; /* a session that ends now ends after the request */
        } else if (requested_at != 0 && test_rand_below(4) == 0) {
            quarantine_unanswered(&q);
            requested_at = 0;
        } else if (requested_at != 0) {
            uint32_t pids[SESSIONS];
            size_t n = 0;

            for (uint32_t i = 0; i < n_born; i++)
                if (test_rand_below(4) == 0)
                    pids[n++] = 100 + i;
            quarantine_listed(&q, pids, n, now);
            for (uint32_t i = 0; i < n_born; i++) {
                bool named = false;

                for (size_t j = 0; j < n; j++)
                    named |= pids[j] == 100 + i;
                if (!named && unlisted[i] == 0 && gone[i] <= requested_at)
                    unlisted[i] = now;
            }
            requested_at = 0;
        }
        quarantine_tick(&q, now);
        for (uint32_t i = 0; i < n_born; i++)
            CU_ASSERT_EQUAL_FATAL(fates[i],
                                  unlisted[i] != 0 && now - unlisted[i] >= DELAY ? RELEASED : PENDING);
    }
    quarantine_deinit(&q);
}

const struct test_case test_cases[] = {
    TEST(test_released_when_unlisted_and_late_enough),
    TEST(test_waits_while_it_is_listed),
    TEST(test_list_requested_before_the_end_does_not_count),
    TEST(test_no_answer_in_time_retires),
    TEST(test_unanswered_is_requested_again),
    TEST(test_impossible_lists_retire_all),
    TEST(test_beyond_the_limit_retires_at_once),
    TEST(test_random_histories),
    TEST_END,
};
