/*
 * Failing the nth allocation. In a test program linked with the arguments in tests/fault/meson.build, malloc,
 * calloc, realloc and aligned_alloc of all static libraries call the wrappers here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Makes the @nth allocation from now on fail (1 = the next); 0: none. */
void fault_arm(unsigned nth);

/* Whether the armed allocation has failed. */
bool fault_fired(void);

/* The number of blocks that were allocated through the wrappers and not freed. */
long fault_live_blocks(void);
