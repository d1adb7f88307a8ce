/*
 * How many references to keys a cache of any size would hit that drops the least recently used key: reuse
 * distances of a sample of the keys (SHARDS, Waldspurger and others, FAST'15, with a sample of fixed size).
 *
 * A key belongs to the sample if its hash is below a threshold. When the sample is full, the key with the
 * greatest hash leaves it and its hash becomes the threshold. So the sample is uniform over keys, and its
 * rate is threshold / 2^64. The distance of a reference is the weight of all keys that were referenced since
 * the last reference to the same key, and of the key itself: a cache with at least that capacity hits.
 *
 * The sample has the keys of the last period only: a key without a reference for so long leaves it. Counts
 * are of the last one to two periods. If a sample that was full has less than a quarter left at the end of a
 * period, it begins again with all keys, whose first references then count as misses.
 *
 * At most 0.5 MiB. A reference to a sampled key costs three walks of 14 steps, to another key a comparison.
 */
#pragma once

#include <stdint.h>

#define REUSE_KEYS_MAX 8192

struct reuse;

/* @period_ms: at least 1. Return: NULL: out of memory. */
struct reuse *reuse_new(uint64_t now_ms, uint64_t period_ms);
struct reuse *reuse_free(struct reuse *r);

/* @hash: of the key, uniformly distributed. @weight: of the key in a cache. @now_ms never decreases. */
void reuse_note(struct reuse *r, uint64_t hash, uint64_t weight, uint64_t now_ms);

/* Ends periods that are over: before the counts are read. */
void reuse_tick(struct reuse *r, uint64_t now_ms);

/* References in the counts. */
uint64_t reuse_references(const struct reuse *r);

/* How many of them a cache with room for keys of weight @capacity would hit: estimated. */
double reuse_hits(const struct reuse *r, uint64_t capacity);
