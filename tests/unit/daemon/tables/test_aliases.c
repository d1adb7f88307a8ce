/* Aliases of models: what is refused, the limit, tables of an alias, and the file over a restart. */
#include "daemon/tables/aliases.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables.h"
#include "daemon/tables/tables_stage.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "aliases";

static struct config config;
static struct devices devices;
static struct tables tables;
static char folder[64], path[80];

static void open_tables(void)
{
    struct errmsg e = {""};

    assert(pool_init(&devices.list[0].store.pool, &devices.serials, 1 << 20, 1 << 20, 1 << 20, NULL) == 0);
    devices.n = 1;
    assert(tables_init(&tables, &config, &devices, &e) == 0);
}

static void close_tables(void)
{
    tables_deinit(&tables);
    devices_deinit(&devices);
}

static void setup(void)
{
    log_open(LOG_EMERG); /* no output for the errors that the cases cause */
    config_init(&config);
    (void) snprintf(folder, sizeof(folder), "/tmp/kvcobra-test-XXXXXX");
    assert(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/aliases", folder);
    config.state_dir = folder;
    open_tables();
}

static int remove_one(const char *name, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(name);
}

static void teardown(void)
{
    close_tables();
    (void) nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void restart(void)
{
    close_tables();
    open_tables();
}

/* The digest number @n. */
static const uint8_t *digest(unsigned n)
{
    static uint8_t digests[8][DIGEST_BYTES];
    static unsigned next;
    uint8_t *d = digests[next++ % 8];

    memset(d, 0, DIGEST_BYTES);
    d[0] = (uint8_t) n;
    d[1] = (uint8_t) (n >> 8);
    d[31] = 0xa1;
    return d;
}

static int add(unsigned alias, unsigned model)
{
    enum table_outcome outcome = OUTCOME_STALE;
    struct errmsg e = {""};
    int r = aliases_add(&tables, digest(alias), digest(model), &outcome, &e);

    if (r < 0)
        CU_ASSERT(strlen(e.text) > 10);
    return r < 0 ? r : (int) outcome;
}

static int remove_alias(unsigned alias, uint8_t ret_model[DIGEST_BYTES])
{
    struct errmsg e = {""};
    int r = aliases_remove(&tables, digest(alias), ret_model, &e);

    if (r < 0)
        CU_ASSERT(strlen(e.text) > 10);
    return r;
}

static bool resolves(unsigned alias, unsigned model)
{
    return memcmp(aliases_resolve(&tables, digest(alias)), digest(model), DIGEST_BYTES) == 0;
}

/* Stages a random table. *ret_model: the digest of its model. */
static int stage(uint64_t seed, uint8_t ret_model[DIGEST_BYTES])
{
    struct geometry g = random_table_geometry(1, 2, 1, 32);
    enum table_outcome outcome;
    struct table_entry *t;
    struct errmsg e = {""};
    void *bytes;
    size_t n;
    int r;

    assert(random_table_bytes(&g, seed, 2.0, false, &bytes, &n) == 0);
    r = tables_stage(&tables, bytes, n, 0, &outcome, &t, &e);
    free(bytes);
    if (r == 0)
        memcpy(ret_model, t->model_digest, DIGEST_BYTES);
    return r;
}

static void test_add_and_remove(void)
{
    uint8_t model[DIGEST_BYTES];

    setup();
    CU_ASSERT(resolves(1, 1));
    CU_ASSERT_EQUAL(add(1, 2), OUTCOME_APPLIED);
    CU_ASSERT(resolves(1, 2) && resolves(2, 2));
    CU_ASSERT_EQUAL(add(1, 2), OUTCOME_ALREADY);
    CU_ASSERT_EQUAL(add(3, 2), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(tables.n_aliases, 2);
    CU_ASSERT_EQUAL(remove_alias(1, model), 0);
    CU_ASSERT_EQUAL(memcmp(model, digest(2), DIGEST_BYTES), 0);
    CU_ASSERT(resolves(1, 1) && resolves(3, 2));
    memset(model, 7, sizeof(model));
    CU_ASSERT_EQUAL(remove_alias(1, model), -ENOENT);
    CU_ASSERT_EQUAL(model[0], 7);
    CU_ASSERT_EQUAL(remove_alias(2, model), -ENOENT);
    teardown();
}

static void test_no_chains(void)
{
    setup();
    CU_ASSERT_EQUAL(add(1, 1), -EINVAL);
    CU_ASSERT_EQUAL(add(1, 2), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(add(2, 1), -EINVAL); /* a cycle */
    CU_ASSERT_EQUAL(add(3, 1), -EINVAL); /* 1 is an alias */
    CU_ASSERT_EQUAL(add(2, 3), -EBUSY);  /* 2 has an alias */
    CU_ASSERT_EQUAL(add(1, 3), -EEXIST);
    CU_ASSERT_EQUAL(tables.n_aliases, 1);
    CU_ASSERT(resolves(1, 2));
    teardown();
}

static void test_limit(void)
{
    uint8_t model[DIGEST_BYTES];

    setup();
    for (unsigned i = 1; i <= WIRE_ALIASES_MAX; i++)
        CU_ASSERT_EQUAL_FATAL(add(i, 0), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(add(WIRE_ALIASES_MAX + 1, 0), -ENOSPC);
    CU_ASSERT_EQUAL(add(WIRE_ALIASES_MAX, 0), OUTCOME_ALREADY);
    restart();
    CU_ASSERT_EQUAL(tables.n_aliases, WIRE_ALIASES_MAX);
    CU_ASSERT_EQUAL(add(WIRE_ALIASES_MAX + 1, 0), -ENOSPC);
    CU_ASSERT_EQUAL(remove_alias(5, model), 0);
    CU_ASSERT_EQUAL(add(WIRE_ALIASES_MAX + 1, 0), OUTCOME_APPLIED);
    teardown();
}

static void write_file(const char *text)
{
    assert(atomic_file_write(path, text, strlen(text), NULL) == 0);
    restart();
}

/* A model with tables cannot become an alias, and an alias gets no tables. */
static void test_tables_of_an_alias(void)
{
    char hex[DIGEST_HEX_BYTES], other[DIGEST_HEX_BYTES], text[200];
    uint8_t model[DIGEST_BYTES], removed[DIGEST_BYTES];
    enum table_outcome outcome;

    setup();
    CU_ASSERT_EQUAL_FATAL(stage(1, model), 0);
    CU_ASSERT_EQUAL(aliases_add(&tables, model, digest(1), &outcome, NULL), -EBUSY);
    CU_ASSERT_EQUAL(aliases_add(&tables, digest(1), model, &outcome, NULL), 0);
    (void) snprintf(text, sizeof(text), "kvcobra model aliases 1\n%s %s\n", digest_hex(model, hex),
                    digest_hex(digest(1), other));
    write_file(text); /* of another daemon */
    CU_ASSERT_EQUAL(tables.n_entries, 1);
    CU_ASSERT_EQUAL(tables.n_aliases, 0);
    teardown();

    setup();
    CU_ASSERT_EQUAL(aliases_add(&tables, model, digest(1), &outcome, NULL), 0);
    CU_ASSERT_EQUAL(stage(1, model), -EBUSY);
    CU_ASSERT_EQUAL(tables.n_entries, 0);
    CU_ASSERT_EQUAL(aliases_remove(&tables, model, removed, NULL), 0);
    CU_ASSERT_EQUAL(stage(1, model), 0);
    teardown();
}

/* The model becomes an alias while a thread writes the file of its table. */
static void test_alias_during_staging(void)
{
    struct geometry g = random_table_geometry(1, 2, 1, 32);
    struct staging s = {.revision = 0};
    enum table_outcome outcome;
    struct table_entry *t;
    char file[200];
    void *bytes;

    setup();
    assert(random_table_bytes(&g, 1, 2.0, false, &bytes, &s.n_bytes) == 0);
    s.bytes = bytes;
    tables_stage_parse(&s);
    CU_ASSERT_EQUAL_FATAL(tables_stage_decide(&tables, &s, &outcome, &t, NULL), STAGING_WRITE);
    tables_stage_write(&config, &s);
    CU_ASSERT_EQUAL(aliases_add(&tables, s.table->model_digest, digest(1), &outcome, NULL), 0);
    CU_ASSERT_EQUAL(tables_stage_accept(&tables, &s, &outcome, &t, NULL), -EBUSY);
    CU_ASSERT_EQUAL(tables.n_entries, 0);
    (void) snprintf(file, sizeof(file), "%s/tables", folder);
    CU_ASSERT_EQUAL(rmdir(file), 0); /* no file is left */
    tables_stage_deinit(&s);
    free(bytes);
    teardown();
}

#define A "0100000000000000000000000000000000000000000000000000000000000000"
#define B "0200000000000000000000000000000000000000000000000000000000000000"
#define C "0300000000000000000000000000000000000000000000000000000000000000"
#define TITLE "kvcobra model aliases 1\n"

/* A damaged file, or lines that break a rule, do not stop the daemon; the other lines are used. */
static void test_damaged_files(void)
{
    static const struct {
        const char *text;
        uint32_t n;
    } cases[] = {
        {TITLE A " " B "\n", 1},
        {TITLE A " " B "\n" C " " B "\n", 2},
        {TITLE A " " A "\n", 0},
        {TITLE A " " B "\n" B " " C "\n", 1},   /* a chain */
        {TITLE A " " B "\n" A " " C "\n", 1},   /* two models */
        {TITLE A "\n" C " " B "\n", 1},         /* a line without a model */
        {TITLE A " " B " x\n" C " " B "\n", 1}, /* a third word */
        {TITLE "zz" A " " B "\n", 0},
        {TITLE A "0 " B "\n", 0},
        {TITLE, 0},
        {"kvcobra model aliases 2\n" A " " B "\n", 0},
        {"", 0},
    };

    setup();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(cases[i].text);
        if (tables.n_aliases != cases[i].n)
            printf("    case %zu: %u aliases\n", i, tables.n_aliases);
        CU_ASSERT_EQUAL(tables.n_aliases, cases[i].n);
    }
    teardown();
}

/* A file that cannot be written changes nothing. */
static void test_unwritable_file(void)
{
    uint8_t model[DIGEST_BYTES];

    setup();
    CU_ASSERT_EQUAL(add(1, 2), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(add(3, 2), OUTCOME_APPLIED);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    CU_ASSERT_EQUAL(add(4, 2), -EISDIR);
    CU_ASSERT(resolves(4, 4));
    CU_ASSERT_EQUAL(remove_alias(1, model), -EISDIR);
    CU_ASSERT(resolves(1, 2) && resolves(3, 2));
    CU_ASSERT_EQUAL(tables.n_aliases, 2);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_add_and_remove),
    TEST(test_no_chains),
    TEST(test_limit),
    TEST(test_tables_of_an_alias),
    TEST(test_alias_during_staging),
    TEST(test_damaged_files),
    TEST(test_unwritable_file),
    TEST_END,
};
