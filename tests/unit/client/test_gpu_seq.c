/*
 * Sequences on a GPU, on the stand-in driver: whatever is done to them, they hold the bytes that the CPU's hold, read alike to the
 * bit, and attend as precisely as their kernels promise (gpu_twins.h). With TEST_GPU=1 the driver is the real one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/seq.h"
#include "client/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/unit/client/gpu_twins.h"

static const struct twins_shape small = { .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3,
                                          .v_from = PREDICT_HEAD };

/* ---- schedules --------------------------------------------------------------------------------------------------- */

enum { TWINS_MAX = 3, LENGTH_MAX = 420, STEPS = 24 };

/* A group of texts in both clients, and what happens to them. */
struct schedule {
    struct twins t;
    struct twin seqs[TWINS_MAX];
    size_t n;
};

static void append_some(struct schedule *s, struct twin *seq)
{
    size_t most = LENGTH_MAX - kvc_seq_length(seq->cpu), n = 1 + test_rand_below(test_rand_below(2) ? 3 : 200);

    n = n < most ? n : most;
    if (n > 0)
        CU_ASSERT_EQUAL_FATAL(twin_append(&s->t, seq, (enum kvc_dtype) test_rand_below(3), n), 0);
}

static void attend_all(struct schedule *s)
{
    static const uint32_t windows[] = { 0, 0, 1, 70, 200 };
    size_t n_q[TWINS_MAX];

    for (size_t i = 0; i < s->n; i++) {
        n_q[i] = test_rand_below(test_rand_below(3) ? 3 : 30);
        if (n_q[i] > kvc_seq_length(s->seqs[i].cpu))
            n_q[i] = kvc_seq_length(s->seqs[i].cpu);
    }
    CU_ASSERT_TRUE(twins_attend(&s->t, s->seqs, n_q, s->n, (uint32_t) test_rand_below(s->t.g.n_layers),
                                windows[test_rand_below(5)]));
}

static void read_some(struct schedule *s, struct twin *seq)
{
    size_t length = kvc_seq_length(seq->cpu), first = test_rand_below(length + 1), n = test_rand_below(length - first + 1);

    CU_ASSERT_TRUE(twin_reads_alike(&s->t, seq, (uint32_t) test_rand_below(s->t.g.n_layers),
                                    (enum kvc_side) test_rand_below(2), first, n));
}

static void cut_some(struct twin *seq)
{
    size_t length = kvc_seq_length(seq->cpu), back = test_rand_below(test_rand_below(2) ? 20 : 200);
    size_t n = back < length ? length - back : 0, want = 0, got = 0;

    CU_ASSERT_EQUAL(kvc_seq_truncate(seq->cpu, n, &want), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(seq->gpu, n, &got), 0);
    CU_ASSERT_EQUAL(got, want);
    seq->text = test_rand(); /* and on with another ending */
}

static void fork_or_free(struct schedule *s, struct twin *seq)
{
    if (s->n < TWINS_MAX) {
        s->seqs[s->n++] = twin_fork(seq, test_rand());
    } else {
        twin_free(seq);
        *seq = s->seqs[--s->n];
    }
}

static void run_schedule(const struct twins_shape *shape)
{
    struct schedule s = { .t = twins_new(shape), .n = 1 };

    s.seqs[0] = twin_new(&s.t, test_rand());
    for (unsigned step = 0; step < STEPS; step++) {
        struct twin *seq = &s.seqs[test_rand_below(s.n)];

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
        CU_ASSERT_TRUE(twin_is_alike(&s.t, &s.seqs[i]));
    twins_free(&s.t);
}

static void test_schedules(void)
{
    static const struct twins_shape shapes[] = {
        { .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD },
        { .n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 2.5, .v_from = PREDICT_LAYER },
        { .n_layers = 1, .n_heads = 16, .n_kv_heads = 1, .d = 64, .n_rot = 32, .n_sink = 4, .bpd = 4, .v_from = PREDICT_NONE },
        { .n_layers = 1, .n_heads = 8, .n_kv_heads = 1, .d = 128, .n_rot = 64, .n_sink = 0, .bpd = 2, .v_from = PREDICT_HEAD },
        { .n_layers = 2, .n_heads = 9, .n_kv_heads = 3, .d = 96, .n_sink = 4, .bpd = 2, .v_from = PREDICT_LAYER,
          .first_head = 0, .n_heads_here = 3 },
        { .n_layers = 1, .n_heads = 6, .n_kv_heads = 3, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD,
          .first_head = 1, .n_heads_here = 2 },
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_schedule(&shapes[i]);
}

/* The widest keys that kernels take; short, since a chunk of them takes the CPU a while. */
static void test_widest_head(void)
{
    const struct twins_shape shape = { .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = 256, .n_sink = 4, .bpd = 1,
                                       .v_from = PREDICT_HEAD };
    struct twins t = twins_new(&shape);
    struct twin s = twin_new(&t, 1);
    const size_t n_q = 2;

    CU_ASSERT_EQUAL(twin_append(&t, &s, KVC_BF16, 140), 0);
    CU_ASSERT_EQUAL(twin_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 1);
    CU_ASSERT_TRUE(twins_attend(&t, &s, &n_q, 1, 0, 0));
    CU_ASSERT_TRUE(twin_is_alike(&t, &s));
    twins_free(&t);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Token by token across chunks: the tail is packed, moved to the front of its buffer and packed again. */
static void test_decode_steps(void)
{
    struct twins t = twins_new(&small);
    struct twin s = twin_new(&t, 7);
    const size_t n_q = 1;

    for (unsigned i = 0; i < 270; i++) {
        CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F16, 1), 0);
        if (i % 30 == 29)
            CU_ASSERT_TRUE(twins_attend(&t, &s, &n_q, 1, i % 2, 0));
    }
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 3);
    CU_ASSERT_EQUAL(s.gpu->tail_rows, TAIL_ROWS_MIN);
    CU_ASSERT_TRUE(twin_is_alike(&t, &s));
    twins_free(&t);
}

/* A step that failed half-way: layers packed differently are levelled by a fork; the CPU does the same. */
static void test_truncate_inside_a_step(void)
{
    struct twins t = twins_new(&small);
    struct twin s = twin_new(&t, 3), f;
    kvc_seq *none = NULL;
    size_t kept = 0;

    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 191), 0);
    CU_ASSERT_EQUAL(twin_append_layer(&t, &s, 0, KVC_F32, 3), 0); /* packs chunk 1 in layer 0 alone */
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, &none), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.cpu, 191, &kept), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 191, &kept), 0);
    CU_ASSERT_EQUAL(kept, 191);
    CU_ASSERT_EQUAL(s.gpu->layers[0].n_packed, 2);
    CU_ASSERT_EQUAL(s.gpu->layers[1].n_packed, 0);
    f = twin_fork(&s, 5);
    CU_ASSERT_EQUAL(s.gpu->layers[1].n_packed, 2);
    for (unsigned i = 0; i < 70; i++) {
        CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 1), 0);
        CU_ASSERT_EQUAL_FATAL(twin_append(&t, &f, KVC_F32, 1), 0);
    }
    CU_ASSERT_TRUE(twin_is_alike(&t, &s));
    CU_ASSERT_TRUE(twin_is_alike(&t, &f));
    twins_free(&t);
}

/* A prompt whose partial results are more than the workspace may hold is attended in pieces, with the same result. */
static void test_prompt_in_pieces(void)
{
    struct twins t = twins_new(&small);
    struct twin s[2] = { twin_new(&t, 3), twin_new(&t, 4) };
    const size_t n_q[] = { 100, 3 };

    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s[0], KVC_F32, 100), 0);
    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s[1], KVC_F32, 5), 0);
    t.gpu->gpu->workspace.most_bytes = (size_t) 1 << 20;
    CU_ASSERT_TRUE(twins_attend(&t, s, n_q, 2, 0, 0));
    CU_ASSERT_TRUE(t.gpu->gpu->workspace.memory.bytes <= (size_t) 1 << 20);
    t.gpu->gpu->workspace.most_bytes = 1; /* a tile at a time */
    CU_ASSERT_TRUE(twins_attend(&t, s, n_q, 1, 1, 20));
    twins_free(&t);
}

/* More sequences than one launch takes. */
static void test_large_batch(void)
{
    enum { N = 70 };
    const struct twins_shape shape = { .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = 32, .n_sink = 0, .bpd = 2,
                                       .v_from = PREDICT_NONE };
    struct twins t = twins_new(&shape);
    struct twin s[N];
    size_t n_q[N];

    for (size_t i = 0; i < N; i++) {
        s[i] = twin_new(&t, i);
        n_q[i] = i % 5 == 0 ? 0 : 1;
        CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s[i], KVC_F32, 1 + i), 0);
    }
    CU_ASSERT_TRUE(twins_attend(&t, s, n_q, N, 0, 0));
    twins_free(&t);
}

/* A page goes to another place, as publishing and pressure do to it, and its old one to somebody else. */
static void test_pages_that_move(void)
{
    struct twins t = twins_new(&small);
    struct twin s = twin_new(&t, 1), f;
    struct gpu *g = t.gpu->gpu;
    const size_t n_q[] = { 2, 1 };

    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 250), 0);
    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 2);
    f = twin_fork(&s, 2);
    for (size_t i = 0; i < 2; i++) {
        size_t bytes = s.gpu->table->layout.slot_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];
        struct page *p = s.gpu->pages[i];
        struct gpu_memory to = twins_take(&t, NULL, bytes), was = { .at = p->device, .bytes = bytes };
        uint8_t *dirt = malloc(bytes);

        assert(dirt);
        memset(dirt, 0x5a, bytes);
        CU_ASSERT_EQUAL(gpu_copy(g, to.at, was.at, bytes, NULL), 0);
        CU_ASSERT_EQUAL(gpu_write(g, was.at, dirt, bytes, NULL), 0);
        p->device = to.at;
        t.gpu->pages_moved++;
        CU_ASSERT_EQUAL(seq_gpu_pages_changed(s.gpu), 0);
        CU_ASSERT_TRUE(twins_attend(&t, (struct twin[]) { f, s }, n_q, 2, 1, 0)); /* the fork has not been told */
        CU_ASSERT_TRUE(twin_is_alike(&t, &s));
        CU_ASSERT_TRUE(twin_is_alike(&t, &f));
        CU_ASSERT_EQUAL(gpu_copy(g, was.at, to.at, bytes, NULL), 0);
        p->device = was.at;
        t.gpu->pages_moved++;
        twins_give(&t, &to);
        free(dirt);
    }
    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &f, KVC_F32, 70), 0);
    CU_ASSERT_TRUE(twin_is_alike(&t, &f));
    twins_free(&t);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static bool says(const struct twins *t, const char *part)
{
    bool found = strstr(kvc_last_error(t->gpu), part) != NULL;

    if (!found)
        printf("    \"%s\" does not say \"%s\"\n", kvc_last_error(t->gpu), part);
    return found;
}

/* The arguments that the CPU refuses, with its errnos. */
static void test_arguments(void)
{
    struct twins t = twins_new(&small);
    struct twin s = twin_new(&t, 1), other;
    struct twins u = twins_new(&small);
    struct gpu_memory x = twins_take(&t, NULL, 4096);
    float *p = (float *) (uintptr_t) x.at;
    size_t kept;

    other = twin_new(&u, 1);
    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 3), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 2, KVC_F32, p, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, (enum kvc_dtype) 9, p, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, NULL, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, KVC_APPEND_TOKENS_MAX + 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, p, 4, p), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "append before attending"));
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, NULL, 1, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 7, p, 1, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, NULL, 0, NULL), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch((kvc_attend_item[]) { { s.gpu, p, 1, p }, { other.gpu, p, 1, p } }, 2, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch((kvc_attend_item[]) { { s.gpu, p, 1, p }, { s.cpu, p, 1, p } }, 2, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_read(s.gpu, 0, KVC_K, 2, 2, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_read(s.gpu, 0, KVC_K, 0, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(NULL, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, KVC_APPEND_TOKENS_MAX + 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.cpu, 1), -EOPNOTSUPP);
    CU_ASSERT_TRUE(twin_is_alike(&t, &s));
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 0, &kept), 0);
    twins_give(&t, &x);
    twins_free(&u);
    twins_free(&t);
}

static void run_nothing(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n)
{
    (void) ctx;
    (void) task;
    (void) arg;
    (void) n;
}

/* What there is on the CPU alone is refused with a sentence, not ignored. */
static void test_cpu_only(void)
{
    struct twins t = twins_new(&small);
    const kvc_eval_options eval = { .struct_bytes = sizeof(eval) };
    const kvc_report_options report = { .struct_bytes = sizeof(report), .share_ppm = 10 };
    const kvc_executor executor = { .struct_bytes = sizeof(executor), .run = run_nothing, .n_workers = 2 };
    kvc_model_info info = { .struct_bytes = sizeof(info) };
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL(kvc_seq_new_eval(t.gpu_model, &eval, &s), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "CPU"));
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_EQUAL(kvc_model_report(t.gpu_model, &report), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "CPU"));
    CU_ASSERT_EQUAL(kvc_client_set_executor(t.gpu, &executor), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "GPU"));
    CU_ASSERT_EQUAL(kvc_model_get_info(t.gpu_model, &info), 0);
    CU_ASSERT_STRING_EQUAL(info.kernel, "cuda sm_90, d 64"); /* what the stand-in says it is */
    twins_free(&t);
}

/* Positions have 32 bits: the last token that fits, and one more. */
static void test_longest_sequence(void)
{
    struct twins t = twins_new(&small);
    struct twin s = twin_new(&t, 1);
    struct gpu_memory x = twins_take(&t, NULL, 4096);
    const void *p = (const void *) (uintptr_t) x.at;

    s.gpu->layers[0].length = SEQ_GPU_TOKENS_MAX;
    s.gpu->layers[0].n_packed = SEQ_GPU_TOKENS_MAX / CHUNK_TOKENS;
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, 1), -EFBIG);
    CU_ASSERT_TRUE(says(&t, "2147483648"));
    s.gpu->layers[0].length = s.gpu->layers[0].n_packed = 0;
    twins_give(&t, &x);
    twins_free(&t);
}

/* ---- what kernels find ------------------------------------------------------------------------------------------- */

/* Not a number, infinite, or beyond binary16: found by whoever waits, from then on said by every call, cured by a cut. */
static void test_not_finite(void)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, 1e6f };
    struct twins t = twins_new(&small);
    size_t n = (size_t) t.n_heads * t.g.d, kept = 0, length = 70;
    struct twin s = twin_new(&t, 1);

    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 70), 0);
    for (unsigned i = 0; i < 4; i++) {
        float *x = twins_input(&t, 1, 0, 0, 70, 1);
        struct gpu_memory good = twins_take(&t, x, n * sizeof(*x)), wrong;
        const void *k = (const void *) (uintptr_t) good.at, *v;

        CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
        x[n - 1] = bad[i];
        wrong = twins_take(&t, x, n * sizeof(*x));
        v = (const void *) (uintptr_t) wrong.at;
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 1, KVC_F32, k, v, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_length(s.gpu), length + 1);
        CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EINVAL);
        CU_ASSERT_TRUE(says(&t, "70"));
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, length + 1, &kept), 0); /* not deep enough */
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, length, &kept), 0);
        CU_ASSERT_EQUAL(kept, length);
        CU_ASSERT_TRUE(twin_is_alike(&t, &s));
        twins_give(&t, &good);
        twins_give(&t, &wrong);
        free(x);
    }
    CU_ASSERT_EQUAL_FATAL(twin_append(&t, &s, KVC_F32, 70), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    CU_ASSERT_TRUE(twin_is_alike(&t, &s));
    twins_free(&t);
}

/* A fork made before anybody looked has the same fault. */
static void test_fork_of_not_finite(void)
{
    struct twins t = twins_new(&small);
    size_t n = (size_t) t.n_heads * t.g.d;
    struct twin s = twin_new(&t, 1);
    float *x = twins_input(&t, 1, 0, 0, 0, 1);
    struct gpu_memory m;
    kvc_seq *f = NULL;

    x[3] = NAN;
    m = twins_take(&t, x, n * sizeof(*x));
    for (uint32_t layer = 0; layer < 2; layer++)
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, layer, KVC_F32, (void *) (uintptr_t) m.at, (void *) (uintptr_t) m.at, 1), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s.gpu, &f), 0);
    s.gpu = kvc_seq_free(s.gpu);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_fork(f, &s.gpu), -EINVAL);
    twins_give(&t, &m);
    free(x);
    twins_free(&t);
}

const char test_suite[] = "sequences on a GPU";
const struct test_case test_cases[] = {
    TEST(test_schedules), TEST(test_widest_head), TEST(test_decode_steps), TEST(test_truncate_inside_a_step),
    TEST(test_prompt_in_pieces), TEST(test_large_batch), TEST(test_pages_that_move), TEST(test_arguments), TEST(test_cpu_only), TEST(test_longest_sequence),
    TEST(test_not_finite), TEST(test_fork_of_not_finite), TEST_END,
};
