/*
 * Slots of device memory for private pages of one table and class, cut from slabs, so that a page costs no
 * allocation; the GPU's struct heap_pool.
 */
#pragma once

#include <stddef.h>

#include "client/gpu/gpu.h"

struct gpu_slots {
    size_t slot_bytes;
    cu_ptr *free; /* [n_free], room for all slots */
    size_t n_free, n_slots;
    struct gpu_memory *slabs;
    size_t n_slabs;
};

/* Return: 0; as gpu_alloc(). */
int gpu_slot_take(struct gpu *g, struct gpu_slots *p, cu_ptr *ret, struct errmsg *e);
void gpu_slot_give(struct gpu_slots *p, cu_ptr slot);
void gpu_slots_deinit(struct gpu *g, struct gpu_slots *p);
