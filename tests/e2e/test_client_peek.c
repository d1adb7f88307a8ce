/* Sequences with a table of the caller's choice, and looking up published chunks without a sequence. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { PROMPT = 512, SHARED = 448 };

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

static void active_digest(const struct embedded *m, uint8_t *ret_digest)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(m->model, &info), 0);
    memcpy(ret_digest, info.table_digest, KVC_DIGEST_BYTES);
}

static size_t peek(const struct embedded *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n)
{
    size_t found = 12345;

    CU_ASSERT_EQUAL(kvc_model_peek(m->model, o, tokens, n, &found), 0);
    return found;
}

static size_t match(const struct embedded *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n)
{
    kvc_seq *s = NULL;
    size_t found = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, o, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, n, &found), 0);
    kvc_seq_free(s);
    return found;
}

/* Publishes the first chunks of text 0 in a new sequence with options @o. */
static kvc_seq *publish(const struct embedded *m, const kvc_seq_options *o)
{
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, o, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 0, PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    return s;
}

/* Chunk counters of all tenants. */
static void counters(struct scene *sc, uint64_t *hits, uint64_t *misses)
{
    Kvcobra__StatusReply *s = scene_status(sc);

    *hits = *misses = 0;
    for (size_t i = 0; i < s->n_tenants; i++) {
        *hits += s->tenants[i]->hits;
        *misses += s->tenants[i]->misses;
    }
    s = scene_status_free(s);
}

/* ---- peek ---- */

static void test_peek_is_what_a_match_finds(void)
{
    struct scene sc;
    struct embedded m, other;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    const kvc_seq_options salted = {.struct_bytes = sizeof(salted), .salt = "salt", .salt_bytes = 4};
    uint64_t hits, misses, hits_after, misses_after;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    other = scene_client(&sc);
    CU_ASSERT_EQUAL(peek(&m, NULL, tokens, PROMPT), 0);
    publish(&m, &salted);
    counters(&sc, &hits, &misses);
    for (size_t n = 0; n <= PROMPT; n += 13)
        CU_ASSERT_EQUAL(peek(&other, &salted, tokens, n), n / 64 * 64 < SHARED ? n / 64 * 64 : SHARED);
    CU_ASSERT_EQUAL(peek(&other, &salted, tokens, 64), 64); /* a match leaves one token */
    CU_ASSERT_EQUAL(peek(&other, NULL, tokens, PROMPT), 0);
    tokens[130] ^= 1;
    CU_ASSERT_EQUAL(peek(&other, &salted, tokens, PROMPT), 128);
    counters(&sc, &hits_after, &misses_after);
    CU_ASSERT(hits == hits_after && misses == misses_after);
    CU_ASSERT_EQUAL(match(&other, &salted, tokens, PROMPT), 128);
    tokens[130] ^= 1;
    CU_ASSERT_EQUAL(match(&other, &salted, tokens, PROMPT), SHARED);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

/* The daemon builds a larger index while a client only peeks: it still sees new pages. */
static void test_peek_follows_a_moved_index(void)
{
    enum { CHUNKS = 1100 }; /* the first index has room for 1024 pages at most */
    struct scene sc;
    struct embedded m, other;
    uint32_t *tokens = scene_tokens(0, (CHUNKS + 1) * 64);
    kvc_seq *s = NULL;
    size_t n = 0;

    scene_start(&sc, random_table_geometry(1, 1, 1, 32), 3, 1, NULL);
    m = scene_client(&sc);
    other = scene_client(&sc);
    CU_ASSERT_EQUAL(peek(&other, NULL, tokens, CHUNKS * 64), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, (CHUNKS + 1) * 64, 6400, &n), 0);
    CU_ASSERT_EQUAL(n, CHUNKS * 64);
    CU_ASSERT_EQUAL(peek(&other, NULL, tokens, CHUNKS * 64), CHUNKS * 64);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

static void test_peek_without_a_daemon(void)
{
    struct scene sc;
    struct embedded m, alone;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    Kvcobra__ListTablesReply *tables = NULL;
    size_t n = 77;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    alone = scene_private(&sc);
    publish(&m, NULL);
    CU_ASSERT_EQUAL(peek(&alone, NULL, tokens, PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_model_peek(NULL, NULL, tokens, PROMPT, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_peek(m.model, NULL, NULL, PROMPT, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_peek(m.model, NULL, tokens, PROMPT, NULL), -EINVAL);
    CU_ASSERT_EQUAL(n, 77);
    CU_ASSERT_EQUAL(peek(&m, NULL, NULL, 0), 0);

    daemon_kill(&sc.daemon);
    /* a request notices the loss */
    CU_ASSERT(operator_list_tables(m.client, &tables, NULL) < 0);
    CU_ASSERT_EQUAL(peek(&m, NULL, tokens, PROMPT), 0);
    free(tokens);
    embedded_free(&m);
    embedded_free(&alone);
    scene_detach(&sc);
    daemon_remove_folder(&sc.daemon);
}

/* ---- tables of the caller's choice ---- */

static void test_pinned_table_after_a_swap(void)
{
    struct scene sc;
    struct embedded m, other;
    uint8_t first[KVC_DIGEST_BYTES], second[KVC_DIGEST_BYTES];
    const kvc_seq_options old = {.struct_bytes = sizeof(old), .table_digest = first},
                          new = {.struct_bytes = sizeof(new), .table_digest = second};
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s, *refused = NULL;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    other = scene_client(&sc);
    active_digest(&m, first);
    s = publish(&m, &old);
    scene_activate(&sc, 2, 2, second);
    CU_ASSERT_EQUAL(peek(&m, NULL, tokens, PROMPT), 0); /* of the active table, before any new sequence */
    CU_ASSERT_EQUAL(peek(&m, &new, tokens, PROMPT), 0);
    CU_ASSERT_EQUAL(peek(&m, &old, tokens, PROMPT), SHARED);

    /* a sequence of this client keeps the old table open for more */
    CU_ASSERT_EQUAL(match(&m, &old, tokens, PROMPT), SHARED);
    CU_ASSERT_EQUAL(match(&m, NULL, tokens, PROMPT), 0);

    /* a client that moves on to the new table cannot return to the draining one */
    CU_ASSERT_EQUAL(match(&other, NULL, tokens, PROMPT), 0);
    CU_ASSERT_EQUAL(peek(&other, &old, tokens, PROMPT), SHARED);
    CU_ASSERT_EQUAL(kvc_seq_new_with(other.model, &old, &refused), -ESTALE);
    CU_ASSERT(strlen(kvc_last_error(other.client)) > 10);
    CU_ASSERT_PTR_NULL(refused);
    CU_ASSERT_EQUAL(match(&other, &new, tokens, PROMPT), 0);
    kvc_seq_free(s);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

static void test_unknown_tables_are_refused(void)
{
    struct scene sc;
    struct embedded m, alone;
    uint8_t unknown[KVC_DIGEST_BYTES] = {9}, first[KVC_DIGEST_BYTES];
    const kvc_seq_options none = {.struct_bytes = sizeof(none), .table_digest = unknown},
                          own = {.struct_bytes = sizeof(own), .table_digest = first};
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    alone = scene_private(&sc);
    active_digest(&m, first);
    CU_ASSERT_EQUAL(kvc_seq_new_with(m.model, &none, &s), -ENOENT);
    CU_ASSERT_EQUAL(peek(&m, &none, tokens, PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_seq_new_with(alone.model, &none, &s), -ENOENT);
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_EQUAL(kvc_seq_new_with(alone.model, &own, &s), 0); /* its only table */

    daemon_kill(&sc.daemon);
    s = NULL;
    CU_ASSERT_EQUAL(kvc_seq_new_with(m.model, &none, &s), -ENOTCONN);
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_EQUAL(kvc_seq_new_with(m.model, &own, &s), 0); /* private */
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 100), 0);
    free(tokens);
    embedded_free(&m);
    embedded_free(&alone);
    scene_detach(&sc);
    daemon_remove_folder(&sc.daemon);
}

const struct test_case test_cases[] = {
    TEST(test_peek_is_what_a_match_finds), TEST(test_peek_follows_a_moved_index),
    TEST(test_peek_without_a_daemon),      TEST(test_pinned_table_after_a_swap),
    TEST(test_unknown_tables_are_refused), TEST_END,
};
const char test_suite[] = "client_peek";
