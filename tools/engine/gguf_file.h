/* Internals of the GGUF reader, for gguf.c and gguf_values.c: entries of a file, the bounded cursor. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct gguf_tensor;

struct gguf_entry {
    const char *key;
    size_t key_bytes;
    uint32_t type;
    const uint8_t *value; /* a checked value of that type */
    size_t bytes;
};

struct gguf {
    char *label;
    const uint8_t *data;
    size_t bytes;
    void *mapping; /* NULL: bytes of the caller */
    struct gguf_entry *entries;
    size_t n_entries;
    struct gguf_tensor *tensors;
    uint64_t *offsets; /* of tensors while parsing: data[] comes after them */
    size_t n_tensors;
};

struct gguf_cursor {
    const uint8_t *p;
    size_t left;
};

static inline bool gguf_take(struct gguf_cursor *c, size_t n, const uint8_t **ret_p)
{
    if (n > c->left)
        return false;

    *ret_p = c->p;
    c->p += n;
    c->left -= n;
    return true;
}

static inline bool gguf_take_u32(struct gguf_cursor *c, uint32_t *ret_v)
{
    const uint8_t *p;

    if (!gguf_take(c, sizeof(*ret_v), &p))
        return false;

    memcpy(ret_v, p, sizeof(*ret_v));
    return true;
}

static inline bool gguf_take_u64(struct gguf_cursor *c, uint64_t *ret_v)
{
    const uint8_t *p;

    if (!gguf_take(c, sizeof(*ret_v), &p))
        return false;

    memcpy(ret_v, p, sizeof(*ret_v));
    return true;
}

static inline bool gguf_take_string(struct gguf_cursor *c, const char **ret_text, size_t *ret_bytes)
{
    struct gguf_cursor try = *c;
    const uint8_t *p;
    uint64_t n;

    if (!gguf_take_u64(&try, &n) || n > try.left || !gguf_take(&try, (size_t) n, &p))
        return false;

    *c = try;
    *ret_text = (const char *) p;
    *ret_bytes = (size_t) n;
    return true;
}

const char *gguf_type_name(uint32_t type);

/* Bytes of a value of the type; 0: a string, an array, or no type. */
size_t gguf_scalar_bytes(uint32_t type);

/* The order of keys and tensor names: bytes, then length. */
int gguf_order(const char *a, size_t a_bytes, const char *b, size_t b_bytes);
int gguf_by_key(const void *entry_a, const void *entry_b);
