/*
 * One fixed life of a daemon under the supervisor, for tests that make something fail in it: start,
 * activation of tables, a process that holds pages, sessions that publish and read, reload, SIGKILL, restart,
 * resumption, an orderly end, restart, end. A step that fails is repeated once, and only if the test's
 * failure happened in it. After each step the promises are checked: every page whose COMMIT was answered has
 * its bytes, holds are exact, every errno has a sentence, a start that fails says why.
 *
 * Clients run in child processes, so that a connection that is lost leaves nothing behind.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct life {
    /* Whether the failure has happened. */
    bool (*has_failed)(void);
    /* If the failure is a SIGKILL: the process that got it, 0 before. Else NULL. */
    pid_t (*killed)(void);
    /*
     * After a fault-free life: the descriptors that the daemon had at the end. Later lives must have as many.
     */
    size_t n_fds_at_end;
    /* Counts over all lives. */
    unsigned n_starts_failed, n_steps_failed;
};

/* Before the first life, and after the last one. */
void life_begin(void);
void life_end(void);

/* False: a promise was broken, which is printed; the daemon's folder stays. */
bool life_run(struct life *l);
