/*
 * What a start does with stored bytes that it cannot use. Damaged bytes stay damaged: their part is given up
 * and logged. A machine that is out of memory or descriptors, or whose disk does not answer, may work at the
 * next attempt: the start fails, and nothing is given up.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

/* Whether the code says that the bytes cannot be used; every other code says that the machine failed. */
static inline bool damage_is_cause(int r)
{
    switch (r) {
    case -EBADMSG:
    case -EINVAL:
    case -EFBIG:
    case -EISDIR:
    case -ENOENT:
    case -ENODEV:
    case -ENXIO:
    case -EEXIST:
    case -ESTALE:
    case -ERANGE:
    case -EOVERFLOW:
        return true;
    default:
        return false;
    }
}
