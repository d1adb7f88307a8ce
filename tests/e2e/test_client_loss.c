/*
 * A process dies: a client, whose holds must end, or the daemon, without which sequences continue privately.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/connection/client.h"
#include "client/connection/clock.h"
#include "gpu/device.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const pool[] = {"--pool-bytes=64M", "--arena-bytes=8M", NULL};

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* Holds pages in every way, then waits to be killed. */
static bool victim(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc);
    kvc_seq *s = NULL, *t = NULL, *found = NULL;
    uint32_t *tokens = scene_tokens(0, 500);
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 0, 0, 500, 500, &n), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &t), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &found), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, 500, &n), 0);
    CU_ASSERT_EQUAL(n, 384);
    /* and pages of the arena that are not published */
    CU_ASSERT_EQUAL(embedded_append(&m, t, 1, 500, 300), 0);
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    return false;
}

static bool only_the_survivor(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 6 && s->leases == 1 && s->sessions == 1;
}

static bool no_session_holds(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0 && s->sessions == 0 && s->tenants[0]->arena_bytes == 0 &&
           s->tenants[0]->held_bytes == 0;
}

static void test_killed_client(void)
{
    struct scene sc;
    struct child c;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 500);
    Kvcobra__StatusReply *status;
    float *before, *after;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, pool);
    c = child_start(victim, &sc);
    CU_ASSERT_FATAL(pipe_wait(c.from));
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, 500, &n), 0);
    CU_ASSERT_EQUAL(n, 384);
    before = scene_attend(&m, s, 0);
    status = scene_status(&sc);
    CU_ASSERT(status->held_pages >= 6 && status->sessions == 2);
    status = scene_status_free(status);
    child_kill(&c);
    CU_ASSERT(scene_wait(&sc, only_the_survivor));
    after = scene_attend(&m, s, 0); /* its committed pages are there, bit for bit */
    CU_ASSERT_EQUAL(memcmp(before, after, scene_attend_floats(&m) * sizeof(*before)), 0);
    embedded_free(&m);
    CU_ASSERT(scene_wait(&sc, no_session_holds));
    free(before);
    free(after);
    free(tokens);
    scene_end(&sc);
}

/*
 * Appends 1200 tokens in pieces. The first 300 are published; the others cannot be, without a daemon or
 * in a private sequence.
 */
static void write_text(const struct embedded *m, kvc_seq *s, const uint32_t *tokens, struct daemon *killed)
{
    size_t n = 0;

    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 0, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(n, killed ? 192 : n);
    CU_ASSERT_EQUAL(embedded_append(m, s, 0, 300, 100), 0); /* claimed in the arena, not published */
    if (killed)
        daemon_kill(killed);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 400, &n), 0);
    CU_ASSERT_EQUAL(n, killed ? 0 : n);
    for (size_t at = 400; at < 700; at += 100)
        CU_ASSERT_EQUAL(embedded_append(m, s, 0, at, 100), 0);
    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 700, 500, 100, &n), 0);
    CU_ASSERT_EQUAL(n, killed ? 0 : n);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 1200);
}

static void check_like_private(const struct scene *sc, const struct embedded *m, kvc_seq *s,
                               const uint32_t *tokens)
{
    struct embedded alone = scene_private(sc);
    kvc_seq *want = NULL;
    float *a, *b;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    write_text(&alone, want, tokens, NULL);
    a = scene_attend(m, s, 0);
    b = scene_attend(&alone, want, 0);
    CU_ASSERT_EQUAL(memcmp(a, b, scene_attend_floats(m) * sizeof(*a)), 0);
    free(a);
    free(b);
    embedded_free(&alone);
}

/* New sequences work with the model's table, and find no page. */
static void check_without_daemon(const struct scene *sc, const struct embedded *m, kvc_seq *s,
                                 const uint32_t *tokens)
{
    kvc_seq *later = NULL, *fork = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &later), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(later, tokens, 1200, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(embedded_append(m, later, 1, 0, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &fork), 0);
    CU_ASSERT_EQUAL(operator_list_tables(m->client, &(Kvcobra__ListTablesReply *){NULL}, NULL), -ENOTCONN);
    CU_ASSERT_EQUAL(kvc_client_connect(m->client, sc->daemon.socket), -ENOTCONN); /* tried at once */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), "cannot be reached"));
    CU_ASSERT_EQUAL(kvc_client_connect(m->client, "/somewhere/else"), -EISCONN);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), "new client"));
}

/* The daemon is killed: pages that were leased stay readable, new ones are private, the bits are the same. */
static void test_killed_daemon(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 1200);
    kvc_usage u = {.struct_bytes = sizeof(u)};

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    write_text(&m, s, tokens, &sc.daemon);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT(u.shared_bytes > 0); /* its three pages of the pool */
    check_like_private(&sc, &m, s, tokens);
    check_without_daemon(&sc, &m, s, tokens);
    embedded_free(&m);
    free(tokens);
    sc.control = kvc_client_free(sc.control);
    daemon_remove_folder(&sc.daemon);
    free(sc.bytes);
}

/* A daemon that ends in order closes its sockets; a client that only appends does not notice. */
static void test_daemon_ends(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    size_t n = 7;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 100), 0);
    scene_end(&sc);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 100, 100), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 200, 100, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 300);
    embedded_free(&m);
}

/* Between two calls the daemon ends, and another one without the table takes its place. */
static void test_daemon_is_replaced(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    size_t n = 7;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_FATAL(daemon_end(&sc.daemon));
    CU_ASSERT_FATAL(daemon_start_again(&sc.daemon, pool));
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, 200, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    embedded_free(&m);
    scene_end(&sc);
}

/* The session page has memory from the start: a full machine must not kill the process that writes it. */
static void test_session_page_has_memory(void)
{
    struct scene sc;
    struct embedded m;
    struct stat st;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL(fstat(extent_fd(m.client->session.page_extent), &st), 0);
    CU_ASSERT_EQUAL(st.st_size, SESSION_PAGE_BYTES);
    CU_ASSERT_EQUAL(st.st_blocks * 512, SESSION_PAGE_BYTES);
    embedded_free(&m);
    scene_end(&sc);
}

/* A child of fork() frees its copy of the client: the session and the leases of the parent stay. */
static void test_child_frees_its_copy(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL, *found = NULL;
    uint32_t *tokens = scene_tokens(0, 500);
    Kvcobra__StatusReply *status;
    size_t n = 0;
    int code;
    pid_t child;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 0, 0, 500, 500, &n), 0);
    child = fork();
    if (child == 0) {
        (void) kvc_client_free(m.client);
        _exit(0);
    }
    CU_ASSERT_FATAL(child > 0 && waitpid(child, &code, 0) == child && code == 0);
    status = scene_status(&sc);
    CU_ASSERT(status->sessions == 1 && status->held_pages == 6);
    scene_status_free(status);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &found), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, 500, &n), 0);
    CU_ASSERT_EQUAL(n, 384);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/* A daemon that does not run holds up a call for a moment only, and is reached as soon as it runs again. */
static void test_stopped_daemon(void)
{
    kvc_client_info info = {.struct_bytes = sizeof(info)};
    struct embedded m;
    struct scene sc;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kill(sc.daemon.pid, SIGSTOP), 0);
    connection_close(&m.client->connection);
    for (unsigned i = 1; i <= 3; i++) { /* each waits for the answer to one HELLO */
        CU_ASSERT_EQUAL(kvc_client_connect(m.client, sc.daemon.socket), -ENOTCONN);
        CU_ASSERT_EQUAL(kvc_client_get_info(m.client, &info), 0);
        CU_ASSERT(!info.connected && info.n_failed == i);
    }
    CU_ASSERT_EQUAL(kill(sc.daemon.pid, SIGCONT), 0);
    while (kvc_client_connect(m.client, sc.daemon.socket) == -ENOTCONN)
        continue; /* on a busy machine the answer may need another attempt */
    CU_ASSERT_EQUAL(kvc_client_get_info(m.client, &info), 0);
    CU_ASSERT(info.connected && info.n_reconnects == 1);
    embedded_free(&m);
    scene_end(&sc);
}

/*
 * Beside a daemon that is stopped, freeing a client with sequences takes a second, not one wait for each of
 * its messages. BYE is in the socket, so the daemon ends the session when it goes on.
 */
static void test_free_beside_a_stopped_daemon(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s[3] = {NULL};
    int64_t start;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s[i]), 0);
        CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s[i], i, 0, 200, 200, NULL), 0);
    }
    CU_ASSERT_EQUAL_FATAL(kill(sc.daemon.pid, SIGSTOP), 0);
    start = clock_ms();
    embedded_free(&m);
    CU_ASSERT(clock_ms() - start < 8000); /* a second, on a busy machine; before: 12 */
    CU_ASSERT_EQUAL_FATAL(kill(sc.daemon.pid, SIGCONT), 0);
    CU_ASSERT(scene_wait(&sc, no_session_holds));
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_session_page_has_memory),
    TEST(test_child_frees_its_copy),
    TEST(test_killed_client),
    TEST(test_killed_daemon),
    TEST(test_daemon_ends),
    TEST(test_daemon_is_replaced),
    TEST(test_stopped_daemon),
    TEST(test_free_beside_a_stopped_daemon),
    TEST_END,
};
const char test_suite[] = "client_loss";
