/* The digest of a model in a folder of safetensors; tools/README.md has the rule, so that other programs can
 * compute it too. */
#pragma once

#include <stdint.h>

struct errmsg;
struct model_folder;

enum { FOLDER_DIGEST_BYTES = 32 };

/* Called with the number of bytes of tensors that are hashed so far. */
typedef void (*folder_digest_progress_fn)(void *ctx, uint64_t bytes);

/**
 * folder_digest() - hash the configuration and all tensors
 *
 * Return: 0; -EIO, -ENODATA …: a file cannot be read, or was shortened meanwhile; each with a sentence.
 */
int folder_digest(const struct model_folder *f, folder_digest_progress_fn progress, void *ctx,
                  uint8_t ret_digest[static FOLDER_DIGEST_BYTES], struct errmsg *e);
