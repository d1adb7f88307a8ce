/*
 * Texts as the commands use them: a file read whole, checked to be UTF-8 and turned into tokens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/geometry.h"

struct engine;
struct errmsg;

struct document {
    uint32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    size_t *ends; /* [n_parts] where each line's tokens end; NULL: the file is one document */
    size_t n_parts;
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the file */
    uint64_t n_bytes;
};

/**
 * document_load() - the tokens of a text file
 * @path: a regular file of at most 1 GiB
 *
 * Control tokens spelt in the text are text. No BOS is added. Files compressed by gzip, as Debian ships its
 * longer documents, are refused by name.
 *
 * Return: 0; -EINVAL: empty, compressed or not UTF-8; -ENOENT …; sentence in @e.
 */
int document_load(const struct engine *en, const char *path, struct document *ret_document, struct errmsg *e);

/* The same for a file in which each line is a document of its own; the line ends are no part of them, empty
 * lines none. */
int document_load_lines(const struct engine *en, const char *path, struct document *ret_document,
                        struct errmsg *e);

/* Leaves an empty document behind: right as a cleanup. */
void document_deinit(struct document *d);
