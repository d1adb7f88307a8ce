/*
 * Memory objects that pools are made of. The CPU is one device, a GPU is another. This file depends on no
 * tenants, keys of pages or messages.
 *
 * An extent is one memory object. Its owner (the daemon, or a client in embedded mode) creates it and
 * exports it as a file descriptor; other processes import it read-only. On the CPU it is a memfd: allocated
 * up front, sealed SHRINK|GROW|SEAL, mode 0400, exported read-only, so that a process of another uid that
 * gets the descriptor cannot write, resize or punch it. Memory that one client writes is sparse: the client
 * allocates it, so that neither the owner's time nor the owner's memory limit is used for it.
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
 * extent_new() - create a memory object of @bytes (a multiple of the page size) and map it read-write
 * @name:       for /proc/PID/maps, at most 200 characters
 * @access:     what importers may do: EXTENT_READ gives mode 0400, EXTENT_READ_WRITE 0600
 *
 * Pages are allocated before the call returns, so a later access raises no SIGBUS.
 *
 * Return: 0; -ENOMEM, -ENOSPC, -EMFILE …, also if the object cannot be sealed.
 */
int extent_new(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
               struct errmsg *e);

/**
 * extent_new_kept() - extent_new() that also returns the writable descriptor, for a store that outlives
 * this process
 * @ret_owner_fd: belongs to the caller; never pass it to importers
 */
int extent_new_kept(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                    int *ret_owner_fd, struct errmsg *e);

/*
 * extent_new_kept() for an object that gets its memory later: no byte may be touched before extent_allocate()
 * has covered it.
 */
int extent_new_sparse(const char *name, size_t bytes, enum extent_access access, struct extent **ret_extent,
                      int *ret_owner_fd, struct errmsg *e);

/*
 * Gives the memory of a range back, also if other processes keep the object open or mapped: they read zeros
 * there. For the owner; page-aligned.
 */
void extent_discard(const struct extent *x, size_t offset, size_t bytes);

/**
 * extent_new_unmapped() - a sparse memory object, which importers write
 * @bytes: a multiple of the page size
 *
 * It is EXTENT_READ_WRITE, and not mapped here: extent_data() is NULL.
 *
 * The kernel allocates each page when it is first written, and charges it to the control group of the process
 * that writes. read(2) returns zeros where nothing was written. Takes microseconds for any size.
 *
 * Return: 0; -ENOMEM, -EMFILE …, also if the object cannot be sealed.
 */
int extent_new_unmapped(const char *name, size_t bytes, struct extent **ret_extent, struct errmsg *e);

/**
 * extent_allocate() - allocate bytes of a sparse memory object for this process
 * @fd:             a writable descriptor of the object
 * @offset, @bytes: inside the object
 *
 * An importer calls it before it writes through its mapping. So a lack of memory is an errno, which without
 * this call would be SIGBUS. What was written stays. Return: 0; -ENOSPC, -ENOMEM.
 */
int extent_allocate(int fd, size_t offset, size_t bytes);

/* Frees the memory of an unmapped object: its bytes become zeros, also where importers keep it mapped. */
int extent_empty(struct extent *x);

/**
 * extent_adopt() - map an extent that an earlier process of the same user made with extent_new_kept()
 * @owner_fd: its writable descriptor; transferred, also on failure
 *
 * The contents are unchanged. Return: 0; -EBADMSG: not such an object; errno of the mapping.
 */
int extent_adopt(int owner_fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                 struct errmsg *e);

/**
 * extent_import() - map an extent of another process
 * @fd:             transferred: closed by the extent, also on failure
 * @bytes_expected: the size that the owner announced; the sealed size must equal it
 *
 * Checks: a memfd, sealed SHRINK and GROW, size. Mapped MADV_DONTFORK, descriptor CLOEXEC.
 *
 * Return: 0; -EBADMSG if a check fails; errno of the mapping.
 */
int extent_import(int fd, size_t bytes_expected, enum extent_access access, struct extent **ret_extent,
                  struct errmsg *e);

struct extent *extent_free(struct extent *x);
static inline void extent_freep(struct extent **x)
{
    *x = extent_free(*x);
}

/* Borrowed: valid while the extent lives. An importer of EXTENT_READ gets
 * a mapping without write permission. */
void *extent_data(const struct extent *x);
size_t extent_bytes(const struct extent *x);
/* The descriptor for importers. For an EXTENT_READ extent it is open read-only, for its owner too. */
int extent_fd(const struct extent *x);
