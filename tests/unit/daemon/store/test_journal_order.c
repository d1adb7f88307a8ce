/*
 * The order of the journal's stores: a start that finds the memory as it is after any instruction of a change
 * finds the state before or after the change, never a mixture.
 */
#include <string.h>

#include "daemon/store/journal.h"
#include "daemon/store/slot.h"
#include "tests/lib/steps.h"
#include "tests/lib/test.h"

const char test_suite[] = "journal_order";

enum { INSTRUCTIONS_MIN = 20 }; /* fewer mean that the work was not stepped through */

static struct journal j;

static void run(void (*work)(void), void (*check)(void))
{
    long n = steps_run(work, check);

    if (n < 0)
        test_skip("this system does not allow ptrace(2)");
    else
        CU_ASSERT(n > INSTRUCTIONS_MIN);
    journal_deinit(&j);
}

/* ---- the list of extents ---- */

static const uint64_t lists[2][4] = {{7, 8, 9}, {11, 12, 13, 14}};
static unsigned n_states[2]; /* how often each list was seen */

static void write_second_list(void)
{
    journal_write(&j, lists[1], 4, 15);
}

static void check_lists(void)
{
    const struct journal_copy *c = journal_read(&j);
    unsigned which;

    CU_ASSERT_FATAL(c != NULL);
    which = c->n_extents == 4;
    CU_ASSERT_FATAL(c->n_extents == 3 + which && c->next_extent == (which ? 15 : 10));
    CU_ASSERT_FATAL(memcmp(c->extents, lists[which], c->n_extents * sizeof(uint64_t)) == 0);
    n_states[which]++;
}

/* Both copies have older lists: the new one overwrites a valid copy. */
static void test_list(void)
{
    assert(journal_new(&j, NULL) == 0);
    journal_write(&j, lists[0], 2, 9);
    journal_write(&j, lists[0], 3, 10);
    n_states[0] = n_states[1] = 0;
    run(write_second_list, check_lists);
    CU_ASSERT(n_states[0] > 0 && n_states[1] > 0);
}

/* ---- holds ---- */

static const struct hold_cell cells[] = {
    {.lease = 100, .slot = 10, .session_item = 1u << JOURNAL_ITEM_BITS | 1},
    {.lease = 200, .slot = 20, .session_item = 2u << JOURNAL_ITEM_BITS | 2},
    {.lease = 777, .slot = 99, .session_item = 5u << JOURNAL_ITEM_BITS | 3},
    {.lease = 888, .slot = 98, .session_item = 6u << JOURNAL_ITEM_BITS | 4},
};

static void add_cell(unsigned i)
{
    (void) journal_hold_add(&j, hold_session(&cells[i]), hold_item(&cells[i]), cells[i].lease, cells[i].slot);
}

/* One cell is used again, one is new, and one is given up. */
static void change_holds(void)
{
    journal_hold_remove(&j, 0);
    add_cell(2);
    add_cell(3);
    journal_hold_remove(&j, 1);
}

static void check_cells(void)
{
    for (uint32_t i = 0; i < j.head->n_holds; i++) {
        bool known = j.holds[i].slot == SLOT_NONE;

        for (size_t k = 0; k < sizeof(cells) / sizeof(cells[0]); k++)
            known = known || memcmp(&j.holds[i], &cells[k], sizeof(cells[k])) == 0;
        CU_ASSERT_FATAL(known);
    }
}

static void test_holds(void)
{
    assert(journal_new(&j, NULL) == 0);
    add_cell(0);
    add_cell(1);
    run(change_holds, check_cells);
}

/* ---- sessions and devices ---- */

static struct session_record records[2];

static void change_sessions(void)
{
    journal_session_remove(&j, 0);
    journal_session_add(&j, 0, &records[1]);
    journal_session_add(&j, 1, &records[0]);
}

static void check_sessions(void)
{
    for (uint32_t i = 0; i < j.head->n_sessions; i++) {
        struct session_record r = j.sessions[i];

        if (r.serial == 0)
            continue;
        r.serial = 0;
        CU_ASSERT_FATAL(memcmp(&r, &records[0], sizeof(r)) == 0 || memcmp(&r, &records[1], sizeof(r)) == 0);
    }
}

static void test_sessions(void)
{
    assert(journal_new(&j, NULL) == 0);
    for (unsigned i = 0; i < 2; i++) {
        memset(&records[i], 0x11 * ((int) i + 1), sizeof(records[i]));
        records[i].serial = 0;
    }
    journal_session_add(&j, 0, &records[0]);
    run(change_sessions, check_sessions);
}

static void add_place(void)
{
    (void) journal_place_add(&j, "0123", 1 << 20, 1 << 18, 1 << 16);
}

/* What a start would do with the journal. */
static void check_places(void)
{
    struct journal copy = {.fd = -1};

    CU_ASSERT_FATAL(journal_adopt(&copy, j.fd, NULL) == 0);
    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++) {
        const struct journal_place *p = &copy.head->places[i];

        CU_ASSERT_FATAL(p->pool_bytes == 0 || (p->pool_bytes == 1 << 20 && p->extent_bytes == 1 << 18 &&
                                               p->unit_bytes == 1 << 16 && strcmp(p->uuid, "0123") == 0));
    }
    journal_deinit(&copy);
}

static void test_places(void)
{
    assert(journal_new(&j, NULL) == 0);
    run(add_place, check_places);
}

const struct test_case test_cases[] = {
    TEST(test_list), TEST(test_holds), TEST(test_sessions), TEST(test_places), TEST_END,
};
