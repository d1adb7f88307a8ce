/* A daemon in a temporary folder, for one scenario of a bench. */
#pragma once

#include "tools/command/process.h"

struct errmsg;

struct bench_daemon {
    char folder[64], socket[96], operator_socket[96];
    struct process daemon;
    int signal_fd;
};

#define BENCH_DAEMON_INIT                                                                                    \
    {                                                                                                        \
        .daemon = PROCESS_INIT("kvcobrad"), .signal_fd = -1                                                  \
    }

/**
 * bench_daemon_init() - make the folder, start the daemon, wait until it is ready
 * @r:       BENCH_DAEMON_INIT
 * @daemon:  path of kvcobrad
 * @options: further options of the daemon, ends with NULL
 *
 * Return: 0; a negative errno with a sentence, or without one if a signal arrived.
 */
int bench_daemon_init(struct bench_daemon *r, const char *daemon, const char *const *options,
                      struct errmsg *e);
void bench_daemon_deinit(struct bench_daemon *r); /* usable with _cleanup_ */
