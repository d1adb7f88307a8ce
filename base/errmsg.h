/*
 * The sentence that goes with an error code: what happened, to which thing, what to do.
 *
 * Functions that can fail take a struct errmsg, or NULL if the caller needs no sentence.
 * Public handles embed one. A sentence starts in lower case, names the thing and has no final
 * full stop: it is printed after "kvcobra: ".
 */
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#define ERRMSG_BYTES 384

struct errmsg {
    char text[ERRMSG_BYTES]; /* always terminated; empty without a failure */
};

static inline void errmsg_clear(struct errmsg *e)
{
    if (e)
        e->text[0] = '\0';
}

__attribute__((format(printf, 2, 3))) static inline void errmsg_set(struct errmsg *e, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return;
    va_start(ap, fmt);
    (void) vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
}

/*
 * Records the sentence; its value is @err, for use as: return fail(e, -EINVAL, "...", ...);
 *
 * The value is negative: -EIO if @err is not, as -errno is not after a function that failed without setting
 * errno. So no caller takes a failure for success. A macro, since compilers do not inline functions with
 * variable arguments: they would not see that the value is negative, and would warn of variables that are not
 * set after a failure. @err is evaluated first: -errno.
 */
#define fail(e, err, ...)                                                                                    \
    __extension__({                                                                                          \
        int fail_err = (err);                                                                                \
                                                                                                             \
        errmsg_set(e, __VA_ARGS__);                                                                          \
        fail_err < 0 ? fail_err : -EIO;                                                                      \
    })

/* The same for functions that return whether something holds: return refute(e, "...", ...); */
#define refute(e, ...)                                                                                       \
    __extension__({                                                                                          \
        errmsg_set(e, __VA_ARGS__);                                                                          \
        false;                                                                                               \
    })
