/*
 * Pages of their own for keys and secrets: never in a core file, in a child process or, where that is
 * allowed, on the swap device. Unlike sodium_free(), freeing needs no system call to succeed.
 */
#pragma once

#include <stddef.h>

/* Zeroed memory. NULL: the system has none, or would put it into core files. */
void *secret_memory_new(size_t bytes);

/* Clears and frees it. @p: NULL is allowed; @bytes: as it was made. Returns NULL. */
void *secret_memory_free(void *p, size_t bytes);
