/*
 * Texts that commands read and write, one convention for all: "-" is standard input or standard output, and
 * pipes are read to their end. A file called "-" is named "./-". What is not a text, as tables, statistics
 * and models, is read and written by atomic_file.h, which refuses "-".
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

#define STREAM_FILE_BYTES_MAX ((size_t) 256 << 20) /* that come from a pipe or a device: some never end */

/* Whether a path means standard input or output: "-", "/dev/stdin", "/dev/stdout". */
bool stream_file_is_standard(const char *path);

/* For sentences: "standard input" for "-", else the path itself. */
const char *stream_file_name(const char *path);

/**
 * stream_file_open() - open a text for reading
 * @path: a file, a pipe, a device, or "-" for standard input
 *
 * Return: a descriptor, closed on exec; -EISDIR, -ENOENT ..., with a sentence.
 */
int stream_file_open(const char *path, struct errmsg *e);

/**
 * stream_file_read() - read a whole text
 * @max_bytes: of the text; of what is no regular file also at most STREAM_FILE_BYTES_MAX
 * @ret_data:  malloc'ed, caller frees; untouched on failure
 *
 * A byte order mark at the beginning is dropped: it is no part of the text.
 * Return: 0; -EFBIG; as stream_file_open(); with a sentence.
 */
int stream_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes,
                     struct errmsg *e);

/* Bytes of a byte order mark at the beginning of a text of @n bytes: 3 or 0. */
size_t stream_file_mark_bytes(const void *text, size_t n);

/* Writes a text: to standard output, or by atomic_file_write(). Return: 0; negative errno with a sentence. */
int stream_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e);
