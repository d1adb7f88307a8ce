/*
 * Times of attention on packed pages and in binary16, which alternate: see bench_attend.h. Threads share the
 * heads. The result of every kernel is checked before it is timed.
 */
#include "lab/bench/bench_attend.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/cleanup.h"
#include "gpu/cpu.h"
#include "gpu/cpu/ops.h"
#include "tools/command/command.h"

/* Exactly one of @ops and @f16 is set. */
struct attend_run {
    const struct attend_case *c;
    const struct ops *ops;
    const struct attend_f16 *f16;
    size_t n_threads;
    pthread_barrier_t *start;
    float *out; /* [n_heads][n_tokens, group, d] */
    bool all_values;
    size_t n_skipped; /* in the last run: pages whose values were skipped, counted once for each row */
    void *scratch[ATTEND_THREADS_MAX];
};

struct worker {
    const struct attend_run *run;
    size_t index;
    double seconds;
    size_t n_skipped;
    pthread_t thread;
};

static double attend_time_thread_seconds(void)
{
    struct timespec ts;

    (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* cannot fail for this clock */
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static void *attend_time_work(void *arg)
{
    struct worker *w = arg;
    const struct attend_run *r = w->run;
    size_t row = attend_case_rows(r->c) * r->c->table->geometry.d;

    (void) pthread_barrier_wait(r->start);
    w->seconds = attend_time_thread_seconds();
    for (size_t head = w->index; head < r->c->n_heads; head += r->n_threads)
        if (r->ops)
            w->n_skipped += attend_case_packed(r->c, r->ops, head, r->all_values, r->scratch[w->index],
                                               r->out + head * row);
        else
            attend_case_f16(r->c, r->f16, head, r->out + head * row);
    w->seconds = attend_time_thread_seconds() - w->seconds;
    return NULL;
}

/* Processor time of the slowest thread; all threads start together. On an idle machine this is the elapsed
 * time, on a busy machine it excludes other processes. Started threads wait for all others, so the command
 * exits if a thread cannot be started. Return: 0; negative errno. */
static int attend_time_once(struct attend_run *r, double *ret_seconds)
{
    struct worker w[ATTEND_THREADS_MAX];
    pthread_barrier_t start;
    size_t n = 1;
    int err = pthread_barrier_init(&start, NULL, (unsigned) r->n_threads);

    if (err != 0)
        return -err;

    r->start = &start;
    for (size_t i = 0; i < r->n_threads; i++)
        w[i] = (struct worker){.run = r, .index = i};
    for (; n < r->n_threads; n++)
        if (pthread_create(&w[n].thread, NULL, attend_time_work, &w[n]) != 0)
            exit(command_fail("cannot start %zu threads", r->n_threads));
    (void) attend_time_work(&w[0]);
    for (size_t i = 1; i < n; i++)
        (void) pthread_join(w[i].thread, NULL);
    (void) pthread_barrier_destroy(&start);
    *ret_seconds = 0;
    r->n_skipped = 0;
    for (size_t i = 0; i < n; i++) {
        *ret_seconds = fmax(*ret_seconds, w[i].seconds);
        r->n_skipped += w[i].n_skipped;
    }
    return 0;
}

/* |a - b| / |b| */
static double attend_time_difference(const float *a, const float *b, size_t n)
{
    double wrong = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        wrong += pow((double) a[i] - (double) b[i], 2);
        size += pow((double) b[i], 2);
    }

    return sqrt(wrong / size);
}

/*
 * Both read the same vectors. Binary16 rounds each number by 2^-12 on average, packed kernels keep 6 to 8
 * bits of the factors of narrow half-tiles (gpu/README.md): up to 1 % of averages over thousands of tokens,
 * which are smaller than the averaged vectors, and in proportion more with larger queries. A wrong rotation,
 * mask or order changes them by their whole size.
 */
static int attend_time_check(struct attend_run *packed, struct attend_run *f16, struct attend_times *ret)
{
    size_t row = attend_case_rows(packed->c),
           numbers = packed->c->n_heads * row * packed->c->table->geometry.d;
    double once;

    if (attend_time_once(packed, &once) < 0 || attend_time_once(f16, &once) < 0)
        return command_fail("out of memory");

    ret->skipped = (double) packed->n_skipped / (double) (packed->c->n_heads * row * packed->c->n_pages);
    ret->error = attend_time_difference(packed->out, f16->out, numbers);
    if (!(ret->error < 0x1p-5 * fmax(packed->c->query_size, 1)))
        return command_fail("%s: %s and binary16 differ by %g; nothing was timed", packed->c->name,
                            packed->ops->name, ret->error);

    return COMMAND_OK;
}

static int attend_time_alternate(struct attend_run *packed, struct attend_run *f16, size_t repeat,
                                 double *seconds, struct attend_times *ret)
{
    struct attend_run all_values = *packed;

    all_values.all_values = true;
    for (size_t i = 0; i < repeat; i++)
        if (attend_time_once(packed, &seconds[i]) < 0 || attend_time_once(f16, &seconds[repeat + i]) < 0 ||
            (ret->skipped > 0 && attend_time_once(&all_values, &seconds[2 * repeat + i]) < 0))
            return command_fail("out of memory");
    ret->packed = timing_of(seconds, repeat);
    ret->f16 = timing_of(seconds + repeat, repeat);
    ret->all_values = ret->skipped > 0 ? timing_of(seconds + 2 * repeat, repeat) : ret->packed;
    return COMMAND_OK;
}

int attend_time_set(const struct attend_case *c, const struct attend_set *set, size_t threads, size_t repeat,
                    struct attend_times *ret)
{
    size_t row = attend_case_rows(c) * c->table->geometry.d;
    size_t scratch_bytes = attend_scratch_bytes(&c->layout, c->n_tokens);
    struct attend_run packed = {.c = c, .n_threads = threads}, f16 = packed;
    _cleanup_(freep) float *out = calloc(2 * c->n_heads * row, sizeof(*out));
    _cleanup_(freep) char *scratch = aligned_alloc(64, threads * scratch_bytes);
    _cleanup_(freep) double *seconds = calloc(3 * repeat, sizeof(*seconds));
    int r;

    *ret = (struct attend_times){.c = c, .set = set->name, .n_tokens = c->n_tokens};
    if (!out || !scratch || !seconds)
        return command_fail("out of memory");
    if ((set->mask & ~cpu_capabilities()) != 0 || attend_case_rows(c) > ATTEND_F16_ROWS_MAX)
        return COMMAND_OK;

    for (size_t i = 0; i < threads; i++)
        packed.scratch[i] = scratch + i * scratch_bytes;
    packed.ops = ops_select(set->mask);
    f16.f16 = attend_f16_select(set->mask);
    attend_case_folding(c, packed.ops, scratch, &ret->folding);
    packed.out = out;
    f16.out = out + c->n_heads * row;
    ret->measured = true;
    ret->packed_name = packed.ops->name;
    ret->f16_name = f16.f16->name;
    ret->n_keys = (double) (c->n_heads * c->n_pages * CHUNK_TOKENS);
    r = attend_time_check(&packed, &f16, ret);
    return r == COMMAND_OK ? attend_time_alternate(&packed, &f16, repeat, seconds, ret) : r;
}

int attend_time_f16_rate(const struct attend_case *c, size_t threads, size_t repeat, double *ret)
{
    _cleanup_(freep) double *seconds = calloc(repeat, sizeof(*seconds));
    _cleanup_(freep) float *out =
        calloc(c->n_heads * attend_case_rows(c) * c->table->geometry.d, sizeof(*out));
    struct attend_run f16 = {
        .c = c, .n_threads = threads, .f16 = attend_f16_select(cpu_capabilities()), .out = out};

    if (!f16.f16)
        return command_fail("--hogs: this processor has no instructions that the binary16 kernel needs");
    if (!seconds || !out)
        return command_fail("out of memory");

    for (size_t i = 0; i < repeat; i++)
        if (attend_time_once(&f16, &seconds[i]) < 0)
            return command_fail("out of memory");
    *ret = (double) attend_case_f16_bytes(c) / (double) threads / timing_of(seconds, repeat).median;
    return COMMAND_OK;
}
