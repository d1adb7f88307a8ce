/*
 * Publishing a run of chunks of one sequence: RESERVE, their bytes where the daemon wants them, COMMIT. On
 * the host the daemon copies them from the arena (publish_arena.c); on a GPU the client puts them into the
 * slots itself (publish_gpu.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct kvc_seq;

/* Where a reserved slot lies, as the daemon said: not checked. */
struct slot_place {
    uint64_t extent, offset, bytes;
};

struct batch {
    size_t first, n;        /* chunks */
    size_t n_reserved;      /* leading ones that got a slot */
    int end_err;            /* why not all of them */
    uint64_t awaited_bytes; /* -EAGAIN: others have them, and were asked */
    bool *exists;           /* published by somebody else meanwhile */
    struct slot_place *places;
    Kvcobra__ReserveItem *reserve;
    Kvcobra__CommitItem *commit;
    void **pointers; /* protobuf-c wants arrays of pointers */
};

/* @n chunks from @first on, which have keys. Return: 0; -ENOMEM. batch_deinit() it in any case. */
int batch_init(struct batch *b, size_t first, size_t n);
void batch_deinit(struct batch *b);

/* Slots for the leading chunks. Return: 0 with n_reserved and end_err; else as connection_request(). */
int batch_reserve(struct kvc_seq *s, struct batch *b);

/**
 * batch_commit() - make the reserved chunks the pool's, as far as the daemon takes them
 * @b: commit[] of what does not exist filled in
 *
 * Pages that it took, or somebody else's, are leased in place of ours. If the request fails as a whole the
 * slots are given back. Return: 0; the first error, with a sentence.
 */
int batch_commit(struct kvc_seq *s, struct batch *b);

/* Gives the reserved slots back, if there is still somebody to give them to. */
void batch_abort(struct kvc_seq *s, struct batch *b);

/**
 * publish_arena(), publish_gpu() - publish @n chunks from @first on
 * @until_ms: how long to wait for memory that the daemon is making (clock_ms())
 * @ret_n:    leading ones that were dealt with; more than 0 on success
 *
 * Return: 0; else why not all of those: the sequence goes on privately.
 */
int publish_arena(struct kvc_seq *s, size_t first, size_t n, size_t *ret_n);
int publish_gpu(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n);
