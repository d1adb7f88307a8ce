/*
 * The pool over restarts: the daemon is killed, and everything committed and everything held is still there.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/journal.h"
#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/wait.h"

const char test_suite[] = "restart";

static const char *const small_pool[] = {
    "--pool-bytes=256K", "--extent-bytes=128K", "--span-bytes=64K",
    "--arena-bytes=64K", "--quota-bytes=64M",   NULL,
};

static void begin(const char *const *args)
{
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(args);
    raw_activate_table(raw_table);
}

static void finish(void)
{
    raw_table = table_unref(raw_table);
    supervisor_finish();
}

static void restart(void)
{
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
}

/* Compares an extent's bytes with page @n as raw_publish() wrote it. */
static bool is_page(struct raw_model *m, uint64_t n, const struct raw_slot *s)
{
    struct chunk_key key = raw_key(n);
    size_t bytes;
    uint8_t *pages = raw_map_extent(m, s->extent, &bytes);
    bool same;

    raw_write_page(m, raw_table, &key, n == 0 ? PAGE_FIRST : PAGE_REST, 0, (unsigned) n);
    same = s->offset + s->bytes <= bytes && memcmp(pages + s->offset, m->arena, s->bytes) == 0;
    (void) munmap(pages, bytes);
    return same;
}

static char *restart_kind(void)
{
    Kvcobra__Reply *r = raw_status();
    char *kind = strdup(r->status->restart);

    wire_reply_free(r);
    return kind;
}

/*
 * After an orderly end and after SIGKILL the same pages are at the same offsets, and the same keys find them.
 */
static void test_pages_survive(void)
{
    enum { N = 2000 }; /* the index grows in the middle of a span */
    static struct raw_slot slots[N];
    struct raw_model m;
    uint64_t lease;
    char *kind;
    int reason;

    begin(NULL);
    kind = restart_kind();
    CU_ASSERT_STRING_EQUAL(kind, "kept");
    free(kind);
    m = raw_model_open();
    for (uint64_t n = 0; n < N; n++) {
        CU_ASSERT_EQUAL_FATAL(raw_publish(&m, n, &slots[n], &lease), 0);
        if (n % 2)
            CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    raw_close_model(&m);
    for (int round = 0; round < 4; round++) {
        if (round % 2) {
            supervisor_end();
            CU_ASSERT_FATAL(supervisor_again());
        } else {
            restart();
        }
        /* this process still holds them, also if another one connects */
        CU_ASSERT_EQUAL(raw_held_pages(), N / 2);
        m = raw_model_open();
        for (uint64_t n = 0; n < N; n++) {
            CU_ASSERT(raw_lease_one(&m, n, &slots[n], &lease, &reason));
            if (n % 100 == 0)
                CU_ASSERT(is_page(&m, n, &slots[n]));
            CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
        }
        raw_close_model(&m);
    }
    finish();
}

/* A client does not notice the restart: the next daemon never stores anything over its mapped pages. */
static void test_hold_is_honoured(void)
{
    struct raw_slot held, other;
    struct raw_model m, next;
    uint8_t *pages, copy[8192];
    uint64_t lease, last;
    size_t bytes;

    begin(small_pool);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &held, &lease), 0);
    pages = raw_map_extent(&m, held.extent, &bytes);
    assert(held.bytes <= sizeof(copy));
    memcpy(copy, pages + held.offset, held.bytes);
    last = held.generation;
    restart();
    next = raw_model_open();
    for (uint64_t n = 2; n < 300; n++) { /* five times the size of the pool */
        CU_ASSERT_EQUAL_FATAL(raw_publish(&next, n, &other, &lease), 0);
        CU_ASSERT(other.slot != held.slot);
        CU_ASSERT(other.generation > last); /* generations continue */
        last = other.generation;
        CU_ASSERT_EQUAL(raw_release(&next, lease), 0);
    }
    CU_ASSERT(memcmp(copy, pages + held.offset, held.bytes) == 0);
    (void) munmap(pages, bytes);
    raw_close_model(&next);
    raw_close_model(&m);
    finish();
}

/* Starts a process that holds a page until the pipe closes. */
static pid_t start_holder(int *ret_pipe)
{
    int to_child[2], from_child[2];
    pid_t pid;
    char byte;

    /* not inherited by later daemons */
    assert(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(from_child, O_CLOEXEC) == 0);
    pid = fork();
    if (pid == 0) {
        struct raw_model m = raw_model_open();
        struct raw_slot slot;
        uint64_t lease;

        (void) close(to_child[1]);
        if (raw_publish(&m, 1, &slot, &lease) != 0 || write(from_child[1], "x", 1) != 1)
            _exit(1);
        (void) read(to_child[0], &byte, 1);
        _exit(0);
    }
    assert(pid > 0 && read(from_child[0], &byte, 1) == 1);
    (void) close(to_child[0]);
    (void) close(from_child[0]);
    (void) close(from_child[1]);
    *ret_pipe = to_child[1];
    return pid;
}

/*
 * The pidfd shows the exit of a holder, after the restart and while no daemon runs. The cases run with the
 * stored pidfd and without it.
 */
static void test_holder_exits(void)
{
    for (int away = 0; away < 2; away++) {
        for (int lost = 0; lost < 2; lost++) {
            int pipe_fd;
            pid_t pid;

            begin(NULL);
            pid = start_holder(&pipe_fd);
            CU_ASSERT(supervisor_gets("kvc-pid-")); /* when the session has lived for a second */
            supervisor_kill();
            if (lost)
                supervisor_lose("kvc-pid-");
            if (away) {
                (void) close(pipe_fd);
                CU_ASSERT_EQUAL(waitpid(pid, NULL, 0), pid);
            }
            CU_ASSERT_FATAL(supervisor_again());
            if (!away) {
                CU_ASSERT_EQUAL(raw_held_pages(), 1);
                (void) close(pipe_fd);
                CU_ASSERT_EQUAL(waitpid(pid, NULL, 0), pid);
            }
            raw_wait_for_held(0);
            restart();
            CU_ASSERT_EQUAL(supervisor_stored("kvc-pid-"), 0);
            finish();
        }
    }
}

static bool hello_again(int fd, uint8_t token[SESSION_TOKEN_BYTES], bool resume)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    Kvcobra__Reply *reply;
    bool resumed;

    hello.version_min = hello.version_max = PROTO_VERSION;
    if (resume)
        hello.session_token = (ProtobufCBinaryData){SESSION_TOKEN_BYTES, token};
    reply = raw_request(fd, &q, NULL, 0, NULL);
    assert(reply && reply->err == 0 && reply->hello->session_token.len == SESSION_TOKEN_BYTES);
    memcpy(token, reply->hello->session_token.data, SESSION_TOKEN_BYTES);
    resumed = reply->hello->resumed;
    wire_reply_free(reply);
    assert(raw_confirm(fd) == 0);
    return resumed;
}

/* The session token is valid for the next daemon, which releases the old lease by its number. */
static void test_session_resumes(void)
{
    uint8_t token[SESSION_TOKEN_BYTES] = {0};
    struct raw_model m;
    struct raw_slot slot;
    uint64_t lease, other;
    int fd;

    begin(NULL);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_FALSE(hello_again(fd, token, false));
    CU_ASSERT_EQUAL_FATAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &slot, &lease), 0);
    raw_close_model(&m);
    restart();
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT(hello_again(fd, token, true));
    CU_ASSERT_EQUAL_FATAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &slot, &other), 0);
    CU_ASSERT(other != lease); /* numbers continue */
    CU_ASSERT_EQUAL(raw_release(&m, other), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), -ESTALE);
    raw_close_model(&m);
    finish();
}

static int keep_leases(struct raw_model *m, const uint64_t *leases, size_t n, bool last)
{
    Kvcobra__KeepLeases keep = KVCOBRA__KEEP_LEASES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_KEEP_LEASES, &keep);
    Kvcobra__Reply *reply;
    int r;

    keep.leases = (uint64_t *) leases;
    keep.n_leases = n;
    keep.last = last;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    assert(reply);
    r = reply->err;
    wire_reply_free(reply);
    return r;
}

/* A client that resumes names the leases it has; the others end when it is done. */
static void test_leases_without_reply(void)
{
    uint8_t token[SESSION_TOKEN_BYTES] = {0};
    const uint64_t nonsense = UINT64_MAX;
    struct raw_model m;
    struct raw_slot slot;
    uint64_t leases[4];
    int fd;

    begin(NULL);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_FALSE(hello_again(fd, token, false));
    CU_ASSERT_EQUAL_FATAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    for (uint64_t n = 0; n < 4; n++)
        CU_ASSERT_EQUAL(raw_publish(&m, n + 1, &slot, &leases[n]), 0);
    raw_close_model(&m);
    restart();
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT(hello_again(fd, token, true));
    CU_ASSERT_EQUAL_FATAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_EQUAL(keep_leases(&m, &leases[2], 1, false), 0);
    CU_ASSERT_EQUAL(keep_leases(&m, &nonsense, 1, false), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 4);
    CU_ASSERT_EQUAL(keep_leases(&m, &leases[0], 1, true), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 2);
    CU_ASSERT_EQUAL(raw_release(&m, leases[1]), -ESTALE);
    CU_ASSERT_EQUAL(raw_release(&m, leases[2]), 0);
    CU_ASSERT_EQUAL(keep_leases(&m, NULL, 0, true), 0); /* no lease is named: all end */
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    raw_close_model(&m);
    finish();
}

/* ---- SIGKILL during commits ---- */

enum { ROUNDS = 25, PAGES_MAX = 20000 };

struct shared { /* results of the children */
    volatile uint32_t n;
    struct raw_slot slots[PAGES_MAX];
};

/* Commits until the daemon is dead; every second page stays held until this process ends. */
static void commit_until_lost(struct shared *sh, int progress)
{
    struct raw_model m;

    raw_exits_on_loss = true;
    m = raw_model_open();
    for (;;) {
        struct raw_slot slot;
        uint64_t lease;
        uint32_t n = sh->n;

        if (n == PAGES_MAX)
            _exit(0);
        if (raw_publish(&m, n + 1, &slot, &lease) != 0)
            _exit(1);
        sh->slots[n] = slot;
        sh->n = n + 1;
        if (write(progress, "x", 1) != 1)
            _exit(1);
        if (n % 2)
            (void) raw_release(&m, lease);
    }
}

/*
 * SIGKILL at any instruction while a client commits: pages that the daemon confirmed are there, bit for bit.
 */
static void test_kill_loop(void)
{
    static const char *const args[] = {"--pool-bytes=512M", "--extent-bytes=2M", "--span-bytes=256K",
                                       "--arena-bytes=64K", "--quota-bytes=1G",  NULL};
    struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t last_generation = 0, lease;
    struct raw_model m;
    int reason;

    assert(sh != MAP_FAILED);
    begin(args);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t n_commits = 1 + test_rand_below(120);
        uint32_t before = sh->n;
        int progress[2], status;
        char byte;
        pid_t pid;

        assert(pipe2(progress, O_CLOEXEC) == 0);
        pid = fork();
        if (pid == 0)
            commit_until_lost(sh, progress[1]);
        (void) close(progress[1]);
        for (uint64_t i = 0; i < n_commits; i++)
            CU_ASSERT_EQUAL_FATAL(read(progress[0], &byte, 1), 1);
        supervisor_kill(); /* the child continues with its next commits */
        (void) close(progress[0]);
        CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
        CU_ASSERT_FATAL(supervisor_again());
        CU_ASSERT_FATAL(sh->n >= before + n_commits);
        CU_ASSERT(sh->slots[before].generation > last_generation);
        for (uint32_t i = before; i < sh->n; i++)
            last_generation = sh->slots[i].generation;
    }
    raw_wait_for_held(0); /* all children have ended */
    m = raw_model_open();
    for (uint32_t i = 0; i < sh->n; i++) {
        CU_ASSERT_FATAL(raw_lease_one(&m, i + 1, &sh->slots[i], &lease, &reason));
        if (i % 16 == 0)
            CU_ASSERT(is_page(&m, i + 1, &sh->slots[i]));
        CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    raw_close_model(&m);
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "page-damaged"));
    (void) munmap(sh, sizeof(*sh));
    finish();
}

/* ---- damaged records ---- */

static void flip(int fd, off_t at)
{
    uint8_t byte;

    assert(pread(fd, &byte, 1, at) == 1);
    byte ^= 0x40;
    assert(pwrite(fd, &byte, 1, at) == 1);
}

static void publish_one(struct raw_slot *ret)
{
    struct raw_model m = raw_model_open();
    uint64_t lease;

    CU_ASSERT_EQUAL(raw_publish(&m, 1, ret, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    raw_close_model(&m);
}

static bool is_there(const struct raw_slot *slot)
{
    struct raw_model m = raw_model_open();
    uint64_t lease;
    int reason;
    bool there = raw_lease_one(&m, 1, slot, &lease, &reason);

    raw_close_model(&m);
    return there;
}

/*
 * A kill can leave one torn copy of the journal. With two torn copies, another version or another pool the
 * daemon starts empty, logs it, and serves.
 */
static void test_damaged_journal(void)
{
    static const off_t head[] = {offsetof(struct journal_head, version),
                                 offsetof(struct journal_head, places) +
                                     offsetof(struct journal_place, unit_bytes)};
    /* the first list is written to copy 1, the one with the extent to copy 0 */
    const off_t copies[] = {4096 + sizeof(struct journal_copy) + offsetof(struct journal_copy, next_extent),
                            4096 + offsetof(struct journal_copy, next_extent)};
    struct raw_slot slot;

    for (int kind = 0; kind < 4; kind++) {
        int fd;

        begin(NULL);
        publish_one(&slot);
        supervisor_kill();
        fd = supervisor_stored_fd("kvc-journal-");
        if (kind < 2) {
            for (int i = 0; i <= kind; i++) /* kind 0: the older copy; kind 1: both */
                flip(fd, copies[i]);
        } else {
            flip(fd, head[kind - 2]);
        }
        CU_ASSERT_FATAL(supervisor_again());
        CU_ASSERT_EQUAL(is_there(&slot), kind == 0);
        CU_ASSERT_EQUAL(daemon_logged(&raw_daemon, "event=pool-lost"), kind != 0);
        if (kind != 0) {
            CU_ASSERT_EQUAL(supervisor_stored("kvc-pages-"), 0);
            publish_one(&slot);
            restart(); /* later records are persistent again */
            CU_ASSERT(is_there(&slot));
        }
        finish();
    }
}

/* The loop sends WATCHDOG=1 to the supervisor, also without clients, and after a restart. */
static void test_watchdog(void)
{
    begin(NULL);
    for (int i = 0; i < 3; i++)
        CU_ASSERT(supervisor_hears_watchdog());
    restart();
    CU_ASSERT(supervisor_hears_watchdog());
    finish();
}

static void test_other_pool(void)
{
    static const char *args[] = {"--extent-bytes=2M", NULL};
    struct raw_slot slot;

    begin(args);
    publish_one(&slot);
    supervisor_kill();
    args[0] = "--extent-bytes=4M";
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=pool-lost"));
    CU_ASSERT_FALSE(is_there(&slot));
    args[0] = "--extent-bytes=2M";
    finish();
}

static void test_lost_extent_and_other_sessions(void)
{
    struct raw_slot slot;

    begin(NULL);
    publish_one(&slot);
    supervisor_kill();
    supervisor_lose("kvc-slots-");
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=extent-damaged"));
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pages-"), 0);
    CU_ASSERT_FALSE(is_there(&slot));
    publish_one(&slot);
    CU_ASSERT(is_there(&slot));
    finish();
}

static bool stores_pages_of(size_t n_extents)
{
    for (struct wait w = wait_begin(); supervisor_stored("kvc-pages-") != n_extents && wait_again(&w);)
        ;
    return supervisor_stored("kvc-pages-") == n_extents;
}

/*
 * Preallocated extents are stored before a tenant needs them, and not in the journal: after a kill the one
 * with pages is adopted, and the others are dropped.
 */
static void test_preallocated_extents(void)
{
    const char *args[] = {"--spare-extents=2", NULL};
    struct raw_slot slot;

    begin(args);
    CU_ASSERT_FATAL(stores_pages_of(2));
    publish_one(&slot);
    CU_ASSERT_FATAL(stores_pages_of(3));
    args[0] = "--spare-extents=0";
    restart();
    CU_ASSERT(is_there(&slot));
    CU_ASSERT_FATAL(stores_pages_of(1));
    supervisor_end(); /* an orderly end is no different */
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(is_there(&slot) && supervisor_stored("kvc-slots-") == 1);
    finish();
}

/* The checksum finds a changed page at the first lease, and the page can be written again. */
static void test_damaged_page(void)
{
    struct raw_slot slot, again;

    begin(NULL);
    publish_one(&slot);
    supervisor_kill();
    flip(supervisor_stored_fd("kvc-pages-"), (off_t) slot.offset + 1000);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_FALSE(is_there(&slot));
    CU_ASSERT(daemon_logged(&raw_daemon, "event=page-damaged"));
    publish_one(&again);
    CU_ASSERT(again.generation > slot.generation);
    CU_ASSERT(is_there(&again));
    finish();
}

/* Pages whose table file is missing are not found. Their holders keep them, then they are freed. */
static void test_lost_table(void)
{
    char path[256], hex[65] = "";
    struct raw_slot slot;
    int pipe_fd;
    pid_t pid;

    begin(NULL);
    pid = start_holder(&pipe_fd);
    publish_one(&slot);
    supervisor_kill();
    for (int i = 0; i < 32; i++)
        (void) snprintf(hex + 2 * i, 3, "%02x", raw_table->digest[i]);
    (void) snprintf(path, sizeof(path), "%s/tables/%s.kvct", raw_daemon.state, hex);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=table-lost"));
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    (void) close(pipe_fd);
    CU_ASSERT_EQUAL(waitpid(pid, NULL, 0), pid);
    raw_wait_for_held(0);
    raw_activate_table(raw_table);
    CU_ASSERT_FALSE(is_there(&slot));
    publish_one(&slot);
    CU_ASSERT(is_there(&slot));
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_pages_survive),        TEST(test_hold_is_honoured),
    TEST(test_holder_exits),         TEST(test_session_resumes),
    TEST(test_leases_without_reply), TEST(test_kill_loop),
    TEST(test_damaged_journal),      TEST(test_watchdog),
    TEST(test_other_pool),           TEST(test_lost_extent_and_other_sessions),
    TEST(test_preallocated_extents), TEST(test_damaged_page),
    TEST(test_lost_table),           TEST_END,
};
