/*
 * Looking up and pinning a prompt through the library: a look-up says where each chunk is and why not, and
 * changes nothing; pinned pages stay while everything else is evicted, until their time, and what is
 * documented to end a pin ends it. The disk is in test_client_tier.c, limits are in test_kept.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/prompts_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/test.h"

enum { CHUNKS = SHARED / 64, HOUR_MS = 3600000 };

/* ---- look-ups ---- */

/* Places of @n_tokens of text 0; free() it. */
static kvc_chunk_place *look(struct prompts *p, size_t n_tokens, const char *salt)
{
    kvc_prefix_options o = prompts_options(p);
    kvc_chunk_place *places = NULL;
    size_t n = 0;

    o.salt = salt;
    o.salt_bytes = salt ? strlen(salt) : 0;
    CU_ASSERT_EQUAL_FATAL(kvc_lookup(p->sc.control, &o, p->tokens, n_tokens, sizeof(*places), &places, &n),
                          0);
    CU_ASSERT_EQUAL_FATAL(n, n_tokens / 64 * 2);
    for (size_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(places[i].first_token, i / 2 * 64);
        CU_ASSERT_EQUAL(places[i].repeatable, (int) (i % 2));
        CU_ASSERT_FALSE(places[i].on_disk);
    }
    return places;
}

/* How many chunks of text 0 are in memory (@reason KVC_MISS_NONE), or missing for @reason. */
static size_t count(struct prompts *p, const char *salt, int kind, int reason)
{
    kvc_chunk_place *places = look(p, SHARED, salt);
    size_t n = 0;

    for (size_t i = (size_t) kind; i < 2 * CHUNKS; i += 2) {
        CU_ASSERT_EQUAL(places[i].in_memory, places[i].reason == KVC_MISS_NONE);
        n += places[i].reason == reason;
    }
    free(places);
    return n;
}

static void test_lookup(void)
{
    struct prompts p;
    kvc_prefix_options o;
    kvc_chunk_place *places;
    kvc_seq *holder;
    uint64_t pages;

    prompts_begin(&p);
    holder = prompts_publish(&p.m, p.tokens, NULL, 0);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVC_MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVC_MISS_UNKNOWN), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, "salt", 0, KVC_MISS_UNKNOWN), CHUNKS);
    places = look(&p, SHARED + 64 + 63, NULL); /* the newest chunk is private, and 63 tokens are none */
    CU_ASSERT(places[0].holds == 1 && places[0].pinned_ms == 0);
    CU_ASSERT_EQUAL(places[2 * CHUNKS].reason, KVC_MISS_UNKNOWN);
    free(places);
    kvc_seq_free(holder);
    places = look(&p, SHARED, NULL);
    CU_ASSERT_EQUAL(places[2 * CHUNKS - 2].holds, 0);
    free(places);

    /* what is behind a page that is missing is shown too */
    o = prompts_options(&p);
    CU_ASSERT_EQUAL(kvc_flush(p.sc.control, &o, p.tokens, PREFIX, NULL), 0);
    places = look(&p, SHARED, NULL);
    CU_ASSERT_EQUAL(places[2 * (PREFIX / 64 - 1)].reason, KVC_MISS_EVICTED);
    CU_ASSERT(places[2 * (PREFIX / 64)].in_memory);
    free(places);

    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE));
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVC_MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(kvc_evict(p.sc.control, NULL, NULL, &pages, NULL), 0);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVC_MISS_EVICTED), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVC_MISS_EVICTED), CHUNKS);
    prompts_finish(&p);
}

/* A look-up is no use of a page: hits, misses and the order of eviction stay. */
static void test_lookup_changes_nothing(void)
{
    struct prompts p;
    kvc_status *s;
    uint64_t hits, misses, lookups;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    s = scene_status(&p.sc);
    hits = s->tenants[0].hits;
    misses = s->tenants[0].misses;
    lookups = s->tenants[0].advice.lookups;
    s = kvc_status_free(s);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVC_MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, "other", 0, KVC_MISS_UNKNOWN), CHUNKS);
    s = scene_status(&p.sc);
    CU_ASSERT_EQUAL(s->tenants[0].hits, hits);
    CU_ASSERT_EQUAL(s->tenants[0].misses, misses);
    CU_ASSERT_EQUAL(s->tenants[0].advice.lookups, lookups);
    CU_ASSERT_EQUAL(s->tenants[0].held_bytes, 0);
    s = kvc_status_free(s);
    prompts_finish(&p);
}

/* ---- pins ---- */

static kvc_pin_state pin(struct prompts *p, size_t n_tokens, uint64_t ms)
{
    const kvc_prefix_options o = prompts_options(p);
    kvc_pin_state state = {.struct_bytes = sizeof(state)};

    CU_ASSERT_EQUAL(kvc_pin(p->sc.control, &o, p->tokens, n_tokens, ms, &state), 0);
    CU_ASSERT_EQUAL(state.tokens, n_tokens / 64 * 64);
    return state;
}

static bool has_no_pins(const kvc_status *s)
{
    return s->tenants[0].pinned_bytes == 0;
}

static bool has_pins(const kvc_status *s)
{
    return s->tenants[0].pinned_bytes > 0;
}

/* Fills the pool with other texts until an unpinned chunk of text 0 is gone. */
static void crowd(struct prompts *p)
{
    kvc_chunk_place *places = look(p, SHARED, NULL);

    for (uint32_t text = 1; places[2 * CHUNKS - 2].in_memory && text < 1000; text++) {
        uint32_t *tokens = scene_tokens(text, TOKENS);

        kvc_seq_free(prompts_publish(&p->m, tokens, NULL, 0));
        free(tokens);
        free(places);
        places = look(p, SHARED, NULL);
    }
    CU_ASSERT_FALSE(places[2 * CHUNKS - 2].in_memory);
    free(places);
}

static void test_pin(void)
{
    struct prompts p;
    kvc_chunk_place *places;
    kvc_pin_state s;
    size_t half = SHARED / 2;

    prompts_begin(&p);
    CU_ASSERT_EQUAL(kvc_quota_set(p.sc.control, p.tenant, 6 << 20, KVC_QUOTA_KEEP, NULL), 0);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    s = pin(&p, half, HOUR_MS);
    CU_ASSERT(s.pages == CHUNKS / 2 && s.missing == 0 && s.pinned_bytes > 0);
    CU_ASSERT_EQUAL(s.limit_bytes, (uint64_t) (6 << 20) / 100 * 50);
    CU_ASSERT(scene_wait(&p.sc, has_pins));
    crowd(&p);
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), half);
    places = look(&p, SHARED, NULL);
    CU_ASSERT(places[0].pinned_ms > HOUR_MS / 2 && places[0].pinned_ms <= HOUR_MS);
    CU_ASSERT_EQUAL(places[0].holds, 0); /* a pin is no lease */
    CU_ASSERT_EQUAL(places[CHUNKS].pinned_ms, 0);
    free(places);

    s = pin(&p, SHARED, HOUR_MS); /* once more, and more: what is not there is not pinned */
    CU_ASSERT(s.pages >= CHUNKS / 2 && s.missing > 0 && s.pages + s.missing == CHUNKS);
    s = pin(&p, SHARED, 0);
    CU_ASSERT_EQUAL(s.pinned_bytes, 0);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), half);
    prompts_finish(&p);
}

static void test_expiry(void)
{
    struct prompts p;
    uint64_t pages = 0;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    CU_ASSERT_EQUAL(pin(&p, SHARED, 1).pages, CHUNKS);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), SHARED);
    CU_ASSERT_EQUAL(kvc_evict(p.sc.control, NULL, NULL, &pages, NULL), 0);
    CU_ASSERT_EQUAL(pages, CHUNKS);
    prompts_finish(&p);
}

static void test_flush_and_evict(void)
{
    struct prompts p;
    kvc_prefix_options o;
    kvc_flush_state flushed = {.struct_bytes = sizeof(flushed)};
    uint64_t pages = 0;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    (void) pin(&p, SHARED, HOUR_MS);
    o = prompts_options(&p);
    CU_ASSERT_EQUAL(kvc_flush(p.sc.control, &o, p.tokens, PREFIX, &flushed), 0);
    CU_ASSERT(flushed.pages == 1 && flushed.held == 0);
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), PREFIX - 64);
    CU_ASSERT(scene_wait(&p.sc, has_pins)); /* those of the other pages */
    CU_ASSERT_EQUAL(kvc_evict(p.sc.control, p.tenant, NULL, &pages, NULL), 0);
    CU_ASSERT_EQUAL(pages, CHUNKS - 1);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    prompts_finish(&p);
}

/* Retiring a table does not wait for pins; a table that leaves takes no new ones. */
static void test_retire(void)
{
    struct prompts p;
    kvc_prefix_options o;
    uint8_t second[KVC_DIGEST_BYTES];
    kvc_seq *holder;

    prompts_begin(&p);
    holder = prompts_publish(&p.m, p.tokens, NULL, 0);
    (void) pin(&p, SHARED, HOUR_MS);
    scene_activate(&p.sc, 2, 2, second);
    CU_ASSERT(kvc_table_retire(p.sc.control, p.digest, 0, NULL) >= 0);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    o = prompts_options(&p);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, &o, p.tokens, SHARED, HOUR_MS, NULL), -ESTALE);
    kvc_seq_free(holder);
    prompts_finish(&p);
}

/* A restart keeps the pages and ends the pins. */
static void test_restart(void)
{
    struct prompts p;
    uint64_t pages = 0;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    (void) pin(&p, SHARED, HOUR_MS);
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(p.sc.control, p.sc.daemon.operator_socket);
    scene_reconnect(p.m.client, p.sc.daemon.socket);
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), SHARED);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    CU_ASSERT_EQUAL(pin(&p, SHARED, HOUR_MS).pages, CHUNKS); /* pages of the earlier process */
    CU_ASSERT_EQUAL(kvc_evict(p.sc.control, NULL, NULL, &pages, NULL), 0);
    CU_ASSERT_EQUAL(pages, CHUNKS);
    prompts_finish(&p);
}

static void test_arguments(void)
{
    kvc_pin_state small = {.struct_bytes = 8};
    kvc_chunk_place *places = NULL;
    kvc_prefix_options o;
    struct prompts p;
    size_t n = 7;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    o = prompts_options(&p);
    CU_ASSERT_EQUAL(kvc_pin(NULL, &o, p.tokens, 64, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_pin(p.m.client, &o, p.tokens, 64, 1, NULL), -EPERM);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, &o, p.tokens, 64, 1, &small), -EINVAL);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, NULL, p.tokens, 64, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, &o, p.tokens, 63, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, &o, p.tokens, 64, UINT64_MAX, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(p.sc.control), "longer than a year"));
    CU_ASSERT_EQUAL(kvc_lookup(p.sc.control, &o, p.tokens, 64, 8, &places, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_lookup(p.sc.control, &o, p.tokens, 64, sizeof(*places), NULL, &n), -EINVAL);
    o.tenant = "uid-4711";
    CU_ASSERT_EQUAL(kvc_lookup(p.sc.control, &o, p.tokens, 64, sizeof(*places), &places, &n), -ENOENT);
    CU_ASSERT_EQUAL(kvc_pin(p.sc.control, &o, p.tokens, 64, 1, NULL), -ENOENT);
    CU_ASSERT(!places && n == 7);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    prompts_finish(&p);
}

const struct test_case test_cases[] = {
    TEST(test_lookup),
    TEST(test_lookup_changes_nothing),
    TEST(test_pin),
    TEST(test_expiry),
    TEST(test_flush_and_evict),
    TEST(test_retire),
    TEST(test_restart),
    TEST(test_arguments),
    TEST_END,
};
const char test_suite[] = "client_pin";
