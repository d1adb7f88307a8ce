/* Every allocation of the library fails once: -ENOMEM, untouched outputs, an unchanged sequence, no leak. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvcobra-eval.h"
#include "client/sequence/seq.h"
#include "tests/fault/fault.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { NTH_MAX = 5000 }; /* an endless loop is a failure too */

static void test_client_new(void)
{
    for (unsigned nth = 1; nth < NTH_MAX; nth++) {
        long before = fault_live_blocks();
        kvc_client *c = NULL;
        int r;

        fault_arm(nth);
        r = kvc_client_new(&c);
        if (!fault_fired()) {
            fault_arm(0);
            CU_ASSERT_EQUAL(r, 0);
            c = kvc_client_free(c);
            CU_ASSERT_EQUAL(fault_live_blocks(), before);
            CU_ASSERT(nth > 1);
            return;
        }
        fault_arm(0);
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT_PTR_NULL(c);
        CU_ASSERT_EQUAL(fault_live_blocks(), before);
    }
    CU_FAIL("never survived");
}

static void test_model_open(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_model_id id = embedded_id(&m);
    unsigned nth;

    for (nth = 1; nth < NTH_MAX; nth++) {
        long before = fault_live_blocks();
        kvc_model *model = NULL;
        int r;

        fault_arm(nth);
        r = kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model);
        if (!fault_fired()) {
            fault_arm(0);
            CU_ASSERT_EQUAL(r, 0);
            break;
        }
        fault_arm(0);
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT_PTR_NULL(model);
        CU_ASSERT(strlen(kvc_last_error(m.client)) > 10);
        CU_ASSERT_EQUAL(fault_live_blocks(), before);
    }
    CU_ASSERT(nth > 3 && nth < NTH_MAX);
    embedded_free(&m);
}

static bool holds(const struct embedded *m, kvc_seq *s, const float *want, size_t n)
{
    float *x;
    bool same;

    if (kvc_seq_length(s) != n)
        return false;
    x = embedded_read(m, s, 1, KVC_V, n);
    same = memcmp(x, want, n * m->n_heads * m->g.d * sizeof(*x)) == 0;
    free(x);
    return same;
}

/* Runs one call with each allocation failing; @op works on @s, which must hold its @n tokens after each.
 * @least: allocations that it makes at least. */
static void sweep(const struct embedded *m, kvc_seq *s, size_t n, unsigned least,
                  int (*op)(const struct embedded *m, kvc_seq *s))
{
    float *want = embedded_read(m, s, 1, KVC_V, n);
    unsigned nth;

    for (nth = 1; nth < NTH_MAX; nth++) {
        int r;

        fault_arm(nth);
        r = op(m, s);
        if (!fault_fired()) {
            CU_ASSERT_EQUAL(r, 0);
            break;
        }
        fault_arm(0);
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT(strlen(kvc_last_error(m->client)) > 10);
        CU_ASSERT(holds(m, s, want, n));
    }
    fault_arm(0);
    CU_ASSERT(nth > least && nth < NTH_MAX);
    free(want);
}

static float piece[2][400 * 64]; /* the input is made before allocations fail */

static int append_layer(const struct embedded *m, kvc_seq *s)
{
    (void) m;
    return kvc_seq_append(s, 0, KVC_F32, piece[0], piece[1],
                          400); /* tail, page array, handles, a slab of pages */
}

static int fork_and_free(const struct embedded *m, kvc_seq *s)
{
    kvc_seq *t = NULL;
    int r = kvc_seq_fork(s, &t);

    (void) m;
    if (r == 0)
        kvc_seq_free(t);
    else
        CU_ASSERT_PTR_NULL(t);
    return r;
}

static int attend_many(const struct embedded *m, kvc_seq *s)
{
    static float q[70 * 128], out[70 * 128];

    (void) m;
    return kvc_seq_attend(s, 0, q, 70, out);
}

static int measure(const struct embedded *m, kvc_seq *s)
{
    const kvc_report_options o = {.struct_bytes = sizeof(o), .share_ppm = 1000000};

    (void) s;
    return kvc_model_report(m->model, &o);
}

static int new_and_free(const struct embedded *m, kvc_seq *s)
{
    kvc_seq *t = NULL;
    int r = kvc_seq_new(m->model, "salt", 4, &t);

    (void) s;
    if (r == 0)
        kvc_seq_free(t);
    else
        CU_ASSERT_PTR_NULL(t);
    return r;
}

/* Keys after RoPE: angles and scratch are allocated. Nothing is stored before that. */
static int read_an_engines_text(const struct embedded *m, kvc_seq *s)
{
    static float out[4][300 * 64];
    void *const bases[4] = {out[0], out[1], out[2], out[3]};
    const kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases};
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .keys = KVC_KEYS_AFTER_ROPE};
    kvc_seq *t = NULL;
    int r = kvc_seq_new_with(m->model, &o, &t);

    (void) s;
    for (uint32_t layer = 0; r == 0 && layer < 2; layer++)
        r = kvc_seq_append(t, layer, KVC_F32, piece[0], piece[1], 300);
    out[3][0] = 77;
    if (r == 0)
        r = kvc_seq_read_blocks(t, 0, 300, &to);
    CU_ASSERT_EQUAL(r == 0, out[3][0] != 77);
    kvc_seq_free(t);
    return r;
}

static int attend_to_an_engines_text(const struct embedded *m, kvc_seq *s)
{
    static uint16_t q[70 * 128], out[70 * 128];
    const kvc_attend_item item = {
        .struct_bytes = sizeof(item), .seq = s, .q = q, .n_q = 70, .out = out, .dtype = KVC_BF16};

    (void) m;
    return kvc_seq_attend_batch(&item, 1, 0, NULL);
}

static int eval_piece(const struct embedded *m, kvc_seq *s)
{
    kvc_eval_options o = {.struct_bytes = sizeof(o), .n_sink = 4};
    kvc_seq *t = NULL;
    int r = kvc_seq_new_eval(m->model, &o, &t);

    (void) s;
    if (r < 0)
        return r;
    r = kvc_seq_append(t, 0, KVC_F32, piece[0], piece[1], 400);
    if (r < 0)
        CU_ASSERT_EQUAL(kvc_seq_length(t), 0);
    kvc_seq_free(t);
    return r;
}

/* @flags: of the sequence. Its chunks are packed at different times. */
static void sweep_sequence(uint32_t flags)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = flags};
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_seq *s = NULL;
    float *k, *v;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m.model, &o, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 100), 0);
    k = embedded_input(&m, 0, 0, KVC_K, 100, 400);
    v = embedded_input(&m, 0, 0, KVC_V, 100, 400);
    memcpy(piece[0], k, sizeof(piece[0]));
    memcpy(piece[1], v, sizeof(piece[1]));
    free(k);
    free(v);
    sweep(&m, s, 100, 1, attend_many);
    sweep(&m, s, 100, 0, attend_to_an_engines_text); /* in memory that the calls before took */
    sweep(&m, s, 100, 1, read_an_engines_text);
    sweep(&m, s, 100, 1, measure);
    sweep(&m, s, 100, 1, new_and_free);
    sweep(&m, s, 100, 1, eval_piece);
    sweep(&m, s, 100, 1, fork_and_free);
    sweep(&m, s, 100, 1, append_layer);
    CU_ASSERT_EQUAL(s->n_pages, flags ? 500 / 64 : 500 / 64 - 1);
    embedded_free(&m);
}

static void test_sequences(void)
{
    sweep_sequence(0);
    sweep_sequence(KVC_SEQ_PUBLISH_ALL);
    sweep_sequence(KVC_SEQ_REPEATABLE);
}

/* The same for a batch: no sequence changes, whichever allocation fails. */
static void test_batch(void)
{
    enum { N = 3 };
    static const size_t lengths[N] = {70, 0, 130}, n_new[N] = {400, 150, 300};
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_append_item items[N];
    float *want[N];
    unsigned nth;
    int r = 0;

    for (uint32_t i = 0; i < N; i++) {
        items[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                     .seq = NULL,
                                     .k = embedded_input(&m, i, 0, KVC_K, lengths[i], n_new[i]),
                                     .v = embedded_input(&m, i, 0, KVC_V, lengths[i], n_new[i]),
                                     .n_new = n_new[i]};
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &items[i].seq), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[i].seq, i, 0, lengths[i]), 0);
        want[i] = embedded_read(&m, items[i].seq, 1, KVC_V, lengths[i]);
    }
    for (nth = 1; nth < NTH_MAX; nth++) {
        fault_arm(nth);
        r = kvc_seq_append_batch(items, N, 0, KVC_F32);
        if (!fault_fired())
            break;
        fault_arm(0);
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "of the batch: out of memory"));
        for (uint32_t i = 0; i < N; i++)
            CU_ASSERT(items[i].seq->layers[0].length == lengths[i] && items[i].seq->n_pages == (i == 2) &&
                      holds(&m, items[i].seq, want[i], lengths[i]));
    }
    fault_arm(0);
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT(nth > N && nth < NTH_MAX);
    for (uint32_t i = 0; i < N; i++) {
        CU_ASSERT_EQUAL(items[i].seq->layers[0].length, lengths[i] + n_new[i]);
        free((void *) items[i].k);
        free((void *) items[i].v);
        free(want[i]);
    }
    embedded_free(&m);
}

static void test_no_leak(void)
{
    long before = fault_live_blocks();

    test_sequences();
    test_batch();
    CU_ASSERT_EQUAL(fault_live_blocks(), before);
}

const struct test_case test_cases[] = {
    TEST(test_client_new), TEST(test_model_open), TEST(test_sequences),
    TEST(test_batch),      TEST(test_no_leak),    TEST_END,
};
const char test_suite[] = "client_memory";
