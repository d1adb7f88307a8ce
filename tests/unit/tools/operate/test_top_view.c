/* The lines of `kvcobra top`: rates calculated by hand, sizes of the window, sorting, hostile names. */
#include "tools/operate/top_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tools/command/operator_call.h"

const char test_suite[] = "top_view";

static Kvcobra__TenantStatus tenants[40], *tenant_list[40];
static Kvcobra__SpaceStatus spaces[30], *space_list[30];
static char names[40][64];
static uint8_t digests[30][KVC_DIGEST_BYTES];

static Kvcobra__StatusReply status_of(size_t n_tenants, size_t n_spaces)
{
    Kvcobra__StatusReply s = KVCOBRA__STATUS_REPLY__INIT;

    s.pid = 7;
    s.uptime_ms = 10000;
    s.pool_bytes = 1000 << 10;
    s.page_bytes = 500 << 10;
    s.sessions = 3;
    s.version = (char *) "0.1.0";
    s.restart = (char *) "kept";
    s.n_tenants = n_tenants;
    s.n_spaces = n_spaces;
    s.tenants = tenant_list;
    s.spaces = space_list;
    for (size_t i = 0; i < n_tenants; i++) {
        tenants[i] = (Kvcobra__TenantStatus) KVCOBRA__TENANT_STATUS__INIT;
        (void) snprintf(names[i], sizeof(names[i]), "uid-%zu", i);
        tenants[i].name = names[i];
        tenants[i].used_bytes = i << 10;
        tenant_list[i] = &tenants[i];
    }
    for (size_t i = 0; i < n_spaces; i++) {
        spaces[i] = (Kvcobra__SpaceStatus) KVCOBRA__SPACE_STATUS__INIT;
        digests[i][0] = (uint8_t) i;
        spaces[i].table_digest = operator_digest(digests[i]);
        spaces[i].n_heads = 2;
        spaces[i].pages = i;
        space_list[i] = &spaces[i];
    }
    return s;
}

static struct top_look look; /* of view() */

static char *view(const Kvcobra__StatusReply *now, const Kvcobra__StatusReply *before, double seconds,
                  unsigned width, unsigned height)
{
    Kvcobra__TableInfo table = KVCOBRA__TABLE_INFO__INIT, *tables[] = {&table};
    Kvcobra__ListTablesReply list = KVCOBRA__LIST_TABLES_REPLY__INIT;
    struct top_moment a = {100 + seconds, (Kvcobra__StatusReply *) now, &list},
                      b = {100, (Kvcobra__StatusReply *) before, &list}; /* only read */
    char *text;

    table.state = KVCOBRA__TABLE_STATE__TABLE_ACTIVE;
    table.digest = operator_digest(digests[0]);
    list.tables = tables;
    list.n_tables = 1;
    text = top_view(&a, before ? &b : NULL, &look, width, height);

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    return text;
}

/* Line of @text that begins with @word, NUL-terminated copy; "" if there is none. */
static const char *line_of(const char *text, const char *word)
{
    static char line[256];
    const char *at = strncmp(text, word, strlen(word)) == 0 ? text : NULL;
    char find[64];

    (void) snprintf(find, sizeof(find), "\n%s", word);
    if (!at && (at = strstr(text, find)) != NULL)
        at++;
    (void) snprintf(line, sizeof(line), "%.*s", at ? (int) strcspn(at, "\n") : 0, at ? at : "");
    return line;
}

static void check_size(const char *text, unsigned width, unsigned height)
{
    unsigned n = 0;

    for (const char *p = text; *p; n++) {
        size_t bytes = strcspn(p, "\n");

        CU_ASSERT(bytes <= width);
        for (size_t i = 0; i < bytes; i++)
            CU_ASSERT(p[i] >= 0x20 && p[i] <= 0x7e);
        CU_ASSERT_EQUAL_FATAL(p[bytes], '\n');
        p += bytes + 1;
    }
    CU_ASSERT(height == 0 || n <= height);
}

/* 300 hits and 100 misses, 5 evictions in 2 s: 75 %, 2.50 per second; earlier totals have no influence. */
static void test_rates(void)
{
    Kvcobra__StatusReply now = status_of(1, 1), before = now;
    Kvcobra__TenantStatus old_tenant, *old_tenants[] = {&old_tenant};
    Kvcobra__SpaceStatus old_space, *old_spaces[] = {&old_space};
    char *text;

    old_tenant = tenants[0];
    old_space = spaces[0];
    old_tenant.hits = 1000;
    old_tenant.misses = 7000;
    old_tenant.evictions = 20;
    old_space.leased = 40;
    before.tenants = old_tenants;
    before.spaces = old_spaces;
    before.evictions = 20;
    tenants[0].hits = 1300;
    tenants[0].misses = 7100;
    tenants[0].evictions = 25;
    spaces[0].leased = 60;
    now.evictions = 25;
    text = view(&now, &before, 2, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "uid-0 "), "75.0     2.50"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "000000000000 "), "active"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "000000000000 "), " 10 "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "2.50 evictions/s"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "[##########..........]"));
    CU_ASSERT_PTR_NULL(strstr(text, "DRAINING"));
    CU_ASSERT_PTR_NULL(strstr(text, "tiers"));
    free(text);

    now.draining = 1;
    text = view(&now, NULL, 0, 80, 24); /* since the start, 10 s ago: 1300 of 8400 */
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "uid-0 "), "15.5     2.50"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "kvcobrad "), "DRAINING"));
    free(text);

    now.disk_tier = (char *) "off";
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "tiers "), "disk off  cluster none"));
    free(text);

    old_tenant.hits = 99999; /* of an earlier daemon: counters began at 0 again */
    text = view(&now, &before, 2, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "uid-0 "), "92.9"));
    free(text);
}

/* Without look-ups there is no hit rate to show. */
static void test_nothing(void)
{
    Kvcobra__StatusReply now = status_of(1, 0);
    char *text = view(&now, &now, 2, 80, 24);

    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "uid-0 "), "     -        0"));
    free(text);
    now = status_of(0, 0);
    text = view(&now, &now, 0, 80, 24);
    check_size(text, 80, 24);
    free(text);
}

/* A bar for a GPU that is ready, the reason for one that is not; host memory is in the head already. */
static void test_gpus(void)
{
    static const char *const device_names[] = {"cpu", "gpu0", "gpu1", "gpu2"};
    Kvcobra__DeviceStatus devices[4], *list[4];
    Kvcobra__StatusReply now = status_of(40, 30);
    char *text;

    for (size_t i = 0; i < 4; i++) {
        devices[i] = (Kvcobra__DeviceStatus) KVCOBRA__DEVICE_STATUS__INIT;
        devices[i].name = (char *) device_names[i];
        devices[i].state = KVCOBRA__DEVICE_STATE__DEVICE_READY;
        list[i] = &devices[i];
    }
    devices[1].pool_bytes = 1000 << 20;
    devices[1].page_bytes = 250 << 20;
    devices[2].state = KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE;
    devices[2].message = (char *) "there is no driver\n";
    devices[3].state = KVCOBRA__DEVICE_STATE__DEVICE_OPENING;
    now.n_devices = 4;
    now.devices = list;
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_STRING_EQUAL(line_of(text, "gpu0 "),
                           "gpu0  [#####...............] 250.0 MiB in pages of 1000.0 MiB, 0 B waste");
    CU_ASSERT_STRING_EQUAL(line_of(text, "gpu1 "), "gpu1  there is no driver?");
    CU_ASSERT_STRING_EQUAL(line_of(text, "gpu2 "), "gpu2  is being opened");
    CU_ASSERT_STRING_EQUAL(line_of(text, "cpu"), "");
    /* Lines of GPUs leave fewer rows for tenants and tables. */
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\nTABLE"));
    check_size(text, 80, 24);
    free(text);
    now.n_devices = 1;
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NULL(strstr(text, "gpu"));
    free(text);
}

static void test_sizes(void)
{
    static const unsigned sizes[][2] = {{80, 24}, {120, 40}, {40, 6}, {1, 1}, {200, 9}, {80, 0}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        Kvcobra__StatusReply now = status_of(40, 30);
        char *text = view(&now, NULL, 0, sizes[i][0], sizes[i][1]);

        check_size(text, sizes[i][0], sizes[i][1]);
        free(text);
    }
}

/* 24 lines without 7 fixed ones leave 17 for both tables; the second table gets the larger half. Rows are
 * sorted by use. */
static void test_rows(void)
{
    Kvcobra__StatusReply now = status_of(40, 30);
    char *text = view(&now, NULL, 0, 80, 24);

    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n... and 33 more\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n... and 22 more\n"));
    CU_ASSERT(strstr(text, "uid-39") < strstr(text, "uid-38"));
    CU_ASSERT_PTR_NULL(strstr(text, "uid-0 "));
    free(text);
    now = status_of(40, 1); /* one table needs one line: the tenants get the others */
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n... and 25 more\n"));
    free(text);
}

static void test_hostile_names(void)
{
    Kvcobra__StatusReply now = status_of(1, 0);
    char *text;

    memcpy(names[0], "a\033[2J\n\xff\tb", 10);
    text = view(&now, NULL, 0, 80, 24);
    check_size(text, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "a?[2J???b"));
    memset(names[0], 'x', sizeof(names[0]) - 1);
    free(text);
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\nxxxxxxxxxxxxxxxxx  "));
    free(text);
}

/* 60 columns: what is left out is named. 200: more columns, and names that are longer than 16. */
static void test_columns(void)
{
    Kvcobra__StatusReply now = status_of(1, 0);
    char *text;

    (void) snprintf(names[0], sizeof(names[0]), "a-tenant-with-a-long-name");
    text = view(&now, NULL, 0, 60, 24);
    check_size(text, 60, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "no room for QUOTA, PAGES, LEASES\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "TENANT "), "HELD  HIT %  EVICT/S"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "rows of tables need 79 columns\n"));
    free(text);

    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NULL(strstr(text, "no room"));
    free(text);

    text = view(&now, NULL, 0, 200, 24);
    check_size(text, 200, 24);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(line_of(text, "TENANT "), "SESSIONS   HITS/S MISSES/S     ARENAS  GUARANTEE"));
    CU_ASSERT_PTR_NOT_NULL(strstr(line_of(text, "a-tenant-"), "a-tenant-with-a-long-name "));
    free(text);
}

static void test_sorting(void)
{
    static const char *const first[TOP_N_SORTS] = {"uid-2 ", "uid-0 ", "uid-1 ",
                                                   "uid-0 ", "uid-2 ", "uid-1 "};
    Kvcobra__StatusReply now = status_of(3, 0); /* used: 0, 1, 2 KiB */

    tenants[1].pages = tenants[0].leases = 5;
    tenants[2].hits = tenants[2].misses = 1; /* 50 %; the others looked nothing up */
    tenants[1].evictions = 1;
    for (unsigned i = 0; i < TOP_N_SORTS; i++) {
        char *text;

        look.sort = (enum top_sort) i;
        text = view(&now, NULL, 0, 80, 24);
        CU_ASSERT_EQUAL(strncmp(strstr(text, "EVICT/S\n") + strlen("EVICT/S\n"), first[i], 6), 0);
        free(text);
    }
    look.sort = TOP_BY_USED;
}

/* Escape sequences only with colour, help instead of the tables, the keys in the last line. */
static void test_look(void)
{
    Kvcobra__StatusReply now = status_of(1, 1);
    char *text;

    tenants[0].quota_bytes = 1000;
    tenants[0].used_bytes = 960;
    look = (struct top_look){.colour = true, .keys = true};
    text = view(&now, NULL, 0, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n\033[33muid-0 "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\033[1mq quit  s sort: used  g history  h help\033[0m\n"));
    free(text);

    look = (struct top_look){.keys = true, .help = true};
    text = view(&now, NULL, 0, 80, 24);
    check_size(text, 80, 24);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "HELD        pages that clients hold"));
    CU_ASSERT_PTR_NULL(strstr(text, "TENANT"));
    free(text);
    look = (struct top_look){.sort = TOP_BY_USED};
}

/* ---- history ---- */

/* Line @n of @text, from 0; NUL-terminated copy. */
static const char *line_at(const char *text, unsigned n)
{
    static char line[256];

    while (n-- > 0 && strchr(text, '\n'))
        text = strchr(text, '\n') + 1;
    (void) snprintf(line, sizeof(line), "%.*s", (int) strcspn(text, "\n"), text);
    return line;
}

/* Intervals of 2 s in which @found of ten chunks were found and @evicted pages were evicted. */
static void add_interval(struct top_history *h, uint64_t found, uint64_t evicted)
{
    Kvcobra__StatusReply s[2] = {status_of(1, 0), status_of(1, 0)};
    Kvcobra__TenantStatus t[2] = {tenants[0], tenants[0]}, *lists[2][1] = {{&t[0]}, {&t[1]}};
    struct top_moment before = {10, &s[0], NULL}, now = {12, &s[1], NULL};

    for (size_t i = 0; i < 2; i++) {
        t[i].hits = 100 + (i > 0 ? found : 0);
        t[i].misses = 50 + (i > 0 ? 10 - found : 0);
        s[i].tenants = lists[i];
        s[i].pool_bytes = 1000;
        s[i].page_bytes = 250;
    }
    s[1].evictions = evicted;
    top_history_add(h, &now, &before);
}

static void test_history(void)
{
    static struct top_history h;
    Kvcobra__StatusReply now = status_of(0, 0);
    char *text;

    h = (struct top_history){.n = 0};
    look = (struct top_look){.keys = true, .history = &h};
    text = view(&now, NULL, 0, 80, 24); /* nothing yet */
    check_size(text, 80, 24);
    free(text);
    add_interval(&h, 0, 0);
    add_interval(&h, 5, 20);
    add_interval(&h, 10, 40);
    text = view(&now, NULL, 0, 20, 0); /* 12 columns of charts */
    CU_ASSERT_STRING_EQUAL(line_of(text, "the last"), "the last 6.00 s, all");
    CU_ASSERT_STRING_EQUAL(line_at(text, 5), "looked-up chunks tha");
    CU_ASSERT_STRING_EQUAL(line_at(text, 6), "  100 %            #");
    CU_ASSERT_STRING_EQUAL(line_at(text, 7), "                   #");
    CU_ASSERT_STRING_EQUAL(line_at(text, 8), "                  ##");
    CU_ASSERT_STRING_EQUAL(line_at(text, 9), "      0          .##");
    CU_ASSERT_STRING_EQUAL(line_at(text, 14), "      0          ###"); /* a quarter of the pool */
    CU_ASSERT_STRING_EQUAL(line_at(text, 16), "     20            #"); /* pages per second */
    CU_ASSERT_STRING_EQUAL(line_at(text, 19), "      0          .##");
    free(text);
    for (unsigned i = 0; i < TOP_HISTORY_MAX + 10; i++)
        add_interval(&h, 10, 0);
    CU_ASSERT_EQUAL(h.n, TOP_HISTORY_MAX);
    for (unsigned width = 1; width < 700; width += 7) {
        text = view(&now, NULL, 0, width, 24);
        check_size(text, width < 12 ? 12 : width, 24);
        free(text);
    }
    look = (struct top_look){0};
}

const struct test_case test_cases[] = {
    TEST(test_rates), TEST(test_nothing),       TEST(test_gpus),    TEST(test_sizes),
    TEST(test_rows),  TEST(test_hostile_names), TEST(test_columns), TEST(test_sorting),
    TEST(test_look),  TEST(test_history),       TEST_END,
};
