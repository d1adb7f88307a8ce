/* States, revisions, retirement and the state folder of the tables. */
#include "daemon/tables/tables_activate.h"
#include "daemon/tables/table_copy.h"
#include "daemon/tables/tables_stage.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/store/space.h"
#include "tests/lib/random_table.h"
#include "tests/unit/daemon/tables_fixture.h"

const char test_suite[] = "tables";

static struct tables_fixture f;

static void *bytes_of(uint64_t seed, size_t *ret_bytes)
{
    struct geometry g = random_table_geometry(1, 2, 1, 32);
    void *bytes;

    assert(random_table_bytes(&g, seed, 2.0, false, &bytes, ret_bytes) == 0);
    return bytes;
}

static int stage(uint64_t seed, uint64_t revision, enum table_outcome *ret_outcome,
                 struct table_entry **ret_entry)
{
    size_t n;
    void *bytes = bytes_of(seed, &n);
    int r = tables_stage(&f.tables, bytes, n, revision, ret_outcome, ret_entry, NULL);

    free(bytes);
    return r;
}

static struct table_entry *staged(uint64_t seed)
{
    enum table_outcome outcome;
    struct table_entry *t;

    assert(stage(seed, 0, &outcome, &t) == 0);
    return t;
}

/* ACTIVATE of one table at time @now_ms. */
static int activate_at(const struct table_entry *t, uint64_t revision, uint64_t now_ms, struct errmsg *e)
{
    struct table_activation one = {.digest = t->digest, .revision = revision};

    return tables_activate(&f.tables, &one, 1, now_ms, e);
}

static enum table_outcome activate(const struct table_entry *t, uint64_t revision, uint64_t *ret_revision)
{
    struct table_activation one = {.digest = t->digest, .revision = revision};

    CU_ASSERT_EQUAL_FATAL(tables_activate(&f.tables, &one, 1, 0, NULL), 0);
    *ret_revision = one.revision;
    return one.outcome;
}

static void test_stage_is_idempotent(void)
{
    enum table_outcome outcome;
    struct table_entry *t, *again;

    tables_fixture_begin(&f, false);
    CU_ASSERT_EQUAL(stage(1, 0, &outcome, &t), 0);
    CU_ASSERT(outcome == OUTCOME_APPLIED && t->state == TABLE_VERIFIED);
    CU_ASSERT_EQUAL(stage(1, 0, &outcome, &again), 0);
    CU_ASSERT(outcome == OUTCOME_ALREADY && again == t);
    CU_ASSERT_EQUAL(f.tables.n_entries, 1);
    tables_fixture_end(&f);
}

/*
 * A table with any flipped bit is rejected with a reason, recorded under the hash of its
 * bytes, and never usable.
 */
static void test_damaged_bytes_are_rejected(void)
{
    enum table_outcome outcome;
    struct errmsg e;
    size_t n;

    tables_fixture_begin(&f, false);
    for (int i = 0; i < 20; i++) {
        uint8_t *bytes = bytes_of(1, &n);
        struct table_entry *t = NULL;

        bytes[test_rand_below(n)] ^= (uint8_t) (1u << test_rand_below(8));
        CU_ASSERT_EQUAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, &e), -EBADMSG);
        CU_ASSERT_FATAL(t && t->state == TABLE_REJECTED && t->reason[0] && !t->table);
        CU_ASSERT_EQUAL(activate_at(t, 0, 0, &e), -EBADMSG);
        free(bytes);
    }
    CU_ASSERT_EQUAL(tables_stage(&f.tables, "", 0, 0, &outcome, &(struct table_entry *){NULL}, &e), -EBADMSG);
    tables_fixture_end(&f);
}

static void test_revisions(void)
{
    struct table_entry *a, *b;
    enum table_outcome outcome;
    struct table_entry *t;
    uint64_t revision;

    tables_fixture_begin(&f, false);
    a = staged(1);
    b = staged(2);
    CU_ASSERT_EQUAL(activate(a, 0, &revision), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(revision, 1);
    CU_ASSERT_EQUAL(activate(a, 0, &revision), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(activate(a, 1, &revision), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(activate(b, 1, &revision), OUTCOME_CONFLICT);
    CU_ASSERT_EQUAL(activate(b, 7, &revision), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(revision, 7);
    CU_ASSERT_EQUAL(activate(a, 6, &revision), OUTCOME_STALE);
    CU_ASSERT_EQUAL(revision, 7);
    CU_ASSERT(a->state == TABLE_DRAINING && b->state == TABLE_ACTIVE);
    CU_ASSERT_EQUAL(activate(a, 0, &revision), OUTCOME_APPLIED); /* the first one again */
    CU_ASSERT_EQUAL(revision, 8);
    CU_ASSERT(a->state == TABLE_ACTIVE && b->state == TABLE_DRAINING);
    CU_ASSERT_EQUAL(stage(3, 5, &outcome, &t), -ESTALE);
    CU_ASSERT_EQUAL(stage(3, 8, &outcome, &t), 0);
    CU_ASSERT_EQUAL(f.tables.n_draining, 1);
    tables_fixture_end(&f);
}

static void test_revision_fits_the_word(void)
{
    struct table_entry *a;
    uint64_t revision;

    tables_fixture_begin(&f, false);
    a = staged(1);
    CU_ASSERT_EQUAL(activate_at(a, UINT64_C(1) << 40, 0, NULL), -ERANGE);
    CU_ASSERT_PTR_NULL(f.tables.models);
    CU_ASSERT_EQUAL(activate(a, (UINT64_C(1) << 40) - 1, &revision), OUTCOME_APPLIED);
    tables_fixture_end(&f);
}

/* A table that predicts values from the keys of all heads has no pages for a shard of some heads. */
static void test_shard_lacks_heads(void)
{
    struct geometry g = random_table_geometry(1, 2, 2, 32);
    struct errmsg e = {""};
    enum table_outcome outcome;
    struct table_entry *t;
    struct space *space;
    void *bytes;
    size_t n;

    tables_fixture_begin(&f, false);
    assert(random_table_bytes(&g, 1, 2.0, PREDICT_LAYER, &bytes, &n) == 0);
    CU_ASSERT_EQUAL_FATAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, &e), 0);
    free(bytes);
    CU_ASSERT_EQUAL(tables_space(&f.tables, t, (struct shard){0, 1}, &space, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "all 2 KV heads"));
    CU_ASSERT_PTR_NULL(t->spaces);
    CU_ASSERT_EQUAL(tables_space(&f.tables, t, (struct shard){0, 2}, &space, &e), 0);
    tables_fixture_end(&f);
}

static void test_retires_when_idle(void)
{
    struct table_entry *a, *b;
    struct space *space;
    uint64_t revision;

    tables_fixture_begin(&f, false);
    a = staged(1);
    b = staged(2);
    (void) activate(a, 0, &revision);
    CU_ASSERT_EQUAL_FATAL(tables_space(&f.tables, a, (struct shard){0, 1}, &space, NULL), 0);
    a->n_refs = 1;
    (void) activate(b, 0, &revision);
    tables_retire_idle(&f.tables, 0);
    CU_ASSERT_EQUAL(a->state, TABLE_DRAINING);
    a->n_refs = 0;
    space->n_busy = 1;
    tables_retire_idle(&f.tables, 0);
    CU_ASSERT_EQUAL(a->state, TABLE_DRAINING);
    space->n_busy = 0;
    tables_retire_idle(&f.tables, f.config.drain_ms - 1); /* idle, but ROLLBACK could still return to it */
    CU_ASSERT_EQUAL(a->state, TABLE_DRAINING);
    CU_ASSERT_FALSE(space->leaves_first);
    tables_retire_idle(&f.tables, f.config.drain_ms);
    CU_ASSERT_EQUAL(a->state, TABLE_RETIRED);
    CU_ASSERT_PTR_NULL(a->table);
    CU_ASSERT_EQUAL(f.tables.n_draining, 0);
    CU_ASSERT_PTR_EQUAL(staged(1), a); /* and can be activated again */
    CU_ASSERT_EQUAL(a->state, TABLE_VERIFIED);
    tables_fixture_end(&f);
}

static enum table_outcome roll_back(const struct table_entry *t, uint64_t revision,
                                    struct table_entry **ret_active)
{
    uint8_t active[DIGEST_BYTES];
    enum table_outcome outcome;
    uint64_t now;

    CU_ASSERT_EQUAL_FATAL(tables_rollback(&f.tables, t->digest, revision, 0, &outcome, &now, active, NULL),
                          0);
    CU_ASSERT_EQUAL(now, f.tables.models->revision);
    *ret_active = table_find(&f.tables, active);
    return outcome;
}

/* a, b, c are activated in order; ROLLBACK returns to b, then to a; then no table is left. */
static void test_rollback(void)
{
    struct table_entry *a, *b, *c, *active;
    uint8_t digest[DIGEST_BYTES];
    enum table_outcome outcome;
    uint64_t revision;
    struct errmsg e;

    tables_fixture_begin(&f, false);
    a = staged(1);
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, a->digest, 0, 0, &outcome, &revision, digest, &e), -ENODATA);
    b = staged(2);
    c = staged(3);
    (void) activate(a, 0, &revision);
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, a->digest, 0, 0, &outcome, &revision, digest, &e), -ENODATA);
    (void) activate(b, 0, &revision);
    (void) activate(c, 0, &revision);
    CU_ASSERT_EQUAL(revision, 3);
    CU_ASSERT_EQUAL(roll_back(c, 2, &active), OUTCOME_STALE);
    CU_ASSERT_EQUAL(roll_back(c, 3, &active), OUTCOME_CONFLICT);
    CU_ASSERT_PTR_EQUAL(active, c);
    CU_ASSERT_EQUAL(roll_back(c, 9, &active), OUTCOME_APPLIED);
    CU_ASSERT_PTR_EQUAL(active, b);
    CU_ASSERT(f.tables.models->revision == 9 && b->state == TABLE_ACTIVE && c->state == TABLE_DRAINING);
    CU_ASSERT_EQUAL(roll_back(c, 9, &active), OUTCOME_ALREADY); /* a repeated request has no effect */
    CU_ASSERT_EQUAL(roll_back(c, 0, &active), OUTCOME_ALREADY);
    CU_ASSERT_PTR_EQUAL(active, b);
    tables_retire_idle(&f.tables, f.config.drain_ms - 1); /* c was left, and waits as a does */
    CU_ASSERT(a->state == TABLE_DRAINING && c->state == TABLE_DRAINING);
    CU_ASSERT_EQUAL(roll_back(b, 0, &active), OUTCOME_APPLIED);
    CU_ASSERT_PTR_EQUAL(active, a);
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, a->digest, 0, 0, &outcome, &revision, digest, &e), -ENODATA);
    (void) activate(c, 0, &revision); /* ACTIVATE by name, and ROLLBACK again */
    CU_ASSERT_EQUAL(roll_back(c, 0, &active), OUTCOME_APPLIED);
    CU_ASSERT_PTR_EQUAL(active, a);
    tables_retire_idle(&f.tables, f.config.drain_ms);
    CU_ASSERT_EQUAL(c->state, TABLE_RETIRED);
    memset(digest, 7, sizeof(digest));
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, digest, 0, 0, &outcome, &revision, digest, &e), -ENOENT);
    tables_fixture_end(&f);
}

static void test_retire(void)
{
    struct table_entry *a, *b, *t;
    enum table_outcome outcome;
    uint64_t revision;
    struct errmsg e;

    tables_fixture_begin(&f, false);
    a = staged(1);
    b = staged(2);
    (void) activate(a, 5, &revision);
    CU_ASSERT_EQUAL(tables_retire(&f.tables, a->digest, 0, 0, &outcome, &t, &e), -EBUSY);
    CU_ASSERT_EQUAL(tables_retire(&f.tables, b->digest, 4, 0, &outcome, &t, &e), 0);
    CU_ASSERT(outcome == OUTCOME_STALE && b->state == TABLE_VERIFIED);
    (void) activate(b, 0, &revision);
    a->n_refs = 1;
    CU_ASSERT_EQUAL(tables_retire(&f.tables, a->digest, 6, 10, &outcome, &t, &e), 0);
    CU_ASSERT(outcome == OUTCOME_APPLIED && t == a && a->state == TABLE_DRAINING && a->drain_until_ms == 10);
    CU_ASSERT_EQUAL(tables_retire(&f.tables, a->digest, 0, 11, &outcome, &t, &e), 0);
    CU_ASSERT_EQUAL(outcome, OUTCOME_ALREADY);
    a->n_refs = 0;
    tables_retire_idle(&f.tables, 12);
    CU_ASSERT_EQUAL(a->state, TABLE_RETIRED);
    CU_ASSERT_EQUAL(tables_retire(&f.tables, a->digest, 0, 13, &outcome, &t, &e), 0);
    CU_ASSERT_EQUAL(outcome, OUTCOME_ALREADY);
    tables_fixture_end(&f);
}

static void test_number_of_tables_is_limited(void)
{
    enum table_outcome outcome;
    struct table_entry *t;
    uint8_t *bytes;
    size_t n;

    tables_fixture_begin(&f, false);
    f.config.tables_max = 3;
    bytes = bytes_of(9, &n);
    bytes[n / 2] ^= 1;
    CU_ASSERT_EQUAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, NULL), -EBADMSG);
    (void) staged(1);
    (void) staged(2);
    CU_ASSERT_EQUAL(f.tables.n_entries, 3);
    CU_ASSERT_EQUAL(stage(3, 0, &outcome, &t), 0); /* the entry of the rejected table makes room */
    CU_ASSERT_EQUAL(stage(4, 0, &outcome, &t), -ENOSPC);
    CU_ASSERT_EQUAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, NULL), -EBADMSG);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT_EQUAL(f.tables.n_entries, 3);
    free(bytes);
    tables_fixture_end(&f);
}

static void test_fetch_is_sealed(void)
{
    struct table_entry *a;
    uint8_t first;
    int fd = -1, other = -1;

    tables_fixture_begin(&f, false);
    a = staged(1);
    CU_ASSERT_EQUAL_FATAL(table_copy_open(a->fd, &fd, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_copy_open(a->fd, &other, NULL), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    /* beside them the kernel may set F_SEAL_EXEC, which Debian 12's headers lack */
    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & 0xf, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    CU_ASSERT_EQUAL(lseek(fd, 0, SEEK_END), (off_t) a->file_bytes);
    CU_ASSERT_EQUAL(pread(fd, &first, 1, 0), 1);
    CU_ASSERT_EQUAL(first, *(const uint8_t *) a->table->bytes);
    /* clients share neither the offset nor the flags of the file */
    CU_ASSERT_EQUAL(lseek(other, 0, SEEK_CUR), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    CU_ASSERT_EQUAL(fcntl(other, F_GETFL) & O_NONBLOCK, 0);
    (void) close(fd);
    (void) close(other);
    tables_fixture_end(&f);
}

static void test_state_folder(void)
{
    struct table_entry *a, *b;
    uint8_t active[DIGEST_BYTES], other[DIGEST_BYTES];
    uint64_t revision;

    tables_fixture_begin(&f, true);
    a = staged(1);
    b = staged(2);
    (void) activate(a, 41, &revision);
    memcpy(active, a->digest, DIGEST_BYTES);
    memcpy(other, b->digest, DIGEST_BYTES);
    tables_fixture_close(&f);
    tables_fixture_open(&f);
    CU_ASSERT_EQUAL(f.tables.n_entries, 2);
    CU_ASSERT_EQUAL(table_find(&f.tables, active)->state, TABLE_ACTIVE);
    CU_ASSERT_EQUAL(table_find(&f.tables, other)->state, TABLE_VERIFIED);
    CU_ASSERT_EQUAL(f.tables.models->revision, 41);
    tables_fixture_end(&f);
}

/*
 * a, b, c are activated in order, then ROLLBACK leaves c for b. A restart restores the order, the table that
 * was left, and the end of each drain time.
 */
static void test_rollback_after_a_restart(void)
{
    enum { CLOCKS_APART_MS = 5000 };
    struct table_entry *a, *b, *c, *active;
    uint8_t digests[3][DIGEST_BYTES];
    uint64_t revision;

    tables_fixture_begin(&f, true);
    (void) activate(a = staged(1), 0, &revision);
    (void) activate(b = staged(2), 0, &revision);
    (void) activate(c = staged(3), 0, &revision);
    CU_ASSERT_EQUAL(roll_back(c, 0, &active), OUTCOME_APPLIED);
    CU_ASSERT_PTR_EQUAL(active, b);
    memcpy(digests[0], a->digest, DIGEST_BYTES);
    memcpy(digests[1], b->digest, DIGEST_BYTES);
    memcpy(digests[2], c->digest, DIGEST_BYTES);
    a->n_refs = c->n_refs = 0;
    for (unsigned restart = 0; restart < 2; restart++) {
        uint64_t left = a->drain_until_ms;

        tables_fixture_close(&f);
        tables_fixture_open(&f);
        a = table_find(&f.tables, digests[0]);
        b = table_find(&f.tables, digests[1]);
        c = table_find(&f.tables, digests[2]);
        CU_ASSERT_FATAL(a && b && c);
        CU_ASSERT(a->state == TABLE_DRAINING && b->state == TABLE_ACTIVE && c->state == TABLE_DRAINING);
        CU_ASSERT(c->rolled_back && !a->rolled_back && a->activated == 1 && b->activated == 4 &&
                  c->activated == 3);
        CU_ASSERT_EQUAL(f.tables.n_draining, 2);
        /*
         * The two clocks are read one after the other, and a busy machine can make the pause
         * between the readings long.
         */
        CU_ASSERT(a->drain_until_ms + CLOCKS_APART_MS > left && a->drain_until_ms < left + CLOCKS_APART_MS);
    }
    CU_ASSERT_EQUAL(roll_back(b, 0, &active), OUTCOME_APPLIED);
    CU_ASSERT_PTR_EQUAL(active, a); /* not c, which was left */
    CU_ASSERT_EQUAL(f.tables.models->revision, 5);
    tables_fixture_end(&f);
}

/* Makes the next write of the active set fail: rename over a folder fails, also for root. */
static void block_active_file(void)
{
    char path[96];

    (void) snprintf(path, sizeof(path), "%s/active", f.folder);
    (void) unlink(path);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
}

/* If the active set cannot be written, the word stays and nothing has changed. */
static void test_activation_that_cannot_be_stored(void)
{
    struct table_entry *a, *b;
    uint64_t revision;
    struct errmsg e = {""};

    tables_fixture_begin(&f, true);
    a = staged(1);
    b = staged(2);
    (void) activate(a, 0, &revision);
    block_active_file();
    CU_ASSERT(activate_at(b, 0, 1000, &e) < 0);
    CU_ASSERT(e.text[0] != '\0');
    CU_ASSERT(a->state == TABLE_ACTIVE && b->state == TABLE_VERIFIED && f.tables.models->revision == 1);
    CU_ASSERT_PTR_EQUAL(f.tables.models->active, a);
    CU_ASSERT(a->revision == 1 && a->activated == 1 && a->drain_until_ms == 0 && !a->rolled_back);
    CU_ASSERT(b->revision == 0 && b->activated == 0);
    tables_fixture_end(&f);
}

/* A model whose first table could not be activated does not exist. */
static void test_first_activation_that_cannot_be_stored(void)
{
    uint8_t previous[DIGEST_BYTES];
    enum table_outcome outcome;
    struct table_entry *a;
    uint64_t revision;
    struct errmsg e = {""};

    tables_fixture_begin(&f, true);
    a = staged(1);
    block_active_file();
    CU_ASSERT(activate_at(a, 0, 0, &e) < 0);
    CU_ASSERT_PTR_NULL(f.tables.models);
    CU_ASSERT_EQUAL(a->state, TABLE_VERIFIED);
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, a->digest, 0, 0, &outcome, &revision, previous, &e), -ENODATA);
    tables_fixture_end(&f);
}

/* A table that is activated again while its pages leave keeps them like any other table. */
static void test_activated_again_while_its_pages_leave(void)
{
    struct table_entry *a, *b;
    struct space *space;
    uint64_t revision;

    tables_fixture_begin(&f, false);
    a = staged(1);
    b = staged(2);
    (void) activate(a, 0, &revision);
    CU_ASSERT_EQUAL_FATAL(tables_space(&f.tables, a, (struct shard){0, 1}, &space, NULL), 0);
    space->n_busy = 1; /* a held page */
    (void) activate(b, 0, &revision);
    tables_retire_idle(&f.tables, f.config.drain_ms);
    CU_ASSERT_EQUAL(a->state, TABLE_DRAINING);
    CU_ASSERT_TRUE(space->leaves_first);
    (void) activate(a, 0, &revision);
    CU_ASSERT_EQUAL(a->state, TABLE_ACTIVE);
    CU_ASSERT_FALSE(space->leaves_first);
    space->n_busy = 0;
    tables_fixture_end(&f);
}

static void write_file(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    (void) snprintf(path, sizeof(path), "%s/%s", f.folder, name);
    file = fopen(path, "we");
    assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Damaged files in the folder are left alone, and the daemon starts. */
static void test_damaged_state_folder(void)
{
    static const char *const active[] = {
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
        "",
        "kvcobra active set 3\n",
        "kvcobra active set 2\nnonsense\n",
        "kvcobra active set 2\nactive 00 1 00\n",
        "kvcobra active set 2\nactive " ZEROS " 99999999999999 " ZEROS "\n",
        "kvcobra active set 2\nactive " ZEROS " 1 " ZEROS "\n",
        "kvcobra active set 2\nactive " ZEROS " 1 " ZEROS " 5 0\n",
        "kvcobra active set 2\ndraining " ZEROS " 1 " ZEROS "\n",
        "kvcobra active set 2\ndraining " ZEROS " 1 " ZEROS " 99999999999999 2\n",
        "kvcobra active set 2\ndraining " ZEROS " 1 " ZEROS " 99999999999999 1\n",
#undef ZEROS
    };

    tables_fixture_begin(&f, true);
    write_file("tables/0000000000000000000000000000000000000000000000000000000000000000.kvct", "not a table");
    write_file("tables/README", "notes of the operator");
    for (size_t i = 0; i < sizeof(active) / sizeof(active[0]); i++) {
        tables_fixture_close(&f);
        write_file("active", active[i]);
        tables_fixture_open(&f);
        CU_ASSERT_EQUAL(f.tables.n_entries, 0);
        CU_ASSERT_PTR_NULL(f.tables.models);
    }
    tables_fixture_end(&f);
}

const struct test_case test_cases[] = {
    TEST(test_stage_is_idempotent),
    TEST(test_damaged_bytes_are_rejected),
    TEST(test_revisions),
    TEST(test_revision_fits_the_word),
    TEST(test_shard_lacks_heads),
    TEST(test_retires_when_idle),
    TEST(test_rollback),
    TEST(test_retire),
    TEST(test_number_of_tables_is_limited),
    TEST(test_fetch_is_sealed),
    TEST(test_state_folder),
    TEST(test_rollback_after_a_restart),
    TEST(test_activation_that_cannot_be_stored),
    TEST(test_first_activation_that_cannot_be_stored),
    TEST(test_activated_again_while_its_pages_leave),
    TEST(test_damaged_state_folder),
    TEST_END,
};
