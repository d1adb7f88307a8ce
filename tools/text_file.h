/*
 * Texts as the commands use them: a file read whole and turned into tokens.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct engine;
struct errmsg;

struct document {
    uint32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
};

/**
 * document_load() - the tokens of a text file
 * @path: a regular file of at most 1 GiB
 *
 * Control tokens spelt in the text are text. No BOS is added. Files compressed by gzip, as Debian ships its longer
 * documents, are refused by name.
 *
 * Return: 0; -EINVAL: empty or compressed; -ENOENT …; sentence in @e.
 */
int document_load(const struct engine *en, const char *path, struct document *ret_document, struct errmsg *e);

/* Leaves an empty document behind: right as a cleanup. */
void document_deinit(struct document *d);
