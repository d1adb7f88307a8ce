/*
 * The journal as a start finds it: after a kill between two stores, with a flipped bit, of another version
 * or another pool. The test writes every state to the memory object, byte by byte.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/store/journal.h"
#include "daemon/store/slot.h"

const char test_suite[] = "journal";

#define POOL (UINT64_C(1) << 20)
#define EXTENT (UINT64_C(1) << 18)
#define UNIT (UINT64_C(1) << 16)

enum { COPIES_AT = 4096 }; /* the layout in journal.h */

static struct journal j;

static void setup(void)
{
    assert(journal_new(&j, NULL) == 0);
    assert(journal_place_add(&j, "", POOL, EXTENT, UNIT) == 0);
}

/* Adopts the journal as the next process does: the memory object outlives the process that wrote it. */
static int restart(struct errmsg *e)
{
    int fd = dup(j.fd), r;

    assert(fd >= 0);
    journal_deinit(&j);
    r = journal_adopt(&j, fd, e);
    (void) close(fd);
    return r;
}

static void flip(size_t at)
{
    j.data[at] ^= 0x40;
}

static size_t copy_at(unsigned i)
{
    return COPIES_AT + i * sizeof(struct journal_copy);
}

/* Writes three lists. They alternate between the copies: the empty first list is in copy 1, then 0, 1, 0. */
static void write_lists(void)
{
    static const uint64_t ids[] = {7, 8, 9};

    for (uint32_t n = 1; n <= 3; n++)
        journal_write(&j, ids, n, 10 + n);
}

static void expect_list(uint32_t n_extents)
{
    const struct journal_copy *c = journal_read(&j);

    CU_ASSERT_FATAL(c != NULL);
    CU_ASSERT_EQUAL(c->n_extents, n_extents);
    CU_ASSERT_EQUAL(c->next_extent, n_extents ? 10 + n_extents : 1);
    for (uint32_t i = 0; i < n_extents; i++)
        CU_ASSERT_EQUAL(c->extents[i], 7 + i);
}

static void test_newer_copy_counts(void)
{
    setup();
    expect_list(0);
    write_lists();
    expect_list(3);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    expect_list(3);
    CU_ASSERT_EQUAL(j.head->n_starts, 2);
    journal_write(&j, (const uint64_t[]){7}, 1, 11); /* the next list overwrites the older copy */
    expect_list(1);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    expect_list(1);
    journal_deinit(&j);
}

/* A flipped bit in any part of the newer copy: the older list is read. In the older copy: nothing is lost. */
static void test_one_damaged_copy(void)
{
    static const size_t parts[] = {
        offsetof(struct journal_copy, sequence),  offsetof(struct journal_copy, next_extent),
        offsetof(struct journal_copy, n_extents), offsetof(struct journal_copy, crc32c),
        offsetof(struct journal_copy, extents),   offsetof(struct journal_copy, extents) + sizeof(uint64_t),
    };

    for (unsigned newer = 0; newer < 2; newer++) {
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            unsigned which;

            setup();
            write_lists();
            which = journal_read(&j) == &j.copies[1] ? newer : 1 - newer;
            flip(copy_at(which) + parts[i]);
            CU_ASSERT_EQUAL(restart(NULL), 0);
            expect_list(newer ? 2 : 3);
            journal_deinit(&j);
        }
    }
}

/* Killed during journal_write(): the checksum of the copy was invalidated before its content changed. */
static void test_torn_copy(void)
{
    for (unsigned stored = 0; stored < 4; stored++) {
        struct journal_copy *c;

        setup();
        write_lists();
        c = journal_read(&j) == &j.copies[0] ? &j.copies[1] : &j.copies[0];
        c->crc32c = ~c->crc32c;
        if (stored > 0)
            c->sequence = j.sequence + 1;
        if (stored > 1)
            c->n_extents = 1;
        if (stored > 2)
            c->extents[0] = 99;
        CU_ASSERT_EQUAL(restart(NULL), 0);
        expect_list(3);
        journal_deinit(&j);
    }
}

static void expect_lost(const char *because)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(restart(&e), -EBADMSG);
    CU_ASSERT(strstr(e.text, because) != NULL);
    CU_ASSERT(j.fd == -1 && !j.data); /* no descriptor is left open */
}

static void test_both_copies_bad(void)
{
    setup();
    write_lists();
    flip(copy_at(0) + offsetof(struct journal_copy, extents));
    flip(copy_at(1) + offsetof(struct journal_copy, extents));
    expect_lost("both copies");
    setup();
    write_lists();
    /* rejected without reading past the end */
    j.copies[0].n_extents = j.copies[1].n_extents = JOURNAL_EXTENTS_MAX + 1;
    expect_lost("both copies");
}

static void test_another_version(void)
{
    setup();
    flip(offsetof(struct journal_head, version));
    expect_lost("another version");
    setup();
    flip(offsetof(struct journal_head, magic));
    expect_lost("another version");
    setup();
    flip(offsetof(struct journal_head, places) + offsetof(struct journal_place, unit_bytes));
    expect_lost("head of the stored journal is damaged");
    setup();
    flip(offsetof(struct journal_head, places) + offsetof(struct journal_place, uuid));
    expect_lost("head of the stored journal is damaged");
}

/* A device keeps its number and its pool's identity until it is removed; then the number is free. */
static void test_places(void)
{
    static const char a[] = "GPU-00000000-0000-0000-0000-00000000000a",
                      b[] = "GPU-00000000-0000-0000-0000-00000000000b";
    uint8_t id[BOOT_ID_BYTES];
    char name[16];

    setup();
    CU_ASSERT_EQUAL(journal_place_find(&j, a), PLACE_NONE);
    CU_ASSERT_EQUAL(journal_place_add(&j, a, 2 * POOL, 2 * EXTENT, UNIT), 1);
    CU_ASSERT_EQUAL(journal_place_add(&j, b, POOL, EXTENT, UNIT), 2);
    memcpy(id, j.head->places[2].pool_id, sizeof(id));
    CU_ASSERT(memcmp(id, j.head->places[1].pool_id, sizeof(id)) != 0);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT_EQUAL(journal_place_find(&j, ""), 0);
    CU_ASSERT_EQUAL(journal_place_find(&j, b), 2);
    CU_ASSERT(j.head->places[1].extent_bytes == 2 * EXTENT && j.head->places[1].pool_bytes == 2 * POOL);
    journal_place_remove(&j, 1);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT_EQUAL(journal_place_find(&j, a), PLACE_NONE);
    CU_ASSERT(journal_place_find(&j, b) == 2 && memcmp(id, j.head->places[2].pool_id, sizeof(id)) == 0);
    for (unsigned i = 2; i < JOURNAL_PLACES_MAX; i++) {
        (void) snprintf(name, sizeof(name), "GPU-%u", i);
        CU_ASSERT_EQUAL(journal_place_add(&j, name, POOL, EXTENT, UNIT), i == 2 ? 1 : i);
    }
    CU_ASSERT_EQUAL(journal_place_add(&j, a, POOL, EXTENT, UNIT), PLACE_NONE);
    journal_deinit(&j);
}

/* Damaged entries are not adopted; the others keep their numbers. */
static void test_names(void)
{
    setup();
    CU_ASSERT_EQUAL(journal_name_find(&j, "a"), 0);
    CU_ASSERT_EQUAL(journal_name_add(&j, "a"), 1);
    CU_ASSERT_EQUAL(journal_name_add(&j, "b"), 2);
    CU_ASSERT_EQUAL(journal_name_add(&j, "c"), 3);
    CU_ASSERT_EQUAL(journal_name_add(&j, "d"), 4);
    CU_ASSERT_EQUAL(journal_name_add(&j, "e"), 5);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT(j.adopted_version == JOURNAL_VERSION && j.n_damaged_names == 0);
    CU_ASSERT_EQUAL(journal_name_find(&j, "c"), 3);
    CU_ASSERT_STRING_EQUAL(journal_name(&j, 5), "e");
    journal_name_remove(&j, 2);
    j.names[2].crc32c ^= 1;
    memcpy(&j.names[3], &j.names[0], sizeof(j.names[0])); /* the same name twice */
    memset(j.names[4].name, 'x', ACCOUNT_NAME_BYTES);     /* without an end */
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT_EQUAL(j.n_damaged_names, 3);
    CU_ASSERT_STRING_EQUAL(journal_name(&j, 1), "a");
    for (uint32_t number = 2; number <= JOURNAL_NAMES_MAX; number++)
        CU_ASSERT_PTR_NULL(journal_name(&j, number));
    CU_ASSERT(!journal_name(&j, 0) && !journal_name(&j, JOURNAL_NAMES_MAX + 1) &&
              !journal_name(&j, UINT32_MAX));
    CU_ASSERT_EQUAL(journal_name_add(&j, "f"), 2);
    journal_deinit(&j);
}

/* Version 2 had no names: where they are now, it may have left bytes of sessions. */
static void test_version_2(void)
{
    setup();
    write_lists();
    j.head->version = 2;
    memset(j.names, 0x5a, JOURNAL_NAMES_MAX * sizeof(j.names[0]));
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT(j.adopted_version == 2 && j.head->version == JOURNAL_VERSION && j.n_damaged_names == 0);
    expect_list(3);
    CU_ASSERT_EQUAL(journal_name_add(&j, "a"), 1);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT(j.adopted_version == JOURNAL_VERSION && journal_name_find(&j, "a") == 1);
    j.head->version = 1;
    expect_lost("another version");
    setup();
    j.head->version = JOURNAL_VERSION + 1;
    expect_lost("another version");
}

/* The live words have no checksum: each is compared with its range, at the limit and one above. */
static void test_counters(void)
{
    setup();
    j.head->n_sessions = JOURNAL_SESSIONS_MAX;
    CU_ASSERT_EQUAL(restart(NULL), 0);
    j.head->n_sessions = JOURNAL_SESSIONS_MAX + 1;
    expect_lost("counters");
    setup();
    j.head->n_holds = JOURNAL_HOLDS_MAX + 1;
    expect_lost("counters");
    setup();
    j.head->places[0].pool_bytes = POOL + 1;
    expect_lost("counters");
    setup();
    j.head->places[0].pool_bytes = EXTENT * ((uint64_t) JOURNAL_EXTENTS_MAX + 1);
    expect_lost("counters");
    setup();
    CU_ASSERT_EQUAL(journal_place_add(&j, "GPU-0", EXTENT, EXTENT, UNIT), 1);
    j.head->places[0].pool_bytes =
        EXTENT * (uint64_t) JOURNAL_EXTENTS_MAX; /* both pools together have one extent too many */
    expect_lost("counters");
    setup();
    j.head->places[0].pool_bytes = EXTENT * (uint64_t) JOURNAL_EXTENTS_MAX;
    CU_ASSERT_EQUAL(restart(NULL), 0);
    journal_deinit(&j);
}

static void test_foreign_objects(void)
{
    int fds[2];
    struct errmsg e = {""};

    assert(pipe(fds) == 0);
    CU_ASSERT_EQUAL(journal_adopt(&j, fds[0], &e), -EBADMSG);
    CU_ASSERT(strstr(e.text, "not a memory object") != NULL);
    (void) close(fds[0]);
    (void) close(fds[1]);
}

/* A cell is in use if its slot says so; a kill before that word was stored leaves an unused cell. */
static void test_holds(void)
{
    uint32_t a, b, c;

    setup();
    a = journal_hold_add(&j, 3, 5, 77, 1000);
    b = journal_hold_add(&j, 3, 1023, 77, 0); /* slot 0 is a slot */
    c = journal_hold_add(&j, 4, 0, 78, 1001);
    CU_ASSERT(a != b && b != c && j.head->n_holds == 3);
    CU_ASSERT(hold_session(&j.holds[b]) == 3 && hold_item(&j.holds[b]) == 1023 && j.holds[b].lease == 77);
    journal_hold_remove(&j, a);
    CU_ASSERT_EQUAL(journal_hold_add(&j, 9, 1, 79, 1002), a); /* used again */
    journal_hold_remove(&j, b);
    j.holds[c].slot = SLOT_NONE; /* the state before its last store */
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT(j.holds[a].slot == 1002 && j.holds[a].lease == 79);
    CU_ASSERT(j.holds[b].slot == SLOT_NONE && j.holds[c].slot == SLOT_NONE);
    CU_ASSERT_EQUAL(journal_hold_add(&j, 1, 1, 80, 5), b); /* the unused ones were chained again */
    CU_ASSERT_EQUAL(journal_hold_add(&j, 1, 2, 80, 6), c);
    CU_ASSERT_EQUAL(journal_hold_add(&j, 1, 3, 80, 7), 3);
    journal_deinit(&j);
}

static void test_sessions(void)
{
    struct session_record r = {.pid = 12, .uid = 34, .token = {5}, .client_name = "client"};

    setup();
    journal_session_add(&j, 6, &r);
    CU_ASSERT(j.head->n_sessions == 7 && j.sessions[6].serial == 1 && j.sessions[5].serial == 0);
    journal_session_add(&j, 2, &r);
    CU_ASSERT(j.head->n_sessions == 7 && j.sessions[2].serial == 2);
    journal_session_remove(&j, 6);
    CU_ASSERT_EQUAL(restart(NULL), 0);
    CU_ASSERT(j.sessions[6].serial == 0 && j.sessions[2].serial == 2 && j.sessions[2].pid == 12);
    journal_session_add(&j, 6, &r);
    CU_ASSERT_EQUAL(j.sessions[6].serial, 3); /* serials continue */
    journal_deinit(&j);
}

/* After the freeze, writes of this process stay private: the next process finds the earlier state. */
static void test_freeze(void)
{
    uint32_t a;

    setup();
    write_lists();
    a = journal_hold_add(&j, 3, 5, 77, 1000);
    CU_ASSERT_EQUAL(journal_freeze(&j), 0);
    journal_hold_remove(&j, a);
    journal_write(&j, NULL, 0, 99);
    j.head->generation = 12345;
    CU_ASSERT_EQUAL(restart(NULL), 0);
    expect_list(3);
    CU_ASSERT(j.holds[a].slot == 1000 && j.head->generation == 0);
    journal_deinit(&j);
}

const struct test_case test_cases[] = {
    TEST(test_newer_copy_counts),
    TEST(test_one_damaged_copy),
    TEST(test_torn_copy),
    TEST(test_both_copies_bad),
    TEST(test_another_version),
    TEST(test_places),
    TEST(test_names),
    TEST(test_version_2),
    TEST(test_counters),
    TEST(test_foreign_objects),
    TEST(test_holds),
    TEST(test_sessions),
    TEST(test_freeze),
    TEST_END,
};
