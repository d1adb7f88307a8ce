/* ACTIVATE of tables of several models, which change together. */
#include "daemon/tables/tables_activate.h"
#include "daemon/tables/tables_stage.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/random_table.h"
#include "tests/unit/daemon/tables_fixture.h"

const char test_suite[] = "activate_set";

static struct tables_fixture f;

/* A staged table of model @model_byte. */
static struct table_entry *staged_of(uint8_t model_byte, uint64_t seed)
{
    struct geometry g = random_table_geometry(2, 2, 1, 32);
    uint8_t model[DIGEST_BYTES] = {model_byte};
    enum table_outcome outcome;
    struct table_entry *t;
    void *bytes;
    size_t n;

    assert(random_table_bytes_of(&g, model, seed, 3, &bytes, &n) == 0);
    assert(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, NULL) == 0);
    free(bytes);
    return t;
}

static void activate(const struct table_entry *t, uint64_t revision)
{
    struct table_activation one = {.digest = t->digest, .revision = revision};

    CU_ASSERT_EQUAL_FATAL(tables_activate(&f.tables, &one, 1, 0, NULL), 0);
}

static bool is_active(const uint8_t digest[static DIGEST_BYTES])
{
    const struct table_entry *t = table_find(&f.tables, digest);

    return t && t->state == TABLE_ACTIVE;
}

/* Tables of several models change together, or none does, also for a daemon that starts again. */
static void test_activation_of_a_set(void)
{
    struct table_entry *a, *b, *c, *newer;
    struct errmsg e = {""};

    tables_fixture_begin(&f, true);
    a = staged_of(1, 1);
    b = staged_of(2, 1);
    c = staged_of(3, 1);
    newer = staged_of(1, 2);
    activate(a, 7);
    {
        struct table_activation set[] = {
            {.digest = newer->digest}, {.digest = b->digest}, {.digest = c->digest}};

        CU_ASSERT_EQUAL_FATAL(tables_activate(&f.tables, set, 3, 5, &e), 0);
        CU_ASSERT(set[0].outcome == OUTCOME_APPLIED && set[0].revision == 8);
        CU_ASSERT_EQUAL(memcmp(set[0].previous, a->digest, DIGEST_BYTES), 0);
        for (unsigned i = 1; i < 3; i++)
            CU_ASSERT(set[i].outcome == OUTCOME_APPLIED && set[i].revision == 1 && set[i].previous[0] == 0);
        CU_ASSERT(newer->state == TABLE_ACTIVE && b->state == TABLE_ACTIVE && c->state == TABLE_ACTIVE);
        CU_ASSERT(a->state == TABLE_DRAINING && a->drain_until_ms == 5 + f.config.drain_ms);
    }
    {
        struct table_activation set[] = {{.digest = b->digest}, {.digest = a->digest}};

        CU_ASSERT_EQUAL(tables_activate(&f.tables, set, 2, 0, &e), 0);
        CU_ASSERT(set[0].outcome == OUTCOME_ALREADY && set[0].revision == 1);
        CU_ASSERT(set[1].outcome == OUTCOME_APPLIED && set[1].revision == 9);
    }
    {
        struct table_activation set[] = {{.digest = a->digest}, {.digest = newer->digest}},
                                unknown[] = {{.digest = newer->digest},
                                             {.digest = (uint8_t[DIGEST_BYTES]){9}}};

        CU_ASSERT_EQUAL(tables_activate(&f.tables, set, 2, 0, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "of one model"));
        CU_ASSERT_EQUAL(tables_activate(&f.tables, unknown, 2, 0, &e), -ENOENT);
        CU_ASSERT_EQUAL(a->state, TABLE_ACTIVE);
    }
    {
        uint8_t digests[3][DIGEST_BYTES];

        memcpy(digests[0], a->digest, DIGEST_BYTES);
        memcpy(digests[1], b->digest, DIGEST_BYTES);
        memcpy(digests[2], c->digest, DIGEST_BYTES);
        tables_fixture_close(&f);
        tables_fixture_open(&f);
        for (unsigned i = 0; i < 3; i++)
            CU_ASSERT(is_active(digests[i]));
    }
    tables_fixture_end(&f);
}

/* The file cannot be written: tables of known and of new models are as they were. */
static void test_set_that_cannot_be_stored(void)
{
    struct table_entry *a, *newer, *b;
    char path[96];
    struct errmsg e = {""};

    tables_fixture_begin(&f, true);
    a = staged_of(1, 1);
    newer = staged_of(1, 2);
    b = staged_of(2, 1);
    activate(a, 0);
    (void) snprintf(path, sizeof(path), "%s/active", f.folder);
    (void) unlink(path);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0); /* rename over a folder fails, also for root */
    CU_ASSERT(tables_activate(&f.tables,
                              (struct table_activation[]){{.digest = newer->digest}, {.digest = b->digest}},
                              2, 0, &e) < 0);
    CU_ASSERT(a->state == TABLE_ACTIVE && newer->state == TABLE_VERIFIED && b->state == TABLE_VERIFIED);
    CU_ASSERT(f.tables.models->active == a && f.tables.models->next == NULL);
    tables_fixture_end(&f);
}

const struct test_case test_cases[] = {
    TEST(test_activation_of_a_set),
    TEST(test_set_that_cannot_be_stored),
    TEST_END,
};
