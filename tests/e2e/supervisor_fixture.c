/* The supervisor of lab/bench/fd_store.h in a folder of the test; see supervisor_fixture.h. */
#include "tests/e2e/supervisor_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "lab/bench/fd_store.h"

enum { ARGS_MAX = 32 };

static struct fd_store *store;
static const char *const *args;

bool supervisor_hears_watchdog(void)
{
    return fd_store_wait_watchdog(store);
}

size_t supervisor_stored(const char *prefix)
{
    return fd_store_count(store, prefix);
}

bool supervisor_gets(const char *prefix)
{
    for (struct wait w = wait_begin(); supervisor_stored(prefix) == 0 && wait_again(&w);)
        ;
    return supervisor_stored(prefix) > 0;
}

int supervisor_stored_fd(const char *prefix)
{
    return fd_store_first(store, prefix);
}

void supervisor_lose(const char *prefix)
{
    fd_store_lose(store, prefix);
}

static int start_daemon(struct errmsg *e)
{
    const char *inline_bytes = getenv("KVC_TEST_WORK_INLINE");
    char state[128], work[64];
    const char *argv[ARGS_MAX] = {
        getenv("KVC_KVCOBRAD"),  "--keep-pool=yes", state, work,
        "--spare-extents=0", /* so that a test can count what is stored; @args may say otherwise */
        "--gpu-spare-extents=0",
    };
    size_t n = 6;
    int log = open(raw_daemon.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), r;

    assert(log >= 0);
    (void) snprintf(state, sizeof(state), "--state-dir=%s", raw_daemon.state);
    (void) snprintf(work, sizeof(work), "--work-inline-bytes=%s", inline_bytes ? inline_bytes : "32768");
    for (const char *const *a = args; a && *a && n + 1 < ARGS_MAX; a++)
        argv[n++] = *a;
    argv[n] = NULL;
    r = fd_store_start(store, argv[0], argv, log, &raw_daemon.pid, e);
    (void) close(log);
    return r;
}

bool supervisor_try(int *ret_status)
{
    struct errmsg e = {""};

    assert(start_daemon(&e) == 0);
    if (fd_store_wait_ready(store, raw_daemon.pid))
        return true;
    if (waitpid(raw_daemon.pid, ret_status, WNOHANG) == 0) { /* it runs, and does not get ready */
        daemon_kill(&raw_daemon);
        *ret_status = -1;
    }
    raw_daemon.pid = 0;
    return false;
}

bool supervisor_again(void)
{
    int status;

    if (supervisor_try(&status))
        return true;
    fprintf(stderr, "kvcobrad did not get ready; its log is %s\n", raw_daemon.log);
    return false;
}

void supervisor_prepare(const char *const *more)
{
    struct errmsg e = {""};

    raw_daemon =
        (struct daemon){.flags = DAEMON_BY_FD | DAEMON_WITH_STATE, .folder = "/tmp/kvcobra-test-XXXXXX"};
    assert(mkdtemp(raw_daemon.folder));
    (void) snprintf(raw_daemon.socket, sizeof(raw_daemon.socket), "%s/kvcobra.sock", raw_daemon.folder);
    (void) snprintf(raw_daemon.operator_socket, sizeof(raw_daemon.operator_socket), "%s/operator.sock",
                    raw_daemon.folder);
    (void) snprintf(raw_daemon.state, sizeof(raw_daemon.state), "%s/state", raw_daemon.folder);
    (void) snprintf(raw_daemon.log, sizeof(raw_daemon.log), "%s/log", raw_daemon.folder);
    args = more;
    CU_ASSERT_EQUAL_FATAL(fd_store_new(raw_daemon.folder, &store, &e), 0);
}

void supervisor_begin(const char *const *more)
{
    supervisor_prepare(more);
    CU_ASSERT_FATAL(supervisor_again());
}

void supervisor_kill(void)
{
    daemon_kill(&raw_daemon);
    CU_ASSERT(fd_store_settle(store));
}

void supervisor_end(void)
{
    CU_ASSERT(daemon_end(&raw_daemon));
    CU_ASSERT(fd_store_settle(store));
}

void supervisor_close(bool remove_folder)
{
    store = fd_store_free(store);
    if (remove_folder)
        daemon_remove_folder(&raw_daemon);
}

void supervisor_finish(void)
{
    if (raw_daemon.pid > 0)
        supervisor_end();
    supervisor_close(true);
}
