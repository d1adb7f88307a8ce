/*
 * Makes extents ready for a pool, on the thread of host_memory.h: memory of the host, which must be cleared;
 * slot records; copies of the descriptors in the supervisor's store. The pool's keeper then writes the extent
 * to the journal when a tenant gets it. That order (DESIGN 5.5: create, store, barrier, journal, first use)
 * lets a process that is killed at any point leave at worst a stored extent that the next start drops.
 */
#pragma once

struct errmsg;
struct host_memory;
struct pool;
struct pool_memory;

struct extent_maker_owner {
    /*
     * On the loop, once. @err 0: @m is transferred. Else a negative errno, also if the daemon ends, and @why.
     */
    void (*made)(void *ctx, struct pool_memory *m, int err, const char *why);
    void *ctx;
};

/**
 * extent_maker_begin() - begin to make an extent of @p
 * @gpu_fd: transferred on success: memory that the mover created; -1: the thread creates memory of the host
 *
 * Return: 0: owner->made() follows; -ENOMEM with a sentence.
 */
int extent_maker_begin(struct host_memory *thread, struct pool *p, int gpu_fd,
                       const struct extent_maker_owner *owner, struct errmsg *e);
