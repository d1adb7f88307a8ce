/* Encoding on threads: pages, counts and sums of a sample have the bits that one thread gives them. */
#include <stdlib.h>
#include <string.h>

#include "client/model/watch.h"
#include "client/sequence/seq.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { LAYERS = 2, N_TOKENS = 64 * 30 + 17, THREADS = 3 };

/* A sequence whose full chunks are all in pages. */
static kvc_seq *pack_text(struct embedded *m, unsigned n_threads, uint32_t report_ppm)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_PUBLISH_ALL};
    uint32_t *tokens = calloc(N_TOKENS, sizeof(*tokens));
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m->client, n_threads), 0);
    CU_ASSERT_EQUAL_FATAL(watch_prepare(m->model), 0);
    m->model->watch.report_ppm = report_ppm;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, 0, N_TOKENS), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, N_TOKENS, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(seq_n_packed(s), N_TOKENS / 64);
    free(tokens);
    return s;
}

static void check_equal(const struct kvc_seq *a, const struct kvc_seq *b)
{
    const struct watch *x = &a->model->watch, *y = &b->model->watch;

    for (size_t i = 0; i < N_TOKENS / 64; i++)
        CU_ASSERT_EQUAL(memcmp(page_payload(a->pages[i]), page_payload(b->pages[i]),
                               a->table->layout.payload_bytes[a->pages[i]->class]),
                        0);
    CU_ASSERT_EQUAL(memcmp(a->table->counts, b->table->counts, sizeof(a->table->counts)), 0);
    CU_ASSERT(a->table->counts[SIDE_V].coords > 0);
    CU_ASSERT_EQUAL(x->tokens, y->tokens);
    CU_ASSERT_EQUAL(memcmp(x->layers, y->layers, LAYERS * sizeof(*x->layers)), 0);
}

/* Shapes above the number of numbers that are worth dividing. */
static void run(uint32_t n_kv_heads, uint32_t d, uint32_t first_head, uint32_t n_heads,
                enum prediction v_from, uint32_t report_ppm)
{
    struct embedded one =
        embedded_new_predicting(LAYERS, 2 * n_kv_heads, n_kv_heads, d, 3, first_head, n_heads, v_from);
    struct embedded many =
        embedded_new_predicting(LAYERS, 2 * n_kv_heads, n_kv_heads, d, 3, first_head, n_heads, v_from);

    check_equal(pack_text(&one, 1, report_ppm), pack_text(&many, THREADS, report_ppm));
    CU_ASSERT(report_ppm == 0 || one.model->watch.tokens > 0);
    embedded_free(&one);
    embedded_free(&many);
}

static void test_as_one_thread(void)
{
    run(4, 64, 0, 0, PREDICT_HEAD, 0);
    run(3, 80, 0, 0, PREDICT_NONE, 0);
    run(2, 64, 0, 0, PREDICT_LAYER, 0);
    run(4, 64, 1, 2, PREDICT_HEAD, 0);
}

/* A third of the chunks is measured; then all. */
static void test_sampled(void)
{
    run(4, 64, 0, 0, PREDICT_HEAD, 333333);
    run(2, 64, 0, 0, PREDICT_LAYER, 1000000);
}

/* A decode step packs one chunk, divided by heads. */
static void test_one_chunk(void)
{
    struct embedded one = embedded_new(1, 16, 16, 64, 3, 0, 0), many = embedded_new(1, 16, 16, 64, 3, 0, 0);
    kvc_seq *a = NULL, *b = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(many.client, THREADS), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(one.model, NULL, 0, &a), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(many.model, NULL, 0, &b), 0);
    for (size_t at = 0; at < 240; at += 20) {
        CU_ASSERT_EQUAL(embedded_append(&one, a, 0, at, 20), 0);
        CU_ASSERT_EQUAL(embedded_append(&many, b, 0, at, 20), 0);
    }
    CU_ASSERT(seq_n_packed(a) == 2 && seq_n_packed(b) == 2);
    for (size_t i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(memcmp(page_payload(a->pages[i]), page_payload(b->pages[i]),
                               a->table->layout.payload_bytes[a->pages[i]->class]),
                        0);
    embedded_free(&one);
    embedded_free(&many);
}

/* A repeatable sequence encodes a chunk when it is full, and not again when its rows leave the tail. */
static void test_repeatable_encodes_once(void)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_REPEATABLE};
    struct embedded m = embedded_new(1, 4, 2, 64, 3, 0, 0);
    uint64_t of_a_chunk = 0;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m.model, &o, &s), 0);
    for (size_t at = 0; at < 64 * 5 + 10; at += 10) {
        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, at, 10), 0);
        if (at + 10 == 130)
            of_a_chunk = s->table->counts[SIDE_K].coords / 2;
    }
    CU_ASSERT_EQUAL(seq_n_packed(s), 4);
    CU_ASSERT(of_a_chunk > 0 && s->table->counts[SIDE_K].coords == 5 * of_a_chunk);
    embedded_free(&m);
}

/* ---- encoding ahead ---- */

enum { AHEAD_LAYERS = 30, AHEAD_TOKENS = 64 * 3 + 5 };

static size_t count_ahead(const struct kvc_seq *s)
{
    size_t n = 0;

    for (uint32_t i = 0; i < AHEAD_LAYERS; i++)
        n += s->layers[i].n_ahead;
    return n;
}

static void check_pages_equal(const struct kvc_seq *a, const struct kvc_seq *b)
{
    CU_ASSERT_EQUAL_FATAL(seq_n_packed(a), seq_n_packed(b));
    for (size_t i = 0; i < seq_n_packed(a); i++)
        CU_ASSERT_EQUAL(memcmp(page_payload(a->pages[i]), page_payload(b->pages[i]),
                               a->table->layout.payload_bytes[a->pages[i]->class]),
                        0);
}

/* Decode steps spread the layers of a chunk over the 16 steps before it is due: at most two of 30 in a step,
 * none in the step in which it is due, each once, and pages get the bytes that one append gives them. */
static void test_ahead(void)
{
    struct embedded m = embedded_new(AHEAD_LAYERS, 2, 1, 32, 3, 0, 0),
                    whole = embedded_new(AHEAD_LAYERS, 2, 1, 32, 3, 0, 0);
    uint64_t of_a_layer = 0, before = 0;
    kvc_seq *s = NULL, *t = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(whole.model, NULL, 0, &t), 0);
    for (size_t at = 0; at < AHEAD_TOKENS; at++) {
        uint64_t encoded;

        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, at, 1), 0);
        encoded = s->table->counts[SIDE_K].coords - before;
        before += encoded;
        if (of_a_layer == 0) /* the first layer begins alone: 30 layers in 16 steps */
            of_a_layer = at + 1 == 64 + 48 ? encoded / 2 : 0;
        CU_ASSERT_EQUAL(encoded > 0, at + 1 >= 64 + 48 && (at + 1) % 64 >= 48);
        CU_ASSERT(encoded <=
                  2 * of_a_layer + of_a_layer / 2); /* random layers differ in stored coordinates */
        CU_ASSERT_EQUAL(seq_n_packed(s), at + 1 < 128 ? 0 : (at + 1) / 64 - 1);
        CU_ASSERT_EQUAL(seq_n_packed(s), seq_n_packed_most(s));
    }
    CU_ASSERT_EQUAL(embedded_append(&whole, t, 0, 0, AHEAD_TOKENS - 1), 0);
    CU_ASSERT_EQUAL(embedded_append(&whole, t, 0, AHEAD_TOKENS - 1, 1), 0);
    CU_ASSERT_EQUAL(before, t->table->counts[SIDE_K].coords);
    check_pages_equal(s, t);
    embedded_free(&m);
    embedded_free(&whole);
}

/* A chunk is encoded anew where a cut took rows of it, and not where it did not; a fork has its own page. */
static void test_ahead_cut_and_fork(void)
{
    struct embedded m = embedded_new(AHEAD_LAYERS, 2, 1, 32, 3, 0, 0);
    kvc_seq *s = NULL, *t = NULL, *plain = NULL;
    uint64_t encoded;
    size_t kept;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 112), 0);
    for (size_t at = 112; at < 120; at += 4) /* guesses of four tokens, of which two are refused */
        for (int i = 0; i < 3; i++) {
            CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, (uint32_t) i, at, 4), 0);
            CU_ASSERT_EQUAL_FATAL(kvc_seq_truncate(s, i < 2 ? at : at + 4, &kept), 0);
        }
    CU_ASSERT(count_ahead(s) > 0 && count_ahead(s) < AHEAD_LAYERS && s->n_pages == 1);
    encoded = s->table->counts[SIDE_K].coords;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_truncate(s, 64, &kept), 0);
    CU_ASSERT(kept == 64 && count_ahead(s) > 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 2, 64, 56), 0);
    CU_ASSERT_EQUAL(s->table->counts[SIDE_K].coords, encoded);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &t), 0);
    CU_ASSERT_EQUAL(t->n_pages, 0);
    CU_ASSERT_EQUAL(count_ahead(t), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_truncate(s, 30, &kept), 0); /* into the chunk */
    CU_ASSERT(kept == 30 && count_ahead(s) == 0 && s->n_pages == 0);
    for (size_t at = 30; at < 130; at++)
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 3, at, 1), 0);
    for (size_t at = 120; at < 130; at++)
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, t, 2, at, 1), 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &plain), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, plain, 0, 0, 30), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, plain, 3, 30, 99), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, plain, 3, 129, 1), 0);
    check_pages_equal(s, plain);
    CU_ASSERT(memcmp(page_payload(s->pages[0]), page_payload(t->pages[0]),
                     s->table->layout.payload_bytes[PAGE_FIRST]) != 0);
    embedded_free(&m);
}

const struct test_case test_cases[] = {TEST(test_as_one_thread),
                                       TEST(test_sampled),
                                       TEST(test_one_chunk),
                                       TEST(test_repeatable_encodes_once),
                                       TEST(test_ahead),
                                       TEST(test_ahead_cut_and_fork),
                                       TEST_END};
const char test_suite[] = "encode";
