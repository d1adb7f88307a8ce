/*
 * Writes files atomically: a file is written without a name (O_TMPFILE), synced, then named. A full disk,
 * a signal or a crash leaves an earlier file of that name unchanged and leaves no other file.
 * On file systems without unnamed files, the file has a temporary name, which a kill can leave behind.
 * Also reads whole files with a size limit.
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
 * atomic_file_check() - check that a file can be written at @path, before long work
 *
 * Return: 0; -EISDIR; -EINVAL: @path is "-", or a device, a pipe, a socket or a symbolic link, which a new
 * file would replace; -ENOENT, -EACCES, -EROFS … of its folder; each with a sentence naming @path. Writing
 * fails with -EISDIR and -EINVAL in these cases too.
 */
int atomic_file_check(const char *path, struct errmsg *e);

/* A file that is written in pieces. */
struct atomic_file {
    FILE *stream;
    int fd; /* of the stream */
    char *path;
    char *temporary; /* its temporary name, or NULL */
    int error;       /* errno of the first failed piece, or 0 */
};

/**
 * atomic_file_start() - begin a file that atomic_file_commit() will name @path
 * @ret: free with atomic_file_deinit(), committed or not
 *
 * Return: 0; a negative errno with a sentence naming @path.
 */
int atomic_file_start(const char *path, struct atomic_file *ret, struct errmsg *e);

/* Appends bytes, buffered. atomic_file_commit() reports errors. */
void atomic_file_put(struct atomic_file *f, const void *bytes, size_t n);

/* Syncs the file, gives it its name and syncs the folder. Return: 0; a negative errno
 * with a sentence: @path is unchanged, unless the disk failed in the last sync. */
int atomic_file_commit(struct atomic_file *f, struct errmsg *e);

/* Discards a file that is not committed. Works as a cleanup. */
void atomic_file_deinit(struct atomic_file *f);

/* Whether a file that is read whole or mapped has a name. Return: 0; -EINVAL: it is "-", with a sentence. */
int atomic_file_check_input(const char *path, struct errmsg *e);

/**
 * atomic_file_read() - read a whole regular file of at most @max_bytes
 * @ret_data:  malloc'ed, caller frees; untouched on failure
 * @ret_bytes: its size
 *
 * Return: 0; -EFBIG if larger than @max_bytes; -ENOENT, -EACCES, -EISDIR …, with a sentence naming @path.
 */
int atomic_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes,
                     struct errmsg *e);
