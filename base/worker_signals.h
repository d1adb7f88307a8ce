/*
 * Signals that threads of workers block, so that those for the process go to its own threads. Signals of
 * faults are left: where a thread blocks them, a fault ends the process without its handler, as the one that
 * keeps secrets out of a core file, or the one that names a file that became shorter.
 */
#pragma once

#include <signal.h>
#include <stddef.h>

/* All signals but those that an instruction of the thread itself raises. */
static inline void worker_signals_fill(sigset_t *ret)
{
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

    (void) sigfillset(ret);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        (void) sigdelset(ret, faults[i]);
}
