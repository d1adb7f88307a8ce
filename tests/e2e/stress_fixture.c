/* See stress_fixture.h. */
#include "tests/e2e/stress_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/splitmix64.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/stress_client.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

uint64_t stress_state, stress_n_verified;
pid_t stress_clients[STRESS_CLIENTS];
_Atomic uint64_t *stress_n_compared;
static int stress_operator_fd = -1;

void stress_begin(const char *const *args)
{
    const char *seed = getenv("KVC_TEST_SEED");

    stress_state = seed ? strtoull(seed, NULL, 0) : (uint64_t) time(NULL) << 16 ^ (uint64_t) getpid();
    printf("    KVC_TEST_SEED=%" PRIu64 "\n", stress_state);
    stress_n_compared =
        mmap(NULL, sizeof(*stress_n_compared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(stress_n_compared != MAP_FAILED);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        stress_tables[i] = raw_make_table(i + 1);
    supervisor_begin(args);
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        raw_activate_table(stress_tables[i]);
}

void stress_finish(void)
{
    if (stress_operator_fd >= 0)
        (void) close(stress_operator_fd);
    stress_operator_fd = -1;
    for (unsigned i = 0; i < STRESS_TABLES; i++)
        stress_tables[i] = table_unref(stress_tables[i]);
    supervisor_finish();
    (void) munmap(stress_n_compared, sizeof(*stress_n_compared));
}

uint64_t stress_random(uint64_t n)
{
    return splitmix64_next(&stress_state) % n;
}

/* ---- processes ---- */

void stress_start_client(unsigned i)
{
    uint64_t seed = splitmix64_next(&stress_state);

    (void) fflush(stdout);
    stress_clients[i] = fork();
    if (stress_clients[i] == 0) {
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        stress_client(seed);
    }
    assert(stress_clients[i] > 0);
}

/* A client that exited by itself had a reason, and printed it. */
void stress_end_client(unsigned i)
{
    int status = 0;

    (void) kill(stress_clients[i], SIGKILL);
    assert(waitpid(stress_clients[i], &status, 0) == stress_clients[i]);
    CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* The daemon never ends by itself: a failed check aborts it. */
bool stress_daemon_lives(void)
{
    int status;
    pid_t r = waitpid(raw_daemon.pid, &status, WNOHANG);

    if (r == 0)
        return true;
    printf("    the daemon ended by itself, status 0x%x: see %s\n", (unsigned) status, raw_daemon.log);
    return false;
}

/* ---- the operator ---- */

/* NULL: the connection belonged to an earlier daemon; the next request opens a new one. */
static Kvcobra__Reply *stress_operator(Kvcobra__Request__BodyCase kind, void *body)
{
    Kvcobra__Request m = raw_of(kind, body);
    struct wire_packet p = {0};
    Kvcobra__Reply *reply;

    if (stress_operator_fd < 0)
        stress_operator_fd = raw_open(raw_daemon.operator_socket);
    reply = raw_request(stress_operator_fd, &m, NULL, 0, &p);
    if (!reply) {
        (void) close(stress_operator_fd);
        stress_operator_fd = -1;
        return NULL;
    }
    wire_packet_close_fds(&p);
    return reply;
}

void stress_tell(Kvcobra__Request__BodyCase kind, void *body)
{
    wire_reply_free(stress_operator(kind, body));
}

/*
 * Stages a table and activates it. The table may retire between the two if it drained, so both are repeated.
 */
void stress_stage_and_activate(void)
{
    const struct table *t = stress_tables[stress_random(STRESS_TABLES)];
    uint8_t digest[32];
    int r;

    do
        r = raw_try_activate(raw_daemon.operator_socket, t->bytes, t->n_bytes, digest);
    while (r == -EBADMSG);
    CU_ASSERT_EQUAL_FATAL(r, 0);
}

void stress_set_quota(uint64_t bytes, uint64_t guarantee)
{
    Kvcobra__SetQuota b = KVCOBRA__SET_QUOTA__INIT;
    char name[32];

    (void) snprintf(name, sizeof(name), "uid-%ld", (long) getuid());
    b.tenant = name;
    b.quota_bytes = bytes;
    b.guarantee_bytes = guarantee;
    b.set_guarantee = 1;
    stress_tell(KVCOBRA__REQUEST__BODY_SET_QUOTA, &b);
}

void stress_drain(bool off)
{
    Kvcobra__Drain b = KVCOBRA__DRAIN__INIT;

    b.off = off;
    stress_tell(KVCOBRA__REQUEST__BODY_DRAIN, &b);
}

void stress_evict_all(void)
{
    Kvcobra__Evict b = KVCOBRA__EVICT__INIT;

    b.tenant = (char *) "";
    for (bool more = true; more;) {
        Kvcobra__Reply *r = stress_operator(KVCOBRA__REQUEST__BODY_EVICT, &b);

        more = r && r->err == 0 && r->evict->more;
        wire_reply_free(r);
    }
}

/* ---- final checks ---- */

/* True if nothing is held and no thread reads the arena of an ended session. */
static bool stress_is_quiet(void)
{
    Kvcobra__Reply *r = raw_status();
    bool quiet = r->status->sessions == 0 && r->status->held_pages == 0 && r->status->leases == 0 &&
                 r->status->work_waiting == 0 &&
                 (r->status->n_tenants == 0 || r->status->tenants[0]->arena_bytes == 0);

    wire_reply_free(r);
    return quiet;
}

static void stress_wait_until_quiet(void)
{
    for (struct wait w = wait_begin(); !stress_is_quiet() && wait_again(&w);)
        ;
    CU_ASSERT_FATAL(stress_is_quiet());
}

/* Checks that the pages of the only tenant are those of the pool, and those of the tables. */
static void stress_check_accounts(bool empty)
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

void stress_settle(uint64_t *last_generation)
{
    unsigned found;
    uint64_t generation;

    for (unsigned i = 0; i < STRESS_CLIENTS; i++)
        stress_end_client(i);
    CU_ASSERT_FATAL(stress_daemon_lives());
    stress_drain(true);
    stress_set_quota(8 << 20, 0);
    stress_wait_until_quiet();
    stress_check_accounts(false);
    stress_stage_and_activate(); /* the active one may have been retired before a restart */
    generation = stress_verify(&found);
    stress_n_verified += found;
    CU_ASSERT(generation == 0 || generation > *last_generation);
    if (generation > 0)
        *last_generation = generation;
    stress_wait_until_quiet();
    if (stress_random(2)) {
        stress_evict_all();
        stress_check_accounts(true);
    }
}
