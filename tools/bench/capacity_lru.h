/* What a cache hits that drops the least recently used block, for comparison. */
#pragma once

#include <stdint.h>

#include "tools/bench/capacity_trace.h"

/**
 * capacity_lru_hits() - the blocks that requests find
 * @capacity: blocks that the cache holds; UINT32_MAX: all, which gives the most that any cache can hit
 * @ret:      sum over all requests of the blocks at their beginning that are in the cache
 *
 * Return: 0; -ENOMEM.
 */
int capacity_lru_hits(const struct capacity_trace *t, uint32_t capacity, uint64_t *ret);
