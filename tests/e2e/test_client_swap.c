/*
 * Tables are replaced while sequences live: existing sequences keep their table, new ones get the new table,
 * no page is lost or counted twice.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/protocol.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* Only its numbers are valid. */
static Kvcobra__TableInfo table_info(struct scene *sc, const uint8_t *digest)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    Kvcobra__TableInfo found = {.bpd_code = -1};

    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc->control, &list, NULL), 0);
    for (size_t i = 0; i < list->n_tables; i++)
        if (memcmp(list->tables[i]->digest.data, digest, KVC_DIGEST_BYTES) == 0)
            found = *list->tables[i];
    CU_ASSERT(found.bpd_code >= 0);
    return found;
}

static void active_digest(const struct embedded *m, uint8_t *ret_digest, uint64_t *ret_revision)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(m->model, &info), 0);
    memcpy(ret_digest, info.table_digest, KVC_DIGEST_BYTES);
    *ret_revision = info.revision;
}

/* A new sequence uses the second table, and finds no page of the first. */
static kvc_seq *publish_with_second(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, 600);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, 300, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 0, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 192);
    free(tokens);
    return s;
}

/*
 * Publishes the second half of the text while the first table drains; attention is that
 * of a private sequence.
 */
static void continue_with_first(const struct embedded *m, kvc_seq *old, const struct embedded *alone)
{
    kvc_seq *want = NULL;
    float *a, *b;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone->model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL(scene_publish(m, old, 0, 300, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 512);
    CU_ASSERT_EQUAL(scene_publish(alone, want, 0, 0, 600, 100, NULL), 0);
    a = scene_attend(m, old, 0);
    b = scene_attend(alone, want, 0);
    CU_ASSERT_EQUAL(memcmp(a, b, scene_attend_floats(m) * sizeof(*a)), 0);
    free(a);
    free(b);
}

/* @state_bits: of the second table; the first one has scalar levels. */
static void check_swap_mid_sequence(unsigned state_bits)
{
    struct scene sc;
    struct embedded m, alone;
    uint8_t first[KVC_DIGEST_BYTES], second[KVC_DIGEST_BYTES], now[KVC_DIGEST_BYTES];
    kvc_seq *old = NULL, *new;
    uint64_t revision, later;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    alone = scene_private(&sc); /* with the first table */
    active_digest(&m, first, &revision);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &old), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, old, 0, 0, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 192);

    scene_activate_trellis(&sc, 2, 2, state_bits, second);
    active_digest(&m, now, &later);
    CU_ASSERT_EQUAL(memcmp(now, second, sizeof(now)), 0);
    CU_ASSERT(later > revision);
    new = publish_with_second(&m);
    continue_with_first(&m, old, &alone);
    CU_ASSERT_EQUAL(table_info(&sc, first).state, KVCOBRA__TABLE_STATE__TABLE_DRAINING);
    CU_ASSERT_EQUAL(table_info(&sc, first).references, 1); /* one for all sequences of the client */
    CU_ASSERT_EQUAL(table_info(&sc, second).references, 1);

    kvc_seq_free(old); /* the last sequence of the first table */
    CU_ASSERT_EQUAL(table_info(&sc, first).references, 0);
    kvc_seq_free(new);
    CU_ASSERT_EQUAL(table_info(&sc, second).references, 1); /* the model's own */
    m.model = kvc_model_free(m.model);
    CU_ASSERT_EQUAL(table_info(&sc, second).references, 0);
    embedded_free(&alone);
    embedded_free(&m);
    scene_end(&sc);
}

static void test_swap_mid_sequence(void)
{
    check_swap_mid_sequence(0);
}

/* To a table of format 3, while a sequence goes on with one of format 2. */
static void test_swap_to_format_3(void)
{
    check_swap_mid_sequence(6);
}

/* Generates while tables change; every answer must be that of the sequence's first table. */
static bool generator(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc);
    uint32_t *tokens = scene_tokens(3, 4000);
    bool stop = false;

    for (unsigned round = 0; !stop; round++) {
        kvc_seq *s = NULL;
        size_t n = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_match(s, tokens, 300, &n), 0);
        CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 3, n, 300 - n, 77, NULL), 0);
        for (unsigned i = 0; i < 40; i++) {
            float *a;

            CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 3, 300 + i, 1), 0);
            a = scene_attend(&m, s, 3);
            CU_ASSERT(a[0] == a[0]);
            free(a);
        }
        kvc_seq_free(s);
        pipe_signal(to_parent); /* one round */
        stop = !pipe_wait(from_parent);
    }
    free(tokens);
    embedded_free(&m);
    return true;
}

/* @state_bits: of every second table; the others have scalar levels. */
static void check_swap_in_a_loop(unsigned state_bits)
{
    struct scene sc;
    struct child c[2];

    scene_start(&sc, small(), 3, 1, NULL);
    for (unsigned i = 0; i < 2; i++)
        c[i] = child_start(generator, &sc);
    for (uint64_t round = 0; round < 12; round++) {
        uint8_t digest[KVC_DIGEST_BYTES];

        for (unsigned i = 0; i < 2; i++)
            CU_ASSERT_FATAL(pipe_wait(c[i].from));
        for (unsigned i = 0; i < 2; i++)
            pipe_signal(c[i].to);
        /* both are in the middle of a round */
        scene_activate_trellis(&sc, 2.5, 10 + round, round % 2 ? 0 : state_bits, digest);
    }
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT(pipe_wait(c[i].from));
        CU_ASSERT(child_end(&c[i])); /* closed pipes end the children */
    }
    scene_end(&sc);
}

static void test_swap_in_a_loop(void)
{
    check_swap_in_a_loop(0);
}

/* Tables of both formats side by side, each replaced by one of the other. */
static void test_swap_formats_in_a_loop(void)
{
    check_swap_in_a_loop(6);
}

/* Tables of as many models as one request may name, in one request. */
static void test_activation_of_a_set(void)
{
    uint8_t digests[WIRE_TABLES_MAX][KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES] = {0};
    uint64_t revisions[WIRE_TABLES_MAX] = {0};
    struct errmsg e = {""};
    struct scene sc;
    void *bytes;
    size_t n_bytes;

    scene_start(&sc, small(), 3, 1, NULL);
    for (unsigned i = 0; i < WIRE_TABLES_MAX; i++) {
        model[0] = (uint8_t) i;
        assert(random_table_bytes_of(&sc.g, model, i + 1, 3, &bytes, &n_bytes) == 0);
        CU_ASSERT_EQUAL(operator_stage_table(sc.control, bytes, n_bytes, digests[i], &e), 0);
        free(bytes);
    }
    CU_ASSERT_EQUAL(operator_activate_tables(sc.control, digests, WIRE_TABLES_MAX, 0, revisions, &e), 0);
    for (unsigned i = 0; i < WIRE_TABLES_MAX; i++)
        CU_ASSERT_EQUAL(revisions[i], 1);
    CU_ASSERT_EQUAL(operator_activate_tables(sc.control, digests, WIRE_TABLES_MAX, 0, revisions, &e), 1);
    CU_ASSERT_EQUAL(operator_activate_tables(sc.control, digests, 2, 5, revisions, &e), -EINVAL);
    CU_ASSERT_EQUAL(operator_activate_tables(sc.control, digests, WIRE_TABLES_MAX + 1, 0, revisions, &e),
                    -EINVAL);
    scene_end(&sc);
}

static void test_activation_outcomes(void)
{
    struct scene sc;
    uint8_t first[KVC_DIGEST_BYTES], second[KVC_DIGEST_BYTES], unknown[KVC_DIGEST_BYTES] = {1};
    void *bytes;
    size_t n_bytes;
    uint64_t revision = 0, again = 0;
    struct errmsg e = {""};
    uint8_t digest[KVC_DIGEST_BYTES];
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *tables = NULL;

    scene_start(&sc, small(), 3, 1, NULL);
    /* 1: the table was staged before */
    CU_ASSERT_EQUAL(operator_stage_table(sc.control, sc.bytes, sc.n_bytes, first, NULL), 1);
    scene_activate(&sc, 3, 2, second);
    CU_ASSERT_EQUAL(operator_activate_table(sc.control, second, 0, &revision, NULL), 1);
    CU_ASSERT(revision > 0);
    CU_ASSERT_EQUAL(operator_activate_table(sc.control, second, revision, &again, NULL), 1);
    CU_ASSERT_EQUAL(again, revision);
    CU_ASSERT_EQUAL(operator_activate_table(sc.control, unknown, 0, &again, NULL), -ENOENT);
    CU_ASSERT(strlen(kvc_last_error(sc.control)) > 5);
    /* damaged bytes are refused, with the reason */
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&sc.g, 3, 3, true, &bytes, &n_bytes), 0);
    ((uint8_t *) bytes)[n_bytes / 2] ^= 1;
    memset(digest, 0x77, sizeof(digest));
    CU_ASSERT_EQUAL(operator_stage_table(sc.control, bytes, n_bytes, digest, &e), -EBADMSG);
    CU_ASSERT_EQUAL(digest[0], 0x77);
    printf("    refused: %s\n", e.text);
    /* and are not listed */
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc.control, &tables, NULL), 0);
    CU_ASSERT_EQUAL(tables->n_tables, 2);
    free(bytes);
    scene_end(&sc);
}

/* The outcome, and what is active then. */
static int roll_back(struct scene *sc, const uint8_t *digest, uint8_t *ret_active, uint64_t *ret_revision)
{
    _cleanup_(operator_message_freep) Kvcobra__RollbackTableReply *reply = NULL;
    Kvcobra__RollbackTable m = KVCOBRA__ROLLBACK_TABLE__INIT;

    m.digest = operator_digest(digest);
    CU_ASSERT_EQUAL_FATAL(
        operator_call(sc->control, KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &m.base, &reply, NULL), 0);
    memcpy(ret_active, reply->active.data, KVC_DIGEST_BYTES);
    *ret_revision = reply->revision;
    return operator_outcome(reply->outcome, NULL);
}

/* ROLLBACK returns to the table before, while it drains, and says which one that is. */
static void test_rollback(void)
{
    uint8_t first[KVC_DIGEST_BYTES], second[KVC_DIGEST_BYTES], active[KVC_DIGEST_BYTES] = {0};
    const char *const args[] = {"--pool-bytes=64M", "--arena-bytes=8M", "--drain-ms=600000", NULL};
    uint64_t revision = 0, before;
    struct scene sc;
    struct embedded m;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    active_digest(&m, first, &before);
    scene_activate(&sc, 2, 2, second);
    CU_ASSERT_EQUAL(roll_back(&sc, second, active, &revision), 0);
    CU_ASSERT(memcmp(active, first, sizeof(active)) == 0 && revision > before);
    CU_ASSERT_EQUAL(table_info(&sc, first).state, KVCOBRA__TABLE_STATE__TABLE_ACTIVE);
    /* again: that table is no longer active, and the active one stays */
    memset(active, 0, sizeof(active));
    CU_ASSERT_EQUAL(roll_back(&sc, second, active, &revision), 1);
    CU_ASSERT_EQUAL(memcmp(active, first, sizeof(active)), 0);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_rollback),
    TEST(test_swap_mid_sequence),
    TEST(test_swap_in_a_loop),
    TEST(test_swap_to_format_3),
    TEST(test_swap_formats_in_a_loop),
    TEST(test_activation_outcomes),
    TEST(test_activation_of_a_set),
    TEST_END,
};
const char test_suite[] = "client_swap";
