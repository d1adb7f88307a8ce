/*
 * The header of a safetensors file: 8 bytes with its length (little-endian), then JSON that has for each
 * tensor its type, its shape and the place of its bytes, which follow the header.
 *
 * A hostile file is refused with a sentence: the tensors must cover the bytes after the header without holes
 * and without overlap, and each has as many bytes as its type and shape need.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct json_t;

enum {
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_HEADER_MAX = 100000000, /* bytes of JSON; writers of the format have the same limit */
    SAFETENSORS_DIMS_MAX = 8,
};

struct safetensors_tensor {
    const char *name; /* UTF-8 without control characters, not empty; borrowed from the header */
    const char *type; /* "BF16" */
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_DIMS_MAX];
    uint64_t offset, bytes; /* in the file */
};

struct safetensors {
    struct json_t *header;
    struct safetensors_tensor *tensors; /* in the order of their bytes */
    size_t n_tensors;
};

/**
 * safetensors_header_bytes() - the length of the JSON
 * @first: [SAFETENSORS_LENGTH_BYTES] of a file of @file_bytes
 * @label: names the file in the sentence
 *
 * Return: 0; -EBADMSG: the file is shorter, or the length is above SAFETENSORS_HEADER_MAX.
 */
int safetensors_header_bytes(const uint8_t *first, uint64_t file_bytes, const char *label, size_t *ret_bytes,
                             struct errmsg *e);

/**
 * safetensors_parse() - check a header
 * @json:       [json_bytes], borrowed during the call
 * @file_bytes: size of the whole file
 * @ret:        not changed on failure; else ended by safetensors_deinit()
 *
 * Return: 0; -EBADMSG; -EOPNOTSUPP: a type that this program does not know; -ENOMEM.
 */
int safetensors_parse(const void *json, size_t json_bytes, uint64_t file_bytes, const char *label,
                      struct safetensors *ret, struct errmsg *e);
void safetensors_deinit(struct safetensors *s);

/* Whether @text, in UTF-8, has no control character: it can be printed on a terminal. */
bool safetensors_is_printable(const char *text);

/* Both steps for an open file. Return: as above; -EINVAL: not a regular file; errno of pread(2). */
int safetensors_read(int fd, const char *label, struct safetensors *ret, struct errmsg *e);
