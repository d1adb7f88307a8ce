/*
 * Two hosts with memory for a few texts, a disk and a cluster of six servers, and four clients that match,
 * compare and publish. Meanwhile daemons and kvcobra-cluster are killed or stopped, files of disks are
 * changed, clocks are stepped, and tables are activated and retired while the disk and the cluster have their
 * pages. tests/e2e/cluster/chaos.py starts this program, does the like to the servers, and closes standard
 * input at the end. Clients may find nothing and meet errors, but no wrong bit.
 *
 * Environment, from chaos.py: KVC_CHAOS_SERVERS: the servers; KVC_CHAOS_CLOCK: the library of
 * stepped_clock.c; KVC_CHAOS_READY: a file that is made when all clients work.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/splitmix64.h"
#include "tests/e2e/cluster_fixture.h"
#include "tests/e2e/tier_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tools/command/clock.h"

const char test_suite[] = "chaos";

enum { CLIENTS = 4, TABLES = 2, PAUSE_MS = 400, STOPPED_MS = 300, FLIPS = 30, FIND_WAITS = 4 };
enum { FETCH_MS = 1000, LATE_MS = 100, SLEEP_MS = 5, SLEEPS_LATE_MS = 20, REPORT_S = 60 };

static struct chaos_counts { /* shared with the clients */
    uint64_t n_rounds, n_chunks, n_wrong, n_errors;
    uint64_t longest_ms;   /* of a match */
    uint64_t n_late;       /* matches beyond their deadline by LATE_MS */
    uint64_t n_late_alone; /* of them, while a process that only sleeps woke up in time */
    uint64_t n_sleeps_late, longest_sleep_ms;
    double slept_s;      /* when such a process last went to sleep */
    double slept_late_s; /* when it last woke up too late */
} * counts;

static struct { /* of the parent */
    unsigned daemons, processes, stops, flips, steps, tables, refused;
    unsigned ended; /* processes that ended and were not killed */
    uint64_t longest_start_ms;
} events;

static struct chaos_table {
    void *bytes;
    size_t n_bytes;
} tables[TABLES];

static void note(uint64_t *count, uint64_t n)
{
    (void) __atomic_add_fetch(count, n, __ATOMIC_RELAXED);
}

static uint64_t ms_since(double began)
{
    return (uint64_t) ((clock_seconds() - began) * 1e3);
}

/* ---- clients ---- */

struct reader {
    struct embedded m;
    uint32_t *tokens[TIER_TEXTS];
    struct {
        struct embedded m;
        uint8_t digest[KVC_DIGEST_BYTES];
        kvc_seq *want[TIER_TEXTS];
    } alone[TABLES]; /* the texts by each table, in this process */
};

static void reader_begin_alone(struct reader *r, unsigned t, const struct scene *sc)
{
    struct scene with = *sc;
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    with.bytes = tables[t].bytes;
    with.n_bytes = tables[t].n_bytes;
    r->alone[t].m = scene_private(&with);
    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(r->alone[t].m.model, &info), 0);
    memcpy(r->alone[t].digest, info.table_digest, sizeof(r->alone[t].digest));
    for (uint32_t i = 0; i < TIER_TEXTS; i++) {
        kvc_seq **want = &r->alone[t].want[i];

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(r->alone[t].m.model, NULL, 0, want), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&r->alone[t].m, *want, i, 0, TIER_TOKENS), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(*want, r->tokens[i], TIER_TOKENS, NULL), 0);
    }
}

static void reader_begin(struct reader *r, const struct scene *sc)
{
    r->m = scene_client(sc);
    for (uint32_t i = 0; i < TIER_TEXTS; i++)
        r->tokens[i] = scene_tokens(i, TIER_TOKENS);
    for (unsigned t = 0; t < TABLES; t++)
        reader_begin_alone(r, t, sc);
}

static void reader_end(struct reader *r)
{
    for (unsigned t = 0; t < TABLES; t++) {
        for (uint32_t i = 0; i < TIER_TEXTS; i++)
            kvc_seq_free(r->alone[t].want[i]);
        embedded_free(&r->alone[t].m);
    }
    for (uint32_t i = 0; i < TIER_TEXTS; i++)
        free(r->tokens[i]);
    embedded_free(&r->m);
}

/* A process that only sleeps woke up in time since then, and is not late now. */
static bool sleeps_in_time(double since)
{
    return counts->slept_late_s < since && ms_since(counts->slept_s) < SLEEP_MS + SLEEPS_LATE_MS;
}

static void note_match(double began)
{
    uint64_t ms = ms_since(began);

    if (ms > counts->longest_ms) /* of one client or another: a report */
        counts->longest_ms = ms;
    if (ms <= FETCH_MS + LATE_MS)
        return;
    note(&counts->n_late, 1);
    note(&counts->n_late_alone, sleeps_in_time(began));
}

/* Which table the next sequence uses. */
static unsigned reader_table(const struct reader *r)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    unsigned t = 0;

    CU_ASSERT_EQUAL(kvc_model_get_info(r->m.model, &info), 0);
    while (t < TABLES && memcmp(r->alone[t].digest, info.table_digest, KVC_DIGEST_BYTES) != 0)
        t++;
    CU_ASSERT_FATAL(t < TABLES);
    return t;
}

static void reader_round(struct reader *r, uint32_t text)
{
    unsigned t = reader_table(r);
    const kvc_seq_options o = {
        .struct_bytes = sizeof(o), .fetch_ms = FETCH_MS, .table_digest = r->alone[t].digest};
    double began = clock_seconds();
    kvc_seq *s = NULL;
    size_t n = 0, n_published;

    note(&counts->n_rounds, 1);
    if (kvc_seq_new_with(r->m.model, &o, &s) < 0 || kvc_seq_match(s, r->tokens[text], TIER_TOKENS, &n) < 0) {
        note(&counts->n_errors, 1); /* the daemon is dead, or begins, or another table became active */
        n = 0;
    }
    note_match(began);
    note(&counts->n_chunks, n / 64);
    if (n > 0 && !tier_has_same_bits(&r->m, s, &r->alone[t].m, r->alone[t].want[text], n))
        note(&counts->n_wrong, 1);
    if (s && scene_publish(&r->m, s, text, n, TIER_TOKENS, TIER_TOKENS, &n_published) < 0)
        note(&counts->n_errors, 1);
    kvc_seq_free(s);
}

static uint64_t client_seed;

/* Until the test closes the pipe. */
static bool run_client(const struct scene *sc, int from_parent, int to_parent)
{
    struct pollfd ends = {.fd = from_parent, .events = POLLIN};
    struct reader r;

    reader_begin(&r, sc);
    pipe_signal(to_parent);
    while (poll(&ends, 1, 0) == 0)
        reader_round(&r, (uint32_t) (splitmix64_next(&client_seed) % TIER_TEXTS));
    reader_end(&r);
    return true;
}

/* Sleeps, and notes how late it wakes up: so late is any process of this machine now and then. */
static bool run_sleeper(const struct scene *sc, int from_parent, int to_parent)
{
    struct pollfd ends = {.fd = from_parent, .events = POLLIN};

    (void) sc;
    pipe_signal(to_parent);
    for (counts->slept_s = clock_seconds(); poll(&ends, 1, SLEEP_MS) == 0;
         counts->slept_s = clock_seconds()) {
        uint64_t ms = ms_since(counts->slept_s) - SLEEP_MS;

        if (ms < SLEEPS_LATE_MS)
            continue;
        counts->slept_late_s = clock_seconds();
        counts->n_sleeps_late++;
        if (ms > counts->longest_sleep_ms)
            counts->longest_sleep_ms = ms;
    }
    return true;
}

/* ---- what happens ---- */

struct chaos_host {
    struct host h;
    int64_t *clock_s; /* what its processes add to the time of day */
    unsigned table;
};

/* A process that ends by itself is a failure. */
static void check_alive(pid_t pid)
{
    bool ended = waitpid(pid, NULL, WNOHANG) != 0;

    events.ended += ended;
    CU_ASSERT_FALSE(ended);
}

/* The processes that are started next have the clock of @c, or with NULL that of the system. */
static void set_clock(const struct chaos_host *c)
{
    const char *options = getenv("ASAN_OPTIONS");
    char path[192], text[512];

    if (!c) {
        CU_ASSERT_EQUAL(unsetenv("LD_PRELOAD"), 0);
        return;
    }
    (void) snprintf(path, sizeof(path), "%s/clock", c->h.folder);
    CU_ASSERT_EQUAL(setenv("KVC_TEST_CLOCK", path, 1), 0);
    CU_ASSERT_EQUAL(setenv("LD_PRELOAD", getenv("KVC_CHAOS_CLOCK"), 1), 0);
    if (options && strstr(options, "verify_asan_link_order"))
        return;
    (void) snprintf(text, sizeof(text), "%s%sverify_asan_link_order=0", options ? options : "",
                    options ? ":" : ""); /* the library needs no sanitizer */
    CU_ASSERT_EQUAL(setenv("ASAN_OPTIONS", text, 1), 0);
}

static void make_clock(struct chaos_host *c)
{
    char path[192];

    (void) snprintf(path, sizeof(path), "%s/clock", c->h.folder);

    _cleanup_(closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, sizeof(*c->clock_s)) == 0);
    c->clock_s = mmap(NULL, sizeof(*c->clock_s), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CU_ASSERT_FATAL(c->clock_s != MAP_FAILED);
}

static void kill_daemon(struct chaos_host *c)
{
    struct daemon *d = &c->h.scene.daemon;
    double began;
    uint64_t ms;

    check_alive(d->pid);
    daemon_kill(d);
    set_clock(c);
    began = clock_seconds();
    CU_ASSERT_FATAL(daemon_start_again(d, c->h.args));
    ms = ms_since(began);
    events.longest_start_ms = ms > events.longest_start_ms ? ms : events.longest_start_ms;
    set_clock(NULL);
    events.daemons++;
}

static void kill_process(struct chaos_host *c)
{
    check_alive(c->h.process);
    host_kill_process(&c->h);
    set_clock(c);
    host_start_process(&c->h);
    set_clock(NULL);
    events.processes++;
}

/* It does not answer for a moment. */
static void stop(pid_t pid)
{
    CU_ASSERT_EQUAL(kill(pid, SIGSTOP), 0);
    (void) poll(NULL, 0, STOPPED_MS);
    CU_ASSERT_EQUAL(kill(pid, SIGCONT), 0);
    events.stops++;
}

static void flip_bits(const struct host *h)
{
    char path[128];
    struct stat st;

    (void) snprintf(path, sizeof(path), "%s/pages", h->disk);

    _cleanup_(closep) int fd = open(path, O_RDWR | O_CLOEXEC);

    for (unsigned i = 0; i < FLIPS && fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0; i++) {
        off_t at = (off_t) test_rand_below((uint64_t) st.st_size);
        uint8_t byte;

        if (pread(fd, &byte, 1, at) != 1)
            continue;
        byte ^= 1;
        CU_ASSERT_EQUAL(pwrite(fd, &byte, 1, at), 1);
    }
    events.flips++;
}

static void step_clock(struct chaos_host *c)
{
    static const int64_t steps_s[] = {-172800, -3600, 3600, 172800};

    *c->clock_s += steps_s[test_rand_below(sizeof(steps_s) / sizeof(steps_s[0]))];
    events.steps++;
}

/* After a restart of the daemon, which may answer late on a busy machine. */
static void reconnect(struct scene *sc)
{
    Kvcobra__ListTablesReply *list = NULL;
    int r = operator_list_tables(sc->control, &list, NULL);

    for (struct wait w = wait_begin(); r < 0 && wait_again(&w);) {
        (void) kvc_client_connect(sc->control, sc->daemon.operator_socket);
        r = operator_list_tables(sc->control, &list, NULL);
    }
    CU_ASSERT_EQUAL_FATAL(r, 0);
    operator_message_freep(&list);
}

/* Another table becomes active, and the old one is retired, whose pages are in all tiers. */
static bool use_table(struct chaos_host *c, unsigned t)
{
    _cleanup_(operator_message_freep) Kvcobra__RetireTableReply *reply = NULL;
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    uint8_t digest[KVC_DIGEST_BYTES], old[KVC_DIGEST_BYTES];
    struct scene *sc = &c->h.scene;
    kvc_client *control = sc->control;
    int r;

    reconnect(sc);
    r = operator_stage_table(control, tables[c->table].bytes, tables[c->table].n_bytes, old, NULL);
    if (r >= 0)
        r = operator_stage_table(control, tables[t].bytes, tables[t].n_bytes, digest, NULL);
    if (r >= 0)
        r = operator_activate_table(control, digest, 0, NULL, NULL);
    if (r < 0) { /* its pages of the last time are not all gone yet */
        events.refused++;
        return false;
    }
    events.tables++;
    if (t == c->table)
        return true;

    retire.digest = operator_digest(old);
    CU_ASSERT_EQUAL(operator_call(control, KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &retire.base, &reply, NULL),
                    0);
    memcpy(sc->bytes, tables[t].bytes, tables[t].n_bytes);
    c->table = t;
    return true;
}

static void happen(struct chaos_host *both, struct chaos_host *c)
{
    switch (test_rand_below(9)) {
    case 0:
    case 1:
        kill_daemon(c);
        break;
    case 2:
        kill_process(c);
        break;
    case 3:
        stop(c->h.process);
        break;
    case 4:
        stop(c->h.scene.daemon.pid);
        break;
    case 5:
        step_clock(c);
        break;
    case 6: {
        unsigned t = (both[0].table + 1) % TABLES;

        (void) use_table(&both[0], t);
        (void) use_table(&both[1], t);
        break;
    }
    default:
        flip_bits(&c->h);
    }
}

/* ---- the test ---- */

static void begin_host(struct chaos_host *c, const char *servers)
{
    *c = (struct chaos_host){.table = 0};
    host_prepare_small(&c->h, servers, 'a');
    make_clock(c);
    set_clock(c);
    host_run(&c->h);
    set_clock(NULL);
}

static void end_host(struct chaos_host *c)
{
    char path[192];

    check_alive(c->h.scene.daemon.pid);
    check_alive(c->h.process);
    (void) snprintf(path, sizeof(path), "%s/clock", c->h.folder);
    CU_ASSERT_EQUAL(munmap(c->clock_s, sizeof(*c->clock_s)), 0);
    CU_ASSERT_EQUAL(unlink(path), 0);
    host_end(&c->h);
}

/* One table on both hosts, whatever was active. */
static bool agree(struct chaos_host *both)
{
    struct wait w = wait_begin();

    for (unsigned i = 0; i < 2; i++)
        while (!use_table(&both[i], 0))
            if (!wait_again(&w))
                return false;
    return true;
}

/* The hosts share pages again. Nodes are connected to after a pause, and passes are some seconds apart. */
static bool finds(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);
    double began = clock_seconds();
    size_t n = 0;

    for (unsigned i = 0; i < FIND_WAITS && n != TIER_SHARED; i++)
        for (struct wait w = wait_begin(); n != TIER_SHARED && wait_again(&w);)
            n = tier_match(&h->scene, &m, text, 8000);
    (void) fprintf(stderr, "%zu of %d tokens are shared again after %" PRIu64 " ms\n", n, TIER_SHARED,
                   ms_since(began));
    embedded_free(&m);
    return n == TIER_SHARED;
}

/* Pages of a table that was just retired may take the room for a moment. */
static bool publish(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);
    struct wait w = wait_begin();
    size_t n = 0;
    int r;

    do {
        kvc_seq *s = NULL;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
        r = scene_publish(&m, s, text, 0, TIER_TOKENS, TIER_TOKENS, &n);
        if (r < 0)
            (void) fprintf(stderr, "publish: %s\n", kvc_last_error(m.client));
        kvc_seq_free(s);
    } while ((r < 0 || n != TIER_SHARED) && wait_again(&w));
    embedded_free(&m);
    return r == 0 && n == TIER_SHARED;
}

static void report(void)
{
    (void) fprintf(stderr,
                   "%" PRIu64 " rounds, %" PRIu64 " chunks found and compared, %" PRIu64 " wrong; %" PRIu64
                   " errors\nlongest match %" PRIu64 " ms of %d; %" PRIu64 " beyond %d ms, %" PRIu64
                   " of them while a sleeping process woke up in time (%" PRIu64
                   " times later than %d ms, %" PRIu64 " at most)\n",
                   counts->n_rounds, counts->n_chunks, counts->n_wrong, counts->n_errors, counts->longest_ms,
                   FETCH_MS, counts->n_late, FETCH_MS + LATE_MS, counts->n_late_alone, counts->n_sleeps_late,
                   SLEEPS_LATE_MS, counts->longest_sleep_ms);
    (void) fprintf(stderr,
                   "kvcobrad killed %u times, kvcobra-cluster %u; %u stops, %u files with changed bits, %u "
                   "clocks stepped, %u tables activated (%u refused); %u ended by themselves; longest start "
                   "%" PRIu64 " ms\n",
                   events.daemons, events.processes, events.stops, events.flips, events.steps, events.tables,
                   events.refused, events.ended, events.longest_start_ms);
}

static void say_ready(void)
{
    const char *path = getenv("KVC_CHAOS_READY");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
}

static void start_clients(struct child *clients, struct child *sleeper, const struct chaos_host *both)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_seed = test_rand();
        clients[i] = child_start(run_client, &both[i % 2].h.scene);
        CU_ASSERT_TRUE(pipe_wait(clients[i].from));
    }
    *sleeper = child_start(run_sleeper, &both[0].h.scene);
    CU_ASSERT_TRUE(pipe_wait(sleeper->from));
    say_ready();
}

/* Until standard input is closed. Counts of a long run are printed meanwhile: it may not reach its end. */
static void run_chaos(struct chaos_host *both)
{
    struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN};
    double reported = clock_seconds();

    while (poll(&end, 1, PAUSE_MS) == 0) { /* clients work meanwhile: time is the subject here */
        happen(both, &both[test_rand_below(2)]);
        if (clock_seconds() - reported < REPORT_S)
            continue;
        report();
        reported = clock_seconds();
    }
}

static void test_chaos(void)
{
    const char *servers = getenv("KVC_CHAOS_SERVERS");
    struct geometry g = random_table_geometry(2, 4, 2, 64);
    struct child clients[CLIENTS], sleeper;
    struct chaos_host hosts[2];

    if (!servers) {
        test_skip("tests/e2e/cluster/chaos.py starts this test");
        return;
    }
    counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(counts != MAP_FAILED);
    for (unsigned t = 0; t < TABLES; t++) /* the first one is that of host_run() */
        CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, 1 + t, 3, true, &tables[t].bytes, &tables[t].n_bytes),
                              0);
    begin_host(&hosts[0], servers);
    begin_host(&hosts[1], servers);
    start_clients(clients, &sleeper, hosts);

    run_chaos(hosts);

    for (unsigned i = 0; i < CLIENTS; i++)
        CU_ASSERT_TRUE(child_end(&clients[i]));
    CU_ASSERT_TRUE(child_end(&sleeper));
    report();
    CU_ASSERT_EQUAL(counts->n_wrong, 0);
    CU_ASSERT(counts->n_chunks > 0); /* else nothing was compared */
    CU_ASSERT_TRUE(agree(hosts));
    CU_ASSERT_TRUE(publish(&hosts[0].h, 0));
    CU_ASSERT_TRUE(finds(&hosts[1].h, 0));
    end_host(&hosts[0]);
    end_host(&hosts[1]);
    for (unsigned t = 0; t < TABLES; t++)
        free(tables[t].bytes);
    CU_ASSERT_EQUAL(munmap(counts, sizeof(*counts)), 0);
}

const struct test_case test_cases[] = {TEST(test_chaos), TEST_END};
