/*
 * The allocator of the arena. The daemon reads the arena only where a COMMIT names an offset, so the client
 * alone records which ranges are free. First fit over sorted free ranges suffices: a table has two sizes of
 * pages, and the arena holds a few hundred pages at most.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena_range {
    size_t off, bytes;
};

struct arena {
    size_t bytes;
    size_t free_bytes;
    size_t n_ranges;
    size_t n_ranges_max;        /* allocated by arena_init(): no other call allocates memory */
    struct arena_range *ranges; /* free, ascending, no two adjacent */
};

/**
 * arena_init() - an empty arena of @bytes with places at multiples of ARENA_ALIGN
 * Return: 0; -ENOMEM.
 */
#define ARENA_ALIGN 128
#define ARENA_PLACE_BYTES_MIN 4096 /* smaller places are rounded up: bounds the number of ranges */
int arena_init(struct arena *a, size_t bytes);
void arena_deinit(struct arena *a);

/* Return: false: no free range is long enough. */
bool arena_take(struct arena *a, size_t bytes, size_t *ret_off);
/* @bytes as given to arena_take(). */
void arena_give(struct arena *a, size_t off, size_t bytes);
