/*
 * A model's table in GPU memory: its image, which kernels read (struct device_table), and slots for private
 * pages, or for pages on their way to host memory. It is created when the first sequence of a client on a GPU
 * uses the table, and freed with the table.
 */
#pragma once

#include <stddef.h>

#include "base/errmsg.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_angles.h"
#include "client/gpu/gpu_slots.h"
#include "client/sequence/pages.h"

struct model_table_gpu {
    struct gpu_memory image;
    struct errmsg refusal;     /* why gpu_check_table() refused the table; empty if accepted or not checked */
    struct gpu_slots slots[2]; /* by class */
    struct gpu_angles angles;  /* for pages in host memory only */
};

/**
 * gpu_table() - the table in device memory, written and checked at the first call
 * @ret: of a struct device_table; stays until the table is freed
 *
 * The first call waits for the stream: -EBUSY while it is being captured.
 * Return: 0; -EOPNOTSUPP with a sentence: no kernel takes the table's shape, or gpu_check_table() found a
 * wrong kernel, in this call or an earlier one; as gpu_alloc().
 */
int gpu_table(struct kvc_client *c, struct model_table *t, cu_ptr *ret);

/* client_ops.free_table */
void gpu_table_free(struct kvc_client *c, struct model_table *t);

/* client_ops.pages */
extern const struct page_ops gpu_page_ops;
