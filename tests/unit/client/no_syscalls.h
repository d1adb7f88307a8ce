/* Decoding under a seccomp filter that kills on any system call but exit. */
#pragma once

#include <stdbool.h>

#include "tests/unit/client/embedded.h"

/* Sanitizers make system calls themselves. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SYSCALLS_TESTABLE 0
#else
#define SYSCALLS_TESTABLE 1
#endif

enum { SYSCALLS_NONE = 0, SYSCALLS_FAILED = 1, SYSCALLS_NO_SECCOMP = 2 }; /* exit statuses */

/**
 * decode_without_syscalls() - generate tokens, forbid system calls, generate more; does not return
 * @m:           a client of this process
 * @make_a_call: make a system call at the end, to show that the filter works
 *
 * Generates 260 tokens before and 200 after: three chunk boundaries. For a child process.
 */
_Noreturn void decode_without_syscalls(const struct embedded *m, bool make_a_call);
