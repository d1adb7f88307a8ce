/* See mover_process.h. */
#include "daemon/gpu/mover_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "proto/mover_wire.h"

enum { END_TIMEOUT_MS = 1000 };

/* Descriptors of the child: all others are close-on-exec, and the mover closes what a library left open
 * before it does anything else. Return: 0; a positive errno, as posix_spawn() does. */
static int mover_process_plan_descriptors(posix_spawn_file_actions_t *actions, int socket)
{
    /* clears close-on-exec, also if both numbers are equal */
    int r = posix_spawn_file_actions_adddup2(actions, socket, MOVER_SOCKET_FD);

    if (r == 0)
        r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    return r;
}

/* The daemon ignores SIGPIPE and blocks the signals that it reads by signalfd; a child would inherit both. */
static int mover_process_plan_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    int r;

    (void) sigemptyset(&none);
    (void) sigfillset(&all);
    r = posix_spawnattr_setsigmask(attributes, &none);
    if (r == 0)
        r = posix_spawnattr_setsigdefault(attributes, &all);
    if (r == 0)
        r = posix_spawnattr_setpgroup(attributes, 0);
    if (r == 0)
        r = posix_spawnattr_setflags(attributes,
                                     POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    return r;
}

static int mover_process_spawn(const char *path, int socket, pid_t *ret_pid)
{
    char name[] = "kvcobra-mover";
    char *argv[] = {name, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int r = posix_spawn_file_actions_init(&actions);

    if (r != 0)
        return -r;

    r = posix_spawnattr_init(&attributes);
    if (r == 0) {
        r = mover_process_plan_descriptors(&actions, socket);
        if (r == 0)
            r = mover_process_plan_attributes(&attributes);
        if (r == 0)
            r = posix_spawn(ret_pid, path, &actions, &attributes, argv, environ);
        (void) posix_spawnattr_destroy(&attributes);
    }

    (void) posix_spawn_file_actions_destroy(&actions);
    return -r;
}

int mover_process_start(const char *path, struct mover_process *ret_process, int *ret_socket)
{
    _cleanup_(closep) int ours = -1;
    _cleanup_(closep) int theirs = -1;
    struct mover_process p = {.pidfd = -1};
    int pair[2], r;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;

    ours = pair[0];
    theirs = pair[1];
    r = mover_process_spawn(path, theirs, &p.pid);
    if (r < 0)
        return r;

    /* close-on-exec; the child is not collected yet, so the pid is still its own */
    p.pidfd = (int) syscall(SYS_pidfd_open, p.pid, 0);
    if (p.pidfd < 0) {
        r = -errno;
        (void) kill(p.pid, SIGKILL);
        (void) waitpid(p.pid, NULL, 0);
        return r;
    }

    log_event(LOG_INFO, "mover-started", "pid=%ld path=%s", (long) p.pid, path);
    *ret_process = p;
    *ret_socket = take_fd(&ours);
    return 0;
}

void mover_process_kill(struct mover_process *p)
{
    if (p->pid <= 0)
        return;

    p->killed = true;
    (void) syscall(SYS_pidfd_send_signal, p->pidfd, SIGKILL, NULL, 0);
}

/* Logs the end, as a warning unless the daemon killed the process or its status is 0. */
static void mover_process_log_end(const struct mover_process *p, int status)
{
    int level = p->killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0) ? LOG_INFO : LOG_WARNING;

    if (WIFSIGNALED(status))
        log_event(level, "mover-ended", "pid=%ld signal=%d", (long) p->pid, WTERMSIG(status));
    else
        log_event(level, "mover-ended", "pid=%ld status=%d", (long) p->pid, WEXITSTATUS(status));
}

/* Whether the process has ended, within @timeout_ms. */
static bool mover_process_has_ended(const struct mover_process *p, int timeout_ms)
{
    struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};
    int n;

    do
        n = poll(&ended, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

void mover_process_end(struct mover_process *p)
{
    bool ended;
    int status = 0;

    if (p->pid == 0)
        return;

    ended = mover_process_has_ended(p, 0);
    if (!ended) {
        mover_process_kill(p);
        ended = mover_process_has_ended(p, END_TIMEOUT_MS);
    }

    if (ended && waitpid(p->pid, &status, 0) == p->pid) /* the pidfd may report the end a moment earlier */
        mover_process_log_end(p, status);
    else
        log_event(LOG_ERR, "mover-stuck", "pid=%ld message=\"it was killed, but the driver does not end it\"",
                  (long) p->pid);
    closep(&p->pidfd);
    *p = (struct mover_process){.pidfd = -1};
}
