/*
 * Hostile processes, an operator who changes everything, and a daemon that is killed, all at random. At the
 * end every account adds up, and every committed page has its bytes. The daemon is kvcobrad_checked, which
 * checks its accounts after every request.
 *
 * Runs KVC_STRESS_SECONDS (2 by default: some rounds); KVC_TEST_SEED repeats a run as
 * far as scheduling allows.
 */
#include "base/splitmix64.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/stress_client.h"
#include "tests/e2e/stress_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "stress";

enum { ACTS = 120 };

static const char *const args[] = {
    "--pool-bytes=768K",
    "--extent-bytes=256K",
    "--span-bytes=64K",
    "--arena-bytes=64K",
    "--quota-bytes=8M",
    "--spare-extents=1",
    "--lease-ms=150",
    "--handshake-ms=1000",
    "--drain-ms=300",
    "--moments-bytes=1M",
    "--ghosts=64",
    "--reservations-per-session=16",
    NULL,
};

static bool stopped[STRESS_CLIENTS];
static uint64_t n_restarts;

static void stop_or_go_on(unsigned i)
{
    stopped[i] = !stopped[i];
    (void) kill(stress_clients[i], stopped[i] ? SIGSTOP : SIGCONT);
}

static void restart(void)
{
    CU_ASSERT_FATAL(stress_daemon_lives());
    if (stress_random(3))
        supervisor_kill();
    else
        supervisor_end();
    if (stress_random(8) == 0)
        supervisor_lose("kvc-pid-"); /* then the daemon opens the recorded pids */
    CU_ASSERT_FATAL(supervisor_again());
    n_restarts++;
}

/* ---- the operator ---- */

static ProtobufCBinaryData some_table(void)
{
    return (ProtobufCBinaryData){32, stress_tables[stress_random(STRESS_TABLES)]->digest};
}

static void activate(void)
{
    Kvcobra__ActivateTable b = KVCOBRA__ACTIVATE_TABLE__INIT;

    b.digest = some_table();
    b.revision = stress_random(3) ? 0 : stress_random(100);
    stress_tell(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &b);
}

static void roll_back(void)
{
    Kvcobra__RollbackTable b = KVCOBRA__ROLLBACK_TABLE__INIT;

    b.digest = some_table();
    stress_tell(KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &b);
}

static void retire(void)
{
    Kvcobra__RetireTable b = KVCOBRA__RETIRE_TABLE__INIT;

    b.digest = some_table();
    stress_tell(KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &b);
}

static void try_table(void)
{
    Kvcobra__ShadowTable shadow = KVCOBRA__SHADOW_TABLE__INIT;
    Kvcobra__CanaryTable canary = KVCOBRA__CANARY_TABLE__INIT;

    shadow.digest = canary.digest = some_table();
    shadow.ppm = (uint32_t) stress_random(2000000);
    canary.share = (uint32_t) stress_random(300);
    if (stress_random(2))
        stress_tell(KVCOBRA__REQUEST__BODY_SHADOW_TABLE, &shadow);
    else
        stress_tell(KVCOBRA__REQUEST__BODY_CANARY_TABLE, &canary);
}

static void change_quota(void)
{
    stress_set_quota(stress_random(3) ? 8 << 20 : 65536 * (1 + stress_random(32)), stress_random(4) << 18);
}

static void read_status(void)
{
    Kvcobra__GetFit fit = KVCOBRA__GET_FIT__INIT;
    Kvcobra__FetchMoments moments = KVCOBRA__FETCH_MOMENTS__INIT;
    Kvcobra__GetStatus status = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    fit.digest = some_table();
    moments.model_digest = (ProtobufCBinaryData){32, (uint8_t *) random_table_model_digest};
    status.cursor = stress_random(2) ? 0 : splitmix64_next(&stress_state);
    stress_tell(KVCOBRA__REQUEST__BODY_GET_FIT, &fit);
    stress_tell(KVCOBRA__REQUEST__BODY_FETCH_MOMENTS, &moments);
    stress_tell(KVCOBRA__REQUEST__BODY_GET_STATUS, &status);
    stress_tell(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
}

static void act(void)
{
    unsigned i = (unsigned) stress_random(STRESS_CLIENTS);

    switch (stress_random(24)) {
    case 0:
        stress_end_client(i);
        stress_start_client(i);
        stopped[i] = false;
        break;
    case 1:
        stress_end_client(i);
        stress_start_client(i);
        stopped[i] = false;
        break;
    case 2:
        stop_or_go_on(i);
        break;
    case 3:
        stop_or_go_on(i);
        break;
    case 4:
        activate();
        break;
    case 5:
        activate();
        break;
    case 6:
        stress_stage_and_activate();
        break;
    case 7:
        roll_back();
        break;
    case 8:
        retire();
        break;
    case 9:
        try_table();
        break;
    case 10:
        change_quota();
        break;
    case 11:
        stress_drain(stress_random(3) != 0);
        break;
    case 12:
        stress_evict_all();
        break;
    case 13:
        read_status();
        break;
    case 14:
        if (stress_random(3) == 0)
            restart();
        break;
    default:
        (void) poll(NULL, 0, (int) stress_random(8));
        break; /* no action: only the clients act */
    }
}

static void test_everything_at_once(void)
{
    const char *text = getenv("KVC_STRESS_SECONDS");
    time_t end = time(NULL) + (text ? atoi(text) : 2);
    uint64_t generation = 0;
    unsigned rounds = 0;

    stress_begin(args);
    do {
        for (unsigned i = 0; i < STRESS_CLIENTS; i++)
            stress_start_client(i);
        for (unsigned i = 0; i < ACTS; i++)
            act();
        stress_settle(&generation);
        rounds++;
        /* on a slow machine a round takes a second: continue until there was a page to check */
    } while ((time(NULL) < end || (stress_n_verified == 0 && rounds < 200)) &&
             CU_get_number_of_failure_records() == 0);
    printf("    %u rounds, %" PRIu64 " restarts, %" PRIu64 " pages compared afterwards\n", rounds, n_restarts,
           stress_n_verified);
    CU_ASSERT(stress_n_verified > 0);
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=self-check-failed"));
    stress_finish();
}

const struct test_case test_cases[] = {TEST(test_everything_at_once), TEST_END};
