/*
 * The file "stored-pool" of the state folder: an earlier process stored its pool with the supervisor. A
 * start that finds the file and no stored pool reports the loss. Read and written at start and end only,
 * since it blocks.
 */
#pragma once

#include <stdbool.h>

/* @state_dir: NULL: there is no folder, so no file. */
bool pool_mark_exists(const char *state_dir);

/* Writes or removes the file. A failure is logged and ignored: at worst a loss is not reported. */
void pool_mark_set(const char *state_dir, bool stored);
