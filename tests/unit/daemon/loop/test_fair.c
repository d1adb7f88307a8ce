/* Fair queues: order, costs, shares that wake up, removal. */
#include "tests/lib/test.h"

#include <string.h>

#include "daemon/loop/fair.h"

const char test_suite[] = "fair";

enum { SHARES = 40 };

struct thing {
    struct fair_item item;
    int of; /* the share's number */
};

static struct fair_queue q;
static struct fair_share shares[SHARES];
static struct thing things[SHARES * 4];

static void setup(void)
{
    memset(&q, 0, sizeof(q));
    memset(shares, 0, sizeof(shares));
    memset(things, 0, sizeof(things));
    for (int i = 0; i < SHARES; i++)
        CU_ASSERT_EQUAL(fair_join(&q, &shares[i]), 0);
}

static void teardown(void)
{
    for (int i = 0; i < SHARES; i++)
        CU_ASSERT(fair_leave(&q, &shares[i]));
    fair_deinit(&q);
}

static struct thing *take(void)
{
    return (struct thing *) fair_take(&q);
}

static void put(struct thing *t, int of)
{
    t->of = of;
    fair_put(&q, &shares[of], &t->item);
}

/* Within a share, items come in their order. */
static void test_order_in_a_share(void)
{
    setup();
    CU_ASSERT_PTR_NULL(take());
    for (int i = 0; i < 4; i++)
        put(&things[i], 7);
    fair_remove(&q, &things[2].item);
    CU_ASSERT_PTR_EQUAL(take(), &things[0]);
    CU_ASSERT_PTR_EQUAL(take(), &things[1]);
    CU_ASSERT_PTR_EQUAL(take(), &things[3]);
    CU_ASSERT(fair_is_empty(&q));
    CU_ASSERT_PTR_NULL(take());
    teardown();
}

/* Two busy shares whose items cost 1 and 9: each gets half of the cost. */
static void test_equal_costs(void)
{
    uint64_t spent[2] = {0, 0};

    setup();
    put(&things[0], 0);
    put(&things[1], 1);
    for (int i = 0; i < 1000; i++) {
        struct thing *t = take();
        uint64_t cost = t->of == 0 ? 1 : 9;

        spent[t->of] += cost;
        put(t, t->of);
        fair_charge(&q, &shares[t->of], cost);
    }
    CU_ASSERT(spent[0] + 9 >= spent[1] && spent[1] + 9 >= spent[0]);
    fair_remove(&q, &things[0].item);
    fair_remove(&q, &things[1].item);
    teardown();
}

/* A share that wakes up among busy ones is next, once; it saved nothing up while it slept. */
static void test_woken_share_is_next(void)
{
    int in_a_row = 0;

    setup();
    for (int i = 1; i < SHARES; i++)
        put(&things[i], i);
    for (int i = 0; i < 10000; i++) {
        struct thing *t = take();

        put(t, t->of);
        fair_charge(&q, &shares[t->of], 100 + (uint64_t) t->of);
    }
    put(&things[0], 0);
    while (take() == &things[0]) {
        put(&things[0], 0);
        fair_charge(&q, &shares[0], 100);
        in_a_row++;
    }
    CU_ASSERT(in_a_row >= 1 && in_a_row <= 3); /* all others are at most one item of cost apart */
    while (take())
        ;
    teardown();
}

/* Random puts, takes and removals against a plain search for the share that used least. */
static void test_against_a_search(void)
{
    setup();
    for (int round = 0; round < 20000; round++) {
        struct thing *t = &things[test_rand_below(SHARES * 4)];

        if (!t->item.in) {
            put(t, (int) (t - things) % SHARES);
        } else if (test_rand_below(4) == 0) {
            fair_remove(&q, &t->item);
        } else {
            uint64_t least = UINT64_MAX;

            for (int i = 0; i < SHARES; i++)
                if (shares[i].first && shares[i].used < least)
                    least = shares[i].used;
            t = take();
            CU_ASSERT_EQUAL(shares[t->of].used, least);
            fair_charge(&q, &shares[t->of], test_rand_below(1000));
        }
    }
    while (take())
        ;
    CU_ASSERT(fair_is_empty(&q));
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_order_in_a_share),
    TEST(test_equal_costs),
    TEST(test_woken_share_is_next),
    TEST(test_against_a_search),
    TEST_END,
};
