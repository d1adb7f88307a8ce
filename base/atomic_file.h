/*
 * Output files that are either whole or not there: written without a name in the folder (O_TMPFILE), synced,
 * then named. A full disk, a signal or a crash leaves whatever file stood there before untouched, and nothing
 * beside it. File systems without unnamed files get a temporary name, which a kill can leave behind.
 */
#pragma once

#include <stddef.h>
#include <stdio.h>

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
 * atomic_file_check() - whether a file could be written at @path, before work that takes long
 *
 * Return: 0; -EISDIR; -EINVAL: a device, a pipe, a socket or a symbolic link stands there, which a new file
 * would replace; -ENOENT, -EACCES, -EROFS … of its folder; each with a sentence naming @path. The others
 * above fail for the first two as well.
 */
int atomic_file_check(const char *path, struct errmsg *e);

/* A file that is written piece by piece. */
struct atomic_file {
    FILE *stream;
    int fd; /* of the stream */
    char *path;
    char *temporary; /* its name while it has one that it should not keep */
    int error;       /* of the first piece that failed */
};

/**
 * atomic_file_start() - begin a file that will stand at @path
 * @ret: atomic_file_deinit() it, committed or not
 *
 * Return: 0; a negative errno with a sentence naming @path.
 */
int atomic_file_start(const char *path, struct atomic_file *ret, struct errmsg *e);

/* The next bytes, buffered. What goes wrong is told by atomic_file_commit(). */
void atomic_file_put(struct atomic_file *f, const void *bytes, size_t n);

/* Syncs the file, gives it its name and syncs the folder. Return: 0; a negative errno with a sentence: @path
 * is as it was. */
int atomic_file_commit(struct atomic_file *f, struct errmsg *e);

/* Discards what is not committed. Also right as a cleanup. */
void atomic_file_deinit(struct atomic_file *f);

/**
 * atomic_file_read() - read a whole regular file of at most @max_bytes
 * @ret_data:  malloc'ed, caller frees; untouched on failure
 * @ret_bytes: its size
 *
 * Return: 0; -EFBIG if larger than @max_bytes; -ENOENT, -EACCES, -EISDIR …, with a sentence naming @path.
 */
int atomic_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes,
                     struct errmsg *e);
