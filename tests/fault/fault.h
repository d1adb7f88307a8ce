/*
 * Failing the nth allocation. In a test program linked with the arguments in tests/fault/meson.build, malloc,
 * calloc, realloc and aligned_alloc of all static libraries call the wrappers here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The @nth allocation from now on (1 = the next) fails; 0 disarms. */
void fault_arm(unsigned nth);

/* Whether the armed allocation has failed. */
bool fault_fired(void);

/* Blocks allocated through here and not freed. */
long fault_live_blocks(void);
