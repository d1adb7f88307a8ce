/* See arena.h. */
#include "client/connection/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t arena_place_bytes(size_t bytes)
{
    size_t n = bytes < ARENA_PLACE_BYTES_MIN ? ARENA_PLACE_BYTES_MIN : bytes;

    return (n + ARENA_ALIGN - 1) & ~(size_t) (ARENA_ALIGN - 1);
}

int arena_init(struct arena *a, size_t bytes)
{
    size_t usable = bytes & ~(size_t) (ARENA_ALIGN - 1);
    size_t n_max = usable / ARENA_PLACE_BYTES_MIN / 2 + 2; /* worst case: every second place is free */
    struct arena_range *ranges = calloc(n_max, sizeof(*ranges));

    if (!ranges)
        return -ENOMEM;
    *a = (struct arena){.bytes = usable, .free_bytes = usable, .n_ranges_max = n_max, .ranges = ranges};
    if (usable > 0)
        ranges[a->n_ranges++] = (struct arena_range){0, usable};
    return 0;
}

void arena_deinit(struct arena *a)
{
    free(a->ranges);
    *a = (struct arena){0};
}

static void arena_remove_range(struct arena *a, size_t i)
{
    a->n_ranges--;
    memmove(&a->ranges[i], &a->ranges[i + 1], (a->n_ranges - i) * sizeof(*a->ranges));
}

bool arena_take(struct arena *a, size_t bytes, size_t *ret_off)
{
    size_t need = arena_place_bytes(bytes);

    for (size_t i = 0; i < a->n_ranges; i++) {
        struct arena_range *range = &a->ranges[i];

        if (range->bytes < need)
            continue;

        *ret_off = range->off;
        range->off += need;
        range->bytes -= need;
        a->free_bytes -= need;
        if (range->bytes == 0)
            arena_remove_range(a, i);
        return true;
    }

    return false;
}

void arena_give(struct arena *a, size_t off, size_t bytes)
{
    size_t n = arena_place_bytes(bytes), i = 0;

    while (i < a->n_ranges && a->ranges[i].off < off)
        i++;
    assert(n <= a->bytes && off <= a->bytes - n);
    assert(i == 0 || a->ranges[i - 1].off + a->ranges[i - 1].bytes <= off);
    assert(i == a->n_ranges || off + n <= a->ranges[i].off);

    a->free_bytes += n;
    if (i > 0 && a->ranges[i - 1].off + a->ranges[i - 1].bytes == off) {
        a->ranges[i - 1].bytes += n;
        if (i < a->n_ranges && off + n == a->ranges[i].off) {
            a->ranges[i - 1].bytes += a->ranges[i].bytes;
            arena_remove_range(a, i);
        }

        return;
    }

    if (i < a->n_ranges && off + n == a->ranges[i].off) {
        a->ranges[i].off = off;
        a->ranges[i].bytes += n;
        return;
    }

    assert(a->n_ranges < a->n_ranges_max);
    memmove(&a->ranges[i + 1], &a->ranges[i], (a->n_ranges - i) * sizeof(*a->ranges));
    a->ranges[i] = (struct arena_range){off, n};
    a->n_ranges++;
}
