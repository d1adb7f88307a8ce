/* Starting and ending kvcobrad; see daemon_fixture.h. */
#include "tests/e2e/daemon_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/wait.h"

enum { ARGS_MAX = 48, TIMEOUT_MS = WAIT_LIMIT_S * 1000 };

static const char *program(void)
{
    const char *path = getenv("KVC_KVCOBRAD");

    if (!path)
        fprintf(stderr, "KVC_KVCOBRAD does not name a kvcobrad: run this test through meson\n");
    return path;
}

/* Listens at @path; the descriptor survives exec. */
static int make_socket(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    memcpy(sa.sun_path, path, strlen(path) + 1);
    (void) unlink(path);
    if (fd < 0 || bind(fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0 || listen(fd, 64) < 0) {
        perror(path);
        return -1;
    }
    return fd;
}

/* In the child: standard error to the log, arguments, exec. */
static void exec_daemon(const struct daemon *d, const char *const *args, const int *fds, int ready)
{
    char text[5][128];
    const char *argv[ARGS_MAX], *inline_bytes = getenv("KVC_TEST_WORK_INLINE");
    size_t n = 0;
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    if (log < 0 || dup2(log, STDERR_FILENO) < 0)
        _exit(126);
    /*
     * A daemon that outlives a failed test would keep its standard output open, and meson waits
     * until it is closed.
     */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        _exit(126);
    argv[n++] = program();
    if (d->flags & DAEMON_BY_FD) {
        (void) snprintf(text[0], sizeof(text[0]), "--listen-fd=%d", fds[0]);
        (void) snprintf(text[1], sizeof(text[1]), "--operator-fd=%d", fds[1]);
    } else {
        (void) snprintf(text[0], sizeof(text[0]), "--socket=%s", d->socket);
        (void) snprintf(text[1], sizeof(text[1]), "--operator-socket=%s", d->operator_socket);
    }
    (void) snprintf(text[2], sizeof(text[2]), "--ready-fd=%d", ready);
    (void) snprintf(text[3], sizeof(text[3]), "--state-dir=%s", d->state);
    for (size_t i = 0; i < (d->flags & DAEMON_WITH_STATE ? 4 : 3); i++)
        argv[n++] = text[i];
    (void) snprintf(text[4], sizeof(text[4]), "--work-inline-bytes=%s",
                    inline_bytes ? inline_bytes : "32768");
    argv[n++] = text[4];
    if (geteuid() != 0)
        argv[n++] = "--allow-core"; /* else only root may read its files in /proc, as tests do */
    for (; args && *args && n + 1 < ARGS_MAX; args++)
        argv[n++] = *args;
    argv[n] = NULL;
    (void) execv(argv[0], (char *const *) argv);
    _exit(127);
}

static bool wait_ready(const struct daemon *d, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    if (poll(&p, 1, TIMEOUT_MS) == 1 && read(fd, &byte, 1) == 1)
        return true;
    fprintf(stderr, "kvcobrad did not get ready; its log is %s\n", d->log);
    return false;
}

void (*daemon_before_start)(const struct daemon *d);

bool daemon_start_again(struct daemon *d, const char *const *args)
{
    int fds[2] = {-1, -1}, ready[2];
    bool ok;

    if (!program())
        return false;
    if (pipe2(ready, 0) < 0)
        return false;
    if (d->flags & DAEMON_BY_FD) {
        fds[0] = make_socket(d->socket);
        fds[1] = make_socket(d->operator_socket);
        if (daemon_before_start)
            daemon_before_start(d);
    }
    d->pid = fork();
    if (d->pid == 0) {
        (void) close(ready[0]);
        exec_daemon(d, args, fds, ready[1]);
    }
    (void) close(ready[1]);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void) close(fds[i]);
    ok = d->pid > 0 && wait_ready(d, ready[0]);
    (void) close(ready[0]);
    if (!ok && d->pid > 0)
        daemon_kill(d);
    return ok;
}

bool daemon_start(struct daemon *d, unsigned flags, const char *const *args)
{
    *d = (struct daemon){.flags = flags, .folder = "/tmp/kvcobra-test-XXXXXX"};
    if (!mkdtemp(d->folder)) {
        perror(d->folder);
        return false;
    }
    (void) snprintf(d->socket, sizeof(d->socket), "%s/kvcobra.sock", d->folder);
    (void) snprintf(d->operator_socket, sizeof(d->operator_socket), "%s/operator.sock", d->folder);
    (void) snprintf(d->state, sizeof(d->state), "%s/state", d->folder);
    (void) snprintf(d->log, sizeof(d->log), "%s/log", d->folder);
    return daemon_start_again(d, args);
}

static bool wait_end(pid_t pid)
{
    int fd = (int) syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool ok = fd >= 0 && poll(&p, 1, TIMEOUT_MS) == 1;

    if (fd >= 0)
        (void) close(fd);
    return ok;
}

void daemon_kill(struct daemon *d)
{
    if (d->pid <= 0)
        return;
    (void) kill(d->pid, SIGKILL);
    (void) waitpid(d->pid, NULL, 0);
    d->pid = 0;
}

static bool is_gone(const char *path)
{
    if (access(path, F_OK) != 0)
        return true;
    fprintf(stderr, "kvcobrad left %s\n", path);
    return false;
}

bool daemon_end(struct daemon *d)
{
    char lock[128];
    int status;

    if (d->pid <= 0 || kill(d->pid, SIGTERM) < 0)
        return false;
    if (!wait_end(d->pid)) {
        fprintf(stderr, "kvcobrad does not end\n");
        daemon_kill(d);
        return false;
    }
    (void) waitpid(d->pid, &status, 0);
    d->pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "kvcobrad ended with status 0x%x; its log is %s\n", status, d->log);
        return false;
    }
    if (d->flags & DAEMON_BY_FD)
        return true; /* the test made the sockets */
    (void) snprintf(lock, sizeof(lock), "%s.lock", d->socket);
    return is_gone(d->socket) && is_gone(d->operator_socket) && is_gone(lock);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st;
    (void) type;
    (void) ftw;
    return remove(path);
}

void daemon_remove_folder(struct daemon *d)
{
    (void) nftw(d->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

bool daemon_stop(struct daemon *d)
{
    bool ok = daemon_end(d);

    if (ok) /* a failed test keeps the log */
        daemon_remove_folder(d);
    return ok;
}

bool daemon_logged(const struct daemon *d, const char *text)
{
    FILE *f = fopen(d->log, "re");
    char line[2048];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = strstr(line, text) != NULL;
    if (f)
        (void) fclose(f);
    return found;
}

uint64_t daemon_heap_bytes(const struct daemon *d)
{
    char path[64], line[128];
    unsigned long kib = 0;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%ld/status", (long) d->pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %lu kB", &kib) == 1)
            break;
    if (f)
        (void) fclose(f);
    return (uint64_t) kib << 10;
}

int daemon_run(const char *const *args, const char *log)
{
    pid_t pid = program() ? fork() : -1;
    int status;

    if (pid == 0) {
        const char *argv[ARGS_MAX] = {program()};
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
            _exit(126);
        for (size_t n = 1; *args && n + 1 < ARGS_MAX; n++, args++)
            argv[n] = *args;
        (void) execv(argv[0], (char *const *) argv);
        _exit(127);
    }
    if (pid < 0)
        return -1;
    if (!wait_end(pid))
        (void) kill(pid, SIGKILL);
    (void) waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
