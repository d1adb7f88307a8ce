/* Child processes; see process.h. */
#include "tools/command/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

enum {
    OUT_BYTES_MAX = 1 << 20, /* more than a command of ours prints; more output is read and dropped */
    STOP_MS = 5000,
    CHILDREN_MAX = 8,
    READY_FD = 3,
};

/* In the child: async-signal-safe calls only, and exit code 127 like a shell. */
static void process_exec(const char *path, const char *const *argv, int from_fd, int to_fd, pid_t parent)
{
    sigset_t none;

    (void) prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* the parent died before prctl() */
        _exit(127);
    (void) sigemptyset(&none);
    (void) sigprocmask(SIG_SETMASK, &none, NULL);
    /* With equal descriptors dup2() would not clear close-on-exec. */
    if (from_fd >= 0 && from_fd == to_fd && fcntl(to_fd, F_SETFD, 0) < 0)
        _exit(127);
    if (from_fd >= 0 && from_fd != to_fd && dup2(from_fd, to_fd) < 0)
        _exit(127);
    (void) execv(path, (char *const *) argv); /* execv() does not write to argv */
    _exit(127);
}

int process_start(struct process *p, const char *path, const char *const *argv, enum process_output output,
                  struct errmsg *e)
{
    int fds[2] = {-1, -1}, r;
    pid_t parent = getpid();

    if (output != PROCESS_SHOW && pipe2(fds, O_CLOEXEC) < 0)
        return fail(e, -errno, "cannot start %s: %s", p->label, strerror(errno));

    p->pid = fork();
    if (p->pid == 0)
        process_exec(path, argv, fds[1], output == PROCESS_READY ? READY_FD : STDOUT_FILENO, parent);
    r = errno;
    closep(&fds[1]);
    p->out_fd = fds[0];
    if (p->pid < 0) {
        p->pid = 0;
        return fail(e, -r, "cannot start %s: %s", p->label, strerror(r));
    }

    p->pidfd = (int) syscall(SYS_pidfd_open, p->pid, 0);
    if (p->pidfd < 0)
        return fail(e, -errno, "cannot watch %s: %s", p->label, strerror(errno));

    return 0;
}

static void process_close_fd(int *fd)
{
    closep(fd);
    *fd = -1;
}

static int process_take_output(struct process *p)
{
    char buf[4096];
    ssize_t n = read(p->out_fd, buf, sizeof(buf));
    char *out;

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    if (n <= 0) {
        process_close_fd(&p->out_fd);
        return 0;
    }

    if (p->n_out + (size_t) n > OUT_BYTES_MAX)
        return 0;

    out = realloc(p->out, p->n_out + (size_t) n + 1);
    if (!out)
        return -ENOMEM;

    memcpy(out + p->n_out, buf, (size_t) n);
    p->out = out;
    p->n_out += (size_t) n;
    p->out[p->n_out] = '\0';
    return 0;
}

static void process_reap(struct process *p)
{
    while (waitpid(p->pid, &p->status, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
    process_close_fd(&p->pidfd);
}

/* One poll() over all children: their output, their exits, and our signals. */
static int process_read_outputs(struct process *const *ps, size_t n, int signal_fd, struct errmsg *e)
{
    struct pollfd fds[2 * CHILDREN_MAX + 1] = {{.fd = signal_fd, .events = POLLIN}};
    int r;

    if (n > CHILDREN_MAX)
        return fail(e, -E2BIG, "more than 8 children to watch");

    for (size_t i = 0; i < n; i++) { /* poll() ignores negative descriptors */
        fds[1 + 2 * i] = (struct pollfd){.fd = ps[i]->out_fd, .events = POLLIN};
        fds[2 + 2 * i] = (struct pollfd){.fd = ps[i]->pidfd, .events = POLLIN};
    }

    if (poll(fds, 2 * n + 1, -1) < 0)
        return errno == EINTR ? 0 : fail(e, -errno, "cannot wait: %s", strerror(errno));
    if (fds[0].revents)
        return -EINTR;

    for (size_t i = 0; i < n; i++) {
        if (fds[1 + 2 * i].revents) {
            r = process_take_output(ps[i]);
            if (r < 0)
                return fail(e, r, "out of memory for the output of %s", ps[i]->label);
        }

        if (fds[2 + 2 * i].revents)
            process_reap(ps[i]);
    }

    return 0;
}

int process_wait(struct process *const *ps, size_t n, size_t which, enum process_event event, int signal_fd,
                 struct errmsg *e)
{
    const struct process *p = ps[which];
    int r;

    for (;;) {
        bool gone = p->pid == 0 && p->out_fd < 0;

        if (gone || (event == PROCESS_WRITES && p->n_out > 0))
            return 0;

        r = process_read_outputs(ps, n, signal_fd, e);
        if (r < 0)
            return r;
    }
}

bool process_running(const struct process *p)
{
    struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};

    return p->pid > 0 && poll(&fd, 1, 0) == 0;
}

bool process_succeeded(const struct process *p, struct errmsg *e)
{
    if (p->pid > 0)
        return refute(e, "%s is still running", p->label);
    if (WIFSIGNALED(p->status))
        return refute(e, "%s was ended by signal %d (%s)", p->label, WTERMSIG(p->status),
                      strsignal(WTERMSIG(p->status)));
    if (WEXITSTATUS(p->status) == 127)
        return refute(e, "%s could not be started", p->label);
    if (WEXITSTATUS(p->status) != 0)
        return refute(e, "%s failed; " PROCESS_ABOVE, p->label);

    return true;
}

bool process_stop(struct process *p)
{
    struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
    bool was_there = p->pid > 0;

    if (p->pid > 0) {
        (void) kill(p->pid, SIGTERM); /* not reaped yet: the pid cannot belong to another process */
        process_close_fd(&p->out_fd); /* it must not block on a pipe that we do not read */
        while (poll(&fd, 1, STOP_MS) < 0 && errno == EINTR)
            ;
        if (!(fd.revents & POLLIN))
            (void) kill(p->pid, SIGKILL);
        process_reap(p);
    }

    process_close_fd(&p->out_fd);
    return was_there && WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0;
}

void process_deinit(struct process *p)
{
    (void) process_stop(p);
    free(p->out);
    *p = (struct process) PROCESS_INIT(p->label);
}
