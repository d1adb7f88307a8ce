/*
 * Output files that are either whole or not there: written under a temporary name in the same folder, synced,
 * then renamed. A full disk, a signal or a crash leaves whatever file stood there before untouched.
 */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * atomic_file_write() - replace @path by @bytes bytes of @data
 * @path: borrowed; its folder must exist
 * @e:    may be NULL
 *
 * The folder is synced too, so that the new name survives a power cut.
 *
 * Return: 0; a negative errno of the system call that failed, with a sentence naming @path.
 */
int atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e);

/**
 * atomic_file_read() - read a whole regular file of at most @max_bytes
 * @ret_data:  malloc'ed, caller frees; untouched on failure
 * @ret_bytes: its size
 *
 * Return: 0; -EFBIG if larger than @max_bytes; -ENOENT, -EACCES, -EISDIR …, with a sentence naming @path.
 */
int atomic_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes, struct errmsg *e);
