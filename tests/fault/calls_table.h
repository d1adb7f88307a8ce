/* Which failures each system call can have; see calls.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { CALL_ERRNOS_MAX = 6, CALL_HALF = -1 }; /* CALL_HALF: half of the bytes are moved */

struct call_kind {
    long nr;
    const char *name;
    int failures[CALL_ERRNOS_MAX + 1]; /* ends with 0 */
};

extern const struct call_kind calls_table[];
extern const size_t calls_table_n;

/* The kind of a call with these arguments; NULL: this call cannot fail. */
const struct call_kind *calls_find(long nr, const uint64_t args[6]);
