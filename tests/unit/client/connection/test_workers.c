/*
 * Threads of the library (kvc_client_set_threads()): the same results as without, replacing executors,
 * signals, fork(), and a thread that cannot be started.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { LENGTH = 700 };

/* ---- pthread_create(), linked with -Wl,--wrap ---- */

static unsigned n_until_failure; /* 0: never */

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
    if (n_until_failure > 0 && --n_until_failure == 0)
        return EAGAIN;

    return __real_pthread_create(t, a, run, arg);
}

/* ---- results ---- */

/* Attention of the newest token in layer 0 of a text of LENGTH tokens: [query heads, d], the caller frees. */
static float *attend(const struct embedded *m, kvc_seq *s)
{
    float *q = embedded_queries(m, 0, 0, LENGTH - 1, 1);
    float *out = malloc((size_t) m->g.n_heads * m->g.d * sizeof(*out));

    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(s, 0, q, 1, out), 0);
    free(q);
    return out;
}

static struct embedded model_with_text(kvc_seq **ret_seq)
{
    struct embedded m = embedded_new(1, 8, 4, 64, 3, 0, 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, ret_seq), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, *ret_seq, 0, 0, LENGTH), 0);
    return m;
}

static void test_attention_on_threads(void)
{
    kvc_seq *s = NULL;
    struct embedded m = model_with_text(&s);
    float *alone = attend(&m, s);
    size_t n = (size_t) m.g.n_heads * m.g.d;
    const unsigned counts[] = {2, 5, 5, 256, 1, 3};

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        float *out;
        double error = 0, sum = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m.client, counts[i]), 0);
        out = attend(&m, s);
        for (size_t k = 0; k < n; k++) {
            error += (out[k] - alone[k]) * (double) (out[k] - alone[k]);
            sum += alone[k] * (double) alone[k];
        }
        /* partial results are merged in another order, in binary32: 2^-20 of the size, squared */
        CU_ASSERT(error <= sum * 0x1p-40);
        free(out);
    }
    free(alone);
    embedded_free(&m);
}

/* ---- which threads run ---- */

struct executor {
    _Atomic unsigned n_runs;
};

static void executor_run(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n)
{
    struct executor *x = ctx;

    atomic_fetch_add(&x->n_runs, 1);
    for (size_t i = 0; i < n; i++)
        task(arg, i, 0);
}

static void test_threads_and_executor_replace_each_other(void)
{
    kvc_seq *s = NULL;
    struct embedded m = model_with_text(&s);
    struct executor x = {0};
    const kvc_executor executor = {sizeof(executor), &x, executor_run, 4};

    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, &executor), 0);
    free(attend(&m, s));
    CU_ASSERT(x.n_runs > 0);

    CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 4), 0);
    x.n_runs = 0;
    free(attend(&m, s));
    CU_ASSERT_EQUAL(x.n_runs, 0);

    CU_ASSERT_EQUAL(kvc_client_set_executor(m.client, &executor), 0);
    free(attend(&m, s));
    CU_ASSERT(x.n_runs > 0);

    x.n_runs = 0;
    CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 1), 0); /* the calling thread alone */
    free(attend(&m, s));
    CU_ASSERT_EQUAL(x.n_runs, 0);
    embedded_free(&m);
}

/* ---- signals ---- */

static pthread_t main_thread;
static _Atomic unsigned n_signals, n_elsewhere;

static void on_signal(int number)
{
    (void) number;
    atomic_fetch_add(&n_signals, 1);
    if (!pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&n_elsewhere, 1);
}

/* The kernel delivers a signal of the process to any thread that does not block it: here to none. */
static void test_threads_block_signals(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    struct sigaction action = {.sa_handler = on_signal}, old;
    sigset_t one, before;

    main_thread = pthread_self();
    CU_ASSERT_EQUAL_FATAL(sigaction(SIGUSR1, &action, &old), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m.client, 4), 0);
    (void) sigemptyset(&one);
    (void) sigaddset(&one, SIGUSR1);
    (void) pthread_sigmask(SIG_BLOCK, &one, &before);
    CU_ASSERT_EQUAL(kill(getpid(), SIGUSR1), 0);
    m.client = kvc_client_free(m.client); /* joins the threads: one that got the signal has run the handler */
    CU_ASSERT_EQUAL(n_signals, 0);
    (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
    CU_ASSERT_EQUAL(n_signals, 1);
    CU_ASSERT_EQUAL(n_elsewhere, 0);
    (void) sigaction(SIGUSR1, &old, NULL);
    embedded_free(&m);
}

/* ---- fork ---- */

static void test_child_has_no_threads(void)
{
    kvc_seq *s = NULL;
    struct embedded m = model_with_text(&s);
    float *before, *after;
    pid_t child;
    int status = -1;

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m.client, 3), 0);
    before = attend(&m, s);
    child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        float out[8 * 64];
        int r = kvc_seq_attend(s, 0, before, 1, out);
        int set = kvc_client_set_threads(m.client, 2);

        (void) kvc_client_free(m.client); /* must not wait for threads that do not exist here */
        _exit(r == -ECHILD && set == -ECHILD ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    after = attend(&m, s); /* the parent's threads still run */
    CU_ASSERT_EQUAL(memcmp(before, after, (size_t) m.g.n_heads * m.g.d * sizeof(*before)), 0);
    free(before);
    free(after);
    embedded_free(&m);
}

/* ---- refusals ---- */

static void test_refusals(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);

    CU_ASSERT_EQUAL(kvc_client_set_threads(NULL, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 0), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 257), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "257"));
    embedded_free(&m);
}

/* The limit of the system is reached at each of the threads: none stays, and the executor still runs. */
static void test_no_thread_starts(void)
{
    kvc_seq *s = NULL;
    struct embedded m = model_with_text(&s);
    struct executor x = {0};
    const kvc_executor executor = {sizeof(executor), &x, executor_run, 4};

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_executor(m.client, &executor), 0);
    for (unsigned nth = 1; nth <= 3; nth++) {
        n_until_failure = nth;
        CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 4), -EAGAIN);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "cannot start worker thread"));
        x.n_runs = 0;
        free(attend(&m, s));
        CU_ASSERT(x.n_runs > 0);
    }
    CU_ASSERT_EQUAL(kvc_client_set_threads(m.client, 4), 0);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_no_thread_starts),
    TEST(test_attention_on_threads),
    TEST(test_threads_and_executor_replace_each_other),
    TEST(test_threads_block_signals),
    TEST(test_child_has_no_threads),
    TEST(test_refusals),
    TEST_END,
};
const char test_suite[] = "workers";
