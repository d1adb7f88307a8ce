/* sd_notify's other side; see supervisor.h. */
#include "tests/e2e/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/raw_service.h"
#include "tests/lib/test.h"

enum { STORE_MAX = 1024, NAME_BYTES = 64, ARGS_MAX = 32, WAIT_MS = 20000, HIGH_FD = 2000 };

static struct {
    int notify, listeners[2];
    int ready, synced, fed; /* eventfds: READY=1 came; everything up to a marker was handled; WATCHDOG=1 came */
    char notify_path[96];
    const char *const *args;
    pthread_t thread;
    pthread_mutex_t lock;
    struct {
        char name[NAME_BYTES];
        int fd;
    } store[STORE_MAX];
    size_t n_stored;
} sv;

/* ---- the store -------------------------------------------------------------------------------------------------- */

static void remove_names(const char *name, bool prefix)
{
    for (size_t i = 0; i < sv.n_stored;) {
        bool same = prefix ? strncmp(sv.store[i].name, name, strlen(name)) == 0 : strcmp(sv.store[i].name, name) == 0;

        if (same) {
            (void) close(sv.store[i].fd);
            memmove(&sv.store[i], &sv.store[i + 1], (--sv.n_stored - i) * sizeof(sv.store[0]));
        } else {
            i++;
        }
    }
}

static bool has_line(const char *state, const char *line)
{
    size_t n = strlen(line);

    for (const char *at = state; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, line, n) == 0 && (at[n] == '\n' || at[n] == '\0'))
            return true;
    return false;
}

static void name_of(const char *state, char ret[NAME_BYTES])
{
    const char *at = strstr(state, "FDNAME=");

    (void) snprintf(ret, NAME_BYTES, "%s", at ? at + strlen("FDNAME=") : "stored");
    ret[strcspn(ret, "\n")] = '\0';
}

static void raise_event(int fd)
{
    const uint64_t one = 1;

    assert(write(fd, &one, sizeof(one)) == sizeof(one));
}

/* One message with its descriptors, as pid 1 treats them. */
static void handle(const char *state, const int *fds, size_t n_fds)
{
    char name[NAME_BYTES];

    name_of(state, name);
    (void) pthread_mutex_lock(&sv.lock);
    for (size_t i = 0; i < n_fds; i++) {
        if (has_line(state, "FDSTORE=1") && sv.n_stored < STORE_MAX) {
            (void) snprintf(sv.store[sv.n_stored].name, NAME_BYTES, "%s", name);
            sv.store[sv.n_stored++].fd = fds[i];
        } else {
            (void) close(fds[i]); /* BARRIER=1: the sender waits for this */
        }
    }
    if (has_line(state, "FDSTOREREMOVE=1"))
        remove_names(name, false);
    (void) pthread_mutex_unlock(&sv.lock);
    if (has_line(state, "READY=1"))
        raise_event(sv.ready);
    if (has_line(state, "WATCHDOG=1"))
        raise_event(sv.fed);
    if (has_line(state, "X_SYNC=1"))
        raise_event(sv.synced);
}

static void *serve(void *arg)
{
    (void) arg;
    for (;;) {
        char state[4096], control[CMSG_SPACE(16 * sizeof(int))];
        struct iovec iov = { state, sizeof(state) - 1 };
        struct msghdr m = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
        };
        ssize_t n = recvmsg(sv.notify, &m, MSG_CMSG_CLOEXEC);
        struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
        int fds[16];
        size_t n_fds = 0;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return NULL;
        state[n] = '\0';
        if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
        }
        handle(state, fds, n_fds);
        if (has_line(state, "X_END=1"))
            return NULL;
    }
}

/* To our own socket: handled after everything that is queued there. */
static void send_self(const char *state)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, sv.notify_path, strlen(sv.notify_path) + 1);
    assert(fd >= 0 && sendto(fd, state, strlen(state), 0, (struct sockaddr *) &sa, sizeof(sa)) > 0);
    (void) close(fd);
}

static bool wait_event(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    uint64_t n;

    return poll(&p, 1, WAIT_MS) == 1 && read(fd, &n, sizeof(n)) == sizeof(n);
}

bool supervisor_hears_watchdog(void)
{
    uint64_t old;

    (void) read(sv.fed, &old, sizeof(old)); /* what came so far */
    return wait_event(sv.fed);
}

size_t supervisor_stored(const char *prefix)
{
    size_t n = 0;

    (void) pthread_mutex_lock(&sv.lock);
    for (size_t i = 0; i < sv.n_stored; i++)
        n += strncmp(sv.store[i].name, prefix, strlen(prefix)) == 0;
    (void) pthread_mutex_unlock(&sv.lock);
    return n;
}

int supervisor_stored_fd(const char *prefix)
{
    int fd = -1;

    (void) pthread_mutex_lock(&sv.lock);
    for (size_t i = 0; i < sv.n_stored && fd < 0; i++)
        if (strncmp(sv.store[i].name, prefix, strlen(prefix)) == 0)
            fd = sv.store[i].fd;
    (void) pthread_mutex_unlock(&sv.lock);
    return fd;
}

void supervisor_lose(const char *prefix)
{
    (void) pthread_mutex_lock(&sv.lock);
    remove_names(prefix, true);
    (void) pthread_mutex_unlock(&sv.lock);
}

/* ---- the daemon ------------------------------------------------------------------------------------------------- */

/* In the child: descriptors at 3 and on, as sd_listen_fds() wants them. */
static void place_descriptors(void)
{
    char names[STORE_MAX * NAME_BYTES / 4] = "control:operator", text[16];
    size_t n = 2 + sv.n_stored, at = strlen(names);

    for (size_t i = 0; i < sv.n_stored; i++)
        at += (size_t) snprintf(names + at, sizeof(names) - at, ":%s", sv.store[i].name);
    for (size_t i = 0; i < n; i++)
        if (fcntl(i < 2 ? sv.listeners[i] : sv.store[i - 2].fd, F_DUPFD_CLOEXEC, HIGH_FD) != (int) (HIGH_FD + i))
            _exit(125);
    for (size_t i = 0; i < n; i++)
        if (dup2((int) (HIGH_FD + i), (int) (3 + i)) < 0)
            _exit(125);
    (void) snprintf(text, sizeof(text), "%zu", n);
    (void) setenv("LISTEN_FDS", text, 1);
    (void) snprintf(text, sizeof(text), "%ld", (long) getpid());
    (void) setenv("LISTEN_PID", text, 1);
    (void) setenv("LISTEN_FDNAMES", names, 1);
    (void) setenv("NOTIFY_SOCKET", sv.notify_path, 1);
    (void) setenv("WATCHDOG_USEC", "300000", 1);
    (void) setenv("WATCHDOG_PID", getenv("LISTEN_PID"), 1);
}

static void exec_daemon(void)
{
    char state[128], backend[64], work[64];
    const char *argv[ARGS_MAX] = { getenv("KVC_KVCOBRAD"), "--keep-pool=yes", state, backend, work };
    const char *chosen = getenv("KVC_TEST_EVENT_BACKEND"), *inline_bytes = getenv("KVC_TEST_WORK_INLINE");
    size_t n = 5;
    int log = open(raw_daemon.log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (log < 0 || dup2(log, STDERR_FILENO) < 0)
        _exit(126);
    (void) snprintf(state, sizeof(state), "--state-dir=%s", raw_daemon.state);
    (void) snprintf(backend, sizeof(backend), "--event-backend=%s", chosen ? chosen : "auto");
    (void) snprintf(work, sizeof(work), "--work-inline-bytes=%s", inline_bytes ? inline_bytes : "32768");
    for (const char *const *a = sv.args; a && *a && n + 1 < ARGS_MAX; a++)
        argv[n++] = *a;
    argv[n] = NULL;
    place_descriptors();
    (void) execv(argv[0], (char *const *) argv);
    _exit(127);
}

bool supervisor_again(void)
{
    uint64_t stale;

    (void) read(sv.ready, &stale, sizeof(stale));
    (void) pthread_mutex_lock(&sv.lock); /* the child must not inherit a half-changed store */
    raw_daemon.pid = fork();
    if (raw_daemon.pid == 0)
        exec_daemon();
    (void) pthread_mutex_unlock(&sv.lock);
    if (raw_daemon.pid > 0 && wait_event(sv.ready))
        return true;
    fprintf(stderr, "kvcobrad did not get ready; its log is %s\n", raw_daemon.log);
    daemon_kill(&raw_daemon);
    return false;
}

static int listen_here(const char *path)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), on = 1;

    memcpy(sa.sun_path, path, strlen(path) + 1);
    assert(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
    assert(bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 64) == 0);
    return fd;
}

void supervisor_begin(const char *const *args)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };

    raw_daemon = (struct daemon) { .flags = DAEMON_BY_FD | DAEMON_WITH_STATE, .folder = "/tmp/kvcobra-test-XXXXXX" };
    assert(mkdtemp(raw_daemon.folder));
    (void) snprintf(raw_daemon.socket, sizeof(raw_daemon.socket), "%s/kvcobra.sock", raw_daemon.folder);
    (void) snprintf(raw_daemon.operator_socket, sizeof(raw_daemon.operator_socket), "%s/operator.sock", raw_daemon.folder);
    (void) snprintf(raw_daemon.state, sizeof(raw_daemon.state), "%s/state", raw_daemon.folder);
    (void) snprintf(raw_daemon.log, sizeof(raw_daemon.log), "%s/log", raw_daemon.folder);
    (void) snprintf(sv.notify_path, sizeof(sv.notify_path), "%s/notify.sock", raw_daemon.folder);
    sv.args = args;
    sv.n_stored = 0;
    (void) pthread_mutex_init(&sv.lock, NULL);
    sv.listeners[0] = listen_here(raw_daemon.socket);
    sv.listeners[1] = listen_here(raw_daemon.operator_socket);
    sv.notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(sa.sun_path, sv.notify_path, strlen(sv.notify_path) + 1);
    assert(sv.notify >= 0 && bind(sv.notify, (struct sockaddr *) &sa, sizeof(sa)) == 0);
    sv.ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sv.synced = eventfd(0, EFD_CLOEXEC);
    sv.fed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert(pthread_create(&sv.thread, NULL, serve, NULL) == 0);
    CU_ASSERT_FATAL(supervisor_again());
}

void supervisor_kill(void)
{
    daemon_kill(&raw_daemon);
    send_self("X_SYNC=1");
    CU_ASSERT(wait_event(sv.synced));
}

void supervisor_end(void)
{
    CU_ASSERT(daemon_end(&raw_daemon));
    send_self("X_SYNC=1");
    CU_ASSERT(wait_event(sv.synced));
}

void supervisor_finish(void)
{
    if (raw_daemon.pid > 0)
        supervisor_end();
    send_self("X_END=1");
    (void) pthread_join(sv.thread, NULL);
    remove_names("", true);
    (void) close(sv.listeners[0]);
    (void) close(sv.listeners[1]);
    (void) close(sv.notify);
    (void) close(sv.ready);
    (void) close(sv.synced);
    (void) close(sv.fed);
    daemon_remove_folder(&raw_daemon);
}
