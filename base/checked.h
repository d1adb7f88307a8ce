/*
 * Arithmetic on sizes with overflow checks, for sizes of memory and offsets.
 * Functions return true if the result is valid; else *ret is untouched. Range tests are subtractions,
 * so that no intermediate value can overflow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add(size_t a, size_t b, size_t *ret)
{
    size_t v;

    if (__builtin_add_overflow(a, b, &v))
        return false;
    *ret = v;
    return true;
}

static inline bool checked_mul(size_t a, size_t b, size_t *ret)
{
    size_t v;

    if (__builtin_mul_overflow(a, b, &v))
        return false;
    *ret = v;
    return true;
}

/* a * b * c */
static inline bool checked_mul3(size_t a, size_t b, size_t c, size_t *ret)
{
    size_t v;

    if (!checked_mul(a, b, &v))
        return false;
    return checked_mul(v, c, ret);
}

/* @align is a power of two. */
static inline bool checked_align(size_t a, size_t align, size_t *ret)
{
    size_t v;

    if (!checked_add(a, align - 1, &v))
        return false;
    *ret = v & ~(align - 1);
    return true;
}

/* Whether [off, off + len) lies inside an object of @size bytes. */
static inline bool range_inside(uint64_t off, uint64_t len, uint64_t size)
{
    return off <= size && len <= size - off;
}
