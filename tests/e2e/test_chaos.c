/*
 * Two hosts with memory for a few texts, a disk and a cluster, and four clients that match, compare and
 * publish. Meanwhile daemons, kvcobra-cluster and the server are killed or stopped, and values and files of
 * disks are changed. Clients may find nothing and meet errors, but no wrong bit.
 *
 * Environment: KVC_CHAOS_S: how long it lasts (default 20): an hour before a release.
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
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tools/command/clock.h"

const char test_suite[] = "chaos";

enum { CLIENTS = 4, PAUSE_MS = 400, STOPPED_MS = 300, FLIPS = 30, DEFAULT_S = 20 };

static struct chaos_counts { /* shared with the clients */
    uint64_t n_rounds, n_chunks, n_wrong, n_errors;
    uint64_t longest_ms; /* of a match */
} * counts;

static void note(uint64_t *count, uint64_t n)
{
    (void) __atomic_add_fetch(count, n, __ATOMIC_RELAXED);
}

/* ---- clients ---- */

struct reader {
    struct embedded m, alone;
    uint32_t *tokens[TIER_TEXTS];
    kvc_seq *want[TIER_TEXTS];
};

static void reader_begin(struct reader *r, const struct scene *sc)
{
    r->m = scene_client(sc);
    r->alone = scene_private(sc);
    for (uint32_t i = 0; i < TIER_TEXTS; i++) {
        r->tokens[i] = scene_tokens(i, TIER_TOKENS);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(r->alone.model, NULL, 0, &r->want[i]), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&r->alone, r->want[i], i, 0, TIER_TOKENS), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(r->want[i], r->tokens[i], TIER_TOKENS, NULL), 0);
    }
}

static void reader_end(struct reader *r)
{
    for (uint32_t i = 0; i < TIER_TEXTS; i++) {
        kvc_seq_free(r->want[i]);
        free(r->tokens[i]);
    }
    embedded_free(&r->alone);
    embedded_free(&r->m);
}

static void reader_round(struct reader *r, uint32_t text)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = 2000};
    double began = clock_seconds();
    kvc_seq *s = NULL;
    size_t n = 0, n_published;
    uint64_t ms;

    note(&counts->n_rounds, 1);
    if (kvc_seq_new_with(r->m.model, &o, &s) < 0 || kvc_seq_match(s, r->tokens[text], TIER_TOKENS, &n) < 0) {
        note(&counts->n_errors, 1); /* the daemon is dead, or begins */
        n = 0;
    }
    ms = (uint64_t) ((clock_seconds() - began) * 1e3);
    if (ms > counts->longest_ms) /* of one client or another: a report */
        counts->longest_ms = ms;
    note(&counts->n_chunks, n / 64);
    if (n > 0 && !tier_has_same_bits(&r->m, s, &r->alone, r->want[text], n))
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

/* ---- what happens ---- */

static bool is_alive(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

static void kill_daemon(struct host *h)
{
    CU_ASSERT_TRUE(is_alive(h->scene.daemon.pid)); /* it did not end by itself */
    daemon_kill(&h->scene.daemon);
    CU_ASSERT_FATAL(daemon_start_again(&h->scene.daemon, h->args));
}

static void kill_process(struct host *h)
{
    CU_ASSERT_TRUE(is_alive(h->process));
    host_kill_process(h);
    host_start_process(h);
}

/* It does not answer for a moment. */
static void stop(pid_t pid)
{
    CU_ASSERT_EQUAL(kill(pid, SIGSTOP), 0);
    (void) poll(NULL, 0, STOPPED_MS);
    CU_ASSERT_EQUAL(kill(pid, SIGCONT), 0);
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
}

static void happen(struct host *h, const struct redis *r)
{
    switch (test_rand_below(8)) {
    case 0:
    case 1:
        kill_daemon(h);
        break;
    case 2:
        kill_process(h);
        break;
    case 3:
        stop(h->process);
        break;
    case 4:
        stop(r->pid);
        break;
    case 5:
        CU_ASSERT_EQUAL(redis_ask(r, "FLUSHALL"), 0);
        break;
    case 6:
        (void) redis_damage_pages(r);
        break;
    default:
        flip_bits(h);
    }
}

/* ---- the test ---- */

static double chaos_seconds(void)
{
    const char *text = getenv("KVC_CHAOS_S");

    return text ? strtod(text, NULL) : DEFAULT_S;
}

/* The hosts share pages again. */
static bool finds(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);
    struct wait w = wait_begin();
    size_t n = tier_match(&h->scene, &m, text, 8000);

    while (n != TIER_SHARED && wait_again(&w))
        n = tier_match(&h->scene, &m, text, 8000);
    embedded_free(&m);
    return n == TIER_SHARED;
}

static void publish(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);

    tier_publish(&m, text);
    embedded_free(&m);
}

static void report(void)
{
    (void) fprintf(stderr,
                   "%" PRIu64 " rounds, %" PRIu64 " chunks found and compared, %" PRIu64 " wrong; %" PRIu64
                   " errors; longest match %" PRIu64 " ms\n",
                   counts->n_rounds, counts->n_chunks, counts->n_wrong, counts->n_errors, counts->longest_ms);
}

static void test_chaos(void)
{
    double until = clock_seconds() + chaos_seconds();
    struct child clients[CLIENTS];
    struct host hosts[2];
    struct redis r;

    if (!redis_start(&r)) {
        test_skip("there is no redis-server (Debian package redis-server)");
        return;
    }
    counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_FATAL(counts != MAP_FAILED);
    host_start_small(&hosts[0], &r, 'a');
    host_start_small(&hosts[1], &r, 'a');
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_seed = test_rand();
        clients[i] = child_start(run_client, &hosts[i % 2].scene);
        CU_ASSERT_TRUE(pipe_wait(clients[i].from));
    }

    while (clock_seconds() < until) {
        happen(&hosts[test_rand_below(2)], &r);
        (void) poll(NULL, 0, PAUSE_MS); /* they work meanwhile: time is the subject here */
    }

    for (unsigned i = 0; i < CLIENTS; i++)
        CU_ASSERT_TRUE(child_end(&clients[i]));
    report();
    CU_ASSERT_EQUAL(counts->n_wrong, 0);
    CU_ASSERT(counts->n_chunks > 0); /* else nothing was compared */
    CU_ASSERT_EQUAL(redis_ask(&r, "FLUSHALL"), 0);
    publish(&hosts[0], 0);
    CU_ASSERT_TRUE(finds(&hosts[1], 0));
    host_end(&hosts[0]);
    host_end(&hosts[1]);
    redis_end(&r);
    CU_ASSERT_EQUAL(munmap(counts, sizeof(*counts)), 0);
}

const struct test_case test_cases[] = {TEST(test_chaos), TEST_END};
