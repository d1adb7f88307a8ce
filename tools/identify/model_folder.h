/*
 * A folder with a model: config.json, and the weights in one safetensors file or in several that
 * model.safetensors.index.json names. Opening it reads the headers only.
 *
 * File names in the index must be plain names of this folder. A file may be a symbolic link to a regular
 * file, as in the cache of the Hugging Face hub.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tools/identify/safetensors.h"

struct errmsg;
struct json_t;

enum { MODEL_FOLDER_FILES_MAX = 512 };

struct model_folder_file {
    char *name;
    int fd;
    struct safetensors tensors;
};

struct model_folder_tensor {
    const struct safetensors_tensor *tensor;
    const struct model_folder_file *file;
};

struct model_folder {
    char *path;
    int fd;
    struct json_t *config; /* an object; numbers are binary64 */
    struct json_t *index;  /* NULL: one file */
    struct model_folder_file *files;
    size_t n_files;
    struct model_folder_tensor *tensors; /* of all files, by the bytes of their names; names differ */
    size_t n_tensors;
    uint64_t bytes; /* of all tensors */
};

/**
 * model_folder_open() - open a folder and check its files
 *
 * Return: 0; -ENOENT: no config.json or no safetensors file; -EOPNOTSUPP: pickle files only; -EBADMSG:
 * damaged or contradictory files; -EINVAL: a file name that leads out of the folder; -E2BIG: too many files;
 * errno of the system call that failed; each with a sentence.
 */
int model_folder_open(const char *path, struct model_folder *ret, struct errmsg *e);
void model_folder_deinit(struct model_folder *f);

struct digest_cache_files;

/* Adds all files that the model was read from, as they are now. Return: 0; -ENOMEM; errno of stat. */
int model_folder_list_files(const struct model_folder *f, struct digest_cache_files *ret);
