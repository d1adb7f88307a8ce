/*
 * Fetches while the daemon is killed and started again: they end without pages, and no lease of them stays.
 * The cases run with a supervisor that stored the descriptors, and with one that lost them.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { PROMPT = 512, SHARED = 448, N = 6 }; /* of N fetches some are not sent yet */

static bool nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0 && s->sessions == 0;
}

static bool is_leased(const Kvcobra__StatusReply *s)
{
    return s->leases > 0;
}

static void publish(const struct scene *sc)
{
    struct embedded m = scene_client(sc);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    embedded_free(&m);
}

static kvc_fetch *start(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_fetch *f = NULL;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(s, tokens, PROMPT, 1, &f), 0);
    free(tokens);
    return f;
}

/* Tokens that the fetch found. */
static size_t finish(kvc_fetch *f)
{
    size_t n = 7;
    int r;

    do {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        CU_ASSERT_EQUAL_FATAL(poll(&p, 1, WAIT_LIMIT_S * 1000), 1);
        r = kvc_fetch_result(f, &n);
    } while (r == -EINPROGRESS);
    CU_ASSERT_EQUAL(r, 0);
    kvc_fetch_free(f);
    return n;
}

enum before {
    NOT_ANSWERED, /* the daemon has not read the requests */
    NOT_READ,     /* it granted leases, in replies that the client has not read */
    STORED,       /* the client has read replies during another call, not used them */
};

static void read_replies(kvc_client *c)
{
    Kvcobra__ListTablesReply *tables = NULL;

    CU_ASSERT_EQUAL(operator_list_tables(c, &tables, NULL), 0);
    operator_message_freep(&tables);
}

static void one_restart(bool keeps_store, enum before before)
{
    static const char *const args[] = {"--pool-bytes=4M", "--extent-bytes=1M", "--span-bytes=256K", NULL};
    struct scene sc;
    struct embedded m;
    kvc_fetch *f[N];

    supervisor_begin(args);
    scene_attach(&sc, &raw_daemon, random_table_geometry(2, 4, 2, 64), 3, 1);
    publish(&sc);
    m = scene_client(&sc);
    if (before == NOT_ANSWERED)
        (void) kill(raw_daemon.pid, SIGSTOP);
    for (unsigned i = 0; i < N; i++)
        f[i] = start(&m);
    if (before != NOT_ANSWERED)
        CU_ASSERT(scene_wait(&sc, is_leased));
    if (before == STORED)
        read_replies(m.client);
    supervisor_kill();
    if (!keeps_store)
        supervisor_lose("kvc-");
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(sc.control, sc.daemon.operator_socket);

    scene_reconnect(m.client, sc.daemon.socket); /* another call connects again before the fetches are read */
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(finish(f[i]), 0);
    CU_ASSERT_EQUAL(finish(start(&m)), keeps_store ? SHARED : 0);
    embedded_free(&m);
    CU_ASSERT(scene_wait(&sc, nothing_held));
    scene_detach(&sc);
    supervisor_finish();
}

static void test_kept(void)
{
    for (enum before before = NOT_ANSWERED; before <= STORED; before++)
        one_restart(true, before);
}

static void test_volatile(void)
{
    for (enum before before = NOT_ANSWERED; before <= STORED; before++)
        one_restart(false, before);
}

const struct test_case test_cases[] = {TEST(test_kept), TEST(test_volatile), TEST_END};
const char test_suite[] = "client_fetch_restart";
