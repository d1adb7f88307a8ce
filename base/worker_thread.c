/* See worker_thread.h. */
#include "base/worker_thread.h"

#include <stddef.h>

void worker_signals_fill(sigset_t *ret)
{
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

    (void) sigfillset(ret);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        (void) sigdelset(ret, faults[i]);
}

int worker_thread_start(pthread_t *ret, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    sigset_t blocked, before;
    int r;

    worker_signals_fill(&blocked);
    (void) pthread_sigmask(SIG_SETMASK, &blocked, &before);
    r = pthread_create(ret, attributes, run, arg);
    (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}
