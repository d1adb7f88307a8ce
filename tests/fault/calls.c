/* See calls.h. */
#include "tests/fault/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/fault/calls_table.h"
#include "tests/lib/test.h"

enum {
    WATCHED_MAX = 32,
    MARK = 0x4b56, /* the argument of a prctl() that does nothing */
    HALF_BYTES_MAX = 1 << 16,
};

struct watched {
    int fd; /* of the filter */
    pid_t pid;
    bool marked;
};

static struct {
    int socket, stop;
    pthread_t thread;
    struct watched list[WATCHED_MAX];
    size_t n;
    pthread_mutex_t lock; /* protects the next three */
    unsigned countdown, variant;
    bool kills;
    struct calls_result result;
} calls = {.socket = -1, .stop = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the process that is watched ---- */

static _Atomic int listener = -1;
static _Atomic bool delivered;

static struct sockaddr_un calls_address(const char *folder)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    assert(snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/calls.sock", folder) < (int) sizeof(sa.sun_path));
    return sa;
}

/*
 * A thread that the filter does not bind sends the filter's descriptor: the sender of a filtered call waits.
 */
static void *calls_send_listener(void *arg)
{
    int fd, socket = *(int *) arg;
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    while ((fd = atomic_load(&listener)) == -1)
        (void) sched_yield();
    if (fd >= 0) {
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
        (void) !sendmsg(socket, &m, MSG_NOSIGNAL);
        (void) !read(socket, &byte, 1); /* the test's thread has it */
        (void) close(fd);
    }
    (void) close(socket);
    atomic_store(&delivered, true);
    return NULL;
}

static int calls_install(void)
{
    struct sock_filter code[128];
    unsigned short n = 0;
    struct sock_fprog program = {.filter = code};

    assert(calls_table_n + 4 < sizeof(code) / sizeof(code[0]));
    code[n++] = (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < calls_table_n; i++) /* the last instruction reports */
        code[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned) calls_table[i].nr,
                                                  (unsigned char) (calls_table_n - i + 1), 0);
    code[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 1, 0);
    code[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    program.len = n;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return (int) syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                         SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
}

int calls_deliver(const char *folder)
{
    int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;
    struct sockaddr_un sa = calls_address(folder);
    pthread_t thread;

    if (socket_fd < 0 || connect(socket_fd, (struct sockaddr *) &sa, sizeof(sa)) < 0)
        return -errno;
    atomic_store(&listener, -1);
    atomic_store(&delivered, false);
    r = -pthread_create(&thread, NULL, calls_send_listener, &socket_fd);
    if (r < 0)
        return r;
    r = calls_install();
    atomic_store(&listener, r >= 0 ? r : -2);
    while (!atomic_load(&delivered))
        (void) sched_yield();
    (void) pthread_join(thread, NULL);
    return r < 0 ? -EOPNOTSUPP : 0;
}

void calls_mark(void)
{
    (void) prctl(MARK, 0, 0, 0, 0);
}

/* ---- failing a call ---- */

static bool calls_moves_bytes(const struct seccomp_data *d)
{
    return d->nr == SYS_read || d->nr == SYS_write || d->nr == SYS_pread64 || d->nr == SYS_pwrite64;
}

/* A copy of the process's descriptor, if it is a file or a memory object; else -1. */
static int calls_open_file(const struct watched *w, const struct seccomp_data *d)
{
    _cleanup_(closep) int process = (int) syscall(SYS_pidfd_open, w->pid, 0);
    _cleanup_(closep) int fd =
        process < 0 ? -1 : (int) syscall(SYS_pidfd_getfd, process, (int) d->args[0], 0);
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? take_fd(&fd) : -1;
}

/* Moves half of the bytes of a read or write of a file for the process. Return: bytes; -1: not possible. */
static long calls_move_half(const struct watched *w, const struct seccomp_data *d, int fd)
{
    static uint8_t bytes[HALF_BYTES_MAX];
    size_t n = d->args[2] / 2;
    struct iovec here = {bytes, n}, there = {(void *) (uintptr_t) d->args[1], n};
    ssize_t done;

    if (fd < 0 || n == 0 || n > sizeof(bytes))
        return -1;
    if (d->nr == SYS_write || d->nr == SYS_pwrite64) {
        if (process_vm_readv(w->pid, &here, 1, &there, 1, 0) != (ssize_t) n)
            return -1;
        return d->nr == SYS_write ? write(fd, bytes, n) : pwrite(fd, bytes, n, (off_t) d->args[3]);
    }
    done = d->nr == SYS_read ? read(fd, bytes, n) : pread(fd, bytes, n, (off_t) d->args[3]);
    here.iov_len = there.iov_len = (size_t) (done > 0 ? done : 0);
    if (done > 0 && process_vm_writev(w->pid, &here, 1, &there, 1, 0) != done)
        return -1;
    return done;
}

/* A disk is full for files that are created, and the bytes of events, timers and signals have no disk. */
static bool calls_is_plausible(const struct seccomp_data *d, int file, int failure)
{
    uint64_t creates = O_CREAT | (O_TMPFILE & ~O_DIRECTORY);

    if (d->nr == SYS_openat && failure == ENOSPC)
        return (d->args[2] & creates) != 0;
    return !calls_moves_bytes(d) || file >= 0 || failure == EINTR;
}

static const char *calls_failure_name(int failure)
{
    if (calls.kills)
        return "SIGKILL";
    return failure == CALL_HALF ? "half" : strerrorname_np(failure);
}

/* The armed call was reached: fills in the answer and the result. */
static void calls_fail(const struct watched *w, const struct call_kind *kind, const struct seccomp_data *d,
                       struct seccomp_notif_resp *answer)
{
    _cleanup_(closep) int file = calls_moves_bytes(d) ? calls_open_file(w, d) : -1;
    int failure = 0;
    long half;

    for (unsigned i = 0; i <= calls.variant && (i == 0 || failure != 0); i++)
        failure = kind->failures[i];
    if (calls.kills) {
        (void) kill(w->pid, SIGKILL);
    } else if (failure == CALL_HALF) {
        half = calls_move_half(w, d, file);
        if (half >= 0) {
            answer->flags = 0;
            answer->val = half;
        }
        failure = half >= 0 ? CALL_HALF : 0;
    } else if (!calls_is_plausible(d, file, failure)) {
        failure = 0;
    } else if (failure != 0) {
        answer->flags = 0;
        answer->error = -failure;
    }
    calls.result.fired = failure != 0;
    calls.result.pid = w->pid;
    calls.result.exhausted = failure == 0;
    (void) snprintf(calls.result.what, sizeof(calls.result.what), "%s(%llu, %#llx, %llu) %s", kind->name,
                    (unsigned long long) d->args[0], (unsigned long long) d->args[1],
                    (unsigned long long) d->args[2], calls_failure_name(failure));
}

static bool calls_is_mark(const struct seccomp_data *d)
{
    return d->nr == SYS_prctl && d->args[0] == MARK;
}

/* Answers one call. False: the process is gone. */
static bool calls_answer(struct watched *w)
{
    struct seccomp_notif n = {0};
    struct seccomp_notif_resp answer = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    const struct call_kind *kind;

    if (ioctl(w->fd, SECCOMP_IOCTL_NOTIF_RECV, &n) < 0)
        return errno == EINTR || errno == ENOENT; /* ENOENT: a signal ended the call */
    answer.id = n.id;
    kind = calls_find(n.data.nr, (const uint64_t *) n.data.args);
    if (calls_is_mark(&n.data)) {
        w->marked = !w->marked;
        answer.flags = 0;
    } else if (w->marked && kind) {
        (void) pthread_mutex_lock(&calls.lock);
        if (calls.countdown > 0 && --calls.countdown == 0)
            calls_fail(w, kind, &n.data, &answer);
        (void) pthread_mutex_unlock(&calls.lock);
    }
    return ioctl(w->fd, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0 || errno == ENOENT;
}

/* ---- the thread ---- */

static void calls_take_listener(void)
{
    _cleanup_(closep) int fd = accept4(calls.socket, NULL, NULL, SOCK_CLOEXEC);
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    const struct cmsghdr *c;
    struct ucred peer;
    socklen_t n = sizeof(peer);

    if (fd < 0 || recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != 1)
        return;
    c = CMSG_FIRSTHDR(&m);
    assert(c && c->cmsg_type == SCM_RIGHTS && calls.n < WATCHED_MAX);
    assert(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0);
    calls.list[calls.n] = (struct watched){.pid = peer.pid};
    memcpy(&calls.list[calls.n++].fd, CMSG_DATA(c), sizeof(int));
    (void) !send(fd, "", 1, MSG_NOSIGNAL);
}

static void *calls_serve(void *arg)
{
    for (;;) {
        struct pollfd p[2 + WATCHED_MAX] = {{.fd = calls.stop, .events = POLLIN},
                                            {.fd = calls.socket, .events = POLLIN}};

        for (size_t i = 0; i < calls.n; i++)
            p[2 + i] = (struct pollfd){.fd = calls.list[i].fd, .events = POLLIN};
        if (poll(p, 2 + calls.n, -1) < 0)
            continue;
        if (p[0].revents)
            return arg;
        for (size_t i = calls.n; i-- > 0;) {
            if ((p[2 + i].revents & POLLIN) && calls_answer(&calls.list[i]))
                continue;
            if (p[2 + i].revents) {
                (void) close(calls.list[i].fd);
                calls.list[i] = calls.list[--calls.n];
            }
        }
        if (p[1].revents)
            calls_take_listener();
    }
}

/* ---- the test ---- */

static bool calls_are_possible(void)
{
    uint32_t action = SECCOMP_RET_USER_NOTIF;

    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

bool calls_begin(const char *folder)
{
    struct sockaddr_un sa = calls_address(folder);

    if (!calls_are_possible())
        return false;
    calls.n = 0;
    calls.stop = eventfd(0, EFD_CLOEXEC);
    calls.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(calls.stop >= 0 && calls.socket >= 0);
    assert(bind(calls.socket, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(calls.socket, 8) == 0);
    assert(pthread_create(&calls.thread, NULL, calls_serve, NULL) == 0);
    return true;
}

void calls_end(void)
{
    const uint64_t one = 1;
    struct sockaddr_un sa;
    socklen_t n = sizeof(sa);

    assert(write(calls.stop, &one, sizeof(one)) == sizeof(one));
    assert(pthread_join(calls.thread, NULL) == 0);
    for (size_t i = 0; i < calls.n; i++)
        (void) close(calls.list[i].fd);
    assert(getsockname(calls.socket, (struct sockaddr *) &sa, &n) == 0);
    (void) unlink(sa.sun_path);
    closep(&calls.socket);
    closep(&calls.stop);
}

void calls_arm(unsigned nth, unsigned variant)
{
    (void) pthread_mutex_lock(&calls.lock);
    calls.countdown = nth;
    calls.variant = variant;
    calls.kills = false;
    calls.result = (struct calls_result){.fired = false};
    (void) pthread_mutex_unlock(&calls.lock);
}

void calls_arm_kill(unsigned nth)
{
    calls_arm(nth, 0);
    (void) pthread_mutex_lock(&calls.lock);
    calls.kills = true;
    (void) pthread_mutex_unlock(&calls.lock);
}

struct calls_result calls_disarm(void)
{
    struct calls_result r;

    (void) pthread_mutex_lock(&calls.lock);
    r = calls.result;
    calls.countdown = 0;
    (void) pthread_mutex_unlock(&calls.lock);
    return r;
}

static struct calls_result calls_read(void)
{
    struct calls_result r;

    (void) pthread_mutex_lock(&calls.lock);
    r = calls.result;
    (void) pthread_mutex_unlock(&calls.lock);
    return r;
}

bool calls_fired(void)
{
    return calls_read().fired;
}

pid_t calls_fired_in(void)
{
    return calls_read().pid;
}
