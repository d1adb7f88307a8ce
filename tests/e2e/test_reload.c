/*
 * SIGHUP: the daemon reads its configuration file again, tells its supervisor when it begins and when it is
 * done, and keeps what it has if the file is wrong.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/wait.h"

const char test_suite[] = "reload";

static char folder[] = "/tmp/kvcobra-reload-XXXXXX", file[64], socket_path[64];
static int notify; /* what a supervisor receives */

static void write_file(const char *text)
{
    FILE *f = fopen(file, "we");

    assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Starts the daemon with a configuration file of @text, and with a supervisor's socket. */
static void begin(const char *text)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = WAIT_LIMIT_S};
    char option[80];
    const char *args[] = {option, NULL};

    (void) strcpy(folder, "/tmp/kvcobra-reload-XXXXXX");
    assert(mkdtemp(folder));
    (void) snprintf(file, sizeof(file), "%s/kvcobrad.conf", folder);
    (void) snprintf(socket_path, sizeof(socket_path), "%s/notify", folder);
    (void) snprintf(option, sizeof(option), "--config=%s", file);
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", socket_path);
    notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert(notify >= 0 && bind(notify, (const struct sockaddr *) &sa, sizeof(sa)) == 0);
    assert(setsockopt(notify, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
    write_file(text);
    (void) setenv("NOTIFY_SOCKET", socket_path, 1);
    raw_start(DAEMON_BY_FD, args);
    (void) unsetenv("NOTIFY_SOCKET");
}

static void finish(void)
{
    raw_stop();
    (void) close(notify);
    (void) unlink(file);
    (void) unlink(socket_path);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

/* Waits for a message that begins with @text; messages before it are dropped. False: none came. */
static bool hears(const char *text)
{
    char message[256];
    ssize_t n;

    while ((n = recv(notify, message, sizeof(message) - 1, 0)) >= 0) {
        message[n] = '\0';
        if (strncmp(message, text, strlen(text)) == 0)
            return true;
    }
    return false;
}

/* Sends SIGHUP, and waits until the daemon says that it has read the file. */
static void reload(void)
{
    assert(kill(raw_daemon.pid, SIGHUP) == 0);
    CU_ASSERT(hears("RELOADING=1"));
    CU_ASSERT(hears("READY=1"));
}

/* The quota and the lease time that a new client hears of. */
static void expect_limits(uint64_t quota_bytes, uint32_t lease_ms)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    int fd = raw_connect(raw_daemon.socket);
    Kvcobra__Reply *reply;

    hello.version_min = hello.version_max = PROTO_VERSION;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0);
    CU_ASSERT_EQUAL(reply->hello->limits->quota_bytes, quota_bytes);
    CU_ASSERT_EQUAL(reply->hello->limits->lease_ms, lease_ms);
    wire_reply_free(reply);
    (void) close(fd);
}

/* A tenant that is there has the new quota too; a setting that needs a restart keeps its value. */
static void test_reload(void)
{
    struct raw_model m;
    Kvcobra__Reply *r;

    begin("quota-bytes = 32M\nlease-ms = 5000\narena-bytes = 1M\n");
    CU_ASSERT(hears("READY=1"));
    m = raw_model_open();
    expect_limits(32 << 20, 5000);
    write_file("quota-bytes = 48M\nlease-ms = 6000\narena-bytes = 2M\n");
    expect_limits(32 << 20, 5000); /* not yet */
    reload();
    CU_ASSERT(daemon_logged(&raw_daemon, "event=reloaded"));
    expect_limits(48 << 20, 6000);
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->tenants[0]->quota_bytes, 48 << 20);
    CU_ASSERT_EQUAL(r->status->tenants[0]->arena_bytes, 1 << 20);
    wire_reply_free(r);
    raw_close_model(&m);
    m = raw_model_open();
    CU_ASSERT_EQUAL(m.arena_bytes, 1 << 20);
    raw_close_model(&m);
    finish();
}

/* A file that cannot be read, or has a mistake, changes nothing, and the daemon is ready again. */
static void test_bad_file(void)
{
    static const char *const bad[] = {"arena-bytes = 1M\nquota-bytes = lots\n",
                                      "arena-bytes = 1M\nquota-bytes = 48M\nno-such-setting = 1\n", ""};

    begin("quota-bytes = 32M\nlease-ms = 5000\narena-bytes = 1M\n");
    CU_ASSERT(hears("READY=1"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (bad[i][0] != '\0')
            write_file(bad[i]);
        else
            CU_ASSERT_EQUAL(unlink(file), 0);
        reload();
        expect_limits(32 << 20, 5000);
    }
    CU_ASSERT(daemon_logged(&raw_daemon, "event=reload-failed"));
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=reloaded"));
    write_file("quota-bytes = 40M\nlease-ms = 5000\narena-bytes = 1M\n");
    reload();
    expect_limits(40 << 20, 5000);
    finish();
}

/* Megabytes of addresses that the daemon uses. */
static unsigned long address_mib(void)
{
    char path[64];
    unsigned long pages = 0;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%ld/statm", (long) raw_daemon.pid);
    f = fopen(path, "re");
    CU_ASSERT_FATAL(f && fscanf(f, "%lu", &pages) == 1);
    (void) fclose(f);
    return pages / 256;
}

/*
 * The thread that reads the file leaves nothing: a stack that stays would make each reload take more
 * addresses. Other threads that the daemon starts meanwhile explain a few of these steps.
 */
static void test_threads_end(void)
{
    unsigned long before, now;
    unsigned n_grown = 0;

#ifdef __SANITIZE_THREAD__
    test_skip("ThreadSanitizer keeps memory for each thread that ended");
    return;
#endif
    /* with one heap for all threads, since threads at the same time would reserve 64 MiB for each */
    assert(setenv("MALLOC_ARENA_MAX", "1", 1) == 0);
    begin("quota-bytes = 32M\narena-bytes = 1M\n");
    CU_ASSERT(hears("READY=1"));
    before = address_mib();
    for (unsigned i = 0; i < 30; i++) {
        reload();
        now = address_mib();
        n_grown += now >= before + 4;
        before = now;
    }
    CU_ASSERT(n_grown < 15);
    finish();
    assert(unsetenv("MALLOC_ARENA_MAX") == 0);
}

const struct test_case test_cases[] = {TEST(test_threads_end), TEST(test_reload), TEST(test_bad_file),
                                       TEST_END};
