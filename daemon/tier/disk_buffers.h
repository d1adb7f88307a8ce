/*
 * Bounce buffers: memory of fixed size through which sealed pages go to a disk and come back. Slots of the
 * pool are not aligned as direct I/O needs it, and registering a pool with io_uring would lock all of it;
 * this memory is aligned and small, and has ciphertext only.
 *
 * A buffer is a run of units. Any thread may call.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define DISK_BUFFERS_BYTES_MAX (UINT64_C(64) << 20)
#define DISK_BUFFER_UNIT_BYTES (64 * 1024) /* also the alignment: the most that disk_folder_open() accepts */

struct disk_buffers {
    pthread_mutex_t lock;
    uint8_t *memory;
    bool is_borrowed; /* the memory */
    uint32_t n_units;
    uint32_t n_used, n_for_writes; /* units */
    uint16_t *runs;                /* [n_units] of a buffer's first unit: its units; else 0 */
    bool *busy;                    /* [n_units] */
    bool *for_write;               /* [n_units] of a buffer's first unit */
};

/*
 * @bytes: of all buffers, at most DISK_BUFFERS_BYTES_MAX; rounded down to units. Return: 0; -EINVAL;
 * -ENOMEM.
 */
int disk_buffers_init(struct disk_buffers *b, uint64_t bytes, struct errmsg *e);
/* The same in @memory, [bytes], which stays until disk_buffers_deinit(). */
int disk_buffers_init_at(struct disk_buffers *b, uint8_t *memory, uint64_t bytes, struct errmsg *e);
void disk_buffers_deinit(struct disk_buffers *b);

static inline uint64_t disk_buffers_bytes(const struct disk_buffers *b)
{
    return (uint64_t) b->n_units * DISK_BUFFER_UNIT_BYTES;
}

/*
 * A buffer of at least @bytes. @for_write: buffers for writes take half of the memory at most, so that a
 * flood of evicted pages leaves room for reads. NULL: none is free, or @bytes is more than half of all.
 */
uint8_t *disk_buffers_take(struct disk_buffers *b, uint64_t bytes, bool for_write);
void disk_buffers_give_back(struct disk_buffers *b, uint8_t *buffer);
