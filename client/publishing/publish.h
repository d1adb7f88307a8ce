/*
 * Publishing a run of chunks of one sequence: the client sends RESERVE, writes the bytes of the chunks, and
 * sends COMMIT. On the host the client writes them into the arena, and the daemon copies them into the slots
 * (publish_arena.c). On a GPU the client writes them into the slots (client/gpu/publish_gpu.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct kvc_seq;

/* Where a reserved slot lies, as the daemon sent it: not checked. */
struct publish_slot {
    uint64_t extent, offset, bytes;
};

/* {.n = 0}: empty. */
struct publish_batch {
    size_t first, n;        /* chunks */
    size_t n_reserved;      /* number of leading chunks that have a slot */
    int end_err;            /* errno of the next chunk, which has no slot */
    uint64_t awaited_bytes; /* with -EAGAIN: bytes that other tenants hold and the daemon reclaims */
    bool *exists;           /* published by another client meanwhile */
    struct publish_slot *slots;
    Kvcobra__ReserveItem *reserve;
    Kvcobra__CommitItem *commit;
    void **pointers; /* protobuf-c takes arrays of pointers */
};

/* @n chunks from @first on, which have keys. Return: 0; -ENOMEM. publish_batch_deinit() it in both cases. */
int publish_batch_init(struct publish_batch *b, size_t first, size_t n);
void publish_batch_deinit(struct publish_batch *b);

/* Slots for the leading chunks. Return: 0 with n_reserved and end_err; else as connection_request(). */
int publish_batch_reserve(struct kvc_seq *s, struct publish_batch *b);

/**
 * publish_batch_commit() - publish the reserved chunks
 * @b: commit[] is filled in for those that do not exist
 *
 * A page that the daemon accepted, or that another client published, is leased in place of the private one.
 * If the request as a whole fails, the slots are given back.
 * Return: 0; the first error, with a sentence.
 */
int publish_batch_commit(struct kvc_seq *s, struct publish_batch *b);

/* Gives the reserved slots back if the connection is open; else they expire. */
void publish_batch_abort(struct kvc_seq *s, struct publish_batch *b);

/**
 * publish_arena(), publish_gpu() - client_ops.publish: @n chunks from @first on
 * @until_ms: how long to wait for an extent that the daemon creates, by clock_ms(); on a GPU only
 * @ret_n:    number of leading chunks that were handled; more than 0 on success
 *
 * Return: 0; else the errno of the first of these chunks that was not published; such chunks stay private.
 */
int publish_arena(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n);
int publish_gpu(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n);
