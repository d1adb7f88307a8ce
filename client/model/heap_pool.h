/*
 * Slots of one size for private pages on the heap. They are cut from slabs of 4 MiB, so that a chunk does not
 * cost an mmap(). Used for the tables of a model; one thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct heap_pool {
    size_t slot_bytes; /* a multiple of PAGE_ALIGN; the other members start as zeros */
    void *free;        /* slots, linked through their first word */
    void **slabs;
    size_t n_slabs;
};

/* Return: 0; -ENOMEM. */
int heap_pool_take(struct heap_pool *p, uint8_t **ret_slot);
void heap_pool_give(struct heap_pool *p, void *slot);
void heap_pool_deinit(struct heap_pool *p);
