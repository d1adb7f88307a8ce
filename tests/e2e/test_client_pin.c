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

/* Places of @n_tokens of text 0; operator_message_freep() frees them. */
static Kvcobra__LookupReply *look(struct prompts *p, size_t n_tokens, const char *salt)
{
    Kvcobra__Prefix o = prompts_prefix(p, salt);
    Kvcobra__LookupReply *places = NULL;

    CU_ASSERT_EQUAL_FATAL(operator_lookup(p->sc.control, &o, p->tokens, n_tokens, false, &places, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(places->n_places, n_tokens / 64 * 2);
    for (size_t i = 0; i < places->n_places; i++)
        CU_ASSERT_FALSE(places->places[i]->on_disk);
    return places;
}

/* How many chunks of text 0 are in memory (@reason MISS_NONE), or missing for @reason. */
static size_t count(struct prompts *p, const char *salt, int kind, Kvcobra__MissReason reason)
{
    Kvcobra__LookupReply *places = look(p, SHARED, salt);
    size_t n = 0;

    for (size_t i = (size_t) kind; i < 2 * CHUNKS; i += 2) {
        CU_ASSERT_EQUAL(places->places[i]->in_memory,
                        places->places[i]->reason == KVCOBRA__MISS_REASON__MISS_NONE);
        n += places->places[i]->reason == reason;
    }
    operator_message_freep(&places);
    return n;
}

static void test_lookup(void)
{
    struct prompts p;
    Kvcobra__Prefix o;
    Kvcobra__LookupReply *places;
    kvc_seq *holder;

    prompts_begin(&p);
    holder = prompts_publish(&p.m, p.tokens, NULL, 0);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVCOBRA__MISS_REASON__MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVCOBRA__MISS_REASON__MISS_UNKNOWN), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, "salt", 0, KVCOBRA__MISS_REASON__MISS_UNKNOWN), CHUNKS);
    places = look(&p, SHARED + 64 + 63, NULL); /* the newest chunk is private, and 63 tokens are none */
    CU_ASSERT(places->places[0]->holds == 1 && places->places[0]->pinned_ms == 0);
    CU_ASSERT_EQUAL(places->places[2 * CHUNKS]->reason, KVCOBRA__MISS_REASON__MISS_UNKNOWN);
    operator_message_freep(&places);
    kvc_seq_free(holder);
    places = look(&p, SHARED, NULL);
    CU_ASSERT_EQUAL(places->places[2 * CHUNKS - 2]->holds, 0);
    operator_message_freep(&places);

    /* what is behind a page that is missing is shown too */
    o = prompts_prefix(&p, NULL);
    CU_ASSERT_EQUAL(operator_flush(p.sc.control, &o, p.tokens, PREFIX, 64, NULL, NULL), 0);
    places = look(&p, SHARED, NULL);
    CU_ASSERT_EQUAL(places->places[2 * (PREFIX / 64 - 1)]->reason, KVCOBRA__MISS_REASON__MISS_EVICTED);
    CU_ASSERT(places->places[2 * (PREFIX / 64)]->in_memory);
    operator_message_freep(&places);

    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE));
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVCOBRA__MISS_REASON__MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(scene_evict(p.sc.control, NULL), 2 * CHUNKS);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVCOBRA__MISS_REASON__MISS_EVICTED), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, NULL, 1, KVCOBRA__MISS_REASON__MISS_EVICTED), CHUNKS);
    prompts_finish(&p);
}

/* A look-up is no use of a page: hits, misses and the order of eviction stay. */
static void test_lookup_changes_nothing(void)
{
    struct prompts p;
    Kvcobra__StatusReply *s;
    uint64_t hits, misses, lookups;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    s = scene_status(&p.sc);
    hits = s->tenants[0]->hits;
    misses = s->tenants[0]->misses;
    lookups = s->tenants[0]->advice->lookups;
    s = scene_status_free(s);
    CU_ASSERT_EQUAL(count(&p, NULL, 0, KVCOBRA__MISS_REASON__MISS_NONE), CHUNKS);
    CU_ASSERT_EQUAL(count(&p, "other", 0, KVCOBRA__MISS_REASON__MISS_UNKNOWN), CHUNKS);
    s = scene_status(&p.sc);
    CU_ASSERT_EQUAL(s->tenants[0]->hits, hits);
    CU_ASSERT_EQUAL(s->tenants[0]->misses, misses);
    CU_ASSERT_EQUAL(s->tenants[0]->advice->lookups, lookups);
    CU_ASSERT_EQUAL(s->tenants[0]->held_bytes, 0);
    s = scene_status_free(s);
    prompts_finish(&p);
}

/* ---- pins ---- */

static Kvcobra__PinReply pin(struct prompts *p, size_t n_tokens, uint64_t ms)
{
    const Kvcobra__Prefix o = prompts_prefix(p, NULL);
    Kvcobra__PinReply state;

    CU_ASSERT_EQUAL(operator_pin(p->sc.control, &o, p->tokens, n_tokens, ms, &state, NULL), 0);
    return state;
}

static bool has_no_pins(const Kvcobra__StatusReply *s)
{
    return s->tenants[0]->pinned_bytes == 0;
}

static bool has_pins(const Kvcobra__StatusReply *s)
{
    return s->tenants[0]->pinned_bytes > 0;
}

/* Fills the pool with other texts until an unpinned chunk of text 0 is gone. */
static void crowd(struct prompts *p)
{
    Kvcobra__LookupReply *places = look(p, SHARED, NULL);

    for (uint32_t text = 1; places->places[2 * CHUNKS - 2]->in_memory && text < 1000; text++) {
        uint32_t *tokens = scene_tokens(text, TOKENS);

        kvc_seq_free(prompts_publish(&p->m, tokens, NULL, 0));
        free(tokens);
        operator_message_freep(&places);
        places = look(p, SHARED, NULL);
    }
    CU_ASSERT_FALSE(places->places[2 * CHUNKS - 2]->in_memory);
    operator_message_freep(&places);
}

static void test_pin(void)
{
    struct prompts p;
    Kvcobra__LookupReply *places;
    Kvcobra__PinReply s;
    size_t half = SHARED / 2;

    prompts_begin(&p);
    CU_ASSERT_EQUAL(operator_set_quota(p.sc.control, p.tenant, 6 << 20, OPERATOR_QUOTA_KEEP, NULL, NULL), 0);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    s = pin(&p, half, HOUR_MS);
    CU_ASSERT(s.pages == CHUNKS / 2 && s.missing == 0 && s.pinned_bytes > 0);
    CU_ASSERT_EQUAL(s.limit_bytes, (uint64_t) (6 << 20) / 100 * 50);
    CU_ASSERT(scene_wait(&p.sc, has_pins));
    crowd(&p);
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), half);
    places = look(&p, SHARED, NULL);
    CU_ASSERT(places->places[0]->pinned_ms > HOUR_MS / 2 && places->places[0]->pinned_ms <= HOUR_MS);
    CU_ASSERT_EQUAL(places->places[0]->holds, 0); /* a pin is no lease */
    CU_ASSERT_EQUAL(places->places[CHUNKS]->pinned_ms, 0);
    operator_message_freep(&places);

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

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    CU_ASSERT_EQUAL(pin(&p, SHARED, 1).pages, CHUNKS);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), SHARED);
    CU_ASSERT_EQUAL(scene_evict(p.sc.control, NULL), CHUNKS);
    prompts_finish(&p);
}

static void test_flush_and_evict(void)
{
    struct prompts p;
    Kvcobra__Prefix o;
    Kvcobra__FlushReply flushed;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    (void) pin(&p, SHARED, HOUR_MS);
    o = prompts_prefix(&p, NULL);
    CU_ASSERT_EQUAL(operator_flush(p.sc.control, &o, p.tokens, PREFIX, 64, &flushed, NULL), 0);
    CU_ASSERT(flushed.pages == 1 && flushed.held == 0);
    CU_ASSERT_EQUAL(prompts_found(&p.m, p.tokens, NULL, 0), PREFIX - 64);
    CU_ASSERT(scene_wait(&p.sc, has_pins)); /* those of the other pages */
    CU_ASSERT_EQUAL(scene_evict(p.sc.control, p.tenant), CHUNKS - 1);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    prompts_finish(&p);
}

/* Retiring a table does not wait for pins; a table that leaves takes no new ones. */
static void test_retire(void)
{
    struct prompts p;
    _cleanup_(operator_message_freep) Kvcobra__RetireTableReply *reply = NULL;
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    Kvcobra__Prefix o;
    uint8_t second[KVC_DIGEST_BYTES];
    kvc_seq *holder;

    prompts_begin(&p);
    holder = prompts_publish(&p.m, p.tokens, NULL, 0);
    (void) pin(&p, SHARED, HOUR_MS);
    scene_activate(&p.sc, 2, 2, second);
    retire.digest = operator_digest(p.digest);
    CU_ASSERT_EQUAL(
        operator_call(p.sc.control, KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &retire.base, &reply, NULL), 0);
    CU_ASSERT(scene_wait(&p.sc, has_no_pins));
    o = prompts_prefix(&p, NULL);
    CU_ASSERT_EQUAL(operator_pin(p.sc.control, &o, p.tokens, SHARED, HOUR_MS, NULL, NULL), -ESTALE);
    kvc_seq_free(holder);
    prompts_finish(&p);
}

/* A restart keeps the pages and ends the pins. */
static void test_restart(void)
{
    struct prompts p;

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
    CU_ASSERT_EQUAL(scene_evict(p.sc.control, NULL), CHUNKS);
    prompts_finish(&p);
}

static void test_arguments(void)
{
    Kvcobra__LookupReply *places = NULL;
    Kvcobra__Prefix o;
    struct prompts p;

    prompts_begin(&p);
    kvc_seq_free(prompts_publish(&p.m, p.tokens, NULL, 0));
    o = prompts_prefix(&p, NULL);
    CU_ASSERT_EQUAL(operator_pin(p.m.client, &o, p.tokens, 64, 1, NULL, NULL), -EPERM);
    CU_ASSERT_EQUAL(operator_pin(p.sc.control, &o, p.tokens, 63, 1, NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(operator_pin(p.sc.control, &o, p.tokens, 64, UINT64_MAX, NULL, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(p.sc.control), "longer than a year"));
    o.tenant = (char *) "uid-4711";
    CU_ASSERT_EQUAL(operator_lookup(p.sc.control, &o, p.tokens, 64, false, &places, NULL), -ENOENT);
    CU_ASSERT_EQUAL(operator_pin(p.sc.control, &o, p.tokens, 64, 1, NULL, NULL), -ENOENT);
    CU_ASSERT_PTR_NULL(places);
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
