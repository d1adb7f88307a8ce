/*
 * UUIDs of GPUs as people, drivers and the configuration write them: "GPU-" or "MIG-" and 32 hexadecimal
 * digits, hyphens anywhere between. Which prefix a partition of a GPU gets depends on whom one asks: the
 * digits are what counts, and we write "GPU-" as the CUDA driver does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define GPU_UUID_BYTES 48      /* "GPU-8-4-4-4-12" and the NUL, with room */
#define GPU_UUID_FIRST "first" /* the list that names none: the driver's first */

/* To the form "GPU-8-4-4-4-12" in lower case. Return: 0; -EINVAL. */
int gpu_uuid_read(const char *text, char ret[static GPU_UUID_BYTES]);

/* Texts of any form; false if one is no UUID. */
bool gpu_uuid_equal(const char *a, const char *b);

/**
 * gpu_uuid_list() - the GPUs of a configuration
 * @text:    UUIDs with commas between them, or "first", whose entry is an empty text; NULL or "": none
 * @ret:     [n_max]
 *
 * Return: 0; -EINVAL with a sentence: not UUIDs, one twice, or more than @n_max.
 */
int gpu_uuid_list(const char *text, uint32_t n_max, char (*ret)[GPU_UUID_BYTES], uint32_t *ret_n,
                  struct errmsg *e);
