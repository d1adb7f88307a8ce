/*
 * Threads of workers. They block the signals that are for the process, so that its own threads get them: a
 * loop that reads them from a descriptor, or the program that uses a library. Signals of faults are left:
 * where a thread blocks them, a fault ends the process without its handler, as the one that keeps secrets out
 * of a core file, or the one that names a file that became shorter.
 */
#pragma once

#include <pthread.h>
#include <signal.h>

/* All signals but those that an instruction of the thread itself raises. */
void worker_signals_fill(sigset_t *ret);

/**
 * worker_thread_start() - pthread_create() of a thread that blocks worker_signals_fill()
 * @attributes: may be NULL
 *
 * Return: 0, or a negative errno of pthread_create().
 */
int worker_thread_start(pthread_t *ret, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
