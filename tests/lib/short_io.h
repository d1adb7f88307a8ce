/*
 * read(), write(), pread() and pwrite() of a program that links short_io_dep do less than they were asked
 * for, as the kernel may at any time: each call moves a few bytes, and a signal interrupts every second one.
 * A call can fail, too.
 */
#pragma once

#include <stddef.h>

struct short_io {
    size_t bytes_max; /* of one call; 0: calls pass */
    unsigned n_calls; /* since the test cleared it, while bytes_max is not 0 */
    unsigned fail_at; /* this call fails, counted from 1; 0: none */
    int fail_errno;
};
extern struct short_io short_io;
