/*
 * A start that cannot restore the holds of an earlier process to its sessions: the pages stay held while that
 * process lives, and are free when it has ended. The daemon is kvcobrad_faulty (faulty_daemon.c).
 */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "restart_faults";

enum { N = 6 };

/* 30 pages of 4352 bytes at most, so that later pages need room. */
static const char *const args[] = {
    "--pool-bytes=256K",
    "--extent-bytes=128K",
    "--span-bytes=64K",
    "--arena-bytes=64K",
    "--quota-bytes=64M",
    "--lease-ms=200",
    NULL,
};

/* Publishes N pages, sends the parent their offsets, keeps them until it is killed. */
static _Noreturn void hold_pages(int to_parent)
{
    struct raw_model m = raw_model_open();
    struct raw_slot slots[N];
    uint64_t lease;

    for (uint64_t n = 0; n < N; n++)
        if (raw_publish(&m, n + 1, &slots[n], &lease) != 0)
            _exit(1);
    if (write(to_parent, slots, sizeof(slots)) != sizeof(slots))
        _exit(1);
    for (;;)
        (void) pause();
}

static pid_t start_holder(struct raw_slot slots[N])
{
    int pipe_fds[2];
    pid_t pid;

    assert(pipe(pipe_fds) == 0);
    pid = fork();
    if (pid == 0)
        hold_pages(pipe_fds[1]);
    assert(pid > 0);
    (void) close(pipe_fds[1]);
    assert(read(pipe_fds[0], slots, N * sizeof(*slots)) == (ssize_t) (N * sizeof(*slots)));
    (void) close(pipe_fds[0]);
    return pid;
}

static void end_holder(pid_t pid)
{
    assert(kill(pid, SIGKILL) == 0);
    assert(waitpid(pid, NULL, 0) == pid);
}

/*
 * Publishes five times the pool while an operator evicts everything, and checks that none of @slots is given
 * to another client.
 */
static void publish_more_than_fits(const struct raw_slot *slots, uint64_t from)
{
    struct raw_model m = raw_model_open();

    for (uint64_t n = from; n < from + 150; n++) {
        struct raw_slot s;
        uint64_t lease;

        CU_ASSERT_EQUAL_FATAL(raw_publish(&m, n, &s, &lease), 0);
        for (int i = 0; i < N; i++)
            CU_ASSERT(s.slot != slots[i].slot);
        CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    raw_close_model(&m);
}

static bool is_intact(struct raw_model *m, uint64_t n, const struct raw_slot *s)
{
    struct chunk_key key = raw_key(n);
    size_t bytes;
    uint8_t *pages = raw_map_extent(m, s->extent, &bytes);
    bool same;

    raw_write_page(m, raw_table, &key, PAGE_REST, 0, (unsigned) n);
    same = s->offset + s->bytes <= bytes && memcmp(pages + s->offset, m->arena, s->bytes) == 0;
    (void) munmap(pages, bytes);
    return same;
}

/* Two starts with @fault, then one without: the session is restored, or its process has ended. */
static void holds_survive(const char *fault, bool loses_pidfd)
{
    struct raw_slot slots[N];
    struct raw_model m;
    pid_t holder;

    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(args);
    raw_activate_table(raw_table);
    holder = start_holder(slots);
    assert(setenv("KVC_TEST_FAULT", fault, 1) == 0);
    for (int round = 0; round < 2; round++) {
        supervisor_kill();
        if (loses_pidfd)
            supervisor_lose("kvc-pid-");
        CU_ASSERT_FATAL(supervisor_again());
        CU_ASSERT_EQUAL(raw_held_pages(), N);
        publish_more_than_fits(slots, 1000 + 1000 * (uint64_t) round);
        CU_ASSERT_EQUAL(raw_held_pages(), N);
        m = raw_model_open();
        for (int i = 0; i < N; i++)
            CU_ASSERT(is_intact(&m, (uint64_t) i + 1, &slots[i]));
        raw_close_model(&m);
    }
    end_holder(holder);
    raw_wait_for_held(0); /* the tick finds the exit */
    supervisor_kill();
    assert(unsetenv("KVC_TEST_FAULT") == 0);
    CU_ASSERT_FATAL(supervisor_again()); /* no record of the session is left */
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pid-"), 0);
    raw_table = table_unref(raw_table);
    supervisor_finish();
}

static void test_no_session(void)
{
    holds_survive("sessions", false);
}

static void test_no_session_no_pidfd(void)
{
    holds_survive("sessions", true);
}

static void test_no_lease(void)
{
    holds_survive("leases", false);
}

/* One faulty start: the next start restores everything to the session. */
static void test_given_back_later(void)
{
    struct raw_slot slots[N];
    pid_t holder;

    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(args);
    raw_activate_table(raw_table);
    holder = start_holder(slots);
    assert(setenv("KVC_TEST_FAULT", "sessions", 1) == 0);
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=session-not-restored"));
    assert(unsetenv("KVC_TEST_FAULT") == 0);
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(raw_held_pages(), N);
    CU_ASSERT(daemon_logged(&raw_daemon, "sessions=1 holds=6"));
    end_holder(holder);
    raw_wait_for_held(0);
    raw_table = table_unref(raw_table);
    supervisor_finish();
}

const struct test_case test_cases[] = {
    TEST(test_no_session),
    TEST(test_no_session_no_pidfd),
    TEST(test_no_lease),
    TEST(test_given_back_later),
    TEST_END,
};
