/*
 * Memory objects that pools are made of, and the kernels that run where they lie. The CPU is one device; a
 * GPU is another. Nothing here knows tenants, pages' keys or messages.
 *
 * An extent is one memory object: created by the owner (daemon, or a client in embedded mode), exported as a
 * file descriptor, imported read-only by others. On the CPU it is a memfd: allocated up front, sealed
 * SHRINK|GROW|SEAL, mode 0400, exported read-only, so that another uid that gets the descriptor cannot write,
 * resize or punch it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct extent; /* opaque */

enum extent_access {
    EXTENT_READ = 0,       /* importers of pages, index, control page, tables */
    EXTENT_READ_WRITE = 1, /* importers of an arena or a session page */
};

/**
 * extent_new() - create a memory object of @bytes (multiple of the page size) and map it read-write
 * @name:       for /proc/PID/maps, at most 200 characters
 * @access:     what importers may do: EXTENT_READ gives mode 0400, EXTENT_READ_WRITE 0600
 *
 * Pages are allocated before the call returns: no SIGBUS later.
 *
 * Return: 0; -ENOMEM, -ENOSPC, -EMFILE …; a sealing step that fails fails the call.
 */
int extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
               struct errmsg *e);

/**
 * extent_new_kept() - extent_new(), and the writable descriptor for a store that outlives this process
 * @ret_owner_fd: the caller's; never for importers
 */
int extent_new_kept(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                    int *ret_owner_fd, struct errmsg *e);

/**
 * extent_adopt() - take an extent back that an earlier process of the same user made with extent_new_kept()
 * @owner_fd: its writable descriptor; transferred, also on failure
 *
 * The contents are as they were left. Return: 0; -EBADMSG: not such an object; errno of the mapping.
 */
int extent_adopt(int owner_fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                 struct errmsg *e);

/**
 * extent_import() - map somebody's extent
 * @fd:             transferred: closed by the extent, also on failure
 * @bytes_expected: what the owner said; the sealed size must agree
 *
 * Checks: a memfd, sealed SHRINK and GROW, size. Mapped MADV_DONTFORK, descriptor CLOEXEC.
 *
 * Return: 0; -EBADMSG if the object is not as promised; errno of the mapping.
 */
int extent_import(int fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                  struct errmsg *e);

struct extent *extent_free(struct extent *x);
static inline void extent_freep(struct extent **x)
{
    *x = extent_free(*x);
}

/* Borrowed: valid while the extent lives. Read-only importers get a mapping without write permission. */
void *extent_data(const struct extent *x);
size_t extent_bytes(const struct extent *x);
/* What to hand to importers. Of an EXTENT_READ extent it is open read-only, for its owner too. */
int extent_fd(const struct extent *x);
