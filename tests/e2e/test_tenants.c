/*
 * Tenants: several users share one by the configuration, others have one each; after a reload; over restarts.
 * Children act as users and groups that only this test uses.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/journal.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/wait.h"

const char test_suite[] = "tenants";

/* ---- the daemon and its configuration ---- */

static char config_path[64];

static void write_config(const char *text)
{
    FILE *f = fopen(config_path, "we");

    assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Starts a daemon whose sockets every user may reach. @text: of the configuration file. */
static void begin(const char *text)
{
    static char option[80];
    static const char *const args[] = {
        option, "--pool-bytes=1M", "--extent-bytes=128K", "--span-bytes=64K", "--arena-bytes=64K", NULL};

    (void) strcpy(config_path, "/tmp/kvcobra-test-XXXXXX");
    assert(close(mkstemp(config_path)) == 0);
    write_config(text);
    (void) snprintf(option, sizeof(option), "--config=%s", config_path);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(args);
    assert(chmod(raw_daemon.folder, 0711) == 0 && chmod(raw_daemon.socket, 0666) == 0 &&
           chmod(raw_daemon.operator_socket, 0666) == 0);
    raw_activate_table(raw_table);
}

static void finish(void)
{
    raw_table = table_unref(raw_table);
    supervisor_finish();
    (void) unlink(config_path);
}

/* Lets the daemon read @text; returns when it logged @result, which no earlier line of the log has. */
static void reload(const char *text, const char *result)
{
    struct wait w = wait_begin();

    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, result));
    write_config(text);
    assert(kill(raw_daemon.pid, SIGHUP) == 0);
    while (!daemon_logged(&raw_daemon, result) && wait_again(&w))
        ;
    CU_ASSERT_FATAL(daemon_logged(&raw_daemon, result));
}

static bool status_of(const char *name, Kvcobra__TenantStatus *ret)
{
    Kvcobra__Reply *r = raw_status();
    bool found = false;

    for (size_t i = 0; i < r->status->n_tenants && !found; i++) {
        found = strcmp(r->status->tenants[i]->name, name) == 0;
        if (found)
            *ret = *r->status->tenants[i];
    }
    ret->name = NULL;
    wire_reply_free(r);
    return found;
}

static bool has_tenants(void)
{
    Kvcobra__Reply *r = raw_status();
    bool some = r->status->n_tenants > 0;

    wire_reply_free(r);
    return some;
}

static int set_quota(const char *tenant, uint64_t bytes)
{
    Kvcobra__SetQuota m = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_SET_QUOTA, &m);
    int fd = raw_open(raw_daemon.operator_socket), r;

    m.tenant = (char *) tenant;
    m.quota_bytes = bytes;
    r = raw_errno(fd, &q);
    (void) close(fd);
    return r;
}

/* ---- processes of other users ---- */

struct who {
    uid_t uid;
    gid_t gid, group; /* 0: no supplementary group */
};

struct results { /* of a child */
    uint8_t index_key[INDEX_KEY_BYTES];
    struct raw_slot slot;
    int r, reason;
};

static struct who user(uid_t uid)
{
    return (struct who){uid, uid, 0};
}

static void become(struct who who)
{
    assert(setgroups(who.group ? 1 : 0, &who.group) == 0 && setgid(who.gid) == 0 && setuid(who.uid) == 0);
    assert(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
}

static struct results *results; /* shared with children */

/* Runs @act as @who. Return: what it returned. */
static int as(struct who who, int (*act)(void))
{
    pid_t pid;
    int status;

    if (!results)
        results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(results != MAP_FAILED);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        become(who);
        _exit(act());
    }
    CU_ASSERT_FATAL(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Publishes page 1 and leaves it unheld. */
static int publish(void)
{
    struct raw_model m = raw_model_open();
    uint64_t lease;

    memcpy(results->index_key, m.index_key, INDEX_KEY_BYTES);
    return raw_publish(&m, 1, &results->slot, &lease) == 0 && raw_release(&m, lease) == 0 ? 0 : 1;
}

/* 0: page 1 is found, by the index key of its publisher; 1: another key, and no page. */
static int find(void)
{
    struct raw_model m = raw_model_open();
    bool same_key = memcmp(results->index_key, m.index_key, INDEX_KEY_BYTES) == 0;
    uint64_t lease;
    bool found = raw_lease_one(&m, 1, &results->slot, &lease, &results->reason);

    if (found != same_key)
        return 2;
    return found ? 0 : 1;
}

/* ---- mapping ---- */

static const char shared[] = "tenants = 16\n"
                             "[tenant first]\n"
                             "users = 4720\n"
                             "[tenant team]\n"
                             "users = 4711, 4712-4713\n"
                             "groups = 4800\n"
                             "quota-bytes = 512K\n"
                             "guarantee-bytes = 200K\n"
                             "[tenant last]\n"
                             "users = 4714, daemon\n"
                             "groups = 4801\n";

/* Two services with different users share one tenant; all others do not see its pages. */
static void test_users_share(void)
{
    static const struct {
        struct who who;
        int result;
        const char *tenant;
    } others[] = {
        {{4711, 4711, 0}, 0, "team"},     {{4712, 5000, 0}, 0, "team"},
        {{4713, 4801, 4801}, 0, "team"},  {{5001, 4800, 0}, 0, "team"},
        {{5002, 5002, 4800}, 0, "team"},  {{5003, 4801, 4800}, 0, "team"},
        {{4714, 4714, 4800}, 0, "team"}, /* its group is in an earlier section than its user */
        {{4720, 4800, 4800}, 1, "first"}, {{4714, 4714, 0}, 1, "last"},
        {{5004, 5004, 4801}, 1, "last"},  {{1, 1, 0}, 1, "last"},
        {{5005, 5005, 0}, 1, "uid-5005"}, {{4710, 4802, 4799}, 1, "uid-4710"},
    };
    Kvcobra__TenantStatus t = KVCOBRA__TENANT_STATUS__INIT;
    char name[32];

    if (!other_user_is_possible())
        return;
    begin(shared);
    CU_ASSERT_EQUAL(as((struct who){4711, 4711, 0}, publish), 0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        CU_ASSERT_EQUAL(as(others[i].who, find), others[i].result);
        (void) snprintf(name, sizeof(name), "uid=%u tenant=%s\n", others[i].who.uid, others[i].tenant);
        CU_ASSERT(daemon_logged(&raw_daemon, name));
    }
    CU_ASSERT_FATAL(status_of("team", &t));
    CU_ASSERT(t.pages == 1 && t.quota_bytes == 512 << 10 && t.guarantee_bytes == 200 << 10 && t.isolated);
    CU_ASSERT(status_of("last", &t) && t.quota_bytes == 1 << 20 && t.guarantee_bytes == 0);
    /* a member that can write what the daemon shares */
    CU_ASSERT_EQUAL(as((struct who){0, 0, 4800}, find), 0);
    CU_ASSERT(status_of("team", &t) && !t.isolated);
    finish();
}

static int hello_now(void)
{
    int fd = raw_connect(raw_daemon.socket);

    return raw_hello(fd) == 0 && raw_confirm(fd) == 0 ? 0 : 1;
}

static int reload_pipe[2][2]; /* child to parent, parent to child */

static void tell(int fd)
{
    assert(write(fd, "x", 1) == 1);
}

static void await(int fd)
{
    char byte;

    assert(read(fd, &byte, 1) == 1);
}

/* A connection before the reload with HELLO after it; a session before the reload. */
static int over_reload(void)
{
    int early = raw_connect(raw_daemon.socket), fd = raw_open(raw_daemon.socket);

    (void) raw_open(raw_daemon.socket);
    tell(reload_pipe[0][1]);
    await(reload_pipe[1][0]);
    if (raw_hello(early) != 0 || raw_confirm(early) != 0)
        return 1;

    tell(reload_pipe[0][1]);
    await(reload_pipe[1][0]);
    (void) close(fd);
    return 0;
}

static void *run_over_reload(void *ctx)
{
    return (void *) (intptr_t) as(*(const struct who *) ctx, over_reload);
}

/* Changes apply at the next HELLO; sessions stay in their tenants; a bad file changes nothing. */
static void test_reload(void)
{
    const struct who who = {4711, 4711, 0};
    Kvcobra__TenantStatus t;
    pthread_t thread;
    void *result;

    if (!other_user_is_possible())
        return;
    assert(pipe2(reload_pipe[0], O_CLOEXEC) == 0 && pipe2(reload_pipe[1], O_CLOEXEC) == 0);
    begin("tenants = 16\n");
    assert(pthread_create(&thread, NULL, run_over_reload, (void *) &who) == 0);
    await(reload_pipe[0][0]);
    CU_ASSERT(status_of("uid-4711", &t) && t.sessions == 2);
    reload("tenants = 16\n[tenant x]\nusers = no-such-user\n", "line 3: [tenant x] users: there is no user");
    CU_ASSERT(daemon_logged(&raw_daemon, "event=reload-failed"));
    reload("tenants = 16\n[tenant team]\nusers = 4711\nquota-bytes = 300K\n", "event=reloaded tenants=1");
    tell(reload_pipe[1][1]);
    await(reload_pipe[0][0]);
    CU_ASSERT(status_of("uid-4711", &t) && t.sessions == 2);
    CU_ASSERT(status_of("team", &t) && t.sessions == 1 && t.quota_bytes == 300 << 10);
    reload("tenants = 16\n[tenant team]\nusers = 4711\nquota-bytes = 400K\n[tenant b]\nusers = 4712\n"
           "guarantee-bytes = 1M\n",
           "event=reloaded tenants=2");
    CU_ASSERT(status_of("team", &t) && t.quota_bytes == 400 << 10);
    CU_ASSERT(status_of("b", &t) && t.guarantee_bytes == 1 << 20); /* before a process of it came */
    tell(reload_pipe[1][1]);
    assert(pthread_join(thread, &result) == 0);
    CU_ASSERT_PTR_NULL(result);
    CU_ASSERT_EQUAL(as(who, hello_now), 0);
    for (unsigned i = 0; i < 4; i++)
        (void) close(reload_pipe[i / 2][i % 2]);
    finish();
}

/* ---- operators ---- */

/* 0: an operator; else the errno of the refusal. */
static int operate(void)
{
    int fd = raw_connect(raw_daemon.operator_socket), r = raw_hello(fd);

    if (r == 0)
        r = raw_confirm(fd);
    return r < 0 ? -r : r;
}

/* The sockets are passed, and every user reaches them: kvcobrad itself asks for the group. */
static void test_operator_group(void)
{
    if (!other_user_is_possible())
        return;
    begin("operator-group = 4900\n");
    CU_ASSERT_EQUAL(as(user(0), operate), 0);
    CU_ASSERT_EQUAL(as((struct who){4711, 4900, 0}, operate), 0);
    CU_ASSERT_EQUAL(as((struct who){4711, 4711, 4900}, operate), 0);
    CU_ASSERT_EQUAL(as((struct who){4711, 4711, 4901}, operate), EPERM);
    CU_ASSERT(daemon_logged(&raw_daemon, "uid 4711 is not in the group \\\"4900\\\""));
    finish();
    begin("");
    CU_ASSERT_EQUAL(as((struct who){4711, 4900, 4900}, operate), EPERM);
    CU_ASSERT(daemon_logged(&raw_daemon, "no operator-group is configured"));
    finish();
}

/* kvcobrad makes the socket: the group of the file and its mode keep the others away. */
static void test_operator_socket(void)
{
    static const char *const args[] = {"--operator-group=4900", NULL};
    struct stat st;

    if (!other_user_is_possible())
        return;
    CU_ASSERT_FATAL(daemon_start(&raw_daemon, DAEMON_BY_PATH, args));
    CU_ASSERT_EQUAL(stat(raw_daemon.operator_socket, &st), 0);
    CU_ASSERT(st.st_gid == 4900 && (st.st_mode & 07777) == 0660);
    CU_ASSERT(stat(raw_daemon.socket, &st) == 0 && st.st_gid == getgid());
    assert(chmod(raw_daemon.folder, 0711) == 0);
    CU_ASSERT_EQUAL(as((struct who){4711, 4711, 4900}, operate), 0);
    CU_ASSERT(daemon_stop(&raw_daemon));
    CU_ASSERT_FATAL(daemon_start(&raw_daemon, DAEMON_BY_PATH, NULL));
    CU_ASSERT(stat(raw_daemon.operator_socket, &st) == 0 && (st.st_mode & 07777) == 0600);
    CU_ASSERT(daemon_stop(&raw_daemon));
}

/* ---- forgetting ---- */

static int come_and_go(void)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);
    int fd = raw_connect(raw_daemon.socket), r = raw_hello(fd);

    if (r == 0)
        r = raw_confirm(fd);
    if (r == 0)
        r = raw_errno(fd, &q);
    return -r;
}

/* A process that stays connected until it is killed. */
static pid_t stay(struct who who, int ret_pipe[2])
{
    pid_t pid;

    assert(pipe2(ret_pipe, O_CLOEXEC) == 0);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        become(who);
        (void) raw_open(raw_daemon.socket);
        tell(ret_pipe[1]);
        (void) pause();
    }
    await(ret_pipe[0]);
    return pid;
}

/* However many users come and go, the next one finds a place; those that have something keep theirs. */
static void test_users_come_and_go(void)
{
    static const char text[] = "tenants = 4\nlease-ms = 3600000\n[tenant kept]\nusers = 4711\n"
                               "guarantee-bytes = 1\n";
    Kvcobra__TenantStatus t;
    Kvcobra__Reply *r;
    int pipe[2], status;
    uid_t uid = 20000;
    pid_t pid;

    if (!other_user_is_possible())
        return;
    begin(text);
    for (; uid < 20300; uid++)
        CU_ASSERT_EQUAL_FATAL(as(user(uid), come_and_go), 0);
    CU_ASSERT(status_of("kept", &t));
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->n_tenants, 4);
    wire_reply_free(r);
    /* one with a page, one with a session, one with an operator's quota */
    CU_ASSERT_EQUAL(as(user(5001), publish), 0);
    pid = stay(user(5002), pipe);
    CU_ASSERT_EQUAL(as(user(uid++), come_and_go), 0);
    CU_ASSERT_EQUAL(set_quota("uid-5003", 1 << 19), 0);
    CU_ASSERT_EQUAL(as(user(uid), come_and_go), EDQUOT);
    CU_ASSERT_EQUAL(set_quota("uid-30000", 1 << 19), -EDQUOT);
    CU_ASSERT_EQUAL(as(user(5001), find), 0);
    CU_ASSERT(status_of("uid-5003", &t) && t.quota_bytes == 1 << 19);
    CU_ASSERT(!status_of("uid-20300", &t));
    /* the session ends: its place is free at once, with what the tenant had */
    assert(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    for (struct wait w = wait_begin(); (status = as(user(uid), come_and_go)) == EDQUOT && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(status, 0);
    uid++;
    CU_ASSERT(!status_of("uid-5002", &t));
    /* the page goes: its extent too */
    CU_ASSERT_EQUAL(raw_evict("uid-5001"), 0);
    for (struct wait w = wait_begin(); status_of("uid-5001", &t) && wait_again(&w);)
        CU_ASSERT_EQUAL(as(user(uid++), come_and_go), 0);
    CU_ASSERT(!status_of("uid-5001", &t));
    r = raw_status();
    CU_ASSERT(r->status->evictions == 1 && r->status->extent_bytes == 0);
    wire_reply_free(r);
    (void) close(pipe[0]);
    (void) close(pipe[1]);
    finish();
}

/* An idle tenant goes after lease-ms, and its user begins anew, with an index of another number. */
static void test_idle_tenant_goes(void)
{
    Kvcobra__TenantStatus t;
    struct raw_model m;
    uint64_t object;

    begin("lease-ms = 100\n");
    m = raw_model_open();
    object = m.index_object;
    raw_close_model(&m);
    for (struct wait w = wait_begin(); has_tenants() && wait_again(&w);)
        ;
    CU_ASSERT_FALSE(status_of("uid-0", &t));
    m = raw_model_open();
    CU_ASSERT(m.index_object != object);
    raw_close_model(&m);
    finish();
}

/* ---- restarts ---- */

/* Pages of a named tenant survive; without its section they stay those of the name. */
static void test_named_pages_survive(void)
{
    const struct who who = {4711, 4711, 0};
    Kvcobra__TenantStatus t;

    if (!other_user_is_possible())
        return;
    begin(shared);
    CU_ASSERT_EQUAL(as(who, publish), 0);
    for (unsigned round = 0; round < 2; round++) {
        supervisor_kill();
        CU_ASSERT_FATAL(supervisor_again());
        CU_ASSERT_EQUAL(as(who, find), 0);
    }
    supervisor_kill();
    write_config("tenants = 16\n");
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(as(who, find), 1);
    CU_ASSERT(status_of("team", &t) && t.pages == 1 && t.guarantee_bytes == 0);
    supervisor_kill();
    write_config(shared);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(as(who, find), 0);
    CU_ASSERT_EQUAL(raw_evict("team"), 0);
    CU_ASSERT(status_of("team", &t) && t.pages == 0);
    finish();
}

/* More tenants have pages than the maximum of the next start: the pages stay, and others find no place. */
static void test_lower_maximum(void)
{
    Kvcobra__TenantStatus t;
    char name[32];

    if (!other_user_is_possible())
        return;
    begin("tenants = 16\n");
    for (uid_t uid = 4711; uid < 4715; uid++)
        CU_ASSERT_EQUAL(as(user(uid), publish), 0);
    supervisor_kill();
    write_config("tenants = 2\n");
    CU_ASSERT_FATAL(supervisor_again());
    for (uid_t uid = 4711; uid < 4715; uid++) {
        (void) snprintf(name, sizeof(name), "uid-%u", uid);
        CU_ASSERT(status_of(name, &t) && t.pages == 1);
        CU_ASSERT_EQUAL(as(user(uid), come_and_go), 0);
    }
    CU_ASSERT_EQUAL(as(user(4715), come_and_go), EDQUOT);
    finish();
}

/* A journal of version 2, which named tenants by uid only: pages, holds and sessions are kept. */
static void test_version_2(void)
{
    const uint32_t version = 2;
    uint32_t now = 0;
    struct raw_slot slot;
    struct raw_model m;
    uint64_t lease;
    int reason;

    begin("");
    m = raw_model_open();
    CU_ASSERT_EQUAL_FATAL(raw_publish(&m, 1, &slot, &lease), 0);
    supervisor_kill();
    CU_ASSERT_EQUAL_FATAL(pwrite(supervisor_stored_fd("kvc-journal-"), &version, sizeof(version),
                                 offsetof(struct journal_head, version)),
                          sizeof(version));
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=journal-upgraded from=2 to=3"));
    CU_ASSERT_EQUAL_FATAL(pread(supervisor_stored_fd("kvc-journal-"), &now, sizeof(now),
                                offsetof(struct journal_head, version)),
                          sizeof(now));
    CU_ASSERT_EQUAL(now, JOURNAL_VERSION);
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    raw_close_model(&m);
    m = raw_model_open();
    CU_ASSERT(raw_lease_one(&m, 1, &slot, &lease, &reason));
    raw_close_model(&m);
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_users_share),         TEST(test_reload),
    TEST(test_operator_group),      TEST(test_operator_socket),
    TEST(test_users_come_and_go),   TEST(test_idle_tenant_goes),
    TEST(test_named_pages_survive), TEST(test_lower_maximum),
    TEST(test_version_2),           TEST_END,
};
