/* Exact tables: who gets one, what replaces it, limits, and what a restart keeps. */
#include "daemon/tables/tables_exact.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/space.h"
#include "daemon/tables/tables_activate.h"
#include "daemon/tables/tables_stage.h"
#include "daemon/tables/trial.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/tables_fixture.h"

const char test_suite[] = "tables_exact";

enum { BF16 = EXACT_BF16 + 4, F16 = EXACT_F16 + 4 };

static struct tables_fixture f;
static struct geometry g;
static struct errmsg e;

static void begin(bool with_state)
{
    tables_fixture_begin(&f, with_state);
    f.config.exact = true;
    g = random_table_geometry(1, 2, 1, 32);
}

static int open_model(const uint8_t *model, uint32_t form, struct table_model **ret)
{
    const struct exact_request q = {
        .model_digest = model, .geometry = &g, .n_positions = GEOMETRY_POSITIONS, .form = form};

    e = (struct errmsg){""};
    return tables_exact_open(&f.tables, &q, 1000, ret, &e);
}

/* The table of a client of this form; NULL: it gets none, and a sentence with @word. */
static struct table_entry *opened(uint32_t form, const char *word)
{
    struct table_model *m = NULL;
    int r = open_model(random_table_model_digest, form, &m);

    if (r == 0)
        return m->active;

    CU_ASSERT_EQUAL(r, -ENODATA);
    CU_ASSERT(word && strstr(e.text, word));
    CU_ASSERT_PTR_NULL(m);
    return NULL;
}

static struct table_entry *stage(uint64_t seed)
{
    enum table_outcome outcome;
    struct table_entry *t = NULL;
    size_t n;
    void *bytes;

    assert(random_table_bytes(&g, seed, 2.0, false, &bytes, &n) == 0);
    CU_ASSERT_EQUAL_FATAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &t, &e), 0);
    free(bytes);
    return t;
}

static int activate(const struct table_entry *t, uint64_t revision)
{
    struct table_activation one = {.digest = t->digest, .revision = revision};

    return tables_activate(&f.tables, &one, 1, 1000, &e);
}

static void test_who_gets_one(void)
{
    struct table_entry *t;
    struct table_model *m = NULL;

    begin(false);
    CU_ASSERT_PTR_NULL(opened(0, "stage and activate"));
    f.config.exact = false;
    CU_ASSERT_PTR_NULL(opened(BF16, "exact = yes"));
    f.config.exact = true;
    CU_ASSERT_EQUAL(open_model(random_table_model_digest, 4, &m), -EINVAL);
    CU_ASSERT_EQUAL(open_model(random_table_model_digest, 16 + BF16, &m), -EINVAL);
    CU_ASSERT_EQUAL(f.tables.n_entries, 0);
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t && table_is_exact(t->table) && t->state == TABLE_ACTIVE);
    CU_ASSERT(t->revision == 0 && t->activated == 0);
    CU_ASSERT_PTR_EQUAL(opened(BF16, NULL), t);
    f.config.exact = false; /* makes no new one, and keeps those that are used */
    CU_ASSERT_PTR_EQUAL(opened(BF16, NULL), t);
    CU_ASSERT_PTR_NULL(opened(0, "stage and activate"));
    tables_fixture_end(&f);
}

/* Another form or geometry: nothing while a session uses the table, else a table in its place. */
static void test_other_form(void)
{
    struct table_entry *t, *u;

    begin(false);
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t != NULL);
    t->n_refs = 1;
    CU_ASSERT_PTR_NULL(opened(F16, "binary16, keys after RoPE"));
    CU_ASSERT(strstr(e.text, "bf16, keys after RoPE") != NULL);
    g.n_layers = 2;
    CU_ASSERT_PTR_NULL(opened(BF16, "layers"));
    g.n_layers = 1;
    t->n_refs = 0;
    u = opened(F16, NULL);
    CU_ASSERT_FATAL(u && u != t);
    CU_ASSERT(u->state == TABLE_ACTIVE && t->state == TABLE_DRAINING);
    tables_retire_idle(&f.tables, 1000);
    CU_ASSERT_EQUAL(t->state, TABLE_RETIRED);
    t = opened(BF16, NULL); /* the same bytes: the entry is used again */
    CU_ASSERT(t && t->state == TABLE_ACTIVE && u->state == TABLE_DRAINING);
    tables_fixture_end(&f);
}

static void test_replaced_by_activate(void)
{
    struct table_entry *t, *real;
    enum table_outcome outcome;
    uint8_t back[DIGEST_BYTES];
    struct table_model *m;
    uint64_t revision;

    begin(false);
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t != NULL);
    t->n_refs = 1;
    real = stage(1);
    CU_ASSERT_EQUAL(trial_shadow(&f.tables, real->digest, 10, 0, &outcome, &revision, &e), -EBUSY);
    CU_ASSERT(strstr(e.text, "exact") != NULL);
    CU_ASSERT_EQUAL(activate(real, 1), 0); /* the first revision of an operator is not taken */
    CU_ASSERT(real->state == TABLE_ACTIVE && real->revision == 1 && t->state == TABLE_DRAINING);
    CU_ASSERT_PTR_EQUAL(opened(BF16, NULL), real);
    CU_ASSERT_PTR_EQUAL(opened(0, NULL), real);
    CU_ASSERT_EQUAL(activate(t, 0), -EINVAL);
    CU_ASSERT_EQUAL(trial_shadow(&f.tables, t->digest, 10, 0, &outcome, &revision, &e), -EINVAL);
    CU_ASSERT_EQUAL(tables_rollback(&f.tables, real->digest, 0, 1000, &outcome, &revision, back, &e),
                    -ENODATA);
    tables_retire_idle(&f.tables, 1000);
    CU_ASSERT_EQUAL(t->state, TABLE_DRAINING);
    t->n_refs = 0;
    tables_retire_idle(&f.tables, 1000); /* within the drain time, to which no rollback returns */
    CU_ASSERT_EQUAL(t->state, TABLE_RETIRED);
    m = table_model_find(&f.tables, random_table_model_digest);
    CU_ASSERT_PTR_EQUAL(m->active, real);
    tables_fixture_end(&f);
}

/* A geometry that a client made up does not keep the operator's table out. */
static void test_wrong_geometry_is_replaced(void)
{
    struct table_entry *t;

    begin(false);
    g.n_layers = 7;
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t != NULL);
    t->n_refs = 1;
    g.n_layers = 1;
    CU_ASSERT_EQUAL(activate(stage(1), 0), 0);
    t->n_refs = 0;
    tables_fixture_end(&f);
}

static void test_operators(void)
{
    struct table_entry *t, *staged = NULL;
    enum table_outcome outcome;
    struct table_model *m = NULL;

    begin(false);
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t != NULL);
    CU_ASSERT_EQUAL(tables_retire(&f.tables, t->digest, 0, 1000, &outcome, &staged, &e), 0);
    CU_ASSERT(outcome == OUTCOME_APPLIED && staged == t && t->state == TABLE_RETIRED);
    CU_ASSERT_PTR_NULL(f.tables.models);
    {
        const struct exact_form form = {.type = EXACT_F32};
        size_t n;
        void *bytes;

        CU_ASSERT_EQUAL(table_exact_build(&g, random_table_model_digest, &form, &bytes, &n, &e), 0);
        CU_ASSERT_EQUAL(tables_stage(&f.tables, bytes, n, 0, &outcome, &staged, &e), -EINVAL);
        CU_ASSERT(strstr(e.text, "exact table") != NULL);
        free(bytes);
    }
    CU_ASSERT_EQUAL(open_model(random_table_model_digest, BF16, &m), 0);
    tables_fixture_end(&f);
}

/* Half of the tables at most; one that no session uses makes room. */
static void test_limit(void)
{
    uint8_t model[DIGEST_BYTES] = {1};
    struct table_model *m = NULL;
    struct table_entry *first;

    begin(false);
    f.config.tables_max = 6;
    for (unsigned i = 0; i < 3; i++) {
        model[1] = (uint8_t) i;
        CU_ASSERT_EQUAL_FATAL(open_model(model, BF16, &m), 0);
        m->active->n_refs = 1;
    }
    model[1] = 3;
    CU_ASSERT_EQUAL(open_model(model, BF16, &m), -EDQUOT);
    CU_ASSERT(strstr(e.text, "3 exact tables are in use") != NULL);
    model[1] = 0;
    first = table_model_find(&f.tables, model)->active;
    first->n_refs = 0;
    model[1] = 3;
    CU_ASSERT_EQUAL(open_model(model, BF16, &m), 0);
    CU_ASSERT_EQUAL(first->state, TABLE_DRAINING);
    for (struct table_entry *t = f.tables.entries; t; t = t->next)
        t->n_refs = 0;
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

static void test_restart(void)
{
    uint8_t digest[DIGEST_BYTES];
    struct table_entry *t;

    begin(true);
    t = opened(BF16, NULL);
    CU_ASSERT_FATAL(t != NULL);
    memcpy(digest, t->digest, DIGEST_BYTES);
    tables_fixture_close(&f);
    tables_fixture_open(&f);
    f.config.exact = true;
    t = table_find(&f.tables, digest);
    CU_ASSERT_FATAL(t && t->table);
    CU_ASSERT_EQUAL(t->state, TABLE_ACTIVE);
    CU_ASSERT_PTR_EQUAL(opened(BF16, NULL), t);
    CU_ASSERT_EQUAL(activate(stage(1), 0), 0);
    tables_fixture_close(&f);
    tables_fixture_open(&f);
    CU_ASSERT_PTR_NULL(table_find(&f.tables, digest));
    CU_ASSERT_EQUAL(f.tables.models->revision, 1);
    tables_fixture_end(&f);
}

/* A file that cannot be read costs its tables, and the daemon starts. */
static void test_damaged_file(void)
{
    static const char *const texts[] = {
        "",
        "kvcobra exact 2\n",
        "kvcobra exact 1\nnonsense\n",
        "kvcobra exact 1\n4b56435441424c45\n",
        "kvcobra exact 1\n4b5\n\n",
    };

    begin(true);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        tables_fixture_close(&f);
        write_file("exact", texts[i]);
        tables_fixture_open(&f);
        CU_ASSERT_EQUAL(f.tables.n_entries, 0);
        CU_ASSERT_PTR_NULL(f.tables.models);
    }
    tables_fixture_end(&f);
}

/* Pages that a restart found without their table are pages of it again when a client opens the model. */
static void test_lost_pages(void)
{
    const struct exact_form form = {.type = EXACT_BF16, .after_rope = 1};
    const struct shard all = {0, 1};
    const size_t page = 128 + 64 * 32 * 2 * 2;
    struct space *space = NULL, *other = NULL;
    struct table *t = NULL;
    size_t n;
    void *bytes;

    begin(false);
    CU_ASSERT_EQUAL_FATAL(table_exact_build(&g, random_table_model_digest, &form, &bytes, &n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    free(bytes);
    CU_ASSERT_EQUAL_FATAL(
        tables_adopt_space(&f.tables, t->digest, all, PAGE_REST, page, page + 1, &space, &e), 0);
    CU_ASSERT_EQUAL(open_model(random_table_model_digest, BF16, &(struct table_model *){NULL}), -EBADMSG);
    CU_ASSERT(strstr(e.text, "other sizes") != NULL);
    tables_fixture_end(&f);

    begin(false);
    CU_ASSERT_EQUAL_FATAL(tables_adopt_space(&f.tables, t->digest, all, PAGE_REST, page, page, &space, &e),
                          0);
    CU_ASSERT_PTR_NOT_NULL(opened(BF16, NULL));
    CU_ASSERT_PTR_NOT_NULL(space->layout.table);
    CU_ASSERT_FALSE(space->leaves_first);
    CU_ASSERT_EQUAL(tables_space(&f.tables, table_find(&f.tables, t->digest), all, &other, &e), 0);
    CU_ASSERT_PTR_EQUAL(other, space);
    (void) table_unref(t);
    tables_fixture_end(&f);
}

const struct test_case test_cases[] = {
    TEST(test_who_gets_one),
    TEST(test_other_form),
    TEST(test_replaced_by_activate),
    TEST(test_wrong_geometry_is_replaced),
    TEST(test_operators),
    TEST(test_limit),
    TEST(test_restart),
    TEST(test_damaged_file),
    TEST(test_lost_pages),
    TEST_END,
};
