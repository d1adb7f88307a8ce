/*
 * GPU memory that a program allocated and registered with the pool (kvc_client_lend()): the
 * records of one client. This client uses pages in it through the program's own address. Extents
 * find a record by the driver's handle.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"

struct external_memory {
    struct external_memory *next;
    cu_ptr at;
    size_t bytes;
    struct cu_ipc_mem_handle handle;
};

/* The memory with this handle; NULL: this client has none. An address identifies no memory: it may
 * belong to another allocation later. */
const struct external_memory *external_memory_find(const struct external_memory *first,
                                                   const uint8_t *handle_bytes);

/* Frees the records, not the memory. */
void external_memory_deinit(struct external_memory **first);
