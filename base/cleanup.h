/*
 * Ownership by scope: a local that owns something has a cleanup attribute at its declaration.
 *
 *     _cleanup_(table_unrefp) struct table *t = NULL;
 *
 * Every folder uses this file. It contains only the attribute, the functions that transfer
 * ownership, and cleanups of libc objects.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Transfers ownership out of a variable with a cleanup: returns the value and empties the variable. */
#define take_ptr(p)                                                                                          \
    __extension__({                                                                                          \
        __typeof__(p) *_pp = &(p);                                                                           \
        __typeof__(p) _v = *_pp;                                                                             \
        *_pp = NULL;                                                                                         \
        _v;                                                                                                  \
    })

static inline int take_fd(int *fd)
{
    int v = *fd;

    *fd = -1;
    return v;
}

/* Cleanups keep errno: a destructor must not overwrite the error that led to it. */
static inline void freep(void *p)
{
    int saved = errno;

    free(*(void **) p);
    errno = saved;
}

static inline void closep(const int *fd)
{
    int saved = errno;

    if (*fd >= 0)
        (void) close(*fd);
    errno = saved;
}

static inline void fclosep(FILE **f)
{
    int saved = errno;

    if (*f)
        (void) fclose(*f);
    errno = saved;
}
