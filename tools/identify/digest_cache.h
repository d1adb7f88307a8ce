/*
 * Digests that were computed before, so that the weights of a model are read once per host, user and change,
 * and not by every rank of an engine at every start. A record is a file of mode 0600 in
 * $XDG_CACHE_HOME/kvcobra (~/.cache/kvcobra), one for each path of a model. It is locked while a digest is
 * computed: processes that start together wait for the first one.
 *
 * A digest is remembered with device, inode, size and both times of every file that it was computed from, and
 * given only if all of them are what they were. Files that changed in the last two seconds are too young:
 * they could change again within the resolution of their times. Whatever is in the way of a record, the
 * digest is computed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/digest.h"

struct errmsg;

struct digest_cache {
    int fd;       /* of the record, locked; -1: nothing is remembered */
    char *record; /* what it says now; NULL: nothing */
};

struct digest_cache_entry {
    uint8_t digest[32];
    uint64_t n_tensors;
};

#define DIGEST_CACHE_INIT                                                                                    \
    {                                                                                                        \
        .fd = -1                                                                                             \
    }

/* The files of a model: a text with a line for each. */
struct digest_cache_files {
    char *text;
    size_t bytes;
    bool young; /* a file changed in the last two seconds */
};

/* Adds a file. @now: seconds, as time() says. Return: 0; -ENOMEM. */
int digest_cache_add_file(struct digest_cache_files *f, const char *name, const struct stat *st, int64_t now);
void digest_cache_files_deinit(struct digest_cache_files *f);

/**
 * digest_cache_open() - lock the record of a model, and read it
 * @path: of the folder or file
 *
 * Waits while another process has the lock. Return: 0; -ENOENT: there is no folder for records, which is no
 * failure of anything; another errno with a sentence. The digest must then be computed.
 */
int digest_cache_open(const char *path, struct digest_cache *ret, struct errmsg *e);

/* Whether the record is of exactly these files. */
bool digest_cache_find(const struct digest_cache *c, const struct digest_cache_files *f,
                       struct digest_cache_entry *ret);

/* Writes the record, unless a file is young. Return: 0; the errno of the write, and there is no record. */
int digest_cache_put(struct digest_cache *c, const struct digest_cache_files *f,
                     const struct digest_cache_entry *entry);

/* Unlocks the record. */
void digest_cache_deinit(struct digest_cache *c);
