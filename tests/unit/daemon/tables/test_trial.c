/* Shadow and canary: states, revisions, limits, the file, and failures that change nothing. */
#include "daemon/tables/trial.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables.h"
#include "daemon/tables/tables_activate.h"
#include "daemon/tables/tables_stage.h"
#include "proto/shared.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "trial";

static struct config config;
static struct devices devices;
static struct tables tables;
static char folder[64];
static struct table_entry *active, *tried, *other; /* of one model */
static uint64_t revision;

static void open_tables(void)
{
    assert(pool_init(&devices.list[0].store.pool, &devices.serials, 1 << 20, 1 << 20, 1 << 20, NULL) == 0);
    devices.n = 1;
    assert(tables_init(&tables, &config, &devices, &(struct errmsg){""}) == 0);
}

static struct table_entry *stage(uint64_t seed)
{
    struct geometry g = random_table_geometry(1, 2, 1, 32);
    enum table_outcome outcome;
    struct table_entry *t = NULL;
    size_t n;
    void *bytes;

    assert(random_table_bytes(&g, seed, 2.0, false, &bytes, &n) == 0);
    assert(tables_stage(&tables, bytes, n, 0, &outcome, &t, NULL) == 0);
    free(bytes);
    return t;
}

static void activate(const struct table_entry *t)
{
    struct table_activation one = {.digest = t->digest};

    CU_ASSERT_EQUAL(tables_activate(&tables, &one, 1, 0, NULL), 0);
    revision = one.revision;
}

/* Three tables of one model, the first of which is active at revision 1. */
static void setup(void)
{
    log_open(LOG_EMERG); /* no output for the errors that the cases cause */
    config_init(&config);
    (void) snprintf(folder, sizeof(folder), "/tmp/kvcobra-test-XXXXXX");
    assert(mkdtemp(folder));
    config.state_dir = folder;
    open_tables();
    active = stage(1);
    tried = stage(2);
    other = stage(3);
    activate(active);
    CU_ASSERT_EQUAL(revision, 1);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(path);
}

static void close_tables(void)
{
    tables_deinit(&tables);
    devices_deinit(&devices);
}

static void teardown(void)
{
    close_tables();
    (void) nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Closes and opens the tables, as a restart does. */
static void restart(void)
{
    uint8_t digests[3][DIGEST_BYTES];

    memcpy(digests[0], active->digest, DIGEST_BYTES);
    memcpy(digests[1], tried->digest, DIGEST_BYTES);
    memcpy(digests[2], other->digest, DIGEST_BYTES);
    close_tables();
    open_tables();
    active = table_find(&tables, digests[0]);
    tried = table_find(&tables, digests[1]);
    other = table_find(&tables, digests[2]);
    CU_ASSERT_FATAL(active && tried && other);
}

static const struct trials *trials(void)
{
    return &tables.models->trials;
}

/* Both return the outcome, or an errno with a sentence. */
static int shadow(const struct table_entry *t, uint32_t ppm, uint64_t at)
{
    enum table_outcome outcome = OUTCOME_CONFLICT;
    struct state_change change = {.done = NULL};
    struct errmsg e = {""};
    int r;

    state_writer_begin(&tables.state, &change);
    r = trial_shadow(&tables, t->digest, ppm, at, &outcome, &revision, &e);
    state_writer_end(&tables.state, r);
    CU_ASSERT_EQUAL(r < 0, e.text[0] != '\0');
    return r < 0 ? r : (int) outcome;
}

static int canary(const struct table_entry *t, uint32_t share, const char *const *names, size_t n,
                  uint64_t at)
{
    enum table_outcome outcome = OUTCOME_CONFLICT;
    struct state_change change = {.done = NULL};
    struct errmsg e = {""};
    int r;

    state_writer_begin(&tables.state, &change);
    r = trial_canary(&tables, t->digest, share, names, n, at, 1000, &outcome, &revision, &e);
    state_writer_end(&tables.state, r);
    CU_ASSERT_EQUAL(r < 0, e.text[0] != '\0');
    return r < 0 ? r : (int) outcome;
}

static void test_shadow(void)
{
    setup();
    CU_ASSERT_EQUAL(shadow(tried, 0, 0), OUTCOME_ALREADY); /* it was in no trial */
    CU_ASSERT_EQUAL(shadow(tried, 500, 0), OUTCOME_APPLIED);
    CU_ASSERT(revision == 2 && tables.models->revision == 2 && tried->revision == 2);
    CU_ASSERT(tried->state == TABLE_SHADOW && trials()->shadow == tried && trials()->shadow_ppm == 500);
    CU_ASSERT_EQUAL(shadow(tried, 500, 0), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(revision, 2);
    CU_ASSERT_EQUAL(shadow(tried, 1000000, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(trials()->shadow_ppm, 1000000);
    CU_ASSERT_EQUAL(shadow(tried, 1000001, 0), -EINVAL);

    CU_ASSERT_EQUAL(shadow(other, 7, 0), OUTCOME_APPLIED); /* one shadow per model */
    CU_ASSERT(tried->state == TABLE_VERIFIED && other->state == TABLE_SHADOW);
    CU_ASSERT_EQUAL(shadow(tried, 0, 0), OUTCOME_ALREADY);
    CU_ASSERT(trials()->shadow == other && trials()->shadow_ppm == 7);
    CU_ASSERT_EQUAL(shadow(other, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT(other->state == TABLE_VERIFIED && !trials()->shadow && trials()->shadow_ppm == 0);
    teardown();
}

static void test_canary(void)
{
    setup();
    CU_ASSERT_EQUAL(canary(tried, 0, NULL, 0, 0), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(canary(tried, 256, NULL, 0, 0), -EINVAL);
    CU_ASSERT_EQUAL(canary(tried, 255, NULL, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT(trials()->canary == tried && trials()->canary_share == 255);
    CU_ASSERT(tried->state == TABLE_VERIFIED && tried->revision == 2 && revision == 2);
    CU_ASSERT_EQUAL(canary(tried, 255, NULL, 0, 0), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(canary(tried, 1, NULL, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(canary(other, 0, NULL, 0, 0), OUTCOME_ALREADY); /* ends only its own trial */
    CU_ASSERT(trials()->canary == tried && trials()->canary_share == 1);
    CU_ASSERT_EQUAL(canary(tried, 0, NULL, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT(!trials()->canary && tried->state == TABLE_VERIFIED);
    teardown();
}

/* A canary that sequences use drains when it ends, or when another one follows. */
static void test_used_canary_drains(void)
{
    setup();
    CU_ASSERT_EQUAL(canary(tried, 9, NULL, 0, 0), OUTCOME_APPLIED);
    tried->n_refs = 1;
    CU_ASSERT_EQUAL(canary(tried, 10, NULL, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(tried->state, TABLE_VERIFIED);
    CU_ASSERT_EQUAL(canary(other, 10, NULL, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(tried->state, TABLE_DRAINING);
    CU_ASSERT_EQUAL(tried->drain_until_ms, 1000 + config.drain_ms);
    CU_ASSERT_EQUAL(canary(tried, 10, NULL, 0, 0), -EBUSY);
    CU_ASSERT_EQUAL(other->state, TABLE_VERIFIED);
    tried->n_refs = 0;
    teardown();
}

static void test_tenants_of_a_canary(void)
{
    static const char *const names[] = {"uid-1", "uid-2"}, *const turned[] = {"uid-2", "uid-1"},
                             *const others[] = {"uid-1", "uid-3"};
    static const char *const bad[] = {"", "a b", "a\tb", "a\nb", "a\"b"};
    char longest[TRIAL_NAME_BYTES + 1];
    const char *many[TRIAL_TENANTS_MAX + 1], *name = longest;

    setup();
    CU_ASSERT_EQUAL(canary(tried, 0, names, 2, 0), OUTCOME_APPLIED); /* no share: these tenants alone */
    CU_ASSERT(trials()->canary == tried && trials()->canary_share == 0 && trials()->n_tenants == 2);
    CU_ASSERT_EQUAL(canary(tried, 0, turned, 2, 0), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(canary(tried, 0, others, 2, 0), OUTCOME_APPLIED);
    CU_ASSERT_STRING_EQUAL(trials()->tenants[1], "uid-3");
    CU_ASSERT_EQUAL(canary(tried, 0, others, 1, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(trials()->n_tenants, 1);

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CU_ASSERT_EQUAL(canary(tried, 0, &bad[i], 1, 0), -EINVAL);
    memset(longest, 'a', sizeof(longest));
    longest[TRIAL_NAME_BYTES] = '\0';
    CU_ASSERT_EQUAL(canary(tried, 0, &name, 1, 0), -EINVAL);
    longest[TRIAL_NAME_BYTES - 1] = '\0';
    CU_ASSERT_EQUAL(canary(tried, 0, &name, 1, 0), OUTCOME_APPLIED);
    for (size_t i = 0; i <= TRIAL_TENANTS_MAX; i++)
        many[i] = "uid-1";
    CU_ASSERT_EQUAL(canary(tried, 0, many, TRIAL_TENANTS_MAX + 1, 0), -EINVAL);
    CU_ASSERT_STRING_EQUAL(trials()->tenants[0], longest);
    CU_ASSERT_EQUAL(canary(tried, 0, many, TRIAL_TENANTS_MAX, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(trials()->n_tenants, TRIAL_TENANTS_MAX);
    teardown();
}

static void test_revisions(void)
{
    setup();
    CU_ASSERT_EQUAL(shadow(tried, 5, 10), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(revision, 10);
    CU_ASSERT_EQUAL(shadow(tried, 5, 10), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(shadow(tried, 6, 10), OUTCOME_CONFLICT);
    CU_ASSERT_EQUAL(shadow(tried, 6, 9), OUTCOME_STALE);
    CU_ASSERT_EQUAL(canary(other, 6, NULL, 0, 10), OUTCOME_CONFLICT);
    CU_ASSERT_EQUAL(canary(other, 6, NULL, 0, 9), OUTCOME_STALE);
    CU_ASSERT_EQUAL(revision, 10); /* the model's, also where nothing was applied */
    CU_ASSERT_EQUAL(shadow(tried, 6, REVISION_MAX + 1), -ERANGE);
    CU_ASSERT_EQUAL(canary(other, 6, NULL, 0, REVISION_MAX + 1), -ERANGE);
    CU_ASSERT(trials()->shadow_ppm == 5 && !trials()->canary && tables.models->revision == 10);
    CU_ASSERT_EQUAL(canary(other, 6, NULL, 0, REVISION_MAX), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(shadow(tried, 6, 0), -ERANGE); /* there is no next one */
    teardown();
}

static void test_tables_that_cannot_be_tried(void)
{
    struct table_entry unknown = {.digest = {1}};

    setup();
    CU_ASSERT_EQUAL(shadow(&unknown, 5, 0), -ENOENT);
    CU_ASSERT_EQUAL(canary(&unknown, 5, NULL, 0, 0), -ENOENT);
    CU_ASSERT_EQUAL(shadow(active, 5, 0), -EBUSY);
    CU_ASSERT_EQUAL(canary(active, 5, NULL, 0, 0), -EBUSY);
    CU_ASSERT_EQUAL(shadow(active, 0, 0),
                    OUTCOME_ALREADY); /* to end a trial that there is not is no mistake */
    CU_ASSERT_EQUAL(shadow(tried, 5, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(canary(tried, 5, NULL, 0, 0), OUTCOME_APPLIED); /* both trials of one table */
    activate(tried);
    CU_ASSERT(!trials()->shadow && !trials()->canary && trials()->shadow_ppm == 0 &&
              trials()->canary_share == 0);
    teardown();
}

static void test_restart(void)
{
    static const char *const names[] = {"uid-1", "uid-2@gpu0"};

    setup();
    CU_ASSERT_EQUAL(shadow(tried, 77, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(canary(other, 3, names, 2, 0), OUTCOME_APPLIED);
    restart();
    CU_ASSERT(trials()->shadow == tried && trials()->shadow_ppm == 77 && tried->state == TABLE_SHADOW);
    CU_ASSERT(trials()->canary == other && trials()->canary_share == 3 && trials()->n_tenants == 2);
    CU_ASSERT_STRING_EQUAL(trials()->tenants[0], names[0]);
    CU_ASSERT_STRING_EQUAL(trials()->tenants[1], names[1]);
    CU_ASSERT_EQUAL(tables.models->revision, 3);
    CU_ASSERT_EQUAL(shadow(tried, 0, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(canary(other, 0, NULL, 0, 0), OUTCOME_APPLIED);
    restart();
    CU_ASSERT(!trials()->shadow && !trials()->canary && tried->state == TABLE_VERIFIED);
    teardown();
}

/* Neither file can be replaced: nothing changes, here and after a restart. */
static void test_trials_that_cannot_be_stored(void)
{
    static const char *const files[] = {"trials", "active"};

    for (size_t i = 0; i < 2; i++) {
        char path[96], kept[104];

        setup();
        CU_ASSERT_EQUAL(shadow(tried, 77, 0), OUTCOME_APPLIED);
        (void) snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        (void) snprintf(kept, sizeof(kept), "%s.kept", path);
        CU_ASSERT_EQUAL(rename(path, kept), 0);
        CU_ASSERT_EQUAL(mkdir(path, 0700), 0); /* rename over a folder fails, also for root */
        CU_ASSERT(shadow(tried, 78, 0) < 0);
        CU_ASSERT(shadow(other, 78, 0) < 0);
        CU_ASSERT(canary(other, 3, NULL, 0, 0) < 0);
        CU_ASSERT(trials()->shadow == tried && trials()->shadow_ppm == 77 && !trials()->canary);
        CU_ASSERT(tables.models->revision == 2 && tried->state == TABLE_SHADOW &&
                  other->state == TABLE_VERIFIED);
        CU_ASSERT_EQUAL(rmdir(path), 0);
        CU_ASSERT_EQUAL(rename(kept, path), 0);
        restart();
        CU_ASSERT(trials()->shadow == tried && trials()->shadow_ppm == 77 && !trials()->canary);
        CU_ASSERT_EQUAL(tables.models->revision, 2);
        teardown();
    }
}

const struct test_case test_cases[] = {
    TEST(test_shadow),
    TEST(test_canary),
    TEST(test_used_canary_drains),
    TEST(test_tenants_of_a_canary),
    TEST(test_revisions),
    TEST(test_tables_that_cannot_be_tried),
    TEST(test_restart),
    TEST(test_trials_that_cannot_be_stored),
    TEST_END,
};
