/*
 * The daemon is killed and started again while a client on a GPU appends and attends. The client's pages stay
 * the same, it connects again and publishes, and another process finds the pages. The cases run with a kept
 * pool and with a lost pool.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "tests/e2e/client_gpu_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum loss { KEPT, STORE_LOST };

static enum loss loss; /* of the running case; children inherit it */

static void begin(struct scene *sc)
{
    static struct gpu_args a; /* later daemons of the supervisor get them too */

    gpu_args_init(&a, 4, 1);
    supervisor_begin(a.args);
    scene_attach(sc, &raw_daemon, random_table_geometry(2, 4, 2, 64), 3, 1);
}

static void meet_parent(int from_parent, int to_parent)
{
    pipe_signal(to_parent);
    CU_ASSERT_FATAL(pipe_wait(from_parent));
}

/* Appends while the daemon is dead, commits without effect, connects again, publishes everything. */
static bool survivor(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    kvc_client_info i = {.struct_bytes = sizeof(i)};
    uint32_t *tokens = scene_tokens(0, 700);
    kvc_seq *s = NULL, *fork = NULL, *dropped = NULL;
    kvc_usage u = {.struct_bytes = sizeof(u)};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &dropped), 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, s, 0, 0, 400, 200, &n), 0);
    CU_ASSERT_EQUAL(n, 320);
    CU_ASSERT_EQUAL(gpu_publish(&m, dropped, 1, 0, 200, 200, &n), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &fork), 0);
    meet_parent(from_parent, to_parent); /* the daemon is dead when this returns */
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, 320));
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 400, 200), 0);
    dropped = kvc_seq_free(dropped); /* its release is sent after the restart */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 600, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, 512));
    meet_parent(from_parent, to_parent); /* the daemon runs again */
    scene_connect_again(m.client, sc->daemon.socket);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, 512));
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 600, 100), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 700, &n), 0);
    CU_ASSERT_EQUAL(n, 576); /* 64 (c + 2) <= 700: nine chunks, also those that the old pool had */
    CU_ASSERT_EQUAL(kvc_client_get_info(m.client, &i), 0);
    CU_ASSERT(i.connected && i.n_reconnects == 1);
    CU_ASSERT_EQUAL(i.resumed, loss == KEPT);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, 576));
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT_EQUAL(u.shared_bytes, u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, fork, 0, 320)); /* the fork's pages are right with either pool */
    CU_ASSERT_EQUAL(kvc_seq_commit(fork, tokens, 400, &n), 0);
    CU_ASSERT_EQUAL(n, 320);
    meet_parent(from_parent, to_parent); /* another process looks for the text */
    s = kvc_seq_free(s);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, fork, 0, 320));
    free(tokens);
    embedded_free(&m);
    return true;
}

static bool finder(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, 577);
    kvc_seq *s = NULL;
    size_t n = 0;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, 577, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, 576);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, 576));
    free(tokens);
    embedded_free(&m);
    return true;
}

static bool no_session_holds(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0 && s->sessions == 0;
}

static void over_a_restart(enum loss what)
{
    struct scene sc;
    struct child a, b;

    loss = what;
    begin(&sc);
    a = child_start(survivor, &sc);
    CU_ASSERT_FATAL(pipe_wait(a.from));
    supervisor_kill();
    if (what == STORE_LOST)
        supervisor_lose("kvc-");
    pipe_signal(a.to);
    CU_ASSERT_FATAL(pipe_wait(a.from));
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    pipe_signal(a.to);
    CU_ASSERT_FATAL(pipe_wait(a.from));
    b = child_start(finder, &sc);
    CU_ASSERT(child_end(&b));
    pipe_signal(a.to);
    CU_ASSERT(child_end(&a));
    CU_ASSERT(scene_wait(&sc, no_session_holds));
    scene_detach(&sc);
    supervisor_finish();
}

static void test_kept(void)
{
    over_a_restart(KEPT);
}

static void test_lost(void)
{
    over_a_restart(STORE_LOST);
}

const char test_suite[] = "client_gpu_restart";
const struct test_case test_cases[] = {TEST(test_kept), TEST(test_lost), TEST_END};
