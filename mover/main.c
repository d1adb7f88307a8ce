/*
 * kvcobra-mover: the one process of the service that has contexts on GPUs. kvcobrad starts it with a socket
 * and ends it by closing the socket; see README.md.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/core_file.h"
#include "base/errmsg.h"
#include "base/entry.h"
#include "mover/serve.h"
#include "proto/mover_wire.h"

/* libc looks this symbol up by name: it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvcobra-mover " KVCOBRA_VERSION;

enum { EXIT_USAGE = 2 };

static const char doc[] =
    "Make, check and copy GPU memory for kvcobrad.\vkvcobrad starts kvcobra-mover when a GPU is configured "
    "(see \"gpu\" in kvcobrad.conf(5)) and talks to it over descriptor 3. Do not start it by hand.";

static const struct argp argp = {.doc = doc};

static bool main_is_started_by_daemon(void)
{
    int domain = 0, type = 0;
    socklen_t bytes = sizeof(int);

    return getsockopt(MOVER_SOCKET_FD, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX &&
           getsockopt(MOVER_SOCKET_FD, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET;
}

/* Closes the daemon's descriptors except for the socket, forbids new privileges, and prevents core files,
 * which could hold GPU memory of clients. */
static int main_give_up_privileges(void)
{
    /* The daemon's exit closes the socket, which is read between requests only; the signal also arrives while
     * the driver works. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    if (syscall(SYS_close_range, MOVER_SOCKET_FD + 1, ~0U, 0) < 0 || chdir("/") < 0)
        return -errno;
    core_file_limit();
    if (unsetenv("NOTIFY_SOCKET") < 0 || unsetenv("WATCHDOG_USEC") < 0 || unsetenv("WATCHDOG_PID") < 0)
        return -errno;

    return 0;
}

int main(int argc, char **argv)
{
    struct errmsg e = {""};
    int r;

    entry_prepare(ENTRY_PIPES_FAIL);
    argp_err_exit_status = EXIT_USAGE;
    (void) argp_parse(&argp, argc, argv, 0, NULL, NULL);
    if (!main_is_started_by_daemon()) {
        fprintf(stderr,
                "kvcobra-mover: kvcobrad starts it when a GPU is configured; do not start it by hand\n");
        return EXIT_USAGE;
    }

    r = main_give_up_privileges();
    if (r < 0) {
        fprintf(stderr, "kvcobra-mover: cannot give up its privileges: %s\n", strerror(-r));
        return EXIT_FAILURE;
    }

    r = serve(MOVER_SOCKET_FD, &e);
    if (r < 0)
        fprintf(stderr, "kvcobra-mover: %s\n", e.text);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
