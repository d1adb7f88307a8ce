/* A daemon for one scenario; see bench_service_daemon.h. */
#include "tools/bench/bench_service_daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/temp_folder.h"

enum { ARGS_MAX = 48 };

int bench_daemon_init(struct bench_daemon *r, const char *daemon, const char *const *options,
                      struct errmsg *e)
{
    const char *argv[ARGS_MAX] = {"kvcobrad",
                                  "--socket",
                                  r->socket,
                                  "--operator-socket",
                                  r->operator_socket,
                                  "--log-level",
                                  "3",
                                  "--ready-fd",
                                  "3",
                                  "--allow-core"}; /* else only root may read its /proc/PID/smaps */
    struct process *ps[] = {&r->daemon};
    size_t n = 10;
    sigset_t mask;
    int err;

    while (*options && n + 1 < ARGS_MAX)
        argv[n++] = *options++;
    /* in /tmp: $TMPDIR may be too long for a socket */
    err = temp_folder_make("/tmp", "bench", r->folder, sizeof(r->folder), e);
    if (err < 0)
        return err;

    (void) snprintf(r->socket, sizeof(r->socket), "%s/kvcobra.sock", r->folder);
    (void) snprintf(r->operator_socket, sizeof(r->operator_socket), "%s/operator.sock", r->folder);
    (void) sigemptyset(&mask);
    (void) sigaddset(&mask, SIGINT);
    (void) sigaddset(&mask, SIGTERM);
    (void) sigaddset(&mask, SIGHUP);
    (void) sigprocmask(SIG_BLOCK, &mask, NULL);
    r->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    err = process_start(&r->daemon, daemon, argv, PROCESS_READY, e);
    if (err < 0)
        return err;

    err = process_wait(ps, 1, 0, PROCESS_WRITES, r->signal_fd, e);
    if (err < 0)
        return err;

    /* from here on a signal ends this process, and its children with it */
    (void) sigprocmask(SIG_UNBLOCK, &mask, NULL);
    return r->daemon.n_out == 0 ? fail(e, -ECANCELED, "kvcobrad does not start") : 0;
}

void bench_daemon_deinit(struct bench_daemon *r)
{
    process_deinit(&r->daemon);
    closep(&r->signal_fd);
    r->signal_fd = -1;
    temp_folder_remove(r->folder);
}
