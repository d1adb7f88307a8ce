/*
 * Whose session it is, and what it may have: a token is of use to its own process only and only on the socket
 * of clients, a dead process keeps no table, an arena counts with the tenant's bytes, and two shards of one
 * model are two models.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/wait.h"

const char test_suite[] = "sessions";

/* HELLO with @token, which becomes that of the reply. Return: whether the session is resumed; -1: errno. */
static int greet(int fd, uint8_t token[SESSION_TOKEN_BYTES], bool with_token)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    Kvcobra__Reply *reply;
    int resumed = -1;

    hello.version_min = hello.version_max = PROTO_VERSION;
    if (with_token)
        hello.session_token = (ProtobufCBinaryData){SESSION_TOKEN_BYTES, token};
    reply = raw_request(fd, &q, NULL, 0, NULL);
    if (reply && reply->err == 0) {
        resumed = reply->hello->resumed;
        memcpy(token, reply->hello->session_token.data, SESSION_TOKEN_BYTES);
    }
    wire_reply_free(reply);
    return resumed;
}

/* A session with a held page. */
static struct raw_model open_with_page(uint8_t token[SESSION_TOKEN_BYTES], uint64_t *ret_lease)
{
    struct raw_slot page;
    struct raw_model m;
    int fd = raw_connect(raw_daemon.socket);

    CU_ASSERT_EQUAL(greet(fd, token, false), 0);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    CU_ASSERT_EQUAL_FATAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &page, ret_lease), 0);
    return m;
}

/* What a child with the token of its parent does. Return: exit status, 0 if the daemon treats it as a new
 * client. */
static int use_token_of_parent(const uint8_t *token, uint64_t lease)
{
    uint8_t mine[SESSION_TOKEN_BYTES];
    struct raw_model m;
    int fd = raw_connect(raw_daemon.socket);

    memcpy(mine, token, sizeof(mine));
    if (greet(fd, mine, true) != 0 || memcmp(mine, token, sizeof(mine)) == 0)
        return 1;
    if (raw_confirm(fd) != 0 || raw_open_model(fd, &raw_geometry, random_table_model_digest, &m) != 0)
        return 2;
    return raw_release(&m, lease) == -ESTALE ? 0 : 3;
}

/* A process of the same user that learns the token of another process gets a session of its own. */
static void test_token_in_another_process(void)
{
    uint8_t token[SESSION_TOKEN_BYTES];
    struct raw_model m;
    uint64_t lease;
    int status = -1;
    pid_t child;

    raw_start(DAEMON_BY_FD, NULL);
    m = open_with_page(token, &lease);
    child = fork();
    if (child == 0)
        _exit(use_token_of_parent(token, lease));
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    raw_close_model(&m);
    raw_stop();
}

/* The operator's socket serves no pages, so it resumes no session either. */
static void test_token_on_the_operator_socket(void)
{
    uint8_t token[SESSION_TOKEN_BYTES], used[SESSION_TOKEN_BYTES];
    struct raw_model m;
    uint64_t lease;
    int fd;

    raw_start(DAEMON_BY_FD, NULL);
    m = open_with_page(token, &lease);
    memcpy(used, token, sizeof(used));
    fd = raw_connect(raw_daemon.operator_socket);
    CU_ASSERT_EQUAL(greet(fd, used, true), 0);
    CU_ASSERT(memcmp(used, token, sizeof(used)) != 0);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0); /* the session is still that of its connection */
    (void) close(fd);
    raw_close_model(&m);
    raw_stop();
}

/* The table with @digest as LIST_TABLES shows it. Return: its state; *ret_refs: its references. */
static int table_state(const struct table *t, uint64_t *ret_refs)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    int fd = raw_open(raw_daemon.operator_socket), state = 0;
    Kvcobra__Reply *r = raw_request(fd, &q, NULL, 0, NULL);

    for (size_t i = 0; r && i < r->list_tables->n_tables; i++)
        if (memcmp(r->list_tables->tables[i]->digest.data, t->digest, sizeof(t->digest)) == 0) {
            state = (int) r->list_tables->tables[i]->state;
            *ret_refs = r->list_tables->tables[i]->references;
        }
    wire_reply_free(r);
    (void) close(fd);
    return state;
}

/* A killed client keeps no table alive: its references end, and the table that it used retires. */
static void test_references_of_a_dead_process(void)
{
    static const char *const args[] = {"--drain-ms=1", NULL};
    struct table *next;
    uint64_t refs = 77;
    int ready[2];
    char byte;
    pid_t child;

    raw_start(DAEMON_BY_FD, args);
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        struct raw_model m = raw_model_open(); /* has a reference to the active table */

        (void) m;
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        (void) pause();
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(read(ready[0], &byte, 1), 1);
    next = raw_make_table(2);
    raw_activate_table(next);
    CU_ASSERT_EQUAL(table_state(raw_table, &refs), KVCOBRA__TABLE_STATE__TABLE_DRAINING);
    CU_ASSERT_EQUAL(refs, 1);
    (void) kill(child, SIGKILL);
    (void) waitpid(child, NULL, 0);
    for (struct wait w = wait_begin();
         table_state(raw_table, &refs) != KVCOBRA__TABLE_STATE__TABLE_RETIRED && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(table_state(raw_table, &refs), KVCOBRA__TABLE_STATE__TABLE_RETIRED);
    CU_ASSERT_EQUAL(refs, 0);
    next = table_unref(next);
    (void) close(ready[0]);
    (void) close(ready[1]);
    raw_stop();
}

/* A quota of 10 MiB has room for one arena of 8 MiB. */
static void test_arena_counts_with_the_quota(void)
{
    static const char *const args[] = {"--quota-bytes=10M", "--arena-bytes=8M", NULL};
    struct raw_model m, again;
    int fd, r;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    fd = raw_open(raw_daemon.socket);
    r = raw_open_model(fd, &raw_geometry, random_table_model_digest, &again);
    CU_ASSERT_EQUAL(r, -EDQUOT);
    raw_close_model(&m);
    for (struct wait w = wait_begin();
         r == -EDQUOT && wait_again(&w);) /* until the closed socket is noticed */
        r = raw_open_model(fd, &raw_geometry, random_table_model_digest, &again);
    CU_ASSERT_EQUAL_FATAL(r, 0);
    raw_close_model(&again);
    raw_stop();
}

/* OPEN_MODEL for @n_heads heads from @first_head on. Return: the handle; 0: an errno. */
static uint32_t open_shard(int fd, uint32_t first_head, uint32_t n_heads)
{
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_OPEN_MODEL, &open);
    Kvcobra__Reply *reply;
    uint32_t handle;

    geometry.n_layers = raw_geometry.n_layers;
    geometry.n_heads = raw_geometry.n_heads;
    geometry.n_kv_heads = raw_geometry.n_kv_heads;
    geometry.d = raw_geometry.d;
    geometry.n_rot = raw_geometry.n_rot;
    geometry.attn_scale = raw_geometry.attn_scale;
    geometry.n_freq = raw_geometry.n_rot / 2;
    geometry.freq = (double *) raw_geometry.freq;
    open.geometry = &geometry;
    open.model_digest = (ProtobufCBinaryData){32, (uint8_t *) random_table_model_digest};
    open.first_head = first_head;
    open.n_heads = n_heads;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    handle = reply && reply->err == 0 ? reply->open_model->model : 0;
    wire_reply_free(reply);
    return handle;
}

/* The heads of a shard are part of the model: pages of one shard must not be found through another. */
static void test_shards_have_handles_of_their_own(void)
{
    uint32_t lower, upper, all;
    int fd;

    raw_start(DAEMON_BY_FD, NULL);
    fd = raw_open(raw_daemon.socket);
    lower = open_shard(fd, 0, 1);
    upper = open_shard(fd, 1, 1);
    all = open_shard(fd, 0, 0);
    CU_ASSERT(lower > 0 && upper > 0 && all > 0);
    CU_ASSERT(lower != upper && lower != all && upper != all);
    CU_ASSERT_EQUAL(open_shard(fd, 1, 1), upper);
    CU_ASSERT_EQUAL(open_shard(fd, 0, raw_geometry.n_kv_heads), all);
    CU_ASSERT_EQUAL(open_shard(fd, 1, 2), 0); /* beyond the last head */
    (void) close(fd);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_token_in_another_process),         TEST(test_token_on_the_operator_socket),
    TEST(test_references_of_a_dead_process),     TEST(test_arena_counts_with_the_quota),
    TEST(test_shards_have_handles_of_their_own), TEST_END,
};
