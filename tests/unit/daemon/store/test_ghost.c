/* The ring of ghosts against a plain list. */
#include "tests/lib/test.h"

#include <string.h>

#include "daemon/store/ghost.h"

const char test_suite[] = "ghost";

enum { RING = 16, KEYS = 40, STEPS = 20000 };

static struct chunk_key key_of(unsigned n)
{
    struct chunk_key k;

    memset(&k, 0, sizeof(k));
    k.bytes[0] = (uint8_t) (n % 4); /* few chains, long ones */
    k.bytes[4] = (uint8_t) n;
    return k;
}

/* The model: a ring of RING slots, in the order of writing. A removed ghost leaves an empty slot. */
struct model {
    struct {
        int key;
        enum ghost_reason reason;
    } slots[RING];
    unsigned next;
};

static enum ghost_reason model_find(const struct model *m, int key)
{
    for (unsigned i = 0; i < RING; i++)
        if (m->slots[i].reason != GHOST_NONE && m->slots[i].key == key)
            return m->slots[i].reason;
    return GHOST_NONE;
}

static void model_remove(struct model *m, int key)
{
    for (unsigned i = 0; i < RING; i++)
        if (m->slots[i].key == key)
            m->slots[i].reason = GHOST_NONE;
}

static void test_against_model(void)
{
    struct model m = {0};
    struct ghosts g;

    CU_ASSERT_EQUAL_FATAL(ghosts_init(&g, RING), 0);
    for (int step = 0; step < STEPS; step++) {
        int n = (int) test_rand_below(KEYS);
        struct chunk_key k = key_of((unsigned) n);

        if (test_rand_below(3) == 0) {
            ghosts_remove(&g, &k);
            model_remove(&m, n);
        } else {
            enum ghost_reason reason = test_rand_below(2) ? GHOST_EVICTED : GHOST_RETIRED_TABLE;

            ghosts_add(&g, &k, reason);
            model_remove(&m, n);
            m.slots[m.next].key = n;
            m.slots[m.next].reason = reason;
            m.next = (m.next + 1) % RING;
        }
        for (int i = 0; i < KEYS; i++) {
            k = key_of((unsigned) i);
            if (ghosts_find(&g, &k) != model_find(&m, i))
                CU_FAIL_FATAL("ghost differs from the model");
        }
    }
    ghosts_deinit(&g);
}

static void test_forgets_the_oldest(void)
{
    struct ghosts g;

    CU_ASSERT_EQUAL_FATAL(ghosts_init(&g, RING), 0);
    for (unsigned n = 0; n <= RING; n++) {
        struct chunk_key k = key_of(n);

        ghosts_add(&g, &k, GHOST_EVICTED);
    }
    for (unsigned n = 0; n <= RING; n++) {
        struct chunk_key k = key_of(n);

        CU_ASSERT_EQUAL(ghosts_find(&g, &k), n == 0 ? GHOST_NONE : GHOST_EVICTED);
    }
    ghosts_deinit(&g);
}

/* The page dropped n-th last was evicted before n - 1 others. Pages that left with their table were not. */
static void test_how_long_ago(void)
{
    struct ghosts g;

    CU_ASSERT_EQUAL_FATAL(ghosts_init(&g, RING), 0);
    for (unsigned n = 0; n < 3 * RING; n++) { /* the ring goes round */
        struct chunk_key k = key_of(n);

        ghosts_add(&g, &k, n % 7 == 0 ? GHOST_RETIRED_TABLE : GHOST_EVICTED);
        for (unsigned ago = 1; ago <= RING && ago <= n + 1; ago++) {
            struct chunk_key old = key_of(n + 1 - ago);
            bool evicted = (n + 1 - ago) % 7 != 0;

            CU_ASSERT_FALSE(ghosts_was_evicted(&g, &old, ago - 1));
            CU_ASSERT_EQUAL(ghosts_was_evicted(&g, &old, ago), evicted);
            CU_ASSERT_EQUAL(ghosts_was_evicted(&g, &old, UINT64_MAX), evicted);
        }
    }
    ghosts_deinit(&g);
}

const struct test_case test_cases[] = {
    TEST(test_against_model),
    TEST(test_forgets_the_oldest),
    TEST(test_how_long_ago),
    TEST_END,
};
