/* Prompts that are brought from the disk to memory before a sequence matches them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/tier_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "client_prefetch";

static uint64_t prefetch(const struct embedded *m, uint32_t text, uint32_t fetch_ms)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = fetch_ms};
    uint32_t *tokens = scene_tokens(text, TIER_TOKENS);
    uint64_t number = 77;

    CU_ASSERT_EQUAL(kvc_model_prefetch(m->model, &o, tokens, TIER_TOKENS, &number), 0);
    free(tokens);
    return number;
}

/* How many tokens a match finds in memory. */
static size_t match_memory(const struct embedded *m, uint32_t text)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = KVC_FETCH_NEVER};
    uint32_t *tokens = scene_tokens(text, TIER_TOKENS);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TIER_TOKENS, &n), 0);
    kvc_seq_free(s);
    free(tokens);
    return n;
}

static size_t peek_memory(const struct embedded *m, uint32_t text)
{
    uint32_t *tokens = scene_tokens(text, TIER_TOKENS);
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_model_peek(m->model, NULL, tokens, TIER_TOKENS, &n), 0);
    free(tokens);
    return n;
}

/* Whether the disk has @text, and memory does not. */
static bool is_on_disk_only(const struct embedded *m, uint32_t text)
{
    uint32_t *tokens = scene_tokens(text, TIER_TOKENS);
    size_t memory = 1, all = 0;

    for (struct wait w = wait_begin(); all != TIER_SHARED && wait_again(&w);)
        CU_ASSERT_EQUAL(kvc_model_peek_tiers(m->model, NULL, tokens, TIER_TOKENS, &memory, &all), 0);
    free(tokens);
    return memory == 0 && all == TIER_SHARED;
}

static bool arrives(const struct embedded *m, uint32_t text)
{
    size_t n = peek_memory(m, text);

    for (struct wait w = wait_begin(); n != TIER_SHARED && wait_again(&w);)
        n = peek_memory(m, text);
    return n == TIER_SHARED;
}

static uint64_t lookups(struct tier *t)
{
    Kvcobra__StatusReply *s = scene_status(&t->scene);
    uint64_t n = s->devices[0]->advice->lookups;

    for (size_t i = 0; i < s->n_tenants; i++)
        n += s->tenants[i]->hits + s->tenants[i]->misses + s->tenants[i]->misses_slow_tier;
    s = scene_status_free(s);
    return n;
}

static void test_prefetch(void)
{
    struct tier t;
    struct embedded m, other;
    uint64_t before;
    Kvcobra__StatusReply *s;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    other = scene_client(&t.scene);
    CU_ASSERT_EQUAL(prefetch(&m, 0, 0), 0); /* nothing is published */
    tier_publish(&m, 0);
    CU_ASSERT_EQUAL(prefetch(&m, 0, 0), 0); /* all is in memory */
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT(is_on_disk_only(&m, 0));
    before = lookups(&t);

    CU_ASSERT_EQUAL(prefetch(&m, 0, KVC_FETCH_NEVER), 0);
    CU_ASSERT_EQUAL(peek_memory(&m, 0), 0);
    CU_ASSERT_EQUAL(prefetch(&m, 0, 8000), 1);
    CU_ASSERT(arrives(&other, 0)); /* @m makes no call meanwhile */
    CU_ASSERT_EQUAL(lookups(&t), before);
    CU_ASSERT_EQUAL(kvc_model_prefetch_cancel(m.model, 1), 0); /* it has ended; its reply is read */
    s = scene_status(&t.scene);
    CU_ASSERT(s->leases == 0 && s->held_pages == 0);
    s = scene_status_free(s);
    CU_ASSERT_EQUAL(match_memory(&m, 0), TIER_SHARED);
    embedded_free(&m);
    embedded_free(&other);
    tier_finish(&t);
}

/* A daemon that does not answer: calls do not wait, and start only so many. Cancelled ones make room. */
static void test_prefetch_limit(void)
{
    struct tier t;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    uint64_t number = 77;
    int r = 0, n = 0;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    tier_publish(&m, 0);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT(is_on_disk_only(&m, 0));

    CU_ASSERT_EQUAL_FATAL(kill(t.scene.daemon.pid, SIGSTOP), 0);
    while (r == 0 && n <= KVC_PREFETCH_PARTS_MAX) {
        r = kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, &number);
        n += r == 0;
    }
    CU_ASSERT(r == -EAGAIN && n == KVC_PREFETCH_PARTS_MAX && number == KVC_PREFETCH_PARTS_MAX);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "cancel"));
    CU_ASSERT_EQUAL(kvc_model_prefetch_cancel(m.model, 1), 0); /* it was sent */
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, &number), -EAGAIN);
    CU_ASSERT_EQUAL(kvc_model_prefetch_cancel(m.model, 30), 0);
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, &number), 0);
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, &number), -EAGAIN);
    CU_ASSERT_EQUAL(kvc_model_prefetch_cancel(m.model, 0), 0); /* those that were not sent */
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, &number), 0);
    CU_ASSERT_EQUAL_FATAL(kill(t.scene.daemon.pid, SIGCONT), 0);

    CU_ASSERT(arrives(&m, 0));
    CU_ASSERT_EQUAL(match_memory(&m, 0), TIER_SHARED);
    CU_ASSERT_EQUAL(kvc_model_prefetch(NULL, NULL, tokens, TIER_TOKENS, &number), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, NULL, TIER_TOKENS, &number), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, NULL, tokens, TIER_TOKENS, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_prefetch_cancel(NULL, 0), -EINVAL);

    /* prefetches that run when the client is freed, and one without a daemon */
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT(is_on_disk_only(&m, 0));
    for (int i = 0; i < 5; i++)
        CU_ASSERT(prefetch(&m, 0, 0) > 0);
    embedded_free(&m);
    m = scene_private(&t.scene);
    CU_ASSERT_EQUAL(prefetch(&m, 0, 0), 0);
    embedded_free(&m);
    free(tokens);
    tier_finish(&t);
}

/* ---- layers with a window ---- */

enum { WINDOW = 128, IN_WINDOW = TIER_SHARED - WINDOW };

static const kvc_seq_options windowed = {
    .struct_bytes = sizeof(windowed), .fetch_ms = 8000, .window = WINDOW};

static size_t match_windowed(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &windowed, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TIER_TOKENS, &n), 0);
    kvc_seq_free(s);
    free(tokens);
    return n;
}

/* Chunk @chunk of text 0 is nowhere. The filter over the disk still promises it. */
static void forget(struct tier *t, size_t chunk)
{
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    Kvcobra__Prefix prefix = KVCOBRA__PREFIX__INIT;
    Kvcobra__ListTablesReply *tables = NULL;
    char tenant[32];

    (void) snprintf(tenant, sizeof(tenant), "uid-%lu", (unsigned long) geteuid());
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(t->scene.control, &tables, NULL), 0);
    prefix.tenant = tenant;
    prefix.table_digest = tables->tables[0]->digest;
    CU_ASSERT_EQUAL(operator_flush(t->scene.control, &prefix, tokens, (chunk + 1) * 64, 64, NULL, NULL), 0);
    operator_message_freep(&tables);
    free(tokens);
}

static uint64_t pages_in_memory(struct tier *t)
{
    Kvcobra__StatusReply *s = scene_status(&t->scene);
    uint64_t n = s->tenants[0]->pages;

    s = scene_status_free(s);
    return n;
}

/* Only the window comes from the disk, for a prefetch and for a match. */
static void test_window(void)
{
    struct tier t;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    uint64_t number = 77;
    size_t memory = 0, all = 0;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    tier_publish(&m, 0);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT(is_on_disk_only(&m, 0));

    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, &windowed, tokens, TIER_TOKENS, &number), 0);
    CU_ASSERT_EQUAL(number, 1);
    for (struct wait w = wait_begin(); memory != TIER_SHARED && wait_again(&w);)
        CU_ASSERT_EQUAL(kvc_model_peek_tiers(m.model, &windowed, tokens, TIER_TOKENS, &memory, &all), 0);
    CU_ASSERT(memory == TIER_SHARED && all == TIER_SHARED);
    CU_ASSERT_EQUAL(pages_in_memory(&t), WINDOW / 64);
    CU_ASSERT_EQUAL(peek_memory(&m, 0), 0);
    CU_ASSERT_EQUAL(kvc_model_prefetch(m.model, &windowed, tokens, TIER_TOKENS, &number), 0);
    CU_ASSERT_EQUAL(number, 0); /* all that a match needs is in memory */

    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(match_windowed(&m), TIER_SHARED);
    CU_ASSERT_EQUAL(pages_in_memory(&t), WINDOW / 64);

    /* a chunk that does not come: the match gives the rest up, and finds a shorter text */
    forget(&t, IN_WINDOW / 64 + 1);
    CU_ASSERT_EQUAL(match_windowed(&m), TIER_SHARED - 64);
    forget(&t, IN_WINDOW / 64 - 1);
    CU_ASSERT_EQUAL(match_windowed(&m), IN_WINDOW - 64);
    embedded_free(&m);
    free(tokens);
    tier_finish(&t);
}

const struct test_case test_cases[] = {TEST(test_prefetch), TEST(test_prefetch_limit), TEST(test_window),
                                       TEST_END};
