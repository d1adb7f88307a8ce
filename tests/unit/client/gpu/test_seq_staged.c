/*
 * Sequences on a GPU whose pages are in host memory, on the stand-in driver: after the same calls they hold
 * the same pages as sequences of the CPU to the byte, and read alike to the bit, in every form that a caller
 * may have its vectors in. With STANDIN_LATE=1 copies beside the caller's stream run as late as they may.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_staged.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_tail.h"
#include "tests/lib/test.h"
#include "tests/unit/client/staged_pair.h"

static const struct gpu_pair_shape small = {.n_layers = 2,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .d = 64,
                                            .n_sink = 4,
                                            .bpd = 3,
                                            .v_from = PREDICT_HEAD,
                                            .pages = KVC_GPU_PAGES_HOST};

/* ---- schedules ---- */

enum { TWINS_MAX = 3, LENGTH_MAX = 600, STEPS = 16 };

static void read_some(const struct gpu_pair *t, const struct seq_pair *s)
{
    size_t length = kvc_seq_length(s->cpu), first = test_rand_below(length + 1),
           n = test_rand_below(length - first + 1);

    if (n > 0 && seq_n_packed(s->cpu) == seq_n_packed(s->gpu)) /* a long append packs earlier on a GPU */
        CU_ASSERT_TRUE(staged_blocks_alike(t, s, first, n));
}

static void cut_some(struct seq_pair *s)
{
    size_t length = kvc_seq_length(s->cpu), back = test_rand_below(test_rand_below(2) ? 20 : 200);
    size_t n = back < length ? length - back : 0, want = 0, got = 0;

    staged_commit(s); /* then both have packed alike */
    CU_ASSERT_EQUAL(kvc_seq_truncate(s->cpu, n, &want), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s->gpu, n, &got), 0);
    CU_ASSERT_EQUAL(got, want);
    s->text = test_rand();
}

static struct seq_pair fork_pair(struct seq_pair *s)
{
    struct seq_pair f = {.text = test_rand()};

    staged_commit(s);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s->cpu, &f.cpu), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s->gpu, &f.gpu), 0);
    return f;
}

static void run_step(const struct gpu_pair *t, struct seq_pair *seqs, size_t *n, struct seq_pair *s)
{
    size_t most = LENGTH_MAX - kvc_seq_length(s->cpu),
           n_new = 1 + test_rand_below(test_rand_below(2) ? 3 : 250);

    switch (test_rand_below(8)) {
    default:
        n_new = n_new < most ? n_new : most;
        if (n_new > 0)
            CU_ASSERT_EQUAL_FATAL(staged_append(t, s, (enum kvc_dtype) test_rand_below(3), n_new), 0);
        break;
    case 4:
        staged_commit(s);
        break;
    case 5:
        read_some(t, s);
        break;
    case 6:
        cut_some(s);
        break;
    case 7:
        if (*n < TWINS_MAX) {
            seqs[(*n)++] = fork_pair(s);
        } else {
            seq_pair_free(s);
            *s = seqs[--*n];
        }
    }
}

static void run_schedule(const struct gpu_pair_shape *shape, enum kvc_keys keys, enum kvc_pairs pairs,
                         uint32_t flags)
{
    struct gpu_pair t = gpu_pair_new(shape);
    struct seq_pair seqs[TWINS_MAX] = {staged_pair_new(&t, test_rand(), keys, pairs, flags)};
    size_t n = 1;

    for (unsigned step = 0; step < STEPS; step++)
        run_step(&t, seqs, &n, &seqs[test_rand_below(n)]);
    for (size_t i = 0; i < n; i++) {
        if (kvc_seq_length(seqs[i].cpu) < LENGTH_MAX)
            CU_ASSERT_EQUAL(staged_append(&t, &seqs[i], KVC_BF16, 1), 0);
        staged_commit(&seqs[i]);
        CU_ASSERT_TRUE(staged_is_alike(&t, &seqs[i]));
    }
    gpu_pair_free(&t);
}

static const struct gpu_pair_shape shapes[] = {
    {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD},
    {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 2.5, .v_from = PREDICT_LAYER},
    {.n_layers = 1,
     .n_heads = 8,
     .n_kv_heads = 1,
     .d = 128,
     .n_rot = 64,
     .n_sink = 4,
     .bpd = 4,
     .v_from = PREDICT_HEAD},
    {.n_layers = 2,
     .n_heads = 9,
     .n_kv_heads = 3,
     .d = 96,
     .n_sink = 4,
     .bpd = 2,
     .v_from = PREDICT_LAYER,
     .n_heads_here = 3},
    {.n_layers = 1,
     .n_heads = 6,
     .n_kv_heads = 3,
     .d = 48,
     .n_rot = 20,
     .n_sink = 4,
     .bpd = 3,
     .v_from = PREDICT_NONE,
     .first_head = 1,
     .n_heads_here = 2},
    {.n_layers = 2,
     .n_heads = 4,
     .n_kv_heads = 2,
     .d = 64,
     .bpd = 3,
     .v_from = PREDICT_HEAD,
     .state_bits = 6},
    {.n_layers = 1,
     .n_heads = 6,
     .n_kv_heads = 3,
     .d = 64,
     .bpd = 5,
     .v_from = PREDICT_LAYER,
     .state_bits = 8},
};

static void test_schedules(void)
{
    for (unsigned i = 0; i < 2 * sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct gpu_pair_shape shape = shapes[i / 2];

        shape.pages = KVC_GPU_PAGES_HOST;
        shape.ring_bytes = (size_t) 1 << 20;
        run_schedule(&shape, i % 2 ? KVC_KEYS_AFTER_ROPE : KVC_KEYS_BEFORE_ROPE,
                     i / 2 % 2 ? KVC_PAIRS_INTERLEAVED : KVC_PAIRS_HALF_SPLIT,
                     i % 3 ? KVC_SEQ_PUBLISH_ALL : 0);
    }
}

/* ---- long texts ---- */

/* More chunks than a launch takes, more bytes than the ring has, more positions than angles are kept of, and
 * pieces: one append leaves the tail as long as it was. */
static void test_long_prompt(void)
{
    const struct gpu_pair_shape shape = {.n_layers = 2,
                                         .n_heads = 2,
                                         .n_kv_heads = 2,
                                         .d = 64,
                                         .n_sink = 4,
                                         .bpd = 8,
                                         .v_from = PREDICT_HEAD,
                                         .pages = KVC_GPU_PAGES_HOST,
                                         .ring_bytes = (size_t) 1 << 20};
    struct gpu_pair t = gpu_pair_new(&shape);
    struct seq_pair s =
        staged_pair_new(&t, 3, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_INTERLEAVED, KVC_SEQ_PUBLISH_ALL);

    s.gpu->table->gpu->angles.n_blocks = 8; /* 512 positions */
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 1), 0);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 2500), 0);
    CU_ASSERT_EQUAL(s.gpu->tail_rows, TAIL_ROWS_MIN);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 2501 / CHUNK_TOKENS);
    CU_ASSERT_TRUE(s.gpu->staged->n_sent > 0);
    CU_ASSERT_PTR_NOT_NULL(
        s.gpu->pages[2500 / CHUNK_TOKENS - 1]->staging); /* the ring is full, nothing waited */
    staged_commit(&s);
    CU_ASSERT_TRUE(staged_pages_alike(&s));
    CU_ASSERT_TRUE(staged_blocks_alike(&t, &s, 0, 2501));
    CU_ASSERT_TRUE(staged_blocks_alike(&t, &s, 100, 2000));
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 70), 0);
    staged_commit(&s);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* Values that are predicted from more coordinates than matrix instructions are used for. */
static void test_wide_prediction(void)
{
    const struct gpu_pair_shape shape = {.n_layers = 1,
                                         .n_heads = 8,
                                         .n_kv_heads = 8,
                                         .d = 64,
                                         .n_sink = 4,
                                         .bpd = 8,
                                         .v_from = PREDICT_LAYER,
                                         .pages = KVC_GPU_PAGES_HOST};
    struct gpu_pair t = gpu_pair_new(&shape);
    struct seq_pair s =
        staged_pair_new(&t, 3, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, KVC_SEQ_PUBLISH_ALL);

    CU_ASSERT_TRUE(s.gpu->table->layout.r_in_max > DEVICE_COLUMNS_MAX);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 130), 0);
    staged_commit(&s);
    for (unsigned i = 0; i < 4; i++) /* every number type, by chance */
        CU_ASSERT_TRUE(staged_blocks_alike(&t, &s, 0, 130));
    gpu_pair_free(&t);
}

/* Token by token over several chunks, with both rules of when chunks are due. */
static void test_decode_steps(void)
{
    for (unsigned all = 0; all < 2; all++) {
        struct gpu_pair t = gpu_pair_new(&small);
        struct seq_pair s =
            staged_pair_new(&t, 7, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_HALF_SPLIT, all ? KVC_SEQ_PUBLISH_ALL : 0);

        for (unsigned i = 0; i < 200; i++) {
            CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F16, 1), 0);
            CU_ASSERT_EQUAL(seq_n_packed(s.gpu), seq_n_packed(s.cpu));
        }
        CU_ASSERT_TRUE(staged_is_alike(&t, &s));
        gpu_pair_free(&t);
    }
}

/* ---- batches ---- */

/* More sequences than a launch takes, of both forms and two tables, whose angles are in each other's way. */
static void test_batch(void)
{
    enum { N = 70, STEP = 3 };
    const struct gpu_pair_shape other = {
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 2, .v_from = PREDICT_NONE};
    struct gpu_pair t = gpu_pair_new(&small), u = gpu_pair_other(&t, &other);
    struct seq_pair s[N];
    kvc_append_item items[N], on_cpu[N];
    struct gpu_memory m[2 * N];
    float *x[2 * N];

    for (size_t i = 0; i < N; i++) {
        s[i] = staged_pair_new(i % 3 ? &t : &u, i, i % 2 ? KVC_KEYS_AFTER_ROPE : KVC_KEYS_BEFORE_ROPE,
                               i % 4 ? KVC_PAIRS_INTERLEAVED : KVC_PAIRS_HALF_SPLIT, 0);
        s[i].gpu->table->gpu->angles.n_blocks = 3;
        CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s[i], KVC_F32, 60 + 5 * i), 0);
    }
    for (uint32_t layer = 0; layer < t.g.n_layers; layer++) {
        for (size_t i = 0; i < N; i++) {
            size_t n_new = i % 20 == 1 ? 150 : STEP * (i % 7 > 0); /* some need more than the tail has */
            size_t bytes = n_new * t.n_heads * t.g.d * sizeof(float);

            for (unsigned side = 0; side < 2; side++) {
                x[2 * i + side] = gpu_pair_input(&t, s[i].text, layer, side, 60 + 5 * i, n_new);
                m[2 * i + side] = gpu_pair_take(&t, x[2 * i + side], bytes + 1);
            }
            on_cpu[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                          .seq = s[i].cpu,
                                          .k = x[2 * i],
                                          .v = x[2 * i + 1],
                                          .n_new = n_new};
            items[i] = on_cpu[i];
            items[i].seq = s[i].gpu;
            items[i].k = (const void *) (uintptr_t) m[2 * i].at;
            items[i].v = (const void *) (uintptr_t) m[2 * i + 1].at;
        }
        CU_ASSERT_EQUAL(kvc_seq_append_batch(on_cpu, N, layer, KVC_F32), 0);
        CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, layer, KVC_F32), 0);
        for (size_t i = 0; i < 2 * N; i++) {
            gpu_pair_give(&t, &m[i]);
            free(x[i]);
        }
    }
    for (size_t i = 0; i < N; i += 3) {
        staged_commit(&s[i]);
        CU_ASSERT_TRUE(staged_pages_alike(&s[i]) &&
                       staged_blocks_alike(&t, &s[i], 0, kvc_seq_length(s[i].cpu)));
    }
    gpu_pair_free(&t);
}

/* ---- pages on their way ---- */

/* Sequences are cut, forked and freed while their pages are being copied: nothing is overwritten, and all
 * memory comes back. */
static void test_pages_in_flight(void)
{
    struct gpu_pair_shape shape = small;
    struct gpu_pair t;
    struct seq_pair s, f;
    size_t kept;

    shape.ring_bytes = (size_t) 1 << 20;
    t = gpu_pair_new(&shape);
    s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 900), 0);
    CU_ASSERT_PTR_NOT_NULL(t.gpu->gpu->ring->first);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.cpu, 300, &kept), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 256, &kept), 0);
    CU_ASSERT_EQUAL(kept, 256);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.cpu, 256, &kept), 0);
    s.text = 2;
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 500), 0);
    staged_commit(&s);
    CU_ASSERT_EQUAL(kvc_seq_fork(s.cpu, &f.cpu), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, &f.gpu), 0);
    f.text = 3;
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &f, KVC_F32, 400), 0);
    staged_commit(&f);
    CU_ASSERT_TRUE(staged_pages_alike(&s) && staged_blocks_alike(&t, &s, 0, 756));
    CU_ASSERT_TRUE(staged_pages_alike(&f) && staged_blocks_alike(&t, &f, 0, 1156));
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &f, KVC_F32, 800), 0);
    seq_pair_free(&f);
    seq_pair_free(&s);
    CU_ASSERT_EQUAL(gpu_ring_finish(t.gpu->gpu, NULL), 0);
    CU_ASSERT_EQUAL(t.gpu->gpu->ring->places.free_bytes, t.gpu->gpu->ring->places.bytes);
    gpu_pair_free(&t);
}

const char test_suite[] = "sequences on a GPU with pages in host memory";
const struct test_case test_cases[] = {
    TEST(test_schedules),
    TEST(test_long_prompt),
    TEST(test_wide_prediction),
    TEST(test_decode_steps),
    TEST(test_batch),
    TEST(test_pages_in_flight),
    TEST_END,
};
