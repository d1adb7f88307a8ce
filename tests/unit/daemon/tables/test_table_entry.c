/* The spaces of a table: which stay, and how they are found. */
#include "base/errmsg.h"
#include "daemon/tables/table_entry.h"

#include <stdlib.h>

#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/tables.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "table_entry";

static struct config config;
static struct devices devices;
static struct tables tables;

static unsigned n_spaces(const struct table_entry *t)
{
    unsigned n = 0;

    for (const struct space *s = t->spaces; s; s = s->next)
        n++;
    return n;
}

/* Clients choose shards: the daemon keeps those with groups of pages, and the newest of the others. */
static void test_shards_without_pages(void)
{
    enum { HEADS = 16 };
    struct geometry g = random_table_geometry(1, HEADS, HEADS, 32);
    struct space *s, *used = NULL;
    struct table_entry *t;
    struct table *table;
    size_t n_bytes;
    void *bytes;

    config_init(&config);
    assert(tables_init(&tables, &config, &devices, &(struct errmsg){""}) == 0);
    assert(random_table_bytes(&g, 1, 2.0, false, &bytes, &n_bytes) == 0);
    assert(table_parse(bytes, n_bytes, &table, NULL) == 0);
    free(bytes);
    CU_ASSERT_EQUAL_FATAL(table_accept(&tables, table, -1, &t, NULL), 0);
    for (uint32_t first = 0; first < HEADS; first++) {
        for (uint32_t n = 1; n <= HEADS - first; n++) {
            struct shard shard = {first, n};

            CU_ASSERT_EQUAL_FATAL(tables_space(&tables, t, shard, &s, NULL), 0);
            CU_ASSERT(s->layout.shard.first_head == first && s->layout.shard.n_heads == n);
            CU_ASSERT_PTR_EQUAL(table_find_space(t, shard), s);
            s->n_leased++;
            if (!used) {
                used = s;
                used->n_groups++; /* as the first page of a tenant does */
            }
            CU_ASSERT(n_spaces(t) <= SPACES_UNUSED_MAX + 1);
        }
    }
    CU_ASSERT_EQUAL(n_spaces(t), SPACES_UNUSED_MAX + 1);
    CU_ASSERT_PTR_EQUAL(table_find_space(t, (struct shard){0, 1}), used);
    CU_ASSERT_PTR_NULL(table_find_space(t, (struct shard){0, 2}));
    CU_ASSERT_EQUAL(t->former_leased + n_spaces(t), HEADS * (HEADS + 1) / 2); /* no count is lost */
    used->n_groups--;
    (void) table_unref(table);
    tables_deinit(&tables);
    config_deinit(&config);
}

const struct test_case test_cases[] = {TEST(test_shards_without_pages), TEST_END};
