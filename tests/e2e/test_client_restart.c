/*
 * The daemon is killed and started again while clients append and attend. Their pages stay the same, they
 * connect again by themselves and publish, and other clients find the pages. The cases run with a supervisor
 * that stored the descriptors, and with one that lost them.
 */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/store/journal.h"
#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const args[] = {
    "--pool-bytes=4M",  "--extent-bytes=1M", "--span-bytes=256K",
    "--arena-bytes=4M", "--quota-bytes=64M", NULL,
};

static void begin(struct scene *sc)
{
    supervisor_begin(args);
    scene_attach(sc, &raw_daemon, random_table_geometry(2, 4, 2, 64), 3, 1);
}

static void finish(struct scene *sc)
{
    scene_detach(sc);
    supervisor_finish();
}

/* The operator is connected to the next daemon; clients have not noticed the restart. */
static void start_again(struct scene *sc)
{
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(sc->control, sc->daemon.operator_socket);
}

static kvc_client_info info_of(const struct embedded *m)
{
    kvc_client_info i = {.struct_bytes = sizeof(i)};

    CU_ASSERT_EQUAL_FATAL(kvc_client_get_info(m->client, &i), 0);
    return i;
}

static bool nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0 && s->sessions == 0;
}

/*
 * Attention of a private sequence of the same length. The newest @last tokens came in one append, with a
 * commit after it if @committed: both decide which tokens are packed.
 */
static bool attends_like_private(const struct scene *sc, const struct embedded *m, kvc_seq *s, size_t last,
                                 bool committed)
{
    struct embedded alone = scene_private(sc);
    size_t n = kvc_seq_length(s), bytes = scene_attend_floats(m) * sizeof(float);
    uint32_t *tokens = scene_tokens(0, n);
    float *a = scene_attend(m, s, 0), *b;
    kvc_seq *want = NULL;
    bool same;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, 0, n - last), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, n - last, last), 0);
    if (committed)
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(want, tokens, n, NULL), 0);
    b = scene_attend(&alone, want, 0);
    same = memcmp(a, b, bytes) == 0;
    free(a);
    free(b);
    free(tokens);
    embedded_free(&alone);
    return same;
}

/* Decoded vectors of the first @n tokens, all of them packed, against those of a private sequence. */
static bool reads_like_private(const struct scene *sc, const struct embedded *m, kvc_seq *s, size_t n)
{
    struct embedded alone = scene_private(sc);
    size_t bytes = n * m->n_heads * m->g.d * sizeof(float);
    uint32_t *tokens = scene_tokens(0, n + 128);
    kvc_seq *want = NULL;
    bool same = true;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, 0, n + 128), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(want, tokens, n + 128, NULL), 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *a = embedded_read(m, s, layer, side, n), *b = embedded_read(&alone, want, layer, side, n);

            same &= memcmp(a, b, bytes) == 0;
            free(a);
            free(b);
        }
    free(tokens);
    embedded_free(&alone);
    return same;
}

/*
 * A client that was not connected to the first daemon finds @n tokens of text 0, and reads the values
 * of a private sequence.
 */
static bool is_found(const struct scene *sc, size_t n)
{
    struct embedded other = scene_client(sc);
    uint32_t *tokens = scene_tokens(0, n + 1);
    kvc_seq *s = NULL;
    size_t found = 0;
    bool ok;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, n + 1, &found), 0);
    if (found != n)
        printf("    found %zu of %zu tokens\n", found, n);
    ok = found == n && reads_like_private(sc, &other, s, n);
    free(tokens);
    embedded_free(&other);
    return ok;
}

enum loss { KEPT, STORE_LOST };

struct restart {
    struct scene sc;
    struct embedded m;
    kvc_seq *s, *fork, *dropped;
    uint32_t *tokens;
};

/* 320 tokens of a sequence are published, its fork shares them, and unpublished tokens are in the arena. */
static void restart_start(struct restart *t)
{
    size_t n = 0;

    *t = (struct restart){.tokens = scene_tokens(0, 1000)};
    begin(&t->sc);
    t->m = scene_client(&t->sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t->m.model, NULL, 0, &t->s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t->m.model, NULL, 0, &t->dropped), 0);
    CU_ASSERT_EQUAL(scene_publish(&t->m, t->s, 0, 0, 400, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 320);
    CU_ASSERT_EQUAL(scene_publish(&t->m, t->dropped, 1, 0, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(t->s, &t->fork), 0);
    CU_ASSERT_EQUAL(embedded_append(&t->m, t->s, 0, 400, 200), 0);
}

static void restart_without_daemon(struct restart *t, bool notices)
{
    kvc_client_info i;
    size_t n = 0;

    CU_ASSERT(attends_like_private(&t->sc, &t->m, t->s, 200, false));
    CU_ASSERT_EQUAL(embedded_append(&t->m, t->s, 0, 600, 100), 0);
    t->dropped = kvc_seq_free(t->dropped); /* its release is sent after the restart */
    if (!notices)
        return;

    CU_ASSERT_EQUAL(kvc_seq_commit(t->s, t->tokens, 700, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    i = info_of(&t->m);
    CU_ASSERT(!i.connected && i.n_failed >= 1);
    CU_ASSERT(i.retry_ms <= 200 || i.n_failed > 1); /* a slow machine makes more attempts, further apart */
}

/* Checks that the tokens of the old pool, the later ones and the fork are published. */
static void restart_check(struct restart *t, bool resumed, bool notices)
{
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_client_info i;
    size_t n = 0;

    CU_ASSERT(attends_like_private(&t->sc, &t->m, t->s, 100, notices));
    CU_ASSERT_EQUAL(embedded_append(&t->m, t->s, 0, 700, 100), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(t->s, t->tokens, 800, &n), 0);
    CU_ASSERT_EQUAL(n, 704);
    i = info_of(&t->m);
    CU_ASSERT(i.connected && i.n_reconnects == 1 && i.n_failed == 0);
    CU_ASSERT_EQUAL(i.resumed, resumed);
    CU_ASSERT_EQUAL(kvc_client_connect(t->m.client, t->sc.daemon.socket), -EISCONN);
    CU_ASSERT(attends_like_private(&t->sc, &t->m, t->s, 100, true));
    CU_ASSERT_EQUAL(kvc_seq_get_usage(t->s, &u), 0);
    CU_ASSERT(u.shared_bytes > 0);
    CU_ASSERT(is_found(&t->sc, 704));
    CU_ASSERT_EQUAL(embedded_append(&t->m, t->fork, 0, 400, 50), 0); /* shares pages with s, in either pool */
    CU_ASSERT(attends_like_private(&t->sc, &t->m, t->fork, 50, false));
    CU_ASSERT_EQUAL(kvc_seq_commit(t->fork, t->tokens, 450, &n), 0);
    CU_ASSERT_EQUAL(n, 384);
}

/* One client over one restart. @notices: it tried to publish while no daemon ran. */
static void one_restart(enum loss loss, bool notices)
{
    struct restart t;

    restart_start(&t);
    supervisor_kill();
    if (loss == STORE_LOST)
        supervisor_lose("kvc-");
    restart_without_daemon(&t, notices);
    start_again(&t.sc);
    if (notices) /* connects without waiting for the library's next attempt */
        scene_connect_again(t.m.client, t.sc.daemon.socket);
    restart_check(&t, loss == KEPT, notices);
    embedded_free(&t.m);
    CU_ASSERT(scene_wait(&t.sc, nothing_held));
    free(t.tokens);
    finish(&t.sc);
}

static void test_kept(void)
{
    one_restart(KEPT, false);
    one_restart(KEPT, true);
}

static void test_volatile(void)
{
    one_restart(STORE_LOST, false);
    one_restart(STORE_LOST, true);
}

/* A daemon without state has another secret, so other keys, and no table until the operator stages one. */
static void test_without_state(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 600);
    uint8_t digest[KVC_DIGEST_BYTES];
    size_t n = 0;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, args);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, 400, 100, &n), 0);
    daemon_kill(&sc.daemon);
    CU_ASSERT_FATAL(daemon_start_again(&sc.daemon, args));
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 400, 100), 0);
    /* connected, but the daemon has no model to publish for */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 500, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT(info_of(&m).connected);
    CU_ASSERT_EQUAL_FATAL(operator_stage_table(sc.control, sc.bytes, sc.n_bytes, digest, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(operator_activate_table(sc.control, digest, 0, NULL, NULL), 0);
    for (bool due = false; !due;) { /* the library asks for the model again within 100 ms */
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, 500, &n), 0);
        due = n > 0;
    }
    CU_ASSERT_EQUAL(n, 384);
    CU_ASSERT(attends_like_private(&sc, &m, s, 100, true));
    CU_ASSERT(is_found(&sc, 384));
    embedded_free(&m);
    free(tokens);
    scene_end(&sc);
}

/* ---- lost connections ---- */

/* Closes this process' connections to @path without the library's knowledge. */
static void break_connections(const char *path)
{
    DIR *d = opendir("/proc/self/fd");

    assert(d);
    for (const struct dirent *f = readdir(d); f; f = readdir(d)) {
        struct sockaddr_un sa = {.sun_family = AF_UNSPEC};
        socklen_t bytes = sizeof(sa);

        if (getpeername(atoi(f->d_name), (struct sockaddr *) &sa, &bytes) == 0 &&
            strcmp(sa.sun_path, path) == 0)
            assert(shutdown(atoi(f->d_name), SHUT_RDWR) == 0);
    }
    (void) closedir(d);
}

static void test_same_daemon(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 600);
    Kvcobra__ListTablesReply *tables = NULL;
    size_t n = 0;

    begin(&sc);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, 400, 100, &n), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 400, 100), 0);
    for (unsigned round = 1; round <= 3; round++) {
        break_connections(sc.daemon.socket);
        if (round > 1) /* a connection that was lost soon is not made again at once */
            while (info_of(&m).retry_ms > 0 && !info_of(&m).connected)
                ;
        CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 500, &n), 0);
        CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 500, &n), 0);
        CU_ASSERT_EQUAL(n, 384);
        CU_ASSERT(info_of(&m).connected && info_of(&m).resumed);
        CU_ASSERT_EQUAL(info_of(&m).n_reconnects, round);
    }
    CU_ASSERT(attends_like_private(&sc, &m, s, 100, true));
    CU_ASSERT_EQUAL(operator_list_tables(sc.control, &tables, NULL), 0);
    CU_ASSERT(tables->n_tables == 1 && tables->tables[0]->references == 1); /* not one more per HELLO */
    operator_message_freep(&tables);
    embedded_free(&m);
    CU_ASSERT(scene_wait(&sc, nothing_held));
    free(tokens);
    finish(&sc);
}

/* ---- forgotten sessions ---- */

static off_t session_record_at(size_t field)
{
    return 4096 + 2 * (off_t) sizeof(struct journal_copy) + (off_t) field;
}

/* Makes the daemon forget the session: changes the stored token, or the stored pid to that of no process. */
static void damage_session(bool process_gone)
{
    const uint32_t no_pid = 0x3fffffff; /* above pid_max */
    const uint8_t byte = 0x5a;
    int fd = supervisor_stored_fd("kvc-journal-");

    assert(pwrite(fd, &byte, 1, session_record_at(offsetof(struct session_record, token) + 3)) == 1);
    if (!process_gone)
        return;
    assert(pwrite(fd, &no_pid, sizeof(no_pid), session_record_at(offsetof(struct session_record, pid))) ==
           sizeof(no_pid));
    supervisor_lose("kvc-pid-");
}

/* A sequence with 320 published tokens, whose session is damaged over a restart. */
static kvc_seq *forgotten_start(struct scene *sc, struct embedded *m, bool pages_go)
{
    kvc_seq *s = NULL;
    size_t n = 0;

    begin(sc);
    *m = scene_client(sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 0, 400, 100, &n), 0);
    supervisor_kill();
    damage_session(pages_go);
    start_again(sc);
    return s;
}

static void test_forgotten_session(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = forgotten_start(&sc, &m, false);
    uint32_t *tokens = scene_tokens(0, 600);
    size_t n = 0;

    scene_reconnect(m.client, sc.daemon.socket);
    CU_ASSERT(!info_of(&m).resumed);
    CU_ASSERT(attends_like_private(&sc, &m, s, 100, true));
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 400, &n), 0);
    CU_ASSERT_EQUAL(n, 320);
    CU_ASSERT(is_found(&sc, 320));
    embedded_free(&m);
    free(tokens);
    finish(&sc);
}

/* Publishes other pages, which need the room; no hold protects the old ones. */
static struct embedded evict_and_fill(struct scene *sc)
{
    struct embedded other;
    kvc_seq *filler = NULL;
    uint64_t evicted = 0;
    size_t n = 0;

    evicted = scene_evict(sc->control, NULL);
    CU_ASSERT_EQUAL(evicted, 5);
    other = scene_client(sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &filler), 0);
    CU_ASSERT_EQUAL(scene_publish(&other, filler, 7, 0, 400, 100, &n), 0);
    return other;
}

/* Every call on the sequence is refused until a truncation empties it. */
static void check_stale(const struct embedded *m, kvc_seq *s)
{
    float *out = calloc(4 * 64, sizeof(*out)), *q = embedded_queries(m, 0, 0, 399, 1);
    uint32_t *tokens = scene_tokens(0, 600);
    size_t n = 0, kept = 0;

    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 1, out), -ESTALE);
    printf("    %s\n", kvc_last_error(m->client));
    CU_ASSERT_EQUAL(kvc_seq_read(s, 0, KVC_K, 0, 1, out), -ESTALE);
    CU_ASSERT_EQUAL(embedded_append(m, s, 0, 400, 1), -ESTALE);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 400, &n), -ESTALE);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &(kvc_seq *){NULL}), -ESTALE);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 0, &kept), 0);
    CU_ASSERT_EQUAL(kept, 0);
    free(q);
    free(out);
    free(tokens);
}

static void test_lost_pages(void)
{
    struct scene sc;
    struct embedded m, other;
    kvc_seq *s = forgotten_start(&sc, &m, true);
    size_t n = 0;

    other = evict_and_fill(&sc);
    scene_reconnect(m.client, sc.daemon.socket);
    CU_ASSERT(!info_of(&m).resumed);
    check_stale(&m, s);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, 400, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 320);
    CU_ASSERT(attends_like_private(&sc, &m, s, 100, true));
    CU_ASSERT(is_found(&sc, 320));
    embedded_free(&other);
    embedded_free(&m);
    finish(&sc);
}

/*
 * The table of a sequence drains when the daemon dies: within the drain time the sequence publishes
 * afterwards, whether the daemon still has its session or, since it held nothing, has forgotten it.
 */
static void draining_table(bool held, bool keeps)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 600);
    uint8_t digest[KVC_DIGEST_BYTES];
    Kvcobra__ListTablesReply *tables = NULL;
    size_t n = 0;

    begin(&sc);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(held ? scene_publish(&m, s, 0, 0, 300, 100, &n) : embedded_append(&m, s, 0, 0, 300), 0);
    scene_activate(&sc, 4, 2, digest);
    supervisor_kill();
    if (!keeps)
        supervisor_lose("kvc-");
    start_again(&sc);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 300, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 500, &n), 0);
    CU_ASSERT_EQUAL(n, 384);
    if (n != 384)
        printf("    published %zu: %s\n", n, kvc_last_error(m.client));
    s = kvc_seq_free(s);
    CU_ASSERT_EQUAL(operator_list_tables(sc.control, &tables, NULL), 0);
    CU_ASSERT_EQUAL(tables->n_tables, 2);
    operator_message_freep(&tables);
    embedded_free(&m);
    free(tokens);
    finish(&sc);
}

static void test_draining_table(void)
{
    draining_table(true, true);
    draining_table(true, false);
    draining_table(false, true);
}

/* ---- under load ---- */

enum { GENERATED = 700, PIECE = 50, PIECES = GENERATED / PIECE };

/* Attention after each piece of a private sequence; the caller frees each. */
static void attend_alone(const struct scene *sc, const uint32_t *tokens, float *want[static PIECES])
{
    struct embedded alone = scene_private(sc);
    kvc_seq *private = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &private), 0);
    for (size_t i = 0; i < PIECES; i++) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, private, 5, i * PIECE, PIECE), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(private, tokens, (i + 1) * PIECE, NULL), 0);
        want[i] = scene_attend(&alone, private, 5);
    }
    embedded_free(&alone);
}

static void generate_once(const struct embedded *m, const uint32_t *tokens, float *const want[static PIECES])
{
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    for (size_t i = 0; i < PIECES; i++) {
        float *got;
        int r;

        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 5, i * PIECE, PIECE), 0);
        r = kvc_seq_commit(s, tokens, (i + 1) * PIECE, &n);
        if (r != 0)
            printf("    commit: %s\n", kvc_last_error(m->client));
        CU_ASSERT_EQUAL_FATAL(r, 0);
        got = scene_attend(m, s, 5);
        CU_ASSERT_EQUAL_FATAL(memcmp(got, want[i], scene_attend_floats(m) * sizeof(*got)), 0);
        free(got);
    }
    kvc_seq_free(s);
}

/* Generates repeatedly through every restart; each answer must have the bits of the private one. */
static bool generator(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc);
    uint32_t *tokens = scene_tokens(5, GENERATED);
    float *want[PIECES];

    attend_alone(sc, tokens, want);
    do {
        generate_once(&m, tokens, want);
        pipe_signal(to_parent);
    } while (pipe_wait(from_parent));
    for (size_t i = 0; i < PIECES; i++)
        free(want[i]);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_killed_in_a_loop(void)
{
    struct scene sc;
    struct child c[2];

    begin(&sc);
    for (unsigned i = 0; i < 2; i++)
        c[i] = child_start(generator, &sc);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 2; i++)
            CU_ASSERT_FATAL(pipe_wait(c[i].from));
        for (unsigned i = 0; i < 2; i++)
            pipe_signal(c[i].to);
        supervisor_kill(); /* both are in the middle of a round */
        if (round % 3 == 2)
            supervisor_lose("kvc-");
        start_again(&sc);
    }
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT(pipe_wait(c[i].from));
        CU_ASSERT(child_end(&c[i]));
    }
    CU_ASSERT(scene_wait(&sc, nothing_held));
    finish(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_kept),           TEST(test_volatile),          TEST(test_without_state),
    TEST(test_same_daemon),    TEST(test_forgotten_session), TEST(test_lost_pages),
    TEST(test_draining_table), TEST(test_killed_in_a_loop),  TEST_END,
};
const char test_suite[] = "client_restart";
