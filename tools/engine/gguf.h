/*
 * GGUF files (versions 2 and 3, little-endian): keys with typed values, and tensors, memory-mapped.
 *
 * Every size, count, string and offset is checked against the file before use, so that a hostile file is
 * refused with a sentence. The mapping is private and read-only; a file that is shortened while it is mapped
 * ends the process with a sentence (mapped_file.h): replace model files by renaming, not in place.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct gguf;

#define GGUF_DIMS_MAX 4
#define GGUF_NAME_MAX 64       /* bytes of a tensor's name */
#define GGUF_KEY_MAX 65535     /* bytes of a key */
#define GGUF_ENTRIES_MAX 65536 /* keys; tensors */
#define GGUF_ARRAY_DEPTH_MAX 4 /* arrays of arrays */

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

struct gguf_tensor {
    const char *name; /* not NUL-terminated: @name_bytes printable ASCII characters */
    size_t name_bytes;
    uint32_t type; /* as in the file; quant_type_of() is NULL if it cannot be read */
    uint32_t n_dims;
    uint64_t dims[GGUF_DIMS_MAX]; /* dims[0] is the row length; 1 beyond n_dims */
    const uint8_t *data;          /* NULL if the type is unknown: its size cannot be checked */
    size_t bytes;
};

/* A borrowed view; the string reader below consumes it. */
struct gguf_array {
    enum gguf_type type;
    uint64_t n;
    const uint8_t *data;
    size_t bytes;
};

/**
 * gguf_open() - map and check a file
 * Return: 0; -EBADMSG: malformed, with the place in the sentence; -EOPNOTSUPP: big-endian or another version;
 * errno of open() and mmap().
 */
int gguf_open(const char *path, struct gguf **ret_gguf, struct errmsg *e);

/* The same for bytes of the caller, which must outlive the result. @label names them in sentences; copied. */
int gguf_parse(const void *data, size_t bytes, const char *label, struct gguf **ret_gguf, struct errmsg *e);
struct gguf *gguf_free(struct gguf *g);
static inline void gguf_freep(struct gguf **g)
{
    *g = gguf_free(*g);
}

/* Tensors in the order of their names. NULL: no such tensor. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
size_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);

bool gguf_has(const struct gguf *g, const char *key);

/*
 * Typed values. Return: 0; -ENOENT: no such key; -EBADMSG: a value of another type or out of range; both with
 * a sentence naming the key. Integers of any width are accepted if the value fits. The _or forms return
 * @fallback instead of -ENOENT. Strings and arrays are borrowed; strings are not NUL-terminated.
 */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret_value, struct errmsg *e);
int gguf_get_u32_or(const struct gguf *g, const char *key, uint32_t fallback, uint32_t *ret_value,
                    struct errmsg *e);
/* A value that all @n layers have: an integer, or an array of @n equal ones. -EOPNOTSUPP: they differ. */
int gguf_get_u32_of_all(const struct gguf *g, const char *key, uint32_t n, uint32_t *ret_value,
                        struct errmsg *e);
/* The id of a token; UINT32_MAX: there is no such key, or it is -1 in any width. */
int gguf_get_id_or_none(const struct gguf *g, const char *key, uint32_t *ret_value, struct errmsg *e);
/* Integers are accepted too. */
int gguf_get_f64(const struct gguf *g, const char *key, double *ret_value, struct errmsg *e);
int gguf_get_f64_or(const struct gguf *g, const char *key, double fallback, double *ret_value,
                    struct errmsg *e);
int gguf_get_bool_or(const struct gguf *g, const char *key, bool fallback, bool *ret_value, struct errmsg *e);
int gguf_get_string(const struct gguf *g, const char *key, const char **ret_text, size_t *ret_bytes,
                    struct errmsg *e);
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type element,
                   struct gguf_array *ret_array, struct errmsg *e);

/* Takes the first string off an array of strings. False: the array is empty. */
bool gguf_array_next_string(struct gguf_array *a, const char **ret_text, size_t *ret_bytes);

/* Path or label, for sentences. */
const char *gguf_label(const struct gguf *g);
