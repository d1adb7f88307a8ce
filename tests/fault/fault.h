/*
 * Failing the nth allocation. In a program linked with the arguments in tests/fault/meson.build, the
 * allocating functions of libc that this project calls lead to the wrappers here, in all static libraries.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Makes the @nth allocation from now on fail (1 = the next); 0: none. */
void fault_arm(unsigned nth);

/* While @paused, allocations pass and do not count: those of the test between two calls. */
void fault_pause(bool paused);

/* Whether the armed allocation has failed. */
bool fault_fired(void);

/* The number of blocks that were allocated through the wrappers and not freed. */
long fault_live_blocks(void);

/* From now on fault_arm() is a test's that has mapped the file @path by fault_page_new(); asserts. */
void fault_follow(const char *path);
