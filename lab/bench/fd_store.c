/* The server of sd_notify(); see fd_store.h. */
#include "lab/bench/fd_store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

enum {
    STORE_MAX = 4096,
    NAME_BYTES = 48,
    FDS_PER_MESSAGE_MAX = 16,
    WAIT_MS = 20000,
    FIRST_FD = 3,
    N_LISTENERS = 2
};

static const char *const listener_names[N_LISTENERS] = {"kvcobra.sock", "operator.sock"};

struct stored {
    char name[NAME_BYTES];
    int fd;
};

struct fd_store {
    char folder[64];
    int notify, listeners[N_LISTENERS];
    int ready, settled,
        fed; /* eventfds: READY=1 arrived; all messages before a marker are handled; WATCHDOG=1 arrived */
    bool serving; /* the thread runs */
    pthread_t thread;
    pthread_mutex_t lock; /* protects the store */
    struct stored stored[STORE_MAX];
    size_t n_stored;
};

static int fd_store_address(const struct fd_store *s, const char *name, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    return snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/%s", s->folder, name) <
                   (int) sizeof(ret->sun_path)
               ? 0
               : -ENAMETOOLONG;
}

/* ---- the store ---- */

static void fd_store_remove_names(struct fd_store *s, const char *name, bool prefix)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_stored; i++) {
        if (prefix ? strncmp(s->stored[i].name, name, strlen(name)) == 0
                   : strcmp(s->stored[i].name, name) == 0)
            (void) close(s->stored[i].fd);
        else
            s->stored[n++] = s->stored[i];
    }

    s->n_stored = n;
}

static bool fd_store_has_line(const char *state, const char *line)
{
    size_t n = strlen(line);

    for (const char *at = state; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, line, n) == 0 && (at[n] == '\n' || at[n] == '\0'))
            return true;
    return false;
}

static void fd_store_name_of(const char *state, char ret[NAME_BYTES])
{
    const char *at = strstr(state, "FDNAME=");

    (void) snprintf(ret, NAME_BYTES, "%s", at ? at + strlen("FDNAME=") : "stored");
    ret[strcspn(ret, "\n")] = '\0';
}

static void fd_store_raise_event(int fd)
{
    const uint64_t one = 1;

    (void) !write(fd, &one, sizeof(one)); /* a full counter is readable too */
}

/* Handles a message with its descriptors like systemd. */
static void fd_store_handle(struct fd_store *s, const char *state, const int *fds, size_t n_fds)
{
    char name[NAME_BYTES];

    fd_store_name_of(state, name);
    (void) pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n_fds; i++) {
        if (fd_store_has_line(state, "FDSTORE=1") && s->n_stored < STORE_MAX) {
            memcpy(s->stored[s->n_stored].name, name, NAME_BYTES);
            s->stored[s->n_stored++].fd = fds[i];
        } else {
            (void) close(fds[i]); /* BARRIER=1: the sender waits for the close */
        }
    }

    if (fd_store_has_line(state, "FDSTOREREMOVE=1"))
        fd_store_remove_names(s, name, false);
    (void) pthread_mutex_unlock(&s->lock);
    if (fd_store_has_line(state, "READY=1"))
        fd_store_raise_event(s->ready);
    if (fd_store_has_line(state, "WATCHDOG=1"))
        fd_store_raise_event(s->fed);
    if (fd_store_has_line(state, "X_SETTLE=1"))
        fd_store_raise_event(s->settled);
}

static void *fd_store_serve(void *arg)
{
    struct fd_store *s = arg;

    for (;;) {
        char state[4096], control[CMSG_SPACE(FDS_PER_MESSAGE_MAX * sizeof(int))];
        struct iovec iov = {state, sizeof(state) - 1};
        struct msghdr m = {
            .msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control,
            .msg_controllen = sizeof(control),
        };
        ssize_t n = recvmsg(s->notify, &m, MSG_CMSG_CLOEXEC);
        struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
        int fds[FDS_PER_MESSAGE_MAX];
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

        fd_store_handle(s, state, fds, n_fds);
        if (fd_store_has_line(state, "X_END=1"))
            return NULL;
    }
}

/* Sends to the own socket: handled after all queued messages. */
static bool fd_store_send_self(struct fd_store *s, const char *state)
{
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un sa;

    return fd >= 0 && fd_store_address(s, "notify.sock", &sa) == 0 &&
           sendto(fd, state, strlen(state), 0, (struct sockaddr *) &sa, sizeof(sa)) > 0;
}

static bool fd_store_wait_event(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t n;
    int r;

    do
        r = poll(&p, 1, WAIT_MS);
    while (r < 0 && errno == EINTR);
    return r == 1 && read(fd, &n, sizeof(n)) == sizeof(n);
}

static void fd_store_forget_event(int fd)
{
    uint64_t old;

    (void) !read(fd, &old, sizeof(old)); /* non-blocking */
}

bool fd_store_wait_ready(struct fd_store *s, pid_t pid)
{
    _cleanup_(closep) int process = (int) syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p[] = {{.fd = s->ready, .events = POLLIN}, {.fd = process, .events = POLLIN}};
    int r;

    if (process < 0)
        return false;
    do
        r = poll(p, 2, WAIT_MS);
    while (r < 0 && errno == EINTR);
    return r > 0 && p[0].revents && fd_store_wait_event(s->ready);
}

bool fd_store_wait_watchdog(struct fd_store *s)
{
    fd_store_forget_event(s->fed); /* earlier events */
    return fd_store_wait_event(s->fed);
}

bool fd_store_settle(struct fd_store *s)
{
    return fd_store_send_self(s, "X_SETTLE=1") && fd_store_wait_event(s->settled);
}

size_t fd_store_count(struct fd_store *s, const char *prefix)
{
    size_t n = 0;

    (void) pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_stored; i++)
        n += strncmp(s->stored[i].name, prefix, strlen(prefix)) == 0;
    (void) pthread_mutex_unlock(&s->lock);
    return n;
}

int fd_store_first(struct fd_store *s, const char *prefix)
{
    int fd = -1;

    (void) pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_stored && fd < 0; i++)
        if (strncmp(s->stored[i].name, prefix, strlen(prefix)) == 0)
            fd = s->stored[i].fd;
    (void) pthread_mutex_unlock(&s->lock);
    return fd;
}

void fd_store_lose(struct fd_store *s, const char *prefix)
{
    (void) pthread_mutex_lock(&s->lock);
    fd_store_remove_names(s, prefix, true);
    (void) pthread_mutex_unlock(&s->lock);
}

/* ---- the daemon ---- */

/* In the child: moves all descriptors away from their target numbers, then to them, which clears
 * close-on-exec.
 */
static bool fd_store_move_descriptors(const struct fd_store *s, int *moved, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int fd = i < N_LISTENERS ? s->listeners[i] : s->stored[i - N_LISTENERS].fd;

        moved[i] = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD + (int) n);
        if (moved[i] < 0)
            return false;
    }

    for (size_t i = 0; i < n; i++)
        if (dup2(moved[i], FIRST_FD + (int) i) < 0)
            return false;
    return true;
}

/* The environment of sd_listen_fds(), sd_notify() and sd_watchdog_enabled(). */
static bool fd_store_set_environment(const struct fd_store *s, size_t n)
{
    static char names[(STORE_MAX + N_LISTENERS) * NAME_BYTES];
    size_t at = (size_t) snprintf(names, sizeof(names), "control:operator");
    char count[24], pid[24];
    struct sockaddr_un sa;

    for (size_t i = 0; i < s->n_stored; i++)
        at += (size_t) snprintf(names + at, sizeof(names) - at, ":%s", s->stored[i].name);
    (void) snprintf(count, sizeof(count), "%zu", n);
    (void) snprintf(pid, sizeof(pid), "%ld", (long) getpid());
    return fd_store_address(s, "notify.sock", &sa) == 0 && setenv("LISTEN_FDS", count, 1) == 0 &&
           setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDNAMES", names, 1) == 0 &&
           setenv("NOTIFY_SOCKET", sa.sun_path, 1) == 0 && setenv("WATCHDOG_USEC", "300000", 1) == 0 &&
           setenv("WATCHDOG_PID", pid, 1) == 0;
}

static void fd_store_exec(const struct fd_store *s, const char *path, const char *const *argv, int log_fd,
                          pid_t parent)
{
    static int moved[STORE_MAX + N_LISTENERS];
    size_t n = N_LISTENERS + s->n_stored;

    (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the parent died before prctl() */
        _exit(127);
    if (log_fd >= 0 && dup2(log_fd, STDERR_FILENO) < 0)
        _exit(127);
    if (!fd_store_move_descriptors(s, moved, n) || !fd_store_set_environment(s, n))
        _exit(127);
    (void) execv(path, (char *const *) argv); /* execv() does not write to argv */
    _exit(127);
}

int fd_store_start(struct fd_store *s, const char *path, const char *const *argv, int log_fd, pid_t *ret_pid,
                   struct errmsg *e)
{
    pid_t parent = getpid(), pid;
    int r;

    fd_store_forget_event(s->ready);
    (void) pthread_mutex_lock(&s->lock); /* the child must not inherit a half-changed store */
    pid = fork();
    if (pid == 0)
        fd_store_exec(s, path, argv, log_fd, parent);
    r = errno;
    (void) pthread_mutex_unlock(&s->lock);
    if (pid < 0)
        return fail(e, -r, "cannot start %s: %s", path, strerror(r));

    *ret_pid = pid;
    return 0;
}

/* ---- creation ---- */

static int fd_store_make_socket(struct fd_store *s, const char *name, int type, int *ret, struct errmsg *e)
{
    struct sockaddr_un sa;
    int on = 1;

    if (fd_store_address(s, name, &sa) < 0)
        return fail(e, -ENAMETOOLONG, "the name of the folder %s is too long for sockets", s->folder);

    *ret = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (*ret < 0 || bind(*ret, (struct sockaddr *) &sa, sizeof(sa)) < 0 ||
        (type == SOCK_SEQPACKET &&
         (setsockopt(*ret, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 || listen(*ret, 1024) < 0)))
        return fail(e, -errno, "cannot make the socket %s: %s", sa.sun_path, strerror(errno));

    return 0;
}

int fd_store_new(const char *folder, struct fd_store **ret, struct errmsg *e)
{
    _cleanup_(fd_store_freep) struct fd_store *s = calloc(1, sizeof(*s));
    int r = 0;

    if (!s)
        return fail(e, -ENOMEM, "out of memory for a descriptor store");

    s->notify = s->listeners[0] = s->listeners[1] = s->ready = s->settled = s->fed = -1;
    (void) pthread_mutex_init(&s->lock, NULL);
    if (snprintf(s->folder, sizeof(s->folder), "%s", folder) >= (int) sizeof(s->folder))
        return fail(e, -ENAMETOOLONG, "the name of the folder %s is too long for sockets", folder);

    for (int i = 0; r == 0 && i < N_LISTENERS; i++)
        r = fd_store_make_socket(s, listener_names[i], SOCK_SEQPACKET, &s->listeners[i], e);
    if (r < 0)
        return r;

    r = fd_store_make_socket(s, "notify.sock", SOCK_DGRAM, &s->notify, e);
    if (r < 0)
        return r;

    s->ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->settled = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->fed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->ready < 0 || s->settled < 0 || s->fed < 0)
        return fail(e, -errno, "cannot make an eventfd: %s", strerror(errno));

    r = -pthread_create(&s->thread, NULL, fd_store_serve, s);
    if (r < 0)
        return fail(e, r, "cannot start a thread: %s", strerror(-r));

    s->serving = true;
    *ret = take_ptr(s);
    return 0;
}

static void fd_store_remove_socket(struct fd_store *s, const char *name, int *fd)
{
    struct sockaddr_un sa;

    if (*fd >= 0 && fd_store_address(s, name, &sa) == 0)
        (void) unlink(sa.sun_path);
    closep(fd);
}

struct fd_store *fd_store_free(struct fd_store *s)
{
    if (!s)
        return NULL;
    if (s->serving && fd_store_send_self(s, "X_END=1"))
        (void) pthread_join(s->thread, NULL);
    fd_store_remove_names(s, "", true);
    for (int i = 0; i < N_LISTENERS; i++)
        fd_store_remove_socket(s, listener_names[i], &s->listeners[i]);
    fd_store_remove_socket(s, "notify.sock", &s->notify);
    closep(&s->ready);
    closep(&s->settled);
    closep(&s->fed);
    (void) pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}
