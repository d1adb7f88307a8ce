/*
 * Matches without waiting: the results of kvc_seq_match(), other calls in between, lost daemons, cancelling.
 * A daemon that is stopped (SIGSTOP) has received a request and not answered it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { PROMPT = 512, SHARED = 448 };

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* Publishes the first SHARED tokens of text 0, @n_texts texts, and drops the sequences. */
static void publish(const struct scene *sc, uint32_t n_texts)
{
    struct embedded m = scene_client(sc);

    for (uint32_t text = 0; text < n_texts; text++) {
        kvc_seq *s = NULL;
        size_t n = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
        CU_ASSERT_EQUAL(scene_publish(&m, s, text, 0, PROMPT, 200, &n), 0);
        CU_ASSERT_EQUAL(n, SHARED);
        kvc_seq_free(s);
    }
    embedded_free(&m);
}

static kvc_fetch *start(kvc_seq *s, uint32_t text, size_t n_tokens, size_t n_leave)
{
    uint32_t *tokens = scene_tokens(text, n_tokens);
    kvc_fetch *f = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(s, tokens, n_tokens, n_leave, &f), 0);
    free(tokens); /* the library needs them no longer */
    return f;
}

/* Polls the descriptor until the fetch has ended. Return: the result of kvc_fetch_result(). */
static int finish(kvc_fetch *f, size_t *ret_n)
{
    for (;;) {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};
        int r;

        CU_ASSERT_EQUAL_FATAL(poll(&p, 1, WAIT_LIMIT_S * 1000), 1);
        r = kvc_fetch_result(f, ret_n);
        if (r != -EINPROGRESS)
            return r;
    }
}

static bool is_readable(const kvc_fetch *f)
{
    struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

static kvc_seq *new_seq(const struct embedded *m)
{
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    return s;
}

static bool nothing_leased(const Kvcobra__StatusReply *s)
{
    return s->leases == 0 && s->held_pages == 0;
}

/* ---- results ---- */

static void test_fetch_is_a_match(void)
{
    static const struct {
        size_t n_tokens, n_leave, want;
    } cases[] = {{PROMPT, 1, SHARED}, {SHARED, 0, SHARED}, {SHARED, 1, SHARED - 64},
                 {130, 2, 128},       {130, 3, 64},        {63, 0, 0},
                 {0, 0, 0},           {64, 1000, 0}};
    struct scene sc;
    struct embedded m;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        kvc_seq *s = new_seq(&m);
        kvc_fetch *f = start(s, 0, cases[i].n_tokens, cases[i].n_leave);

        CU_ASSERT_EQUAL(finish(f, &n), 0);
        CU_ASSERT_EQUAL(n, cases[i].want);
        n = 9;
        CU_ASSERT_EQUAL(kvc_fetch_result(f, &n), 0); /* the same again */
        CU_ASSERT_EQUAL(n, cases[i].want);
        CU_ASSERT(is_readable(f));
        CU_ASSERT_PTR_NULL(kvc_fetch_free(f));
        CU_ASSERT_EQUAL(kvc_seq_length(s), cases[i].want);
        kvc_seq_free(s);
    }
    CU_ASSERT(scene_wait(&sc, nothing_leased));
    embedded_free(&m);
    scene_end(&sc);
}

/* A second fetch of the sequence finds what was published since; the result attends like a private one. */
static void test_fetch_continues(void)
{
    struct scene sc;
    struct embedded m, alone;
    kvc_seq *s, *want;
    kvc_fetch *f;
    float *a, *b;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    alone = scene_private(&sc);
    s = new_seq(&m);
    want = new_seq(&alone);
    f = start(s, 0, 200, 1);
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    CU_ASSERT_EQUAL(n, 192);
    kvc_fetch_free(f);
    f = start(s, 0, PROMPT, 1);
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    kvc_fetch_free(f);

    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, SHARED, 64), 0);
    CU_ASSERT_EQUAL(scene_publish(&alone, want, 0, 0, PROMPT, 200, NULL), 0);
    a = scene_attend(&m, s, 0);
    b = scene_attend(&alone, want, 0);
    CU_ASSERT_EQUAL(memcmp(a, b, scene_attend_floats(&m) * sizeof(*a)), 0);
    free(a);
    free(b);
    embedded_free(&m);
    embedded_free(&alone);
    scene_end(&sc);
}

/* More chunks than one LEASE may have. */
static void test_fetch_of_several_messages(void)
{
    enum { CHUNKS = 1100 };
    struct scene sc;
    struct embedded m, other;
    kvc_seq *s, *t;
    kvc_fetch *f;
    size_t n = 0;

    scene_start(&sc, random_table_geometry(1, 1, 1, 32), 3, 1, NULL);
    m = scene_client(&sc);
    other = scene_client(&sc);
    s = new_seq(&m);
    t = new_seq(&other);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, (CHUNKS + 1) * 64, 6400, &n), 0);
    CU_ASSERT_EQUAL(n, CHUNKS * 64);
    f = start(t, 0, CHUNKS * 64, 0);
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    CU_ASSERT_EQUAL(n, CHUNKS * 64);
    kvc_fetch_free(f);
    CU_ASSERT_EQUAL(kvc_seq_length(t), CHUNKS * 64);
    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

static void test_refusals(void)
{
    struct scene sc;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s, *forked = NULL;
    kvc_fetch *f = NULL;
    float *x, *q;
    size_t n = 7;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    s = new_seq(&m);
    x = embedded_input(&m, 0, 0, KVC_K, 0, 1);
    q = embedded_queries(&m, 0, 0, 0, 1);
    CU_ASSERT_EQUAL(kvc_fetch_start(NULL, tokens, PROMPT, 1, &f), -EINVAL);
    CU_ASSERT_EQUAL(kvc_fetch_start(s, NULL, PROMPT, 1, &f), -EINVAL);
    CU_ASSERT_EQUAL(kvc_fetch_start(s, tokens, PROMPT, 1, NULL), -EINVAL);
    CU_ASSERT_PTR_NULL(f);
    CU_ASSERT_EQUAL(kvc_fetch_fd(NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_fetch_result(NULL, &n), -EINVAL);
    CU_ASSERT_PTR_NULL(kvc_fetch_free(NULL));

    f = start(s, 0, PROMPT, 1);
    CU_ASSERT_EQUAL(kvc_fetch_result(f, NULL), -EINVAL);
    for (unsigned i = 0; i < 2; i++) { /* before and after its end */
        const kvc_append_item item = {.struct_bytes = sizeof(item), .seq = s, .k = x, .v = x, .n_new = 1};
        const kvc_attend_item query = {.struct_bytes = sizeof(query), .seq = s, .q = q, .n_q = 1, .out = q};
        kvc_fetch *second = NULL;

        CU_ASSERT_EQUAL(kvc_fetch_start(s, tokens, PROMPT, 1, &second), -EBUSY);
        CU_ASSERT_PTR_NULL(second);
        CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, x, x, 1), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_append_batch(&item, 1, 0, KVC_F32), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 1, q), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_attend_batch(&query, 1, 0, NULL), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_read(s, 0, KVC_K, 0, 0, x), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, PROMPT, NULL), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s, 0, &n), -EBUSY);
        CU_ASSERT_EQUAL(kvc_seq_fork(s, &forked), -EBUSY);
        CU_ASSERT_EQUAL(finish(f, &n), 0);
    }
    kvc_fetch_free(f);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, SHARED, 1), 0);
    CU_ASSERT_EQUAL(kvc_fetch_start(s, tokens, PROMPT, 1, &f), -EINVAL); /* it has other tokens */
    free(x);
    free(q);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- other calls in between ---- */

/* Another call receives the reply: the descriptor becomes readable without an event on the socket. */
static void test_reply_arrives_during_another_call(void)
{
    struct scene sc;
    struct embedded m;
    Kvcobra__ListTablesReply *tables = NULL;
    kvc_seq *s;
    kvc_fetch *f;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    s = new_seq(&m);
    (void) kill(sc.daemon.pid, SIGSTOP);
    f = start(s, 0, PROMPT, 1);
    CU_ASSERT(!is_readable(f));
    CU_ASSERT_EQUAL(kvc_fetch_result(f, &n), -EINPROGRESS);
    CU_ASSERT(!is_readable(f));
    (void) kill(sc.daemon.pid, SIGCONT);
    CU_ASSERT_EQUAL(operator_list_tables(m.client, &tables, NULL), 0);
    CU_ASSERT(is_readable(f)); /* requests of a connection are answered in order */
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    operator_message_freep(&tables);
    kvc_fetch_free(f);
    embedded_free(&m);
    scene_end(&sc);
}

/* Far more fetches than the connection sends at a time, finished in another order, among other requests. */
static void test_many_fetches(void)
{
    enum { N = 40, TEXTS = 5 };
    struct scene sc;
    struct embedded m;
    kvc_seq *s[N];
    kvc_fetch *f[N];
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, TEXTS);
    m = scene_client(&sc);
    (void) kill(sc.daemon.pid, SIGSTOP);
    for (unsigned i = 0; i < N; i++) {
        s[i] = new_seq(&m);
        f[i] = start(s[i], i % (TEXTS + 1), PROMPT, 1); /* one text was not published */
    }
    (void) kill(sc.daemon.pid, SIGCONT);
    for (unsigned i = 0; i < N; i++) {
        unsigned k = (i * 7 + 3) % N;
        kvc_seq *other = new_seq(&m);
        uint32_t *tokens = scene_tokens(i % TEXTS, PROMPT);

        CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, PROMPT, &n), 0);
        CU_ASSERT_EQUAL(n, SHARED);
        CU_ASSERT_EQUAL(finish(f[k], &n), 0);
        CU_ASSERT_EQUAL(n, k % (TEXTS + 1) < TEXTS ? SHARED : 0);
        kvc_fetch_free(f[k]);
        kvc_seq_free(s[k]);
        kvc_seq_free(other);
        free(tokens);
    }
    CU_ASSERT(scene_wait(&sc, nothing_leased));
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- a lost daemon ---- */

static void test_daemon_is_killed(void)
{
    enum { N = 6 }; /* some of them are not sent yet */
    struct scene sc;
    struct embedded m;
    kvc_seq *s[N];
    kvc_fetch *f[N];
    size_t n;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    (void) kill(sc.daemon.pid, SIGSTOP);
    for (unsigned i = 0; i < N; i++) {
        s[i] = new_seq(&m);
        f[i] = start(s[i], 0, PROMPT, 1);
    }
    daemon_kill(&sc.daemon);
    for (unsigned i = 0; i < N; i++) {
        n = 9;
        CU_ASSERT_EQUAL(finish(f[i], &n), 0);
        CU_ASSERT_EQUAL(n, 0);
        kvc_fetch_free(f[i]);
        CU_ASSERT_EQUAL(embedded_append(&m, s[i], 0, 0, 100), 0); /* private */
    }
    f[0] = start(new_seq(&m), 0, PROMPT, 1); /* without a connection it ends at once */
    CU_ASSERT(is_readable(f[0]));
    CU_ASSERT_EQUAL(kvc_fetch_result(f[0], &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    embedded_free(&m);
    scene_detach(&sc);
    daemon_remove_folder(&sc.daemon);
}

/* ---- cancelling ---- */

/* Pages that were leased since the daemon started. */
static uint64_t n_leased(const Kvcobra__StatusReply *s)
{
    uint64_t n = 0;

    for (size_t i = 0; i < s->n_spaces; i++)
        n += s->spaces[i]->leased;
    return n;
}

/* Replies that come after the cancellation grant leases: the client gives them back. */
static void test_cancelled_fetches_leave_no_lease(void)
{
    enum { N = 8 };
    struct scene sc;
    struct embedded m;
    kvc_seq *s[N];
    kvc_fetch *f[N];
    struct wait w;
    Kvcobra__StatusReply *status;
    uint64_t before;
    bool good;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    status = scene_status(&sc);
    before = n_leased(status);
    status = scene_status_free(status);
    (void) kill(sc.daemon.pid, SIGSTOP);
    for (unsigned i = 0; i < N; i++) {
        s[i] = new_seq(&m);
        f[i] = start(s[i], 0, PROMPT, 1);
    }
    for (unsigned i = 0; i < N; i++) {
        CU_ASSERT_PTR_NULL(kvc_fetch_free(f[i]));
        CU_ASSERT_EQUAL(kvc_seq_length(s[i]), 0);
    }
    (void) kill(sc.daemon.pid, SIGCONT);
    w = wait_begin();
    do { /* the replies may need a moment */
        kvc_seq_free(new_seq(&m));
        status = scene_status(&sc);
        good = nothing_leased(status) && n_leased(status) >= before + SHARED / 64;
        status = scene_status_free(status);
    } while (!good && wait_again(&w));
    CU_ASSERT(good);
    f[0] = start(s[0], 0, PROMPT, 1); /* the sequence is as it was before */
    CU_ASSERT_EQUAL(finish(f[0], &(size_t){0}), 0);
    kvc_fetch_free(f[0]);
    CU_ASSERT_EQUAL(kvc_seq_length(s[0]), SHARED);
    embedded_free(&m);
    CU_ASSERT(scene_wait(&sc, nothing_leased));
    scene_end(&sc);
}

/* Cancelled after the reply was received, and with the sequence, and with the client. */
static void test_other_cancellations(void)
{
    struct scene sc;
    struct embedded m;
    Kvcobra__ListTablesReply *tables = NULL;
    kvc_seq *s;
    kvc_fetch *f;
    size_t n = 7;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    s = new_seq(&m);
    f = start(s, 0, PROMPT, 1);
    CU_ASSERT_EQUAL(operator_list_tables(m.client, &tables, NULL), 0);
    kvc_fetch_free(f); /* its reply was stored */
    CU_ASSERT(scene_wait(&sc, nothing_leased));

    f = start(s, 0, PROMPT, 1);
    kvc_seq_free(s);
    CU_ASSERT(is_readable(f));
    CU_ASSERT_EQUAL(kvc_fetch_result(f, &n), -ECANCELED);
    CU_ASSERT(strlen(kvc_last_error(m.client)) > 10);
    CU_ASSERT_EQUAL(n, 7);
    kvc_fetch_free(f);

    (void) start(new_seq(&m), 0, PROMPT, 1);
    f = start(new_seq(&m), 0, PROMPT, 1);
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    operator_message_freep(&tables);
    embedded_free(&m); /* frees both fetches */
    CU_ASSERT(scene_wait(&sc, nothing_leased));
    scene_end(&sc);
}

static void test_fork(void)
{
    struct scene sc;
    struct embedded m;
    kvc_fetch *f;
    kvc_seq *s;
    size_t n = 0;
    int status = -1;
    pid_t child;

    scene_start(&sc, small(), 3, 1, NULL);
    publish(&sc, 1);
    m = scene_client(&sc);
    s = new_seq(&m);
    f = start(s, 0, PROMPT, 1);
    child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        kvc_fetch *other = NULL;
        int r = kvc_fetch_result(f, &n), again = kvc_fetch_start(s, NULL, 0, 0, &other);

        (void) kvc_fetch_free(f);
        (void) kvc_client_free(m.client);
        _exit(r == -ECHILD && again == -ECHILD ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(finish(f, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    kvc_fetch_free(f);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_fetch_is_a_match),
    TEST(test_fetch_continues),
    TEST(test_fetch_of_several_messages),
    TEST(test_refusals),
    TEST(test_reply_arrives_during_another_call),
    TEST(test_many_fetches),
    TEST(test_daemon_is_killed),
    TEST(test_cancelled_fetches_leave_no_lease),
    TEST(test_other_cancellations),
    TEST(test_fork),
    TEST_END,
};
const char test_suite[] = "client_fetch";
