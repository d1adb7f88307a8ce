/*
 * The sentence that goes with an error code: what happened, to which thing, what to do.
 *
 * A caller that wants it passes a struct errmsg, a caller that does not passes NULL. Public handles embed
 * one. A sentence starts lower-case, names the thing, has no final full stop: it is printed after "kvcobra:
 * ".
 */
#pragma once

#include <stdarg.h>
#include <stdio.h>

#define ERRMSG_BYTES 384

struct errmsg {
    char text[ERRMSG_BYTES]; /* never unterminated; empty when nothing failed */
};

static inline void errmsg_clear(struct errmsg *e)
{
    if (e)
        e->text[0] = '\0';
}

/* Records the sentence and returns @err, so that failing is one statement: return fail(e, -EINVAL, "...",
 * ...); */
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
