/*
 * What more memory, or fewer bits, would do for the hits of a tenant or of a device: the share of looked-up
 * chunks that were looked up before, which is the most that any cache can hit, and the estimated hits of
 * pools of other sizes (reuse.h).
 *
 * Counted are chunks that LEASE grants (found), and chunks that RESERVE or APPEND_RAW store, which the client
 * computed because they were not there. Clients look into the index without a message: the daemon learns
 * nothing of chunks that a client missed and did not publish.
 *
 * Nothing survives a restart. The hash of keys has a random key, so that clients, which choose keys, cannot
 * choose which ones are sampled. device_note_lookup() costs two updates of registers, and what reuse_note()
 * costs, for the tenant and for the device.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/distinct.h"

#define ADVICE_HASH_KEY_BYTES 16
#define ADVICE_TENANTS_MAX 64 /* of all devices that have advice of their own at one time */

struct advice;
struct reuse;

enum advice_window { ADVICE_HOUR, ADVICE_DAY, ADVICE_WINDOWS };

/* Sizes of a pool, in the order of advice_figures.pool_hits and bit_hits. */
#define ADVICE_POOL_FACTORS                                                                                  \
    {                                                                                                        \
        0.5, 1, 2, 4, 8                                                                                      \
    }
#define ADVICE_BITS                                                                                          \
    {                                                                                                        \
        16, 4.5, 3, 2                                                                                        \
    }
enum { ADVICE_N_POOLS = 5, ADVICE_N_BITS = 4 };

struct advice_figures {
    struct {
        uint64_t lookups, found; /* chunks */
        uint64_t distinct;       /* estimated; at most lookups */
    } windows[ADVICE_WINDOWS];
    uint64_t lookups;                   /* in what follows: of the last one to two days */
    double bits;                        /* per number, of the chunks looked up last; 0: none was */
    uint64_t pool_hits[ADVICE_N_POOLS]; /* with so many times the capacity */
    uint64_t bit_hits[ADVICE_N_BITS];   /* with the capacity, and so many bits per number */
};

/* Return: NULL: out of memory. */
struct advice *advice_new(uint64_t now_ms);
struct advice *advice_free(struct advice *a);

/**
 * advice_count() - count one chunk that was looked up
 * @hash:    of its key, uniformly distributed
 * @numbers: of its vectors, in @bytes of the pool
 * @now_ms:  never decreases
 */
void advice_count(struct advice *a, uint64_t hash, uint64_t numbers, uint64_t bytes, bool found,
                  uint64_t now_ms);

/* The same, where the advice begins with its first chunk. *a: NULL before; without memory it stays NULL. */
void advice_count_first(struct advice **a, uint64_t hash, uint64_t numbers, uint64_t bytes, bool found,
                        uint64_t now_ms);

/* @capacity_bytes: of the present pool. @a may be NULL: zeros. */
void advice_read(struct advice *a, uint64_t capacity_bytes, uint64_t now_ms, struct advice_figures *ret);
