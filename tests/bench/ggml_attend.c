/*
 * The CPU flash attention of ggml for one new token over a long context, with a cache of one type.
 * ggml_attend.sh compares it with `kvcobra-lab bench attend`, and builds it with the headers of ggml; it is
 * no part of the project's build.
 *
 *     ggml_attend TYPE D KV_HEADS GROUP KEYS THREADS REPEAT
 *
 * Prints nanoseconds of wall time per key and KV head: minimum, median, 99th percentile. The output of a
 * small case is compared with a plain loop first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-cpu.h"
#include "ggml.h"

struct shape {
    enum ggml_type type;
    int64_t d, n_kv_heads, group, n_keys;
};

struct attention {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *q, *k, *v, *mask, *out;
};

static void die(const char *what)
{
    fprintf(stderr, "ggml_attend: %s\n", what);
    exit(1);
}

static float uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float) (*state >> 40) * 0x1p-23f - 1;
}

/*
 * Fills rows of @t with numbers of its type, and @ret, if it is not NULL, with the same numbers in binary32.
 */
static void fill(struct ggml_tensor *t, uint64_t seed, float *ret)
{
    int64_t row = t->ne[0], n_rows = ggml_nrows(t);
    float *x = malloc((size_t) row * sizeof(*x));

    if (!x)
        die("out of memory");
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < row; i++)
            x[i] = uniform(&seed);
        if (ret)
            memcpy(ret + r * row, x, (size_t) row * sizeof(*x));
        if (t->type == GGML_TYPE_F32)
            memcpy((float *) t->data + r * row, x, (size_t) row * sizeof(*x));
        else
            ggml_quantize_chunk(t->type, x, (char *) t->data + (size_t) r * ggml_row_size(t->type, row), 0, 1,
                                row, NULL);
    }
    free(x);
}

static struct attention attention_new(const struct shape *s, float *q, float *k, float *v)
{
    size_t cache = 2 * ggml_row_size(s->type, s->d) * (size_t) (s->n_keys * s->n_kv_heads);
    struct ggml_init_params params = {.mem_size = cache + ((size_t) 64 << 20)};
    struct attention a = {.ctx = ggml_init(params)};

    if (!a.ctx)
        die("out of memory");
    a.q = ggml_new_tensor_4d(a.ctx, GGML_TYPE_F32, s->d, 1, s->n_kv_heads * s->group, 1);
    a.k = ggml_new_tensor_4d(a.ctx, s->type, s->d, s->n_keys, s->n_kv_heads, 1);
    a.v = ggml_new_tensor_4d(a.ctx, s->type, s->d, s->n_keys, s->n_kv_heads, 1);
    a.mask = ggml_new_tensor_4d(a.ctx, GGML_TYPE_F16, s->n_keys, 64, 1, 1);
    memset(a.mask->data, 0, ggml_nbytes(a.mask));
    fill(a.q, 1, q);
    fill(a.k, 2, k);
    fill(a.v, 3, v);
    a.out = ggml_flash_attn_ext(a.ctx, a.q, a.k, a.v, a.mask, 1 / sqrtf((float) s->d), 0, 0);
    a.graph = ggml_new_graph(a.ctx);
    ggml_build_forward_expand(a.graph, a.out);
    return a;
}

/*
 * Of 256 keys against binary64; binary16 rounds by 2^-12, q8_0 by 2^-8 and q4_0 by 2^-4 of a block's largest.
 */
static void check(struct shape s, int n_threads)
{
    int64_t n_q = s.n_kv_heads * s.group * s.d, n_kv;
    struct attention a;
    double wrong = 0, size = 0;
    float *q, *k, *v;

    s.n_keys = 256;
    n_kv = s.n_kv_heads * s.n_keys * s.d;
    q = malloc((size_t) n_q * sizeof(*q));
    k = malloc((size_t) n_kv * sizeof(*k));
    v = malloc((size_t) n_kv * sizeof(*v));
    if (!q || !k || !v)
        die("out of memory");
    a = attention_new(&s, q, k, v);
    if (ggml_graph_compute_with_ctx(a.ctx, a.graph, n_threads) != GGML_STATUS_SUCCESS)
        die("ggml refuses the graph");
    for (int64_t h = 0; h < s.n_kv_heads * s.group; h++) {
        const float *keys = k + h / s.group * s.n_keys * s.d, *values = v + h / s.group * s.n_keys * s.d;
        double weights[256], sum = 0;

        for (int64_t n = 0; n < s.n_keys; n++) {
            double score = 0;

            for (int64_t i = 0; i < s.d; i++)
                score += (double) q[h * s.d + i] * (double) keys[n * s.d + i];
            weights[n] = exp(score / sqrt((double) s.d));
            sum += weights[n];
        }
        for (int64_t i = 0; i < s.d; i++) {
            double want = 0, got = (double) ((const float *) a.out->data)[h * s.d + i];

            for (int64_t n = 0; n < s.n_keys; n++)
                want += weights[n] / sum * (double) values[n * s.d + i];
            wrong += (got - want) * (got - want);
            size += want * want;
        }
    }
    if (!(sqrt(wrong / size) < 0.25))
        die("the attention differs from a plain loop, so nothing was timed");
    ggml_free(a.ctx);
    free(q);
    free(k);
    free(v);
}

static double seconds(void)
{
    struct timespec ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

static long number(const char *arg)
{
    char *end;
    long n = strtol(arg, &end, 10);

    if (*end || n < 1 || n > 1 << 24)
        die("an argument is not a number above 0");
    return n;
}

int main(int argc, char **argv)
{
    struct shape s;
    struct attention a;
    struct ggml_cplan plan;
    struct ggml_threadpool_params params;
    int n_threads, repeat;
    double *t;

    if (argc != 8)
        die("arguments: TYPE D KV_HEADS GROUP KEYS THREADS REPEAT");
    s = (struct shape){GGML_TYPE_COUNT, number(argv[2]), number(argv[3]), number(argv[4]), number(argv[5])};
    n_threads = (int) number(argv[6]);
    repeat = (int) number(argv[7]);
    for (int type = 0; type < GGML_TYPE_COUNT; type++)
        if (ggml_type_name((enum ggml_type) type) &&
            strcmp(ggml_type_name((enum ggml_type) type), argv[1]) == 0)
            s.type = (enum ggml_type) type;
    if (s.type == GGML_TYPE_COUNT)
        die("no such type");
    ggml_cpu_init();
    check(s, n_threads);
    a = attention_new(&s, NULL, NULL, NULL);
    params = ggml_threadpool_params_default(n_threads);
    plan = ggml_graph_plan(a.graph, n_threads, ggml_threadpool_new(&params));
    plan.work_data = malloc(plan.work_size + 64);
    t = calloc((size_t) repeat, sizeof(*t));
    if (!plan.work_data || !t)
        die("out of memory");
    for (int i = -1; i < repeat; i++) { /* the first run is not counted */
        double start = seconds();

        if (ggml_graph_compute(a.graph, &plan) != GGML_STATUS_SUCCESS)
            die("ggml refuses the graph");
        if (i >= 0)
            t[i] = (seconds() - start) * 1e9 / (double) (s.n_keys * s.n_kv_heads);
    }
    qsort(t, (size_t) repeat, sizeof(*t), compare);
    printf("%.4f %.4f %.4f\n", t[0], t[repeat / 2], t[(repeat * 99 + 99) / 100 - 1]);
    return 0;
}
