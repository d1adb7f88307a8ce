/*
 * splitmix64 (Steele, Lea, Flood, OOPSLA 2014): reproducible pseudo-random numbers where
 * quality beyond equal distribution does not matter: signs of rotations, synthetic vectors
 * of benches and tests. Never for secrets.
 */
#pragma once

#include <stdint.h>

/* The output function alone: spreads the bits of a counter or of a hash. */
static inline uint64_t splitmix64_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Advances @state and returns the next number. */
static inline uint64_t splitmix64_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return splitmix64_mix(*state);
}

/* A seed for part @part of what @seed belongs to, such as one head-side. The factor is odd: distinct parts
 * get distinct seeds. */
static inline uint64_t splitmix64_seed(uint64_t seed, uint64_t part)
{
    return splitmix64_mix(seed + (part + 1) * 0xd1342543de82ef95u);
}
