/*
 * Advice on capacity through the library: what STATUS says about a pool that is too small for what clients
 * look up in a cycle, which look-ups count, and that a restart begins anew.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_advice";

enum {
    TEXTS = 10,
    CHUNKS = 24, /* of a text; the newest chunk beside them stays private */
    TOKENS = (CHUNKS + 1) * 64,
    ROUNDS = 4,
    CYCLE = TEXTS * CHUNKS,
    NUMBERS = 2 * 2 * 2 * 64 * 64, /* of a chunk: layers, heads, K and V, tokens, d */
};

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* The standard error of the estimate of distinct chunks is 1.6 %. */
static bool is_close(uint64_t n, uint64_t want)
{
    return fabs((double) n - (double) want) <= 0.1 * (double) want;
}

/* A request: looks the tokens up and publishes what is missing. Returns the chunks that were found. */
static size_t request(const struct embedded *m, uint32_t text, uint32_t flags, bool publishes)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = flags};
    uint32_t *tokens = scene_tokens(text, TOKENS);
    kvc_seq *s = NULL;
    size_t found = 0, n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TOKENS, &found), 0);
    if (publishes) {
        CU_ASSERT_EQUAL(scene_publish(m, s, text, found, TOKENS - found, TOKENS, &n), 0);
        CU_ASSERT_EQUAL(n, CHUNKS * 64);
    }
    kvc_seq_free(s);
    free(tokens);
    return found / 64;
}

static Kvcobra__Advice advice(struct scene *sc, bool of_the_device)
{
    Kvcobra__StatusReply *s = scene_status(sc);
    Kvcobra__Advice a = KVCOBRA__ADVICE__INIT;

    for (size_t i = 0; i < s->n_tenants && !of_the_device; i++)
        if (s->tenants[i]->advice && s->tenants[i]->advice->day_lookups > 0)
            a = *s->tenants[i]->advice; /* numbers alone */
    if (of_the_device && s->devices[0]->advice)
        a = *s->devices[0]->advice;
    s = scene_status_free(s);
    return a;
}

/* ---- a pool that is too small ---- */

static void check_cycle(const Kvcobra__Advice *a, uint64_t n_found)
{
    CU_ASSERT_EQUAL(a->lookups, ROUNDS * CYCLE);
    CU_ASSERT_EQUAL(a->hour_lookups, ROUNDS * CYCLE);
    CU_ASSERT_EQUAL(a->day_lookups, ROUNDS * CYCLE);
    CU_ASSERT_EQUAL(a->hour_found, n_found);
    CU_ASSERT_EQUAL(a->day_found, n_found);
    CU_ASSERT(is_close(a->hour_distinct, CYCLE) && is_close(a->day_distinct, CYCLE));
    CU_ASSERT_EQUAL(a->capacity_bytes, 2 << 20);
    CU_ASSERT(a->millibits > 2900 && a->millibits < 3400); /* 3 bits, header and rounding */

    /* a cycle of 240 pages of some 12.5 KiB, 2.9 MiB */
    CU_ASSERT(a->hits_pool_half == 0 && a->hits_pool_same == 0);
    CU_ASSERT_EQUAL(a->hits_pool_2x, (ROUNDS - 1) * CYCLE);
    CU_ASSERT_EQUAL(a->hits_pool_8x, (ROUNDS - 1) * CYCLE);
    /* 2 MiB have room for 32 chunks of 16 bits, 113 of 4.5, 170 of 3 and 256 of 2 */
    CU_ASSERT(a->hits_bits_16 == 0 && a->hits_bits_4_5 == 0 && a->hits_bits_3 == 0);
    CU_ASSERT_EQUAL(a->hits_bits_2, (ROUNDS - 1) * CYCLE);
}

static void test_small_pool(void)
{
    static const char *const args[] = {"--pool-bytes=2M",  "--extent-bytes=512K", "--span-bytes=128K",
                                       "--arena-bytes=2M", "--quota-bytes=64M",   NULL};
    struct scene sc;
    struct embedded m;
    uint64_t n_found = 0;
    Kvcobra__Advice a;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    a = advice(&sc, true);
    CU_ASSERT(a.lookups == 0 && a.day_lookups == 0 && a.capacity_bytes == 0);

    for (unsigned round = 0; round < ROUNDS; round++)
        for (uint32_t text = 0; text < TEXTS; text++)
            n_found += request(&m, text, 0, true);
    CU_ASSERT(n_found < (ROUNDS - 1) * CYCLE); /* the pool is too small for all */
    a = advice(&sc, true);
    check_cycle(&a, n_found);
    a = advice(&sc, false);
    check_cycle(&a, n_found);
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- what counts ---- */

static void hits_and_misses(struct scene *sc, uint64_t *ret_hits, uint64_t *ret_misses)
{
    Kvcobra__StatusReply *s = scene_status(sc);

    *ret_hits = *ret_misses = 0;
    for (size_t i = 0; i < s->n_tenants; i++) {
        *ret_hits += s->tenants[i]->hits;
        *ret_misses += s->tenants[i]->misses;
    }
    s = scene_status_free(s);
}

static void test_what_counts(void)
{
    struct scene sc;
    struct embedded m, other;
    uint64_t hits, misses, hits_after, misses_after;
    Kvcobra__Advice a;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    other = scene_client(&sc);
    CU_ASSERT_EQUAL(request(&m, 0, 0, false), 0); /* missed, not published: kvcobrad does not know of it */
    a = advice(&sc, true);
    CU_ASSERT_EQUAL(a.lookups, 0);

    CU_ASSERT_EQUAL(request(&m, 0, 0, true), 0);
    CU_ASSERT_EQUAL(request(&other, 0, 0, false), CHUNKS);
    a = advice(&sc, true);
    CU_ASSERT(a.lookups == 2 * CHUNKS && a.hour_found == CHUNKS && a.hits_pool_same == CHUNKS);

    hits_and_misses(&sc, &hits, &misses);
    CU_ASSERT_EQUAL(request(&other, 0, KVC_SEQ_COUNTED, false), CHUNKS);
    CU_ASSERT_EQUAL(request(&other, 1, KVC_SEQ_COUNTED, false), 0);
    hits_and_misses(&sc, &hits_after, &misses_after);
    CU_ASSERT(hits == hits_after && misses == misses_after);
    a = advice(&sc, true);
    CU_ASSERT(a.lookups == 2 * CHUNKS && a.hour_found == CHUNKS);
    CU_ASSERT_EQUAL(request(&other, 1, KVC_SEQ_COUNTED, true), 0); /* what it publishes counts */
    a = advice(&sc, true);
    CU_ASSERT(a.lookups == 3 * CHUNKS && a.hour_found == CHUNKS);

    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

static void test_restart_begins_anew(void)
{
    struct daemon d;
    struct scene sc;
    struct embedded m;
    Kvcobra__Advice a;

    CU_ASSERT_FATAL(daemon_start(&d, DAEMON_BY_PATH | DAEMON_WITH_STATE, NULL));
    scene_attach(&sc, &d, small(), 3, 1);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL(request(&m, 0, 0, true), 0);
    a = advice(&sc, false);
    CU_ASSERT_EQUAL(a.lookups, CHUNKS);
    embedded_free(&m);

    CU_ASSERT(daemon_end(&sc.daemon));
    CU_ASSERT_FATAL(daemon_start_again(&sc.daemon, NULL));
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    a = advice(&sc, true);
    CU_ASSERT(a.lookups == 0 && a.day_lookups == 0);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_small_pool),
    TEST(test_what_counts),
    TEST(test_restart_begins_anew),
    TEST_END,
};
