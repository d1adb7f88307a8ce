/*
 * UUIDs of GPUs as people, drivers and the configuration write them: "GPU-" or "MIG-" and 32 hexadecimal
 * digits, with hyphens anywhere between. The prefix of a partition of a GPU differs between the CUDA driver
 * and nvidia-smi, so only the digits are compared; this file writes "GPU-", as the CUDA driver does.
 *
 * Used by the configuration, and to find the GPU of a client. It never calls a driver.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define GPU_UUID_BYTES 48      /* "GPU-8-4-4-4-12" and the NUL, with room */
#define GPU_UUID_FIRST "first" /* a list of one GPU: the first one that the driver lists */

/* Writes @text in the form "GPU-8-4-4-4-12", in lower case. Return: 0; -EINVAL: @text is no UUID. */
int gpu_uuid_read(const char *text, char ret[static GPU_UUID_BYTES]);

/* Whether two texts, of any form, are the same UUID; false if one of them is no UUID. */
bool gpu_uuid_equal(const char *a, const char *b);

/**
 * gpu_uuid_list() - the GPUs of the setting gpu
 * @text:    UUIDs separated by commas, or "first", whose entry is an empty text; NULL or "": none
 * @ret:     [n_max]
 *
 * Return: 0; -EINVAL with a sentence: an item is no UUID, a UUID is repeated, or there are more than @n_max.
 */
int gpu_uuid_list(const char *text, uint32_t n_max, char (*ret)[GPU_UUID_BYTES], uint32_t *ret_n,
                  struct errmsg *e);
