/* Tests of daemon/tier/disk_map.c and disk_segment.c. */
#include "daemon/tier/disk_map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "disk_map";

enum { SEGMENT_BYTES = 65536, PAGE_BYTES = 8000, SLOTS = 8, N_SEGMENTS = 6 };

static struct disk_map m;
static unsigned n_discarded;
static char gone[64]; /* what on_discard() reported: tenant and pages, "!" for the last segment */

static void on_discard(void *ctx, const struct disk_segment *s)
{
    const struct disk_owner *o = s->group->owner;
    size_t n = strlen(gone);

    (void) ctx;
    n_discarded++;
    (void) snprintf(gone + n, sizeof(gone) - n, "%.8s%u%s", o->name, (unsigned) s->n_present,
                    o->n_segments == 1 ? "!" : "");
}

static void begin(uint32_t n_segments, uint32_t n_segments_max)
{
    assert(disk_map_init(&m, n_segments, n_segments_max, SEGMENT_BYTES, 4096) == 0);
    m.on_discard = on_discard;
    gone[0] = '\0';
    n_discarded = 0;
}

static void end(void)
{
    struct errmsg e = {""};

    CU_ASSERT_TRUE(disk_map_is_valid(&m, &e));
    CU_ASSERT_STRING_EQUAL(e.text, "");
    disk_map_deinit(&m);
}

static struct tier_group make_group(const char *tenant, uint8_t table, uint8_t page_class)
{
    struct tier_group g;

    tier_group_init(&g, tenant);
    g.table_digest[0] = table;
    g.n_heads = 1;
    g.page_class = page_class;
    g.page_bytes = PAGE_BYTES;
    return g;
}

static struct chunk_key make_key(uint64_t n)
{
    struct chunk_key k;
    uint64_t words[2] = {n * UINT64_C(0x9e3779b97f4a7c15), (n + 1) * UINT64_C(0xd1342543de82ef95)};

    memcpy(k.bytes, words, sizeof(words));
    return k;
}

/* Claims and publishes a page. Return: the error. */
static int put(const char *tenant, uint64_t n, uint64_t quota_segments, struct disk_place *ret)
{
    struct tier_group g = make_group(tenant, 1, 0);
    struct chunk_key k = make_key(n);
    bool began;
    int r = disk_map_claim(&m, &g, &k, quota_segments * SEGMENT_BYTES, ret, &began);

    if (r == 0)
        CU_ASSERT_TRUE(disk_map_publish(&m, ret));
    return r;
}

static bool has(const char *tenant, uint64_t n)
{
    struct tier_group g = make_group(tenant, 1, 0);
    struct chunk_key k = make_key(n);
    struct disk_place p;

    return disk_map_find(&m, &g, &k, &p);
}

struct search {
    struct chunk_key key;
    bool found;
};

static void compare_key(void *ctx, const struct chunk_key *key)
{
    struct search *s = ctx;

    s->found |= memcmp(key, &s->key, sizeof(*key)) == 0;
}

/* Like has(), without a mark that the page was read. */
static bool exists(const char *tenant, uint64_t n)
{
    struct search s = {.key = make_key(n)};

    disk_map_for_each(&m, tenant, compare_key, &s);
    return s.found;
}

static void test_slots_in_order(void)
{
    struct disk_place p;

    begin(2, 2);
    for (unsigned i = 0; i < 2 * SLOTS; i++) {
        CU_ASSERT_EQUAL_FATAL(put("a", i, 2, &p), 0);
        CU_ASSERT(p.segment == i / SLOTS && p.slot == i % SLOTS && p.slot_bytes == 8192);
        CU_ASSERT_EQUAL(p.offset, (uint64_t) i * 8192);
        CU_ASSERT_EQUAL(p.generation, i / SLOTS + 1);
    }
    CU_ASSERT_EQUAL(m.n_pages, 2 * SLOTS);
    CU_ASSERT_EQUAL(disk_map_n_pages(&m, "a"), 2 * SLOTS);
    for (unsigned i = 0; i < 2 * SLOTS; i++)
        CU_ASSERT_TRUE(has("a", i));
    CU_ASSERT_FALSE(has("a", 2 * SLOTS));
    CU_ASSERT_FALSE(has("b", 0));
    CU_ASSERT_EQUAL(put("a", 3, 2, &p), -EEXIST);
    end();
}

static void test_groups_apart(void)
{
    struct tier_group one = make_group("a", 1, 0), other = make_group("a", 1, 1);
    struct chunk_key k = make_key(1);
    struct disk_place p, q;
    bool began;

    begin(2, 2);
    CU_ASSERT_EQUAL(disk_map_claim(&m, &one, &k, UINT64_MAX, &p, &began), 0);
    CU_ASSERT_TRUE(began);
    CU_ASSERT_FALSE(disk_map_find(&m, &one, &k, &q)); /* it is being written */
    CU_ASSERT_EQUAL(disk_map_claim(&m, &one, &k, UINT64_MAX, &q, &began), -EEXIST);
    CU_ASSERT_TRUE(disk_map_publish(&m, &p));
    CU_ASSERT_TRUE(disk_map_find(&m, &one, &k, &q));
    CU_ASSERT_FALSE(disk_map_find(&m, &other, &k, &q)); /* a page of another class is no answer */
    k = make_key(2);
    CU_ASSERT_EQUAL(disk_map_claim(&m, &other, &k, UINT64_MAX, &p, &began), 0);
    CU_ASSERT_TRUE(began);
    CU_ASSERT_EQUAL(p.segment, 1);
    disk_map_abandon(&m, &p);
    CU_ASSERT_FALSE(disk_map_find(&m, &other, &k, &q));
    CU_ASSERT_EQUAL(disk_map_claim(&m, &other, &k, UINT64_MAX, &p, &began), 0);
    CU_ASSERT_FALSE(began);
    CU_ASSERT_EQUAL(p.slot, 1); /* an abandoned slot is not used again */
    disk_map_abandon(&m, &p);
    end();
}

static void test_grow(void)
{
    struct disk_place p;

    begin(0, 2);
    CU_ASSERT_EQUAL(put("a", 0, 9, &p), DISK_MAP_GROW);
    disk_map_grown(&m);
    for (unsigned i = 0; i < SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 9, &p), 0);
    CU_ASSERT_EQUAL(put("a", SLOTS, 9, &p), DISK_MAP_GROW);
    disk_map_limit(&m); /* the file system is full */
    CU_ASSERT_EQUAL(put("a", SLOTS, 9, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 0);
    CU_ASSERT_STRING_EQUAL(gone, "a8!");
    CU_ASSERT_FALSE(has("a", 0));
    CU_ASSERT_TRUE(has("a", SLOTS));
    end();
}

static void test_quota(void)
{
    struct disk_place p;

    begin(N_SEGMENTS, N_SEGMENTS);
    CU_ASSERT_EQUAL(put("a", 0, 0, &p), -EDQUOT);
    for (unsigned i = 0; i < 3 * SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 2, &p), 0);
    CU_ASSERT_EQUAL(m.n_used, 2); /* two segments, and the first one went */
    CU_ASSERT_STRING_EQUAL(gone, "a8");
    CU_ASSERT_FALSE(exists("a", 0));
    CU_ASSERT_TRUE(exists("a", SLOTS));
    for (unsigned i = 0; i < SLOTS; i++) /* a smaller quota takes effect with the next segment */
        (void) put("a", 1000 + i, 1, &p);
    CU_ASSERT_EQUAL(m.n_used, 1);
    end();
}

/* The tier is full: the tenant with the most segments gives one, also if another tenant asks. */
static void test_equal_parts(void)
{
    struct disk_place p;

    begin(N_SEGMENTS, N_SEGMENTS);
    for (unsigned i = 0; i < N_SEGMENTS * SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    for (unsigned i = 0; i < 10 * N_SEGMENTS * SLOTS; i++)
        CU_ASSERT_EQUAL(put("b", i, 99, &p), 0);
    CU_ASSERT_EQUAL(disk_map_n_pages(&m, "a"), N_SEGMENTS / 2 * SLOTS); /* b could not take more */
    CU_ASSERT_FALSE(exists("a", N_SEGMENTS / 2 * SLOTS - 1));           /* the oldest went */
    CU_ASSERT_TRUE(has("a", N_SEGMENTS / 2 * SLOTS));
    end();
}

static void test_second_chance(void)
{
    struct disk_place p;

    begin(3, 3);
    for (unsigned i = 0; i < 3 * SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    CU_ASSERT_TRUE(has("a", 0) && has("a", 1)); /* a quarter of segment 0 */
    CU_ASSERT_TRUE(has("a", SLOTS));            /* less than a quarter of segment 1 */
    CU_ASSERT_EQUAL(put("a", 100, 99, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 1);
    for (unsigned i = 101; i < 100 + SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    CU_ASSERT_EQUAL(put("a", 200, 99, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 2);
    for (unsigned i = 201; i < 200 + SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    CU_ASSERT_EQUAL(put("a", 300, 99, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 0); /* spared once */
    end();
}

/* The daemon asks before it writes a page: that does not spare a segment. */
static void test_asked_is_not_read(void)
{
    struct tier_group g = make_group("a", 1, 0), other = make_group("a", 1, 1);
    struct disk_place p;

    begin(2, 2);
    for (unsigned i = 0; i < 2 * SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    for (unsigned i = 0; i < SLOTS; i++) {
        struct chunk_key k = make_key(i);

        CU_ASSERT_TRUE(disk_map_has(&m, &g, &k));
        CU_ASSERT_FALSE(disk_map_has(&m, &other, &k));
    }
    CU_ASSERT_EQUAL(put("a", 100, 99, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 0);
    end();
}

static void test_all_read(void)
{
    struct disk_place p;

    begin(2, 2);
    for (unsigned i = 0; i < 2 * SLOTS; i++)
        CU_ASSERT(put("a", i, 99, &p) == 0 && has("a", i));
    CU_ASSERT_EQUAL(put("a", 100, 99, &p), 0); /* all were spared: the first one goes */
    CU_ASSERT_EQUAL(p.segment, 0);
    end();
}

static void test_empty_segment_first(void)
{
    struct tier_group g = make_group("a", 1, 0);
    struct disk_place p;

    begin(3, 3);
    for (unsigned i = 0; i < 3 * SLOTS; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    for (unsigned i = SLOTS; i < 2 * SLOTS; i++) {
        struct chunk_key k = make_key(i);

        CU_ASSERT_TRUE_FATAL(disk_map_find(&m, &g, &k, &p));
        CU_ASSERT_TRUE(disk_map_is_current(&m, &p));
        CU_ASSERT_TRUE(disk_map_drop(&m, &p));
        CU_ASSERT_FALSE(disk_map_is_current(&m, &p));
        CU_ASSERT_FALSE(disk_map_drop(&m, &p));
    }
    CU_ASSERT_EQUAL(put("a", 100, 99, &p), 0);
    CU_ASSERT_EQUAL(p.segment, 1);
    CU_ASSERT_TRUE(exists("a", 0));
    end();
}

/* Slots are not written again while an earlier write may still be on its way. */
static void test_writes_in_flight(void)
{
    struct tier_group g = make_group("a", 1, 0);
    struct disk_place p[2 * SLOTS], q;
    bool began;

    begin(2, 2);
    for (unsigned i = 0; i < 2 * SLOTS; i++) {
        struct chunk_key k = make_key(i);

        CU_ASSERT_EQUAL_FATAL(disk_map_claim(&m, &g, &k, UINT64_MAX, &p[i], &began), 0);
        CU_ASSERT_EQUAL(began, i % SLOTS == 0);
    }
    CU_ASSERT_EQUAL(put("a", 100, 99, &q), -EBUSY);
    CU_ASSERT_EQUAL(put("b", 100, 99, &q), -EBUSY);
    CU_ASSERT_EQUAL(put("a", 100, 2, &q), -EBUSY); /* at its quota, too */
    for (unsigned i = 0; i < SLOTS; i++)
        CU_ASSERT_TRUE(disk_map_publish(&m, &p[SLOTS + i]));
    CU_ASSERT_EQUAL(put("a", 100, 99, &q), 0); /* the older one has writes: the other one goes */
    CU_ASSERT_EQUAL(q.segment, 1);
    CU_ASSERT_FALSE(disk_map_is_current(&m, &p[SLOTS])); /* another life */
    for (unsigned i = 0; i < SLOTS; i++)
        disk_map_abandon(&m, &p[i]);
    end();
}

static void test_end_by_table_and_tenant(void)
{
    struct tier_group a1 = make_group("a", 1, 0), a2 = make_group("a", 2, 0), b1 = make_group("b", 1, 0);
    const struct tier_group *groups[] = {&a1, &a2, &b1};
    struct chunk_key keys[3] = {make_key(0), make_key(1), make_key(2)};
    struct disk_place p[3], q;
    uint32_t segment = 0;
    bool began;

    begin(3, 3);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(disk_map_claim(&m, groups[i], &keys[i], UINT64_MAX, &p[i], &began), 0);
    CU_ASSERT_TRUE(disk_map_publish(&m, &p[0]));
    CU_ASSERT_TRUE(disk_map_publish(&m, &p[1]));

    disk_map_end(&m, NULL, a1.table_digest); /* a1 and b1 */
    CU_ASSERT_FALSE(disk_map_find(&m, &a1, &keys[0], &q));
    CU_ASSERT_TRUE(disk_map_find(&m, &a2, &keys[1], &q));
    CU_ASSERT_TRUE(disk_map_take_ended(&m, &segment));
    CU_ASSERT_EQUAL(segment, 0);
    CU_ASSERT_FALSE(disk_map_take_ended(&m, &segment)); /* b's write is in flight */
    CU_ASSERT_EQUAL(put("b", 50, 99, &q), 0);           /* new pages begin a segment of their own */
    CU_ASSERT(q.segment == 0 && q.slot == 0);
    CU_ASSERT_FALSE(disk_map_publish(&m, &p[2])); /* and comes too late */
    segment = 0;
    CU_ASSERT_TRUE(disk_map_take_ended(&m, &segment));
    CU_ASSERT_EQUAL(segment, 2);
    CU_ASSERT_TRUE(has("b", 50));

    disk_map_end(&m, "b", NULL);
    CU_ASSERT_FALSE(has("b", 50));
    segment = 0;
    CU_ASSERT_TRUE(disk_map_take_ended(&m, &segment));
    CU_ASSERT_EQUAL(segment, 0);
    CU_ASSERT_TRUE(disk_map_find(&m, &a2, &keys[1], &q));
    disk_map_end(&m, "a", NULL);
    CU_ASSERT_FALSE(disk_map_find(&m, &a2, &keys[1], &q));
    segment = 0;
    CU_ASSERT_TRUE(disk_map_take_ended(&m, &segment));
    CU_ASSERT(m.n_used == 0 && m.owners == NULL);
    end();
}

static void test_limits(void)
{
    struct tier_group g = make_group("a", 1, 0);
    struct chunk_key k = make_key(1);
    struct disk_place p;
    bool began;

    begin(1, 1);
    g.page_bytes = SEGMENT_BYTES - 64;
    CU_ASSERT_EQUAL(disk_map_claim(&m, &g, &k, UINT64_MAX, &p, &began), 0);
    CU_ASSERT_TRUE(disk_map_publish(&m, &p));
    g.page_bytes++;
    k = make_key(2);
    CU_ASSERT_EQUAL(disk_map_claim(&m, &g, &k, UINT64_MAX, &p, &began), -EFBIG);
    CU_ASSERT_EQUAL(m.n_pages, 1); /* nothing was discarded for it */
    end();
}

/* Keys that a client chose, all with the same homes in the index. */
static void test_equal_homes(void)
{
    struct tier_group g = make_group("a", 1, 0);
    struct disk_place p;
    unsigned n = 0, n_other = 0;
    bool began;
    int r = 0;

    begin(64, 64);
    for (; n < 500 && r == 0; n++) {
        struct chunk_key k = {{0}};

        memcpy(k.bytes, &n, sizeof(n)); /* the upper halves are equal */
        r = disk_map_claim(&m, &g, &k, UINT64_MAX, &p, &began);
        if (r == 0)
            CU_ASSERT_TRUE(disk_map_publish(&m, &p));
    }
    CU_ASSERT_EQUAL(r, -ENOSPC);
    CU_ASSERT_EQUAL(m.n_pages, n - 1);
    for (unsigned i = 0; i < 20; i++) /* most other keys find a place */
        n_other += put("a", 1000 + i, 99, &p) == 0;
    CU_ASSERT(n_other > 10);
    end();
}

/* ---- the start ---- */

static struct disk_segment_head make_head(uint32_t number, uint64_t generation)
{
    return (struct disk_segment_head){.number = number,
                                      .generation = generation,
                                      .slot_bytes = 8192,
                                      .n_slots = SLOTS,
                                      .group = make_group("a", 1, 0)};
}

static void adopt(uint32_t segment, uint64_t generation, const int *keys, uint32_t n)
{
    struct disk_segment_head h = make_head(segment, generation);

    CU_ASSERT_TRUE(disk_map_adopt_segment(&m, &h));
    for (uint32_t i = 0; i < n; i++) {
        struct disk_record r = {.generation = generation, .slot = i};

        if (keys[i] < 0)
            continue;
        r.key = make_key((uint64_t) keys[i]);
        disk_map_adopt_page(&m, segment, &r);
    }
}

static void test_adopt(void)
{
    struct disk_place p;

    begin(3, 3);
    adopt(0, 9, (const int[]){10, -1, 12}, 3); /* the record of slot 1 is missing */
    adopt(1, 4, (const int[]){20, 21, 22, 23, 24, 25, 26, 27}, 8);
    adopt(2, 7, (const int[]){30}, 1);
    CU_ASSERT_EQUAL(disk_map_adopt_done(&m), 0);
    CU_ASSERT(m.n_pages == 11 && m.n_used == 3);
    CU_ASSERT_TRUE(disk_map_is_valid(&m, NULL));
    CU_ASSERT_TRUE(exists("a", 12) && exists("a", 27) && exists("a", 30));
    CU_ASSERT_EQUAL(put("a", 40, 99, &p), 0); /* continues in the newest segment, behind its last record */
    CU_ASSERT(p.segment == 0 && p.slot == 3 && p.generation == 9);
    for (unsigned i = 41; i < 45; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    CU_ASSERT_EQUAL(put("a", 45, 99, &p), 0); /* the oldest segment went, and a new life has a new number */
    CU_ASSERT(p.segment == 1 && p.slot == 0 && p.generation == 10);
    CU_ASSERT_FALSE(exists("a", 20));
    end();
}

/* A key in two segments: a power cut lost what removed the older page. */
static void test_adopt_same_key(void)
{
    struct tier_group g = make_group("a", 1, 0);
    struct chunk_key k = make_key(5);
    struct disk_place p;

    for (unsigned first = 0; first < 2; first++) {
        begin(2, 2);
        adopt(first, 8, (const int[]){5}, 1);
        adopt(1 - first, 3, (const int[]){5, 6}, 2);
        CU_ASSERT_EQUAL(disk_map_adopt_done(&m), 0);
        CU_ASSERT_TRUE_FATAL(disk_map_find(&m, &g, &k, &p));
        CU_ASSERT_EQUAL(p.generation, 8);
        CU_ASSERT_EQUAL(m.n_pages, 2);
        end();
    }
}

static void test_adopt_other_alignment(void)
{
    struct disk_segment_head h = make_head(0, 1);

    assert(disk_map_init(&m, 2, 2, SEGMENT_BYTES, 16384) == 0); /* the device asks for more now */
    CU_ASSERT_FALSE(disk_map_adopt_segment(&m, &h));
    CU_ASSERT(m.n_used == 0 && m.owners == NULL);
    disk_map_deinit(&m);
}

/* More pages than the first index has room for, at the start too. */
static void test_many_pages(void)
{
    enum { N = 40 * SLOTS };
    int keys[SLOTS];
    struct disk_place p;

    begin(40, 40);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(put("a", i, 99, &p), 0);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_TRUE_FATAL(has("a", i));
    end();
    begin(40, 40);
    for (uint32_t s = 0; s < 40; s++) {
        for (int i = 0; i < SLOTS; i++)
            keys[i] = (int) s * SLOTS + i;
        adopt(s, s + 1, keys, SLOTS);
    }
    CU_ASSERT_EQUAL(disk_map_adopt_done(&m), 0);
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_TRUE_FATAL(has("a", i));
    end();
}

/* Random histories against a plain array. */
static void test_random(void)
{
    enum { KEYS = 200, TENANTS = 3, STEPS = 20000 };
    static const char *const names[TENANTS] = {"a", "b", "c"};
    static bool written[TENANTS][KEYS];
    struct disk_place p;

    memset(written, 0, sizeof(written));
    begin(0, 5);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned t = (unsigned) test_rand_below(TENANTS), k = (unsigned) test_rand_below(KEYS);
        struct tier_group g = make_group(names[t], 1, 0);
        struct chunk_key key = make_key(k);
        int r;

        switch (test_rand_below(8)) {
        case 0:
            if (disk_map_find(&m, &g, &key, &p))
                CU_ASSERT_TRUE(disk_map_drop(&m, &p));
            written[t][k] = false;
            break;
        case 1:
            CU_ASSERT_FATAL(!has(names[t], k) ||
                            written[t][k]); /* what is found was written, and not dropped */
            break;
        default:
            r = put(names[t], k, 3, &p);
            if (r == DISK_MAP_GROW)
                disk_map_grown(&m);
            else
                CU_ASSERT_FATAL(r == 0 || r == -EEXIST);
            written[t][k] |= r == 0;
        }
        CU_ASSERT_TRUE_FATAL(step % 97 != 0 || disk_map_is_valid(&m, NULL));
    }
    CU_ASSERT(n_discarded > 100);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_slots_in_order),
    TEST(test_groups_apart),
    TEST(test_grow),
    TEST(test_quota),
    TEST(test_equal_parts),
    TEST(test_second_chance),
    TEST(test_asked_is_not_read),
    TEST(test_all_read),
    TEST(test_empty_segment_first),
    TEST(test_writes_in_flight),
    TEST(test_end_by_table_and_tenant),
    TEST(test_limits),
    TEST(test_equal_homes),
    TEST(test_adopt),
    TEST(test_adopt_same_key),
    TEST(test_adopt_other_alignment),
    TEST(test_many_pages),
    TEST(test_random),
    TEST_END,
};
