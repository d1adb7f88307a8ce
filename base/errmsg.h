/*
 * The sentence that goes with an error code: what happened, to which thing, what to do.
 *
 * Functions that can fail take a struct errmsg, or NULL if the caller needs no sentence.
 * Public handles embed one. A sentence starts in lower case, names the thing and has no final
 * full stop: it is printed after "kvcobra: ".
 */
#pragma once

#include <stdarg.h>
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

/* Records the sentence and returns @err, for use as: return fail(e, -EINVAL, "...", ...); */
__attribute__((format(printf, 3, 4))) static inline int fail(struct errmsg *e, int err, const char *fmt, ...)
{
    if (e) {
        va_list ap;

        va_start(ap, fmt);
        (void) vsnprintf(e->text, sizeof(e->text), fmt, ap);
        va_end(ap);
    }
    return err;
}
