/*
 * Files of others that are mapped: a file that becomes shorter while it is mapped, by a download or a copy
 * over it, raises SIGBUS at the next read. A handler then ends the process with a sentence that names the
 * file, and status 1. Other causes of SIGBUS keep the action that they had.
 *
 * For programs, not for libraries: the first call installs the handler.
 */
#pragma once

#include <stddef.h>

#define MAPPED_FILES_MAX 16 /* at a time; further ones have no sentence */

/* @at: [bytes], a mapping of the file @path, which is borrowed until mapped_file_forget(). */
void mapped_file_watch(const void *at, size_t bytes, const char *path);

/* Before munmap(). @at may be a mapping that is not watched. */
void mapped_file_forget(const void *at);
