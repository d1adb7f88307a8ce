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
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "stress";

enum { CLIENTS = 6, ACTS = 120 };

static const char *const args[] = {
    "--pool-bytes=768K",
    "--extent-bytes=256K",
    "--span-bytes=64K",
    "--arena-bytes=64K",
    "--quota-bytes=8M",
    "--lease-ms=150",
    "--handshake-ms=1000",
    "--drain-ms=300",
    "--moments-bytes=1M",
    "--ghosts=64",
    "--reservations-per-session=16",
    NULL,
};

static uint64_t random_state;
static pid_t clients[CLIENTS];
static bool stopped[CLIENTS];
static int operator_fd = -1;
static uint64_t n_verified, n_restarts;

static uint64_t below(uint64_t n)
{
    return splitmix64_next(&random_state) % n;
}

/* ---- processes ---- */

static void start_client(unsigned i)
{
    uint64_t seed = splitmix64_next(&random_state);

    (void) fflush(stdout);
    clients[i] = fork();
    if (clients[i] == 0) {
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        stress_client(seed);
    }
    assert(clients[i] > 0);
    stopped[i] = false;
}

/* A client that exited by itself had a reason, and printed it. */
static void end_client(unsigned i)
{
    int status = 0;

    (void) kill(clients[i], SIGKILL);
    assert(waitpid(clients[i], &status, 0) == clients[i]);
    CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void stop_or_go_on(unsigned i)
{
    stopped[i] = !stopped[i];
    (void) kill(clients[i], stopped[i] ? SIGSTOP : SIGCONT);
}

/* The daemon never ends by itself: a failed check aborts it. */
static bool daemon_lives(void)
{
    int status;
    pid_t r = waitpid(raw_daemon.pid, &status, WNOHANG);

    if (r == 0)
        return true;
    printf("    the daemon ended by itself, status 0x%x: see %s\n", (unsigned) status, raw_daemon.log);
    return false;
}

static void restart(void)
{
    CU_ASSERT_FATAL(daemon_lives());
    if (below(3))
        supervisor_kill();
    else
        supervisor_end();
    if (below(8) == 0)
        supervisor_lose("kvc-pid-"); /* then the daemon opens the recorded pids */
    CU_ASSERT_FATAL(supervisor_again());
    n_restarts++;
}

/* ---- the operator ---- */

/* NULL: the connection belonged to an earlier daemon; the next request opens a new one. */
static Kvcobra__Reply *operator_request(Kvcobra__Request__BodyCase kind, void *body)
{
    Kvcobra__Request m = raw_of(kind, body);
    struct wire_packet p = {0};
    Kvcobra__Reply *reply;

    if (operator_fd < 0)
        operator_fd = raw_open(raw_daemon.operator_socket);
    reply = raw_request(operator_fd, &m, NULL, 0, &p);
    if (!reply) {
        (void) close(operator_fd);
        operator_fd = -1;
        return NULL;
    }
    wire_packet_close_fds(&p);
    return reply;
}

static void tell(Kvcobra__Request__BodyCase kind, void *body)
{
    wire_reply_free(operator_request(kind, body));
}

static ProtobufCBinaryData some_table(void)
{
    return (ProtobufCBinaryData){32, stress_tables[below(STRESS_TABLES)]->digest};
}

/*
 * Stages a table and activates it. The table may retire between the two if it drained, so both are repeated.
 */
static void stage_and_activate(void)
{
    const struct table *t = stress_tables[below(STRESS_TABLES)];
    uint8_t digest[32];
    int r;

    do
        r = raw_try_activate(raw_daemon.operator_socket, t->bytes, t->n_bytes, digest);
    while (r == -EBADMSG);
    CU_ASSERT_EQUAL_FATAL(r, 0);
}

static void activate(void)
{
    Kvcobra__ActivateTable b = KVCOBRA__ACTIVATE_TABLE__INIT;

    b.digest = some_table();
    b.revision = below(3) ? 0 : below(100);
    tell(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &b);
}

static void roll_back(void)
{
    Kvcobra__RollbackTable b = KVCOBRA__ROLLBACK_TABLE__INIT;

    b.digest = some_table();
    tell(KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &b);
}

static void retire(void)
{
    Kvcobra__RetireTable b = KVCOBRA__RETIRE_TABLE__INIT;

    b.digest = some_table();
    tell(KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &b);
}

static void try_table(void)
{
    Kvcobra__ShadowTable shadow = KVCOBRA__SHADOW_TABLE__INIT;
    Kvcobra__CanaryTable canary = KVCOBRA__CANARY_TABLE__INIT;

    shadow.digest = canary.digest = some_table();
    shadow.ppm = (uint32_t) below(2000000);
    canary.share = (uint32_t) below(300);
    if (below(2))
        tell(KVCOBRA__REQUEST__BODY_SHADOW_TABLE, &shadow);
    else
        tell(KVCOBRA__REQUEST__BODY_CANARY_TABLE, &canary);
}

static void set_quota(uint64_t bytes, uint64_t guarantee)
{
    Kvcobra__SetQuota b = KVCOBRA__SET_QUOTA__INIT;
    char name[32];

    (void) snprintf(name, sizeof(name), "uid-%ld", (long) getuid());
    b.tenant = name;
    b.quota_bytes = bytes;
    b.guarantee_bytes = guarantee;
    b.set_guarantee = 1;
    tell(KVCOBRA__REQUEST__BODY_SET_QUOTA, &b);
}

static void change_quota(void)
{
    set_quota(below(3) ? 8 << 20 : 65536 * (1 + below(32)), below(4) << 18);
}

static void drain(bool off)
{
    Kvcobra__Drain b = KVCOBRA__DRAIN__INIT;

    b.off = off;
    tell(KVCOBRA__REQUEST__BODY_DRAIN, &b);
}

static void evict_all(void)
{
    Kvcobra__Evict b = KVCOBRA__EVICT__INIT;

    b.tenant = (char *) "";
    for (bool more = true; more;) {
        Kvcobra__Reply *r = operator_request(KVCOBRA__REQUEST__BODY_EVICT, &b);

        more = r && r->err == 0 && r->evict->more;
        wire_reply_free(r);
    }
}

static void read_status(void)
{
    Kvcobra__GetFit fit = KVCOBRA__GET_FIT__INIT;
    Kvcobra__FetchMoments moments = KVCOBRA__FETCH_MOMENTS__INIT;
    Kvcobra__GetStatus status = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    fit.digest = some_table();
    moments.model_digest = (ProtobufCBinaryData){32, (uint8_t *) random_table_model_digest};
    status.cursor = below(2) ? 0 : splitmix64_next(&random_state);
    tell(KVCOBRA__REQUEST__BODY_GET_FIT, &fit);
    tell(KVCOBRA__REQUEST__BODY_FETCH_MOMENTS, &moments);
    tell(KVCOBRA__REQUEST__BODY_GET_STATUS, &status);
    tell(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
}

static void act(void)
{
    unsigned i = (unsigned) below(CLIENTS);

    switch (below(24)) {
    case 0:
        end_client(i);
        start_client(i);
        break;
    case 1:
        end_client(i);
        start_client(i);
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
        stage_and_activate();
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
        drain(below(3) != 0);
        break;
    case 12:
        evict_all();
        break;
    case 13:
        read_status();
        break;
    case 14:
        if (below(3) == 0)
            restart();
        break;
    default:
        (void) poll(NULL, 0, (int) below(8));
        break; /* no action: only the clients act */
    }
}

/* ---- final checks ---- */

/* True if nothing is held and no thread reads the arena of an ended session. */
static bool is_quiet(void)
{
    Kvcobra__Reply *r = raw_status();
    bool quiet = r->status->sessions == 0 && r->status->held_pages == 0 && r->status->leases == 0 &&
                 r->status->work_waiting == 0 &&
                 (r->status->n_tenants == 0 || r->status->tenants[0]->arena_bytes == 0);

    wire_reply_free(r);
    return quiet;
}

static void wait_until_quiet(void)
{
    for (struct wait w = wait_begin(); !is_quiet() && wait_again(&w);)
        ;
    CU_ASSERT_FATAL(is_quiet());
}

/* Checks that the pages of the only tenant are those of the pool, and those of the tables. */
static void check_accounts(bool empty)
{
    Kvcobra__Reply *r = raw_status();
    const Kvcobra__StatusReply *s = r->status;
    uint64_t pages = 0;

    CU_ASSERT_FATAL(s->n_tenants <= 1 && s->next_cursor == 0);
    for (size_t i = 0; i < s->n_spaces; i++) {
        pages += s->spaces[i]->pages;
        CU_ASSERT_EQUAL(s->spaces[i]->held_pages, 0);
    }
    if (s->n_tenants == 1) {
        const Kvcobra__TenantStatus *t = s->tenants[0];

        CU_ASSERT_EQUAL(t->arena_bytes, 0);
        CU_ASSERT_EQUAL(t->held_bytes, 0);
        CU_ASSERT_EQUAL(t->sessions, 0);
        CU_ASSERT_EQUAL(t->leases, 0);
        CU_ASSERT_EQUAL(t->used_bytes, s->page_bytes);
        CU_ASSERT_EQUAL(t->pages, pages);
        CU_ASSERT_EQUAL(t->extent_bytes, s->extent_bytes);
        CU_ASSERT(!empty || (t->pages == 0 && t->used_bytes == 0));
    }
    CU_ASSERT_EQUAL(s->work_waiting, 0);
    CU_ASSERT(s->extent_bytes <= s->pool_bytes);
    wire_reply_free(r);
}

static void settle(uint64_t *last_generation)
{
    unsigned found;
    uint64_t generation;

    for (unsigned i = 0; i < CLIENTS; i++)
        end_client(i);
    CU_ASSERT_FATAL(daemon_lives());
    drain(true);
    set_quota(8 << 20, 0);
    wait_until_quiet();
    check_accounts(false);
    stage_and_activate(); /* the active one may have been retired before a restart */
    generation = stress_verify(&found);
    n_verified += found;
    CU_ASSERT(generation == 0 || generation > *last_generation);
    if (generation > 0)
        *last_generation = generation;
    wait_until_quiet();
    if (below(2)) {
        evict_all();
        check_accounts(true);
    }
}

static void test_everything_at_once(void)
{
    const char *text = getenv("KVC_STRESS_SECONDS"), *seed = getenv("KVC_TEST_SEED");
    time_t end = time(NULL) + (text ? atoi(text) : 2);
    uint64_t generation = 0;
    unsigned rounds = 0;

    random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t) time(NULL) << 16 ^ (uint64_t) getpid();
    printf("    KVC_TEST_SEED=%" PRIu64 "\n", random_state);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        stress_tables[i] = raw_make_table(i + 1);
    supervisor_begin(args);
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        raw_activate_table(stress_tables[i]);
    do {
        for (unsigned i = 0; i < CLIENTS; i++)
            start_client(i);
        for (unsigned i = 0; i < ACTS; i++)
            act();
        settle(&generation);
        rounds++;
        /* on a slow machine a round takes a second: continue until there was a page to check */
    } while ((time(NULL) < end || (n_verified == 0 && rounds < 200)) &&
             CU_get_number_of_failure_records() == 0);
    printf("    %u rounds, %" PRIu64 " restarts, %" PRIu64 " pages compared afterwards\n", rounds, n_restarts,
           n_verified);
    CU_ASSERT(n_verified > 0);
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=self-check-failed"));
    if (operator_fd >= 0)
        (void) close(operator_fd);
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        stress_tables[i] = table_unref(stress_tables[i]);
    supervisor_finish();
}

const struct test_case test_cases[] = {TEST(test_everything_at_once), TEST_END};
