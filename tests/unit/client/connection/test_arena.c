/* Places in the arena, compared with a byte map. */
#include "client/connection/arena.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

static void test_against_a_map(void)
{
    enum { UNITS = 400, OPS = 20000, PLACES = 200 };
    static uint8_t map[UNITS];
    struct {
        size_t off, bytes;
    } places[PLACES];
    size_t n = 0, taken = 0;
    struct arena a;

    CU_ASSERT_EQUAL_FATAL(arena_init(&a, UNITS * 4096 + 100), 0);
    for (unsigned op = 0; op < OPS; op++) {
        if (test_rand_below(2) && n < PLACES) {
            size_t units = 1 + (size_t) test_rand_below(9), off, run = 0, longest = 0;

            for (size_t i = 0; i < UNITS; i++) {
                run = map[i] ? 0 : run + 1;
                longest = run > longest ? run : longest;
            }
            if (!arena_take(&a, units * 4096 - 100, &off)) {
                CU_ASSERT(longest < units); /* full only if no run of free units is long enough */
                continue;
            }
            CU_ASSERT(off % ARENA_ALIGN == 0 && off / 4096 + units <= UNITS + 1);
            /* places are rounded to 128, so units of 4096 - 100 round up to whole ones */
            CU_ASSERT_FATAL(off % 4096 == 0);
            for (size_t i = 0; i < units; i++) {
                CU_ASSERT_EQUAL_FATAL(map[off / 4096 + i], 0);
                map[off / 4096 + i] = 1;
            }
            places[n].off = off;
            places[n++].bytes = units * 4096 - 100;
            taken += units;
        } else if (n > 0) {
            size_t i = (size_t) test_rand_below(n), units = (places[i].bytes + 4095) / 4096;

            arena_give(&a, places[i].off, places[i].bytes);
            memset(map + places[i].off / 4096, 0, units);
            taken -= units;
            places[i] = places[--n];
        }
        CU_ASSERT_EQUAL(a.free_bytes, UNITS * 4096 - taken * 4096);
    }
    while (n > 0) {
        n--;
        arena_give(&a, places[n].off, places[n].bytes);
    }
    CU_ASSERT_EQUAL(a.n_ranges, 1); /* all ranges are merged again */
    CU_ASSERT_EQUAL(a.ranges[0].bytes, UNITS * 4096);
    arena_deinit(&a);
}

/* The worst pattern for the list of ranges: smallest places, every second one free. */
static void test_most_ranges(void)
{
    enum { UNITS = 64 };
    size_t offs[UNITS];
    struct arena a;

    CU_ASSERT_EQUAL_FATAL(arena_init(&a, UNITS * 4096), 0);
    for (unsigned i = 0; i < UNITS; i++)
        CU_ASSERT_FATAL(arena_take(&a, 1, &offs[i]));
    CU_ASSERT(!arena_take(&a, 1, &offs[0]));
    for (unsigned i = 0; i < UNITS; i += 2)
        arena_give(&a, offs[i], 1);
    CU_ASSERT_EQUAL(a.n_ranges, UNITS / 2);
    arena_deinit(&a);
    CU_ASSERT_EQUAL_FATAL(arena_init(&a, 0), 0);
    CU_ASSERT(!arena_take(&a, 1, &offs[0]));
    arena_deinit(&a);
}

const struct test_case test_cases[] = {TEST(test_against_a_map), TEST(test_most_ranges), TEST_END};
const char test_suite[] = "arena";
