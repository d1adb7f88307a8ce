/*
 * Scope-exit ownership: a local that owns something says so where it is declared.
 *
 *     _cleanup_(table_unrefp) struct table *t = NULL;
 *
 * Used everywhere; holds nothing but the attribute, the take helpers and the cleaners of libc objects.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Hands ownership out of a variable that has a cleanup: the value is returned, the variable becomes empty. */
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

/* Cleaners keep errno: a destructor must not eat the error that brought us to it. */
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
