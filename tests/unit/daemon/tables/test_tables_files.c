/* The file of the active set: every line that is written comes back, however many there are. */
#include "daemon/tables/tables_files.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/tables/tables.h"
#include "tests/lib/test.h"

const char test_suite[] = "tables_files";

enum { N_MODELS = 3, N_TABLES = 12 };

static struct config config;
static char folder[64];
static struct table_model models[N_MODELS];
static struct table_entry entries[N_TABLES];
static unsigned n_active, n_draining;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(path);
}

/*
 * Table 0 to N_MODELS - 1 is active for the model of that number. The others drain; of them every third was
 * never active or has retired, so that no line stands for it.
 */
static struct tables tables_of(unsigned n_models, unsigned n_tables)
{
    struct tables ts = {.config = &config};

    memset(models, 0, sizeof(models));
    memset(entries, 0, sizeof(entries));
    for (unsigned i = 0; i < n_tables; i++) {
        struct table_entry *t = &entries[i];

        memset(t->digest, (int) i + 1, DIGEST_BYTES);
        memset(t->model_digest, 0xc0 + (int) (i % N_MODELS), DIGEST_BYTES);
        t->state = i < n_models ? TABLE_ACTIVE : TABLE_DRAINING;
        t->activated = REVISION_MAX - i;
        t->rolled_back = i % 2;
        t->drain_until_ms = UINT64_MAX / 4; /* the longest line */
        t->table = (struct table *) t;      /* is not NULL; nothing reads it */
        t->next = i + 1 < n_tables ? t + 1 : NULL;
        if (i >= n_models && i % 3 == 1)
            t->activated = 0;
        if (i >= n_models && i % 3 == 2 && i % 2)
            t->table = NULL;
    }
    for (unsigned i = 0; i < n_models; i++) {
        memcpy(models[i].digest, entries[i].model_digest, DIGEST_BYTES);
        models[i].active = &entries[i];
        models[i].revision = REVISION_MAX - i;
        models[i].next = i + 1 < n_models ? &models[i + 1] : NULL;
    }
    ts.models = n_models ? models : NULL;
    ts.entries = n_tables ? entries : NULL;
    return ts;
}

static int on_line(void *ctx, const struct active_line *l, struct errmsg *e)
{
    const struct table_entry *t = &entries[l->digest[0] - 1];

    (void) ctx;
    (void) e;
    CU_ASSERT_EQUAL(memcmp(l->digest, t->digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(memcmp(l->model_digest, t->model_digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(l->revision, REVISION_MAX - (uint64_t) (t - entries));
    CU_ASSERT_EQUAL(l->draining, t->state == TABLE_DRAINING);
    if (l->draining) {
        CU_ASSERT(l->rolled_back == t->rolled_back && t->table && t->activated > 0);
        /* the clocks are read twice, which takes no minute */
        CU_ASSERT(l->drain_until_ms - t->drain_until_ms + 60000 <= 120000);
    }
    n_draining += l->draining;
    n_active += !l->draining;
    return 0;
}

static void test_all_lines_come_back(void)
{
    static const struct {
        unsigned n_models, n_tables, n_draining;
    } cases[] = {{0, 0, 0},        {1, 1, 0},        {3, 3, 0},       {0, 1, 1},
                 {0, N_TABLES, 6}, {1, N_TABLES, 5}, {3, N_TABLES, 4}};
    struct errmsg e = {""};

    config_init(&config);
    (void) snprintf(folder, sizeof(folder), "/tmp/kvcobra-test-XXXXXX");
    assert(mkdtemp(folder));
    config.state_dir = folder;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tables ts = tables_of(cases[i].n_models, cases[i].n_tables);

        n_active = n_draining = 0;
        ts.state.folder = folder;
        state_writer_set_printer(&ts.state, STATE_ACTIVE, tables_files_print_active_set, &ts);
        CU_ASSERT_EQUAL_FATAL(state_writer_write(&ts.state, STATE_ACTIVE, &e), 0);
        CU_ASSERT_EQUAL_FATAL(tables_files_load_active(&config, on_line, NULL, &e), 0);
        CU_ASSERT_EQUAL(n_active, cases[i].n_models);
        CU_ASSERT_EQUAL(n_draining, cases[i].n_draining);
    }
    (void) nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const struct test_case test_cases[] = {TEST(test_all_lines_come_back), TEST_END};
