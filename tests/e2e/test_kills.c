/*
 * Kills of the daemon, of clients, and of both at once, while six clients publish, read and misbehave.
 * Clients compare each page that they hold with its bytes, before and after restarts. After every round
 * nothing is held, all accounts add up, every page of the active table has its bytes, and neither the daemon
 * nor its supervisor has descriptors left. The daemon is kvcobrad_checked.
 *
 * KVC_KILLS: the number of kills (50). tools/kill_test.sh runs it with more.
 */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/stress_client.h"
#include "tests/e2e/stress_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "kills";

enum { KILLS_PER_ROUND = 25, ROUNDS_MAX = 10000, PAUSE_MS_MAX = 48 };

/* A small pool, so that a restart takes milliseconds and pages are evicted. */
static const char *const args[] = {
    "--pool-bytes=768K",
    "--extent-bytes=256K",
    "--span-bytes=64K",
    "--arena-bytes=64K",
    "--quota-bytes=8M",
    "--lease-ms=1000",
    "--handshake-ms=1000",
    "--drain-ms=300",
    "--ghosts=64",
    "--reservations-per-session=16",
    NULL,
};

static struct {
    unsigned daemon, clients;
} kills;

static void kill_client(unsigned i)
{
    stress_end_client(i);
    stress_start_client(i);
    kills.clients++;
}

static void kill_daemon(void)
{
    CU_ASSERT_FATAL(stress_daemon_lives());
    supervisor_kill();
    kills.daemon++;
}

/* @n_left: kills that may still be made. With 0, clients work for the same time. */
static void kill_something(unsigned n_left)
{
    unsigned i = (unsigned) stress_random(STRESS_CLIENTS);

    (void) poll(NULL, 0, (int) stress_random(PAUSE_MS_MAX)); /* the kill comes at any instruction */
    if (n_left == 0)
        return;

    switch (stress_random(4)) {
    case 0:
        kill_client(i);
        break;
    case 1: /* both: the client dies while there is no daemon */
        kill_daemon();
        if (n_left > 1)
            kill_client(i);
        CU_ASSERT_FATAL(supervisor_again());
        break;
    default:
        kill_daemon();
        CU_ASSERT_FATAL(supervisor_again());
        break;
    }
}

/* Every extent has two descriptors in the supervisor's store; no process is left. */
static void check_store(void)
{
    struct wait w = wait_begin();

    while (supervisor_stored("kvc-pid-") > 0 && wait_again(&w))
        ;
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pid-"), 0);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-journal-"), 1);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pages-"), supervisor_stored("kvc-slots-"));
    CU_ASSERT(supervisor_stored("kvc-pages-") <= 3);
}

static void test_kills(void)
{
    const char *text = getenv("KVC_KILLS");
    unsigned n = text ? (unsigned) atoi(text) : 50, rounds = 0;
    uint64_t generation = 0;

    stress_begin(args);
    do {
        for (unsigned i = 0; i < STRESS_CLIENTS; i++)
            stress_start_client(i);
        for (unsigned i = 0; i < KILLS_PER_ROUND; i++)
            kill_something(n - kills.daemon - kills.clients);
        stress_settle(&generation);
        check_store();
        rounds++;
        /*
         * The table that is active after a round may have no page: continue, without further kills, until
         * there was one to check.
         */
    } while ((kills.daemon + kills.clients < n || stress_n_verified == 0) && rounds < ROUNDS_MAX &&
             CU_get_number_of_failure_records() == 0);
    printf("    %u kills (%u of the daemon, %u of clients), %u rounds, %" PRIu64
           " pages compared by clients, %" PRIu64 " after the rounds\n",
           kills.daemon + kills.clients, kills.daemon, kills.clients, rounds, atomic_load(stress_n_compared),
           stress_n_verified);
    CU_ASSERT(kills.daemon + kills.clients == n && atomic_load(stress_n_compared) > 0 &&
              stress_n_verified > 0);
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=self-check-failed"));
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=page-damaged"));
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=extent-damaged"));
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=pool-lost"));
    stress_finish();
}

const struct test_case test_cases[] = {TEST(test_kills), TEST_END};
