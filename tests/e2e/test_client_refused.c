/* A page that the daemon refuses at COMMIT stays private, and its reservation is given back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "proto/index_layout.h"
#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_refused";

enum { TOKENS = 150, PLACES = 64 };

/* Reservations that no client gives back stay longer than this test waits. */
static const char *const patient[] = {"--lease-ms=3600000", NULL};

/* The only key of the tenant's index. */
static struct chunk_key find_only_key(const struct raw_model *m)
{
    const struct index_bucket *b = (const struct index_bucket *) (m->index + sizeof(struct index_head));
    size_t n = (m->index_bytes - sizeof(struct index_head)) / sizeof(*b), i = 0;
    struct chunk_key key;

    while (i < n && (b[i].used & INDEX_USED_MASK) == 0)
        i++;
    assert(i < n);
    memcpy(key.bytes, b[i].keys[__builtin_ctz(b[i].used)], sizeof(key.bytes));
    return key;
}

/* Publishes pages whose keys have the same homes as @like, until they use every place. */
static void fill_homes(struct raw_model *m, const struct table *t, const struct chunk_key *like)
{
    for (uint32_t i = 0; i < PLACES; i++) {
        struct chunk_key key = *like;
        struct raw_slot slot;

        memcpy(key.bytes, &i, sizeof(i)); /* the lower half of a word: the upper one names the home */
        slot = raw_reserve(m, &key, PAGE_REST);
        CU_ASSERT_EQUAL_FATAL(slot.err, 0);
        raw_write_page(m, t, &key, PAGE_REST, 0, i);
        CU_ASSERT_EQUAL_FATAL(raw_commit(m, &slot, &key, 0, NULL), 0);
    }
}

static uint64_t held_before;

static bool nothing_is_reserved(const Kvcobra__StatusReply *s)
{
    return s->tenants[0]->held_bytes == held_before;
}

static uint64_t held_bytes(struct scene *sc)
{
    Kvcobra__StatusReply *s = scene_status(sc);
    uint64_t bytes = s->tenants[0]->held_bytes;

    (void) scene_status_free(s);
    return bytes;
}

static void test_index_without_a_place(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    uint32_t *tokens = scene_tokens(0, TOKENS);
    struct table *table = NULL;
    struct chunk_key key;
    struct raw_model raw;
    struct embedded m;
    struct scene sc;
    kvc_seq *s = NULL;
    uint64_t n_evicted;
    size_t n = 0;
    float *a;

    scene_start(&sc, g, 4, 1, patient);
    CU_ASSERT_EQUAL_FATAL(table_parse(sc.bytes, sc.n_bytes, &table, NULL), 0);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, TOKENS, TOKENS, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, 64);
    assert(raw_open_model(raw_open(sc.daemon.socket), &g, random_table_model_digest, &raw) == 0);
    key = find_only_key(&raw);
    s = kvc_seq_free(s);
    n_evicted = scene_evict(sc.control, NULL);
    CU_ASSERT_EQUAL_FATAL(n_evicted, 1);
    fill_homes(&raw, table, &key);

    held_before = held_bytes(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, TOKENS, TOKENS, &n), -ENOSPC);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "stays private"));
    CU_ASSERT(scene_wait(&sc, nothing_is_reserved));
    CU_ASSERT_EQUAL(kvc_seq_length(s), TOKENS);
    a = scene_attend(&m, s, 0); /* the sequence goes on */
    free(a);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, TOKENS, &n), -ENOSPC); /* reserved anew, refused anew */
    CU_ASSERT(scene_wait(&sc, nothing_is_reserved));
    free(tokens);
    table = table_unref(table);
    raw_close_model(&raw);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {TEST(test_index_without_a_place), TEST_END};
