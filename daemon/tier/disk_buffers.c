/* See disk_buffers.h. */
#include "daemon/tier/disk_buffers.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/core_file.h"
#include "base/errmsg.h"

static int disk_buffers_make(struct disk_buffers *b, uint8_t *memory, uint64_t bytes, struct errmsg *e)
{
    uint32_t n = (uint32_t) (bytes / DISK_BUFFER_UNIT_BYTES);

    if (bytes > DISK_BUFFERS_BYTES_MAX || n < 2)
        return fail(e, -EINVAL, "bounce buffers have %d to %" PRIu64 " bytes, not %" PRIu64,
                    2 * DISK_BUFFER_UNIT_BYTES, DISK_BUFFERS_BYTES_MAX, bytes);

    *b = (struct disk_buffers){.n_units = n, .is_borrowed = memory != NULL};
    (void) pthread_mutex_init(&b->lock, NULL);
    b->memory = memory ? memory : aligned_alloc(DISK_BUFFER_UNIT_BYTES, (size_t) n * DISK_BUFFER_UNIT_BYTES);
    b->runs = calloc(n, sizeof(*b->runs));
    b->busy = calloc(n, sizeof(*b->busy));
    b->for_write = calloc(n, sizeof(*b->for_write));
    if (b->memory && b->runs && b->busy && b->for_write) {
        core_file_exclude(b->memory, (size_t) n * DISK_BUFFER_UNIT_BYTES);
        return 0;
    }

    disk_buffers_deinit(b);
    return fail(e, -ENOMEM, "out of memory for %" PRIu64 " bytes of bounce buffers", bytes);
}

int disk_buffers_init(struct disk_buffers *b, uint64_t bytes, struct errmsg *e)
{
    return disk_buffers_make(b, NULL, bytes, e);
}

int disk_buffers_init_at(struct disk_buffers *b, uint8_t *memory, uint64_t bytes, struct errmsg *e)
{
    return disk_buffers_make(b, memory, bytes, e);
}

void disk_buffers_deinit(struct disk_buffers *b)
{
    if (b->n_units == 0)
        return;
    if (!b->is_borrowed)
        free(b->memory);
    free(b->runs);
    free(b->busy);
    free(b->for_write);
    (void) pthread_mutex_destroy(&b->lock);
    *b = (struct disk_buffers){.memory = NULL};
}

/* The first run of @n free units, from low addresses up; n_units: none. */
static uint32_t disk_buffers_find(const struct disk_buffers *b, uint32_t n)
{
    uint32_t run = 0;

    for (uint32_t i = 0; i < b->n_units; i++) {
        run = b->busy[i] ? 0 : run + 1;
        if (run == n)
            return i + 1 - n;
    }
    return b->n_units;
}

uint8_t *disk_buffers_take(struct disk_buffers *b, uint64_t bytes, bool for_write)
{
    uint32_t n, at;

    if (bytes == 0 || bytes > disk_buffers_bytes(b) / 2)
        return NULL;

    n = (uint32_t) ((bytes + DISK_BUFFER_UNIT_BYTES - 1) / DISK_BUFFER_UNIT_BYTES);
    (void) pthread_mutex_lock(&b->lock);
    at = for_write && n > b->n_units / 2 - b->n_for_writes ? b->n_units : disk_buffers_find(b, n);
    if (at < b->n_units) {
        memset(b->busy + at, true, n * sizeof(*b->busy));
        b->runs[at] = (uint16_t) n;
        b->for_write[at] = for_write;
        b->n_used += n;
        b->n_for_writes += for_write ? n : 0;
    }
    (void) pthread_mutex_unlock(&b->lock);
    return at < b->n_units ? b->memory + (size_t) at * DISK_BUFFER_UNIT_BYTES : NULL;
}

void disk_buffers_give_back(struct disk_buffers *b, uint8_t *buffer)
{
    uint32_t at = (uint32_t) ((size_t) (buffer - b->memory) / DISK_BUFFER_UNIT_BYTES), n;

    (void) pthread_mutex_lock(&b->lock);
    n = b->runs[at];
    assert(n > 0);
    memset(b->busy + at, false, n * sizeof(*b->busy));
    b->runs[at] = 0;
    b->n_used -= n;
    b->n_for_writes -= b->for_write[at] ? n : 0;
    (void) pthread_mutex_unlock(&b->lock);
}
