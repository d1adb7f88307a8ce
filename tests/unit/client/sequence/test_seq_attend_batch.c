/* Attention on threads of the caller, in batches and windows: compared with binary64, with
 * one thread, with single calls. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-eval.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

#define THREADS_MAX 8

/* An executor that starts its threads anew each time and checks that no worker is used twice at once. */
struct pool {
    unsigned n;
    atomic_uint n_runs;
    void (*task)(void *arg, size_t i, unsigned worker);
    void *arg;
    size_t n_items;
    atomic_size_t next;
    atomic_int busy[THREADS_MAX];
};

struct pool_thread {
    struct pool *pool;
    unsigned worker;
    pthread_t id;
};

static void *pool_main(void *arg)
{
    struct pool_thread *t = arg;
    struct pool *p = t->pool;

    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n_items;) {
        assert(atomic_fetch_add(&p->busy[t->worker], 1) == 0);
        p->task(p->arg, i, t->worker);
        assert(atomic_fetch_sub(&p->busy[t->worker], 1) == 1);
    }
    return NULL;
}

static void pool_run(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n_items)
{
    struct pool *p = ctx;
    struct pool_thread threads[THREADS_MAX];

    p->task = task;
    p->arg = arg;
    p->n_items = n_items;
    atomic_store(&p->next, 0);
    atomic_fetch_add(&p->n_runs, 1);
    for (unsigned i = 0; i < p->n; i++) {
        threads[i] = (struct pool_thread){.pool = p, .worker = i};
        assert(pthread_create(&threads[i].id, NULL, pool_main, &threads[i]) == 0);
    }
    for (unsigned i = 0; i < p->n; i++)
        assert(pthread_join(threads[i].id, NULL) == 0);
}

static void lend(const struct embedded *m, struct pool *p, unsigned n)
{
    const kvc_executor x = {.struct_bytes = sizeof(x), .ctx = p, .run = pool_run, .n_workers = n};

    p->n = n;
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_executor(m->client, &x), 0);
}

static size_t query_width(const struct embedded *m)
{
    return (size_t) m->n_heads * geometry_group(&m->g) * m->g.d;
}

/* Queries of the newest @n_q tokens; each sees the @window positions up to its own, all if 0. Positions count
 * only as differences, so a window is a text that begins where the window does. */
static void check(const struct embedded *m, kvc_seq *s, uint32_t text, size_t n_q, uint32_t window,
                  bool exact_rope)
{
    const kvc_attend_options o = {.struct_bytes = sizeof(o), .window = window, .exact_rope = exact_rope};
    size_t length = kvc_seq_length(s), width = query_width(m), row = (size_t) m->n_heads * m->g.d;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *k = embedded_read(m, s, layer, KVC_K, length), *v = embedded_read(m, s, layer, KVC_V, length);
        float *q = embedded_queries(m, text, layer, length - n_q, n_q),
              *out = malloc(n_q * width * sizeof(*out));
        const kvc_attend_item item = {.struct_bytes = sizeof(item), .seq = s, .q = q, .n_q = n_q, .out = out};
        double worst = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend_batch(&item, 1, layer, &o), 0);
        for (size_t i = 0; i < n_q; i += n_q < 8 ? 1 : 61) {
            size_t at = length - n_q + i, low = window == 0 || at + 1 < window ? 0 : at + 1 - window;
            double *want = embedded_attention(m, k + low * row, v + low * row, q + i * width, at - low, 1);
            double e = nmse(out + i * width, want, width);

            worst = e > worst ? e : worst;
            free(want);
        }
        CU_ASSERT(worst <= embedded_nmse_max(m));
        if (!(worst <= embedded_nmse_max(m)))
            printf("    layer %u, length %zu, %zu queries, window %u: nmse %g\n", layer, length, n_q, window,
                   worst);
        free(k);
        free(v);
        free(q);
        free(out);
    }
}

/* One KV head: threads can only divide pages, and for many queries blocks of queries. */
static void test_threads(void)
{
    struct embedded m = embedded_new(1, 2, 1, 64, 3, 0, 0);
    struct pool p = {0};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 3000), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 3000, 1), 0); /* packs due chunks */
    for (unsigned n = 1; n <= THREADS_MAX; n += n == 1 ? 1 : 3) {
        lend(&m, &p, n);
        atomic_store(&p.n_runs, 0);
        check(&m, s, 0, 1, 0, false);
        /* two reads; shares, then their merging */
        CU_ASSERT_EQUAL(atomic_load(&p.n_runs), n == 1 ? 2 : 2 + 2);
        check(&m, s, 0, 200, 0, false);
        /* two reads; blocks of queries need no merging */
        CU_ASSERT_EQUAL(atomic_load(&p.n_runs), n == 1 ? 4 : 4 + 3);
    }
    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, NULL), 0);
    atomic_store(&p.n_runs, 0);
    check(&m, s, 0, 1, 0, false);
    CU_ASSERT_EQUAL(atomic_load(&p.n_runs), 0);
    embedded_free(&m);
}

static void test_windows(void)
{
    static const uint32_t windows[] = {1, 63, 64, 200, 5000};
    struct embedded m = embedded_new(1, 6, 2, 64, 3, 0, 0);
    struct pool p = {0};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 2500), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 2500, 1), 0);
    for (unsigned n = 1; n <= 4; n += 3) {
        lend(&m, &p, n);
        for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
            check(&m, s, 0, 1, windows[i], false);
            check(&m, s, 0, 150, windows[i], true);
        }
    }
    embedded_free(&m);
}

/* Evaluation sequences take windows and threads too. */
static void test_evaluation(void)
{
    const kvc_eval_options eval = {.struct_bytes = sizeof(eval), .n_sink = 4, .n_recent = 1 << 20};
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    struct pool p = {0};
    kvc_seq *s = NULL;

    lend(&m, &p, 3);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &eval, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 300), 0);
    for (uint32_t layer = 0; layer < 2; layer++) {
        size_t width = query_width(&m), row = (size_t) m.n_heads * m.g.d;
        float *k = embedded_input(&m, 0, layer, KVC_K, 0, 300),
              *v = embedded_input(&m, 0, layer, KVC_V, 0, 300);
        float *q = embedded_queries(&m, 0, layer, 100, 200), *out = malloc(200 * width * sizeof(*out));
        const kvc_attend_options o = {.struct_bytes = sizeof(o), .window = 90};
        const kvc_attend_item item = {.struct_bytes = sizeof(item), .seq = s, .q = q, .n_q = 200, .out = out};

        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend_batch(&item, 1, layer, &o), 0);
        for (size_t i = 0; i < 200; i += 37) {
            size_t at = 100 + i, low = at + 1 - 90;
            double *want = embedded_attention(&m, k + low * row, v + low * row, q + i * width, at - low, 1);

            CU_ASSERT(nmse(out + i * width, want, width) <= embedded_nmse_max(&m));
            free(want);
        }
        free(k);
        free(v);
        free(q);
        free(out);
    }
    embedded_free(&m);
}

/* Sequences of all lengths, one of them without queries: the same results as one by one, to the bit. */
static void test_batch(void)
{
    static const size_t lengths[] = {5, 1400, 64, 200, 129}, n_queries[] = {1, 1, 0, 20, 3};
    enum { N = sizeof(lengths) / sizeof(lengths[0]) };
    struct embedded m = embedded_new(2, 6, 2, 64, 3, 0, 0);
    kvc_attend_item items[N];
    float *alone[N];
    struct pool p = {0};

    lend(&m, &p, 4);
    for (uint32_t i = 0; i < N; i++) {
        size_t bytes = (n_queries[i] + 1) * query_width(&m) * sizeof(float);

        items[i] =
            (kvc_attend_item){.struct_bytes = sizeof(items[i]), .n_q = n_queries[i], .out = malloc(bytes)};
        alone[i] = malloc(bytes);
        memset(items[i].out, 0x5a, bytes);
        memset(alone[i], 0x5a, bytes);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &items[i].seq), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[i].seq, i, 0, lengths[i]), 0);
        items[i].q = embedded_queries(&m, i, 1, lengths[i] - n_queries[i], n_queries[i]);
        CU_ASSERT_EQUAL(kvc_seq_attend(items[i].seq, 1, items[i].q, n_queries[i], alone[i]), 0);
    }
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, N, 1, NULL), 0);
    for (uint32_t i = 0; i < N; i++) {
        CU_ASSERT_EQUAL(memcmp(items[i].out, alone[i], (n_queries[i] + 1) * query_width(&m) * sizeof(float)),
                        0);
        free(items[i].out);
        free((void *) items[i].q);
        free(alone[i]);
    }
    embedded_free(&m);
}

static void test_what_is_refused(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0), other = embedded_new(1, 2, 1, 32, 3, 0, 0);
    kvc_executor x = {.struct_bytes = sizeof(x), .run = pool_run, .n_workers = 0};
    kvc_attend_options o = {.struct_bytes = 3};
    float q[2 * 2 * 32] = {0}, out[2 * 2 * 32];
    kvc_attend_item items[2] = {
        {.struct_bytes = sizeof(items[0]), .q = q, .n_q = 1, .out = out},
        {.struct_bytes = sizeof(items[0]), .q = q, .n_q = 1, .out = out + 64},
    };

    memset(out, 0x5a, sizeof(out));
    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, &x), -EINVAL);
    x.n_workers = 257;
    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, &x), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "257"));
    x = (kvc_executor){.struct_bytes = sizeof(x), .n_workers = 2};
    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, &x), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_set_executor(NULL, NULL), -EINVAL);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &items[0].seq), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &items[1].seq), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[0].seq, 0, 0, 1), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&other, items[1].seq, 0, 0, 1), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, NULL), -EINVAL); /* of two clients */
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(NULL, 1, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(NULL, 0, 0, NULL), 0);
    items[1].seq = items[0].seq;
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 1, NULL), -EINVAL); /* no such layer */
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, &o), -EINVAL);
    o = (kvc_attend_options){.struct_bytes = sizeof(o), .exact_rope = 2};
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, &o), -EINVAL);
    items[1].n_q = 2; /* more queries than tokens: no item is computed */
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, NULL), -EINVAL);
    items[1] = (kvc_attend_item){.struct_bytes = sizeof(items[1]), .seq = items[0].seq, .n_q = 1, .q = q};
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, NULL), -EINVAL);
    for (size_t i = 0; i < sizeof(out); i++)
        CU_ASSERT_EQUAL_FATAL(((unsigned char *) out)[i], 0x5a);
    embedded_free(&m);
    embedded_free(&other);
}

/* A query that is not finite, in the last head of the last query of the last item: no item is computed. */
static void test_unfinite_queries(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    float q[2 * 64] = {0}, out[2 * 64];
    uint16_t half[65] = {0};
    kvc_attend_item items[2] = {{.struct_bytes = sizeof(items[0]), .q = q, .n_q = 1, .out = out},
                                {.struct_bytes = sizeof(items[0]), .q = q, .n_q = 2, .out = out}};

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &items[0].seq), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[0].seq, 0, 0, 70), 0);
    items[1].seq = items[0].seq;
    memset(out, 0x5a, sizeof(out));
    for (unsigned i = 0; i < 3; i++) {
        q[2 * 64 - 1] = bad[i];
        CU_ASSERT_EQUAL(kvc_seq_attend(items[0].seq, 0, q, 2, out), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "layer 0, query 1 of 2 is not finite"));
        CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 0, NULL), -EINVAL);
    }
    half[63] = 0x7e00;
    items[1] = (kvc_attend_item){.struct_bytes = sizeof(items[1]),
                                 .seq = items[0].seq,
                                 .q = half,
                                 .n_q = 1,
                                 .out = out,
                                 .dtype = KVC_F16};
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items + 1, 1, 0, NULL), -EINVAL);
    for (size_t i = 0; i < sizeof(out); i++)
        CU_ASSERT_EQUAL_FATAL(((unsigned char *) out)[i], 0x5a);

    q[2 * 64 - 1] = 1;
    CU_ASSERT_EQUAL(kvc_seq_attend(items[0].seq, 0, q, 2, out), 0);
    items[1].q_head_stride = 33; /* what lies between the heads is not read */
    half[63] = 0;
    half[32] = 0x7e00;
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items + 1, 1, 0, NULL), 0);
    embedded_free(&m);
}

const char test_suite[] = "batch";
const struct test_case test_cases[] = {
    TEST(test_threads), TEST(test_windows),         TEST(test_evaluation),
    TEST(test_batch),   TEST(test_what_is_refused), TEST(test_unfinite_queries),
    TEST_END,
};
