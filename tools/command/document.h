/*
 * Text files as tokens: a file is read whole, checked to be UTF-8 and tokenised. Used by calibrate, eval,
 * generate and the benches.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct engine;
struct errmsg;

struct document {
    uint32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    size_t *ends; /* [n_parts] the end of each line in tokens; NULL: the file is one document */
    size_t n_parts;
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the file */
    uint64_t n_bytes;
};

/**
 * document_load() - read and tokenise a text file
 * @path: a regular file of at most 1 GiB
 *
 * Control tokens spelt in the text are text. No BOS is added. A file compressed by gzip, as Debian ships its
 * longer documents, is refused with a hint at gunzip.
 *
 * Return: 0; -EINVAL: empty, compressed or not UTF-8; -ENOENT …; sentence in @e.
 */
int document_load(const struct engine *en, const char *path, struct document *ret_document, struct errmsg *e);

/* The same for a file in which each line is a document. Line ends belong to no document; empty lines are
 * skipped. */
int document_load_lines(const struct engine *en, const char *path, struct document *ret_document,
                        struct errmsg *e);

/* Puts the model's BOS in front of the tokens, if the model has one. Return: 0; -ENOMEM with a sentence. */
int document_add_bos(const struct engine *en, struct document *d, struct errmsg *e);

/* Frees and zeroes. Usable with _cleanup_. */
void document_deinit(struct document *d);
