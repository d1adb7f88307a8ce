/* The bytes that moments of live vectors are charged for, and what one tenant leaves to the others. */
#include "daemon/tables/live_moments.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/unit/alloc/shapes.h"

const char test_suite[] = "live_moments";

static const uint8_t models[3][DIGEST_BYTES] = {{1}, {2}, {3}};

/* A report of which a byte is charged may be read while another tries to add a larger one: both count. */
static void test_the_largest_open_report_is_charged(void)
{
    struct live_set s = {0};
    struct live_moments *small, *large, *other;

    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 1, 1000, &small, NULL), 0);
    CU_ASSERT_EQUAL(live_open(&s, "uid-1", models[0], false, 1001, 1000, &large, NULL), -ENOSPC);
    CU_ASSERT_EQUAL(s.bytes, 1);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 400, 1000, &large, NULL), 0);
    CU_ASSERT_PTR_EQUAL(small, large);
    CU_ASSERT_EQUAL(s.bytes, 400);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 7, 1000, &other, NULL), 0);
    CU_ASSERT_EQUAL(s.bytes, 400);
    live_close(&s, small);
    live_close(&s, other);
    CU_ASSERT_EQUAL(s.bytes, 400);
    live_close(&s, large);
    CU_ASSERT_EQUAL(s.bytes, 0);
    CU_ASSERT_PTR_NULL(s.first);
}

static void test_room_for_other_tenants(void)
{
    struct live_moments *first, *second, *other;
    struct live_set s = {0};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 300, 1000, &first, NULL), 0);
    CU_ASSERT_EQUAL(live_open(&s, "uid-1", models[1], false, 201, 1000, &second, &e),
                    -EDQUOT); /* 501 of 499 */
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "uid-1 has 300 of 1000"));
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[1], false, 200, 1000, &second, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-2", models[1], false, 500, 1000, &other, NULL), 0);
    live_close(&s, first);
    live_close(&s, second);
    live_close(&s, other);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[2], false, 1000, 1000, &first, NULL),
                          0); /* the first fits */
    live_close(&s, first);
    CU_ASSERT_EQUAL(s.bytes, 0);
}

/* Only reports of the model and of the named tenants are selected, each is open until it is closed. */
static void test_selection(void)
{
    static const struct {
        const char *tenants[3];
        size_t n_tenants;
        unsigned model, n_found;
    } cases[] = {
        {{NULL}, 0, 0, 2},
        {{"uid-1"}, 1, 0, 1},
        {{"uid-2", "uid-1"}, 2, 0, 2},
        {{"uid-3"}, 1, 0, 0},
        {{"uid-3", "uid-2"}, 2, 0, 1},
        {{NULL}, 0, 1, 1},
        {{"uid-2"}, 1, 1, 0},
        {{NULL}, 0, 2, 0}, /* opened, but without a report */
        {{"", "uid", "uid-11"}, 3, 0, 0},
    };
    struct live_moments *entries[4];
    struct live_set s = {0};

    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 1, 1000, &entries[0], NULL), 0);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-2", models[0], false, 1, 1000, &entries[1], NULL), 0);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[1], false, 1, 1000, &entries[2], NULL), 0);
    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[2], false, 1, 1000, &entries[3], NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        atomic_store(&entries[i]->reports, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct live_moments **found = NULL;
        struct errmsg e = {""};
        bool joint = true; /* there are none */
        size_t n = 77;
        int r = live_select(&s, models[cases[i].model], (char *const *) cases[i].tenants, cases[i].n_tenants,
                            &joint, &found, &n, &e);

        CU_ASSERT_FALSE(joint);

        CU_ASSERT_EQUAL(r, cases[i].n_found ? 0 : -ENODATA);
        CU_ASSERT_EQUAL(n, r == 0 ? cases[i].n_found : 77);
        CU_ASSERT_EQUAL(found != NULL, r == 0);
        for (size_t k = 0; r == 0 && k < n; k++) {
            CU_ASSERT_EQUAL(memcmp(found[k]->model_digest, models[cases[i].model], DIGEST_BYTES), 0);
            CU_ASSERT_EQUAL(found[k]->n_users, 2);
            live_close(&s, found[k]);
            CU_ASSERT_EQUAL(found[k]->n_users, 1);
        }
        free(found);
    }
    live_deinit(&s);
}

static struct moments *moments_of(bool joint)
{
    struct moments_options o = {.geometry = shape(1, 2, 2, 32, 32), .joint = joint};
    float x[4 * 64];
    struct moments *m = NULL;
    struct errmsg e = {""};

    for (size_t i = 0; i < 4 * 64; i++)
        x[i] = (float) test_rand_normal();
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_add(m, 0, 0, 2, 4, x, x, &e), 0);
    return m;
}

/* Joint moments have an entry of their own. A sum is joint if only they are in it, else it has the tokens of
 * all. */
static void test_joint_moments(void)
{
    struct live_moments *entries[2];
    struct live_set s = {0};
    struct errmsg e = {""};

    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], i == 1, 1, 1000, &entries[i], &e), 0);
        CU_ASSERT_EQUAL(live_add(entries[i], moments_of(i == 1), &e), 0);
    }
    CU_ASSERT_NOT_EQUAL(entries[0], entries[1]);
    for (unsigned i = 0; i < 2; i++) {
        _cleanup_(moments_freep) struct moments *sum = NULL;
        struct live_moments **found = NULL;
        bool joint = i == 1;
        uint64_t reports = 0;
        size_t n = 0;

        CU_ASSERT_EQUAL_FATAL(live_select(&s, models[0], NULL, 0, &joint, &found, &n, &e), 0);
        CU_ASSERT_EQUAL(joint, i == 1);
        CU_ASSERT_EQUAL(n, i == 1 ? 1 : 2);
        for (size_t k = 0; k < n; k++)
            CU_ASSERT_EQUAL(live_sum(found[k], joint, &sum, &reports, &e), 0);
        CU_ASSERT_EQUAL(moments_get_options(sum)->joint, i == 1);
        CU_ASSERT_EQUAL(moments_count(sum, 0, 0), i == 1 ? 4 : 8);
        CU_ASSERT_EQUAL(reports, n);
        for (size_t k = 0; k < n; k++)
            live_close(&s, found[k]);
        free(found);
    }
    live_deinit(&s);
}

/* Half a million tokens of zeros, twice, then as many of ones: these weigh half, not a third. */
static void test_old_tokens_fade(void)
{
    struct moments_options o = {.geometry = shape(1, 1, 1, 32, 32)};
    struct live_moments *entry;
    struct live_set s = {0};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(live_open(&s, "uid-1", models[0], false, 1, 1000, &entry, &e), 0);
    for (unsigned i = 0; i < 3; i++) {
        struct moments *m = NULL;
        float x[32];

        for (size_t k = 0; k < 32; k++)
            x[k] = i == 2;
        CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
        CU_ASSERT_EQUAL(moments_add(m, 0, 0, 1, 1, x, x, &e), 0);
        m->count[0] = LIVE_TOKENS_KEPT / 2 + 64; /* all alike: a scatter of 0 */
        CU_ASSERT_EQUAL(live_add(entry, m, &e), 0);
    }
    /* 2 n of zeros count n after the second report; then n of ones join: half and half, halved again */
    CU_ASSERT_EQUAL(moments_count(entry->moments, 0, 0), LIVE_TOKENS_KEPT / 2 + 64);
    CU_ASSERT_DOUBLE_EQUAL(moments_mean(entry->moments, 0, 0)[5], 0.5, 1e-9);
    /* the variance of zeros and ones in equal shares */
    CU_ASSERT_DOUBLE_EQUAL(moments_scatter(entry->moments, 0, 0)[0] / (LIVE_TOKENS_KEPT / 2 + 64), 0.25,
                           1e-9);
    atomic_store(&entry->reports, 0);
    live_close(&s, entry);
}

/* What a report claims by its bytes must be so. */
static void test_kind_is_checked(void)
{
    struct geometry g = shape(1, 2, 2, 32, 32);
    uint8_t model[DIGEST_BYTES] = {0}, digest[DIGEST_BYTES];
    struct errmsg e = {""};

    geometry_digest(&g, digest);
    for (unsigned i = 0; i < 2; i++) {
        _cleanup_(moments_freep) struct moments *m = moments_of(i == 1);

        CU_ASSERT_EQUAL(live_check(m, model, digest, i == 1, &e), 0);
        CU_ASSERT_EQUAL(live_check(m, model, digest, i == 0, &e), -EINVAL);
    }
}

const struct test_case test_cases[] = {
    TEST(test_selection),
    TEST(test_joint_moments),
    TEST(test_kind_is_checked),
    TEST(test_old_tokens_fade),
    TEST(test_the_largest_open_report_is_charged),
    TEST(test_room_for_other_tenants),
    TEST_END,
};
