/* Making a table in the background; see own_job.h. */
#include "tools/operate/own_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/process.h"

#define LOG_NAME "table.log"
#define FIRST_WORDS "making a table of "

enum { END_MS = 10000 };

/* ---- looking ---- */

static int own_job_open(const struct own_daemon *d)
{
    return openat(d->folder_fd, LOG_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

/* The lock of the process, which the kernel drops with it. */
static pid_t own_job_holder(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_pid : 0;
}

static void own_job_read_model(int fd, struct own_job *j)
{
    size_t words = strlen(FIRST_WORDS);
    ssize_t n = pread(fd, j->model, sizeof(j->model) - 1, (off_t) words); /* own_job_open_log() wrote them */

    j->model[n > 0 ? n : 0] = '\0';
    j->model[strcspn(j->model, "\n")] = '\0';
}

/* Cuts the last line off @text, and returns it. */
static char *own_job_cut_line(char *text)
{
    size_t n = strlen(text);
    char *line;

    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    line = strrchr(text, '\n');
    if (!line)
        return text;

    *line = '\0';
    return line + 1;
}

static void own_job_read_last(int fd, struct own_job *j)
{
    static const char program[] = "kvcobra: ";
    char text[4096];
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t) sizeof(text) - 1 ? end - (off_t) sizeof(text) + 1 : 0;
    ssize_t n = pread(fd, text, sizeof(text) - 1, from);
    const char *line;

    text[n > 0 ? n : 0] = '\0';
    line = own_job_cut_line(text);
    j->failed = j->pid == 0 && strncmp(line, OWN_JOB_DONE, strlen(OWN_JOB_DONE)) != 0;
    if (line != text && strstr(line, PROCESS_ABOVE))
        line = own_job_cut_line(text);
    if (strncmp(line, program, strlen(program)) == 0)
        line += strlen(program);
    (void) snprintf(j->last, sizeof(j->last), "%.*s", (int) sizeof(j->last) - 1, line);
}

bool own_job_is_this(const struct own_daemon *d)
{
    struct stat output, log;

    return fstat(STDOUT_FILENO, &output) == 0 &&
           fstatat(d->folder_fd, LOG_NAME, &log, AT_SYMLINK_NOFOLLOW) == 0 && output.st_dev == log.st_dev &&
           output.st_ino == log.st_ino;
}

int own_job_look(const struct own_daemon *d, struct own_job *ret, struct errmsg *e)
{
    _cleanup_(closep) int fd = own_job_open(d);

    *ret = (struct own_job){.exists = fd >= 0};
    if (snprintf(ret->log, sizeof(ret->log), "%s/" LOG_NAME, d->folder) >= (int) sizeof(ret->log))
        return fail(e, -ENAMETOOLONG, "the path of %s is too long", d->folder);
    if (fd < 0 && errno != ENOENT)
        return fail(e, -errno, "cannot open %s: %s", ret->log, strerror(errno));
    if (fd < 0)
        return 0;

    ret->pid = own_job_holder(fd);
    own_job_read_model(fd, ret);
    own_job_read_last(fd, ret);
    return 0;
}

/* ---- starting ---- */

static int own_job_open_log(const struct own_daemon *d, const char *model, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    char line[sizeof(FIRST_WORDS) + PATH_MAX];
    int n = snprintf(line, sizeof(line), FIRST_WORDS "%s\n", model);

    if (n >= (int) sizeof(line))
        return fail(e, -ENAMETOOLONG, "the path %.80s... is too long", model);

    (void) unlinkat(d->folder_fd, LOG_NAME, 0);
    fd = openat(d->folder_fd, LOG_NAME, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t) n) != n)
        return fail(e, -errno, "cannot write %s/" LOG_NAME ": %s", d->folder, strerror(errno));
    return take_fd(&fd);
}

/* The child, after own_daemon_detach(): the lock is taken last, since closing any descriptor of the file
 * ends it. exec keeps it. */
static void own_job_exec(const char *self, char *const *argv, int log_fd, int ready_fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    own_daemon_detach(log_fd, ready_fd);
    (void) fcntl(OWN_DAEMON_READY_FD, F_SETFD, FD_CLOEXEC); /* exec tells the parent */
    if (fcntl(STDOUT_FILENO, F_SETLK, &lock) == 0)
        (void) execv(self, argv);
    (void) write(OWN_DAEMON_READY_FD, "", 1);
    _exit(127);
}

int own_job_start(const struct own_daemon *d, const char *self, const char *model, struct errmsg *e)
{
    _cleanup_(closep) int log_fd = own_job_open_log(d, model, e);
    _cleanup_(closep) int ready_fd = -1;
    char name[] = "kvcobra", command[] = "up", wait[] = "--wait", option[] = "--model";
    char *const argv[] = {name, command, wait, option, (char *) model, NULL};
    ssize_t n;
    char byte;
    int fds[2];
    pid_t pid;

    if (log_fd < 0)
        return log_fd;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return fail(e, -errno, "cannot start another kvcobra: %s", strerror(errno));

    ready_fd = fds[0];
    pid = fork();
    if (pid == 0)
        own_job_exec(self, argv, log_fd, fds[1]);
    (void) close(fds[1]);
    if (pid < 0)
        return fail(e, -errno, "cannot start another kvcobra: %s", strerror(errno));

    do
        n = read(ready_fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 0 ? 0 : fail(e, -ECANCELED, "%s could not be run", self);
}

/* ---- ending ---- */

bool own_job_await(int pidfd, int timeout_ms)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    int n;

    do
        n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* The process that holds the lock of the log @fd; -1: none. */
static int own_job_open_holder(int fd)
{
    pid_t pid = own_job_holder(fd);
    int pidfd = pid > 0 ? (int) syscall(SYS_pidfd_open, pid, 0) : -1;

    if (pidfd >= 0 && own_job_holder(fd) != pid) /* it ended, and its number may be another's */
        closep(&pidfd);
    return pidfd;
}

int own_job_pidfd(const struct own_daemon *d, const struct own_job *j)
{
    _cleanup_(closep) int fd = j->pid > 0 ? own_job_open(d) : -1;

    return fd >= 0 ? own_job_open_holder(fd) : -1;
}

bool own_job_end(const struct own_daemon *d)
{
    _cleanup_(closep) int fd = own_job_open(d);
    _cleanup_(closep) int pidfd = fd >= 0 ? own_job_open_holder(fd) : -1;

    if (pidfd < 0 || syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) < 0)
        return false;
    return own_job_await(pidfd, END_MS);
}
