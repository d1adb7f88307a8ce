/*
 * Sequences on a GPU, on the stand-in driver: after the same calls they hold the same bytes as sequences of
 * the CPU, return the same vectors to the bit, and attend within the error bound of their kernels
 * (gpu_pair.h). With TEST_GPU=1 the driver is the real one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_tail.h"
#include "client/gpu/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/unit/client/gpu_pair.h"

static const struct gpu_pair_shape small = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD};

/* ---- schedules ---- */

enum { TWINS_MAX = 3, LENGTH_MAX = 420, STEPS = 18 };

/* A group of texts in both clients, and the calls on them. */
struct schedule {
    struct gpu_pair t;
    struct seq_pair seqs[TWINS_MAX];
    size_t n;
};

static void append_some(struct schedule *s, struct seq_pair *seq)
{
    size_t most = LENGTH_MAX - kvc_seq_length(seq->cpu),
           n = 1 + test_rand_below(test_rand_below(2) ? 3 : 200);

    n = n < most ? n : most;
    if (n > 0)
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&s->t, seq, (enum kvc_dtype) test_rand_below(3), n), 0);
}

static void attend_all(struct schedule *s)
{
    static const uint32_t windows[] = {0, 0, 1, 70, 200};
    size_t n_q[TWINS_MAX];

    for (size_t i = 0; i < s->n; i++) {
        n_q[i] = test_rand_below(test_rand_below(3) ? 3 : 30);
        if (n_q[i] > kvc_seq_length(s->seqs[i].cpu))
            n_q[i] = kvc_seq_length(s->seqs[i].cpu);
    }
    CU_ASSERT_TRUE(gpu_pair_attend(&s->t, s->seqs, n_q, s->n, (uint32_t) test_rand_below(s->t.g.n_layers),
                                   windows[test_rand_below(5)]));
}

static void read_some(struct schedule *s, struct seq_pair *seq)
{
    size_t length = kvc_seq_length(seq->cpu), first = test_rand_below(length + 1),
           n = test_rand_below(length - first + 1);

    CU_ASSERT_TRUE(seq_pair_reads_alike(&s->t, seq, (uint32_t) test_rand_below(s->t.g.n_layers),
                                        (enum kvc_side) test_rand_below(2), first, n));
}

static void cut_some(struct seq_pair *seq)
{
    size_t length = kvc_seq_length(seq->cpu), back = test_rand_below(test_rand_below(2) ? 20 : 200);
    size_t n = back < length ? length - back : 0, want = 0, got = 0;

    CU_ASSERT_EQUAL(kvc_seq_truncate(seq->cpu, n, &want), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(seq->gpu, n, &got), 0);
    CU_ASSERT_EQUAL(got, want);
    seq->text = test_rand(); /* then other tokens */
}

static void fork_or_free(struct schedule *s, struct seq_pair *seq)
{
    if (s->n < TWINS_MAX) {
        s->seqs[s->n++] = seq_pair_fork(seq, test_rand());
    } else {
        seq_pair_free(seq);
        *seq = s->seqs[--s->n];
    }
}

static void run_schedule(const struct gpu_pair_shape *shape)
{
    struct schedule s = {.t = gpu_pair_new(shape), .n = 1};

    s.seqs[0] = seq_pair_new(&s.t, test_rand());
    for (unsigned step = 0; step < STEPS; step++) {
        struct seq_pair *seq = &s.seqs[test_rand_below(s.n)];

        switch (test_rand_below(8)) {
        default:
            append_some(&s, seq);
            break;
        case 4:
            attend_all(&s);
            break;
        case 5:
            read_some(&s, seq);
            break;
        case 6:
            cut_some(seq);
            break;
        case 7:
            fork_or_free(&s, seq);
            break;
        }
    }
    append_some(&s, &s.seqs[0]);
    attend_all(&s);
    for (size_t i = 0; i < s.n; i++)
        CU_ASSERT_TRUE(seq_pair_is_alike(&s.t, &s.seqs[i]));
    gpu_pair_free(&s.t);
}

static void test_schedules(void)
{
    static const struct gpu_pair_shape shapes[] = {
        {.n_layers = 2,
         .n_heads = 4,
         .n_kv_heads = 2,
         .d = 64,
         .n_sink = 4,
         .bpd = 3,
         .v_from = PREDICT_HEAD},
        {.n_layers = 2,
         .n_heads = 2,
         .n_kv_heads = 2,
         .d = 64,
         .n_sink = 0,
         .bpd = 2.5,
         .v_from = PREDICT_LAYER},
        {.n_layers = 1,
         .n_heads = 16,
         .n_kv_heads = 1,
         .d = 64,
         .n_rot = 32,
         .n_sink = 4,
         .bpd = 4,
         .v_from = PREDICT_NONE},
        {.n_layers = 1,
         .n_heads = 8,
         .n_kv_heads = 1,
         .d = 128,
         .n_rot = 64,
         .n_sink = 0,
         .bpd = 2,
         .v_from = PREDICT_HEAD},
        {.n_layers = 2,
         .n_heads = 9,
         .n_kv_heads = 3,
         .d = 96,
         .n_sink = 4,
         .bpd = 2,
         .v_from = PREDICT_LAYER,
         .first_head = 0,
         .n_heads_here = 3},
        {.n_layers = 1,
         .n_heads = 6,
         .n_kv_heads = 3,
         .d = 64,
         .n_sink = 4,
         .bpd = 3,
         .v_from = PREDICT_HEAD,
         .first_head = 1,
         .n_heads_here = 2},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_schedule(&shapes[i]);
}

/* The widest keys that kernels take; short, since the CPU is slow with a chunk of them. */
static void test_widest_head(void)
{
    const struct gpu_pair_shape shape = {.n_layers = 1,
                                         .n_heads = 1,
                                         .n_kv_heads = 1,
                                         .d = 256,
                                         .n_sink = 4,
                                         .bpd = 1,
                                         .v_from = PREDICT_HEAD};
    struct gpu_pair t = gpu_pair_new(&shape);
    struct seq_pair s = seq_pair_new(&t, 1);
    const size_t n_q = 2;

    CU_ASSERT_EQUAL(seq_pair_append(&t, &s, KVC_BF16, 140), 0);
    CU_ASSERT_EQUAL(seq_pair_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 1);
    CU_ASSERT_TRUE(gpu_pair_attend(&t, &s, &n_q, 1, 0, 0));
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* ---- steps ---- */

/* Token by token across chunks: the tail is packed, moved to the front of its buffer and packed again. */
static void test_decode_steps(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 7);
    const size_t n_q = 1;

    for (unsigned i = 0; i < 270; i++) {
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F16, 1), 0);
        if (i % 30 == 29)
            CU_ASSERT_TRUE(gpu_pair_attend(&t, &s, &n_q, 1, i % 2, 0));
    }
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 3);
    CU_ASSERT_EQUAL(s.gpu->tail_rows, TAIL_ROWS_MIN);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* A step that failed half-way: layers packed differently are levelled by a fork; the CPU does the same. */
static void test_truncate_inside_a_step(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 3), f;
    kvc_seq *none = NULL;
    size_t kept = 0;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 191), 0);
    CU_ASSERT_EQUAL(seq_pair_append_layer(&t, &s, 0, KVC_F32, 3), 0); /* packs chunk 1 in layer 0 alone */
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, &none), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.cpu, 191, &kept), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 191, &kept), 0);
    CU_ASSERT_EQUAL(kept, 191);
    CU_ASSERT_EQUAL(s.gpu->layers[0].n_packed, 2);
    CU_ASSERT_EQUAL(s.gpu->layers[1].n_packed, 0);
    f = seq_pair_fork(&s, 5);
    CU_ASSERT_EQUAL(s.gpu->layers[1].n_packed, 2);
    for (unsigned i = 0; i < 70; i++) {
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 1), 0);
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &f, KVC_F32, 1), 0);
    }
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &f));
    gpu_pair_free(&t);
}

/* A prompt whose partial results are more than the workspace may hold is attended in pieces, with the same
 * result. A large GPU would divide the pages of each piece, too: only as far as the workspace goes. */
static void test_prompt_in_pieces(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s[2] = {seq_pair_new(&t, 3), seq_pair_new(&t, 4)};
    const size_t n_q[] = {100, 3};

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s[0], KVC_F32, 100), 0);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s[1], KVC_F32, 5), 0);
    t.gpu->gpu->workspace.most_bytes = (size_t) 1 << 20;
    t.gpu->gpu->device.multiprocessors = 512;
    CU_ASSERT_TRUE(gpu_pair_attend(&t, s, n_q, 2, 0, 0));
    CU_ASSERT_TRUE(t.gpu->gpu->workspace.memory.bytes <= (size_t) 1 << 20);
    t.gpu->gpu->workspace.most_bytes = 1; /* a tile at a time */
    CU_ASSERT_TRUE(gpu_pair_attend(&t, s, n_q, 1, 1, 20));
    gpu_pair_free(&t);
}

/* More sequences than one launch takes. */
static void test_large_batch(void)
{
    enum { N = 70 };
    const struct gpu_pair_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = 32, .n_sink = 0, .bpd = 2, .v_from = PREDICT_NONE};
    struct gpu_pair t = gpu_pair_new(&shape);
    struct seq_pair s[N];
    size_t n_q[N];

    for (size_t i = 0; i < N; i++) {
        s[i] = seq_pair_new(&t, i);
        n_q[i] = i % 5 == 0 ? 0 : 1;
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s[i], KVC_F32, 1 + i), 0);
    }
    CU_ASSERT_TRUE(gpu_pair_attend(&t, s, n_q, N, 0, 0));
    gpu_pair_free(&t);
}

/* More pages than a sequence begins with room for. */
static void test_long_text(void)
{
    const struct gpu_pair_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = 32, .n_sink = 4, .bpd = 1, .v_from = PREDICT_NONE};
    struct gpu_pair t = gpu_pair_new(&shape);
    struct seq_pair s = seq_pair_new(&t, 1);
    const size_t n_q = 1;

    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 1500), 0);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_TRUE(s.gpu->n_pages_max > 64 && s.gpu->gpu->n_addresses_max == s.gpu->n_pages_max);
    CU_ASSERT_TRUE(gpu_pair_attend(&t, &s, &n_q, 1, 0, 0));
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* Tables, decode steps and prompts mixed in one batch. */
static void test_mixed_batch(void)
{
    const struct gpu_pair_shape shape = {
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 2, .v_from = PREDICT_NONE};
    struct gpu_pair t = gpu_pair_new(&small), u = gpu_pair_other(&t, &shape);
    struct seq_pair s[] = {seq_pair_new(&t, 1), seq_pair_new(&u, 2), seq_pair_new(&t, 3), seq_pair_new(&u, 4),
                           seq_pair_new(&t, 5)};
    const size_t n_q[] = {1, 1, 19, 33, 2};

    for (size_t i = 0; i < 5; i++) {
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s[i], KVC_F32, 40 + 50 * i), 0);
        CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s[i], KVC_F16, 1), 0);
    }
    CU_ASSERT_TRUE(gpu_pair_attend(&t, s, n_q, 5, 0, 0));
    CU_ASSERT_TRUE(gpu_pair_attend(&t, s, n_q, 5, 1, 30));
    for (size_t i = 0; i < 5; i++)
        CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s[i]));
    gpu_pair_free(&t);
}

/* A commit without a daemon packs due chunks and gives back the room of a long append. */
static void test_commit_embedded(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 1);
    uint32_t tokens[330] = {0};
    size_t on_cpu = 77, on_gpu = 77;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 330), 0);
    CU_ASSERT_EQUAL(s.gpu->tail_rows, 384);
    CU_ASSERT_EQUAL(kvc_seq_commit(s.cpu, tokens, 330, &on_cpu), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s.gpu, tokens, 330, &on_gpu), 0);
    CU_ASSERT_EQUAL(on_cpu, 0);
    CU_ASSERT_EQUAL(on_gpu, 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 4); /* 64 * 5 <= 330 < 64 * 6 */
    CU_ASSERT_EQUAL(s.gpu->tail_rows, TAIL_ROWS_MIN);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    CU_ASSERT_EQUAL(seq_pair_append(&t, &s, KVC_F32, 90), 0);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* A page moves, as publishing and reclaiming move it, and its old memory is overwritten. */
static void test_pages_that_move(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 1), f;
    struct gpu *g = t.gpu->gpu;
    const size_t n_q[] = {2, 1};

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 250), 0);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 2);
    f = seq_pair_fork(&s, 2);
    for (size_t i = 0; i < 2; i++) {
        size_t bytes = s.gpu->table->layout.slot_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];
        struct page *p = s.gpu->pages[i];
        struct gpu_memory to = gpu_pair_take(&t, NULL, bytes), was = {.at = p->device, .bytes = bytes};
        uint8_t *dirt = malloc(bytes);

        assert(dirt);
        memset(dirt, 0x5a, bytes);
        CU_ASSERT_EQUAL(gpu_copy(g, to.at, was.at, bytes, NULL), 0);
        CU_ASSERT_EQUAL(gpu_write(g, was.at, dirt, bytes, NULL), 0);
        p->device = to.at;
        t.gpu->pages_moved++;
        CU_ASSERT_EQUAL(seq_gpu_refresh(s.gpu), 0);
        CU_ASSERT_TRUE(gpu_pair_attend(&t, (struct seq_pair[]){f, s}, n_q, 2, 1,
                                       0)); /* the fork's copy on the device is not refreshed */
        CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
        CU_ASSERT_TRUE(seq_pair_is_alike(&t, &f));
        CU_ASSERT_EQUAL(gpu_copy(g, was.at, to.at, bytes, NULL), 0);
        p->device = was.at;
        t.gpu->pages_moved++;
        gpu_pair_give(&t, &to);
        free(dirt);
    }
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &f, KVC_F32, 70), 0);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &f));
    gpu_pair_free(&t);
}

const char test_suite[] = "sequences on a GPU";
const struct test_case test_cases[] = {
    TEST(test_schedules),
    TEST(test_widest_head),
    TEST(test_decode_steps),
    TEST(test_truncate_inside_a_step),
    TEST(test_prompt_in_pieces),
    TEST(test_large_batch),
    TEST(test_long_text),
    TEST(test_mixed_batch),
    TEST(test_commit_embedded),
    TEST(test_pages_that_move),
    TEST_END,
};
