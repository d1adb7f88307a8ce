/*
 * Counts distinct keys in 4 KiB, whatever their number, with a standard error of 1.6 %: HyperLogLog (Flajolet
 * and others, AofA 2007) with the estimator of Ertl (arXiv 1702.01284, algorithm 6), which is unbiased from
 * one key on.
 */
#pragma once

#include <stdint.h>

#define DISTINCT_BITS 12
#define DISTINCT_REGISTERS (1u << DISTINCT_BITS)

struct distinct { /* zeros: no key */
    uint8_t registers[DISTINCT_REGISTERS];
};

/* @hash: of a key, uniformly distributed. */
void distinct_add(struct distinct *d, uint64_t hash);

/* @into then counts the keys of both. */
void distinct_merge(struct distinct *into, const struct distinct *from);

double distinct_count(const struct distinct *d);
