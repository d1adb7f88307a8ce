/*
 * Processes that use a GPU's pool at random and die at any moment, a mover and a daemon that are killed, a
 * driver that still lists dead processes; kvcobrad checks its accounts after every message.
 *
 * At all times a leased page has the bytes of its key, and the bytes that a process wrote into its reserved
 * slot stay until it commits. At the end nothing is held, quarantined or retired, and no page was found
 * damaged. KVC_STRESS_SECONDS=N makes the test longer.
 */
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "gpu_stress";

enum { CLIENTS = 4, RESERVED_MAX = 8, HELD_MAX = 24, KNOWN = 256, CHUNKS = 1500, MOVERS_KILLED_MAX = 3 };

struct leased_page { /* a page or a slot, and the lease on it */
    uint64_t n, lease;
    struct raw_slot slot;
};

struct client {
    struct gpu_client client;
    bool connected;
    struct leased_page reserved[RESERVED_MAX], held[HELD_MAX];
    size_t n_reserved, n_held;
};

static struct client clients[CLIENTS];
static struct leased_page known[KNOWN]; /* the last ones published */
static size_t n_known;
static unsigned n_published, n_leased, n_killed, n_movers, n_daemons;

static struct leased_page drop(struct leased_page *list, size_t *n, size_t i)
{
    struct leased_page x = list[i];

    list[i] = list[--*n];
    return x;
}

static void note_known(uint64_t n, const struct raw_slot *s)
{
    known[n_known++ % KNOWN] = (struct leased_page){.n = n, .slot = *s};
}

/*
 * A mover that is killed while it opens the device makes the device unavailable for a second, but not for
 * clients that resume.
 */
static void connect_client(struct client *c)
{
    bool resumes = c->n_reserved + c->n_held > 0; /* a session without pages ended with its connection */
    int r = resumes ? gpu_resume(&c->client) : gpu_open(&c->client, GPU_UUID);

    CU_ASSERT_TRUE_FATAL(r == 0 || (r == -ENODEV && !resumes));
    if (r < 0)
        return;
    c->connected = true;
    if (resumes && test_rand_below(2) == 0) {
        CU_ASSERT_EQUAL_FATAL(gpu_keep(&c->client, 0), 0);
        c->n_reserved = c->n_held = 0;
    }
}

static void start_client(struct client *c)
{
    *c = (struct client){.client = gpu_client_new()};
    connect_client(c);
}

/* ---- actions of a client ---- */

static void reserve(struct client *c)
{
    uint64_t n = 1 + test_rand_below(CHUNKS), lease;
    struct raw_slot s = gpu_reserve(&c->client, n);

    if (s.err < 0) {
        CU_ASSERT_TRUE_FATAL(s.err == -EAGAIN || s.err == -ENOSPC);
        return;
    }
    if (s.exists) {
        if (c->n_held < HELD_MAX && gpu_commit(&c->client, n, &s, &lease) == 0)
            c->held[c->n_held++] = (struct leased_page){n, lease, s};
        return;
    }
    CU_ASSERT_EQUAL_FATAL(gpu_fill(&c->client, n, &s), 0);
    if (c->n_reserved < RESERVED_MAX)
        c->reserved[c->n_reserved++] = (struct leased_page){n, 0, s};
    else
        CU_ASSERT_EQUAL_FATAL(gpu_abort(&c->client, &s), 0);
}

static void commit(struct client *c)
{
    struct leased_page x;
    int r;

    if (c->n_reserved == 0 || c->n_held == HELD_MAX)
        return;
    x = c->reserved[test_rand_below(c->n_reserved)];
    CU_ASSERT_TRUE_FATAL(gpu_reads(&c->client, x.n, &x.slot)); /* no other process writes there */
    r = gpu_commit(&c->client, x.n, &x.slot, &x.lease);
    CU_ASSERT_TRUE_FATAL(r == 0 || r == -EAGAIN); /* the key's page is being checked */
    if (r < 0)
        return;
    for (size_t i = 0; i < c->n_reserved; i++)
        if (c->reserved[i].slot.generation == x.slot.generation)
            (void) drop(c->reserved, &c->n_reserved, i);
    /* Another process's page may have been first: then the lease is on that page, which RESERVE names. */
    x.slot = gpu_reserve(&c->client, x.n);
    CU_ASSERT_TRUE_FATAL(x.slot.err == 0 && x.slot.exists);
    CU_ASSERT_TRUE_FATAL(gpu_reads(&c->client, x.n, &x.slot));
    c->held[c->n_held++] = x;
    note_known(x.n, &x.slot);
    n_published++;
}

static void lease(struct client *c)
{
    struct leased_page x;
    int r;

    if (n_known == 0 || c->n_held == HELD_MAX)
        return;
    x = known[test_rand_below(n_known < KNOWN ? n_known : KNOWN)];
    r = gpu_lease(&c->client, x.n, &x.slot, &x.lease);
    CU_ASSERT_TRUE_FATAL(r == 0 || r == -ENODATA || r == -EAGAIN);
    if (r < 0)
        return;
    CU_ASSERT_TRUE_FATAL(gpu_reads(&c->client, x.n, &x.slot));
    c->held[c->n_held++] = x;
    n_leased++;
}

static void release(struct client *c)
{
    if (c->n_held > 0)
        CU_ASSERT_EQUAL_FATAL(
            gpu_release(&c->client, drop(c->held, &c->n_held, test_rand_below(c->n_held)).lease), 0);
    if (c->n_reserved > 0 && test_rand_below(4) == 0) {
        struct leased_page x = drop(c->reserved, &c->n_reserved, test_rand_below(c->n_reserved));

        CU_ASSERT_EQUAL_FATAL(gpu_abort(&c->client, &x.slot), 0);
    }
}

static void check_held(struct client *c)
{
    for (size_t i = 0; i < c->n_held; i++)
        CU_ASSERT_TRUE_FATAL(gpu_reads(&c->client, c->held[i].n, &c->held[i].slot));
}

static void leave(struct client *c)
{
    switch (test_rand_below(3)) {
    case 0:
        gpu_disconnect(&c->client);
        c->connected = false;
        break;
    case 1:
        CU_ASSERT_EQUAL_FATAL(gpu_bye(&c->client), 0);
        c->n_reserved = c->n_held = 0;
        c->connected = false;
        break;
    default:
        if (test_rand_below(2) == 0)
            gpu_list_process(c->client.pid);
        if (c->n_reserved > 0 && test_rand_below(2) == 0)
            gpu_client_kill_busy(&c->client, c->reserved[0].n, &c->reserved[0].slot);
        else
            gpu_client_kill_busy(&c->client, 1 + test_rand_below(CHUNKS), NULL);
        n_killed++;
        start_client(c);
    }
}

/* ---- events for all ---- */

static void kill_daemon(void)
{
    supervisor_kill();
    for (unsigned i = 0; i < CLIENTS; i++)
        if (clients[i].connected) {
            gpu_disconnect(&clients[i].client);
            clients[i].connected = false;
        }
    CU_ASSERT_FATAL(supervisor_again());
    n_daemons++;
}

static void kill_mover(void)
{
    struct gpu_status f = gpu_status();

    if (f.mover_pid == 0 ||
        n_movers == MOVERS_KILLED_MAX) /* each death doubles the wait for the next mover */
        return;
    (void) kill((pid_t) f.mover_pid, SIGKILL);
    n_movers++;
}

static void step(void)
{
    struct client *c = &clients[test_rand_below(CLIENTS)];
    unsigned what = (unsigned) test_rand_below(1000);

    if (what < 4)
        kill_daemon();
    else if (what < 8)
        kill_mover();
    else if (what < 20)
        gpu_list_process(0);
    else if (!c->connected)
        connect_client(c);
    else if (what < 60)
        leave(c);
    else if (what < 90)
        check_held(c);
    else if (what < 400)
        reserve(c);
    else if (what < 650)
        commit(c);
    else if (what < 850)
        lease(c);
    else
        release(c);
}

static void test_random_actions(void)
{
    const char *seconds = getenv("KVC_STRESS_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 0);

    gpu_list_process(0);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(gpu_args((const char *const[]){"--gpu-reuse-ms=20", NULL}));
    raw_activate_table(raw_table);
    for (unsigned i = 0; i < CLIENTS; i++)
        start_client(&clients[i]);
    for (unsigned i = 0; i < 4000 || time(NULL) < end; i++)
        step();
    printf("published=%u leased=%u killed=%u movers=%u daemons=%u\n", n_published, n_leased, n_killed,
           n_movers, n_daemons);
    CU_ASSERT_TRUE(n_published > 100 && n_leased > 50 && n_killed > 5 && n_daemons > 2);
    gpu_list_process(0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        for (struct wait w = wait_begin(); !clients[i].connected && wait_again(&w);)
            connect_client(&clients[i]);
        CU_ASSERT_TRUE_FATAL(clients[i].connected);
        check_held(&clients[i]);
        CU_ASSERT_TRUE(gpu_client_end(&clients[i].client));
    }
    gpu_wait_for_quarantined(0);
    gpu_wait_for_held(0);
    raw_wait_for_no_sessions();
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 0);
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "checked daemon"));
    supervisor_finish();
    raw_table = table_unref(raw_table);
}

const struct test_case test_cases[] = {TEST(test_random_actions), TEST_END};
