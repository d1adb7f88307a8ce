/* The life of a user's own daemon; see own_daemon.h. */
#include "tools/operate/own_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/sockets.h"

enum { TAIL_BYTES = 4096 };

#define LOG_NAME "kvcobrad.log"

void own_daemon_deinit(struct own_daemon *d)
{
    closep(&d->folder_fd);
    closep(&d->lock_fd);
    closep(&d->pidfd);
    *d = (struct own_daemon) OWN_DAEMON_INIT;
}

/* ---- finding it ---- */

/* Who listens at @path. Return: 0; -ENOENT: no process; -errno. */
static int own_daemon_ask(const char *path, struct ucred *ret)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof(*ret);
    _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    memcpy(sa.sun_path, path, strlen(path));
    if (connect(fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0 && errno != EAGAIN)
        return errno == ECONNREFUSED || errno == ENOTSOCK || errno == EPROTOTYPE ? -ENOENT : -errno;
    /* a daemon whose queue is full has no connection to ask about */
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &bytes) < 0 || ret->uid == (uid_t) -1 ? -EAGAIN : 0;
}

/* Return: 0: d->pid and d->pidfd are set if a daemon of this user serves @path; -errno with a sentence. */
static int own_daemon_look(struct own_daemon *d, const char *path, struct errmsg *e)
{
    struct ucred peer = {0}, again = {0};
    int r = own_daemon_ask(path, &peer);

    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return fail(e, r, "cannot ask who serves %s: %s", path, strerror(-r));
    if (peer.uid != geteuid())
        return fail(e, -EACCES, "%s is served by user %lu, not by this one", path, (unsigned long) peer.uid);
    if (peer.pid == 0)
        return fail(e, -EXDEV, "%s is served by a process of another container: run kvcobra there", path);

    d->pidfd = (int) syscall(SYS_pidfd_open, peer.pid, 0);
    if (d->pidfd < 0 && errno == ESRCH) /* it ended meanwhile */
        return 0;
    if (d->pidfd < 0)
        return fail(e, -errno, "cannot watch process %ld: %s", (long) peer.pid, strerror(errno));

    /* Its number cannot have passed to another process before pidfd_open(), since its socket still
     * listens. */
    if (own_daemon_ask(path, &again) == 0 && again.pid == peer.pid)
        d->pid = peer.pid;
    return 0;
}

static int own_daemon_lock(struct own_daemon *d, struct errmsg *e)
{
    d->lock_fd = openat(d->folder_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock_fd < 0)
        return fail(e, -errno, "cannot open %s/lock: %s", d->folder, strerror(errno));
    while (flock(d->lock_fd, LOCK_EX) < 0)
        if (errno != EINTR)
            return fail(e, -errno, "cannot lock %s/lock: %s", d->folder, strerror(errno));
    return 0;
}

int own_daemon_open(struct own_daemon *d, struct errmsg *e)
{
    char folder[USER_FOLDER_BYTES], path[OWN_DAEMON_PATH_BYTES];
    int r = 0;

    user_folder_choose(d->folder);
    d->folder_fd = user_folder_open(d->folder, e);
    if (d->folder_fd < 0)
        return d->folder_fd;
    r = own_daemon_lock(d, e);

    /* it may have been started where another folder was the first: all programs look into each of them */
    for (unsigned i = 0; r == 0 && d->pid == 0 && i < USER_FOLDERS; i++) {
        if (!user_folder_path(i, folder) || !user_folder_is_private(folder))
            continue;
        (void) snprintf(path, sizeof(path), "%s/" SOCKET_CLIENTS, folder);
        if (strlen(path) < sizeof(((struct sockaddr_un *) 0)->sun_path) && access(path, F_OK) == 0)
            r = own_daemon_look(d, path, e);
        if (d->pid > 0)
            memcpy(d->folder, folder, sizeof(folder));
    }
    (void) snprintf(d->log, sizeof(d->log), "%s/" LOG_NAME, d->folder);
    return r;
}

/* ---- starting it ---- */

/* A new log; the last one stays beside it. The first line shows whether the file system has room. */
static int own_daemon_open_log(const struct own_daemon *d, struct errmsg *e)
{
    static const char line[] = "level=info event=start message=\"by kvcobra up\"\n";
    _cleanup_(closep) int fd = -1;

    (void) renameat(d->folder_fd, LOG_NAME, d->folder_fd, LOG_NAME ".old");
    fd = openat(d->folder_fd, LOG_NAME, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(e, -errno, "cannot make the log %s: %s", d->log, strerror(errno));
    if (write(fd, line, sizeof(line) - 1) != (ssize_t) sizeof(line) - 1)
        return fail(e, -errno, "cannot write to the log %s: %s", d->log, strerror(errno));
    return take_fd(&fd);
}

void own_daemon_detach(int log_fd, int ready_fd)
{
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;

    (void) setsid();
    (void) sigemptyset(&none);
    (void) sigprocmask(SIG_SETMASK, &none, NULL);
    /* The descriptors of the parent are above 3: entry_prepare() opened the standard ones, and the folder
     * came first. */
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0 || dup2(ready_fd, OWN_DAEMON_READY_FD) < 0)
        _exit(127);
    (void) syscall(SYS_close_range, OWN_DAEMON_READY_FD + 1, ~0U, 0); /* what a shell left open */
}

static void own_daemon_exec(const char *program, int log_fd, int ready_fd)
{
    char name[] = "kvcobrad", user[] = "--user", option[] = "--ready-fd", number[] = "3";
    char *const argv[] = {name, user, option, number, NULL};

    own_daemon_detach(log_fd, ready_fd);
    (void) execv(program, argv);
    _exit(127);
}

/* The sentence of the last line of the log, in @ret; without one, the line. */
static void own_daemon_last_words(int log_fd, char ret[static TAIL_BYTES + 1])
{
    off_t end = lseek(log_fd, 0, SEEK_END);
    ssize_t n = pread(log_fd, ret, TAIL_BYTES, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
    char *line, *sentence;

    ret[n > 0 ? n : 0] = '\0';
    while (n > 0 && ret[n - 1] == '\n')
        ret[--n] = '\0';
    line = strrchr(ret, '\n');
    line = line ? line + 1 : ret;
    sentence = strstr(line, "message=\"");
    if (sentence) {
        line = sentence + strlen("message=\"");
        n = (ssize_t) strlen(line);
        if (n > 0 && line[n - 1] == '"')
            line[n - 1] = '\0';
    }
    memmove(ret, line, strlen(line) + 1);
}

static int own_daemon_await(struct own_daemon *d, const char *program, int ready_fd, int log_fd,
                            struct errmsg *e)
{
    struct pollfd p = {.fd = ready_fd, .events = POLLIN};
    char words[TAIL_BYTES + 1], byte;
    int status = 0, n;

    do
        n = poll(&p, 1, OWN_DAEMON_READY_MS);
    while (n < 0 && errno == EINTR);
    if (n > 0 && read(ready_fd, &byte, 1) == 1)
        return 0;

    (void) kill(d->pid, SIGKILL); /* our child, not reaped yet */
    while (waitpid(d->pid, &status, 0) < 0 && errno == EINTR)
        ;
    d->pid = 0;
    if (n == 0)
        return fail(e, -ETIMEDOUT, "kvcobrad was not ready after %d s, and was ended; its log is %s",
                    OWN_DAEMON_READY_MS / 1000, d->log);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return fail(e, -ECANCELED, "%s could not be run", program);
    own_daemon_last_words(log_fd, words);
    return fail(e, -ECANCELED, "kvcobrad did not start: %s (%s)", words, d->log);
}

int own_daemon_start(struct own_daemon *d, const char *program, struct errmsg *e)
{
    _cleanup_(closep) int log_fd = own_daemon_open_log(d, e);
    _cleanup_(closep) int ready_fd = -1;
    int fds[2];

    if (log_fd < 0)
        return log_fd;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return fail(e, -errno, "cannot start kvcobrad: %s", strerror(errno));

    ready_fd = fds[0];
    d->pid = fork();
    if (d->pid == 0)
        own_daemon_exec(program, log_fd, fds[1]);
    (void) close(fds[1]);
    if (d->pid < 0) {
        d->pid = 0;
        return fail(e, -errno, "cannot start kvcobrad: %s", strerror(errno));
    }
    return own_daemon_await(d, program, ready_fd, log_fd, e);
}

/* ---- ending it ---- */

int own_daemon_end(struct own_daemon *d, struct errmsg *e)
{
    struct pollfd p = {.fd = d->pidfd, .events = POLLIN};
    int n;

    if (syscall(SYS_pidfd_send_signal, d->pidfd, SIGTERM, NULL, 0) < 0 && errno != ESRCH)
        return fail(e, -errno, "cannot end kvcobrad, process %ld: %s", (long) d->pid, strerror(errno));
    do
        n = poll(&p, 1, OWN_DAEMON_END_MS);
    while (n < 0 && errno == EINTR);
    return n > 0
               ? 0
               : fail(e, -ETIMEDOUT, "kvcobrad, process %ld, still runs after %d s: 'kill -KILL %ld' ends it",
                      (long) d->pid, OWN_DAEMON_END_MS / 1000, (long) d->pid);
}
