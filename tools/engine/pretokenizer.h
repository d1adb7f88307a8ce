/*
 * Cutting text into the pieces that byte-pair merging works on: the patterns of the model families, by the
 * name that stands in tokenizer.ggml.pre.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct pretokenizer;

/* Called for every piece, in order; together they are the text. A non-zero return stops with that value. */
typedef int (*pretokenizer_piece)(void *ctx, const char *piece, size_t bytes);

/* Return: 0; -EOPNOTSUPP: a name we have no pattern for; -ENOMEM. */
int pretokenizer_new(const char *name, size_t name_bytes, struct pretokenizer **ret_pre, struct errmsg *e);
struct pretokenizer *pretokenizer_free(struct pretokenizer *p);

/* Whole pieces that are tokens are taken as they are, without merging (Llama 3). */
bool pretokenizer_ignores_merges(const struct pretokenizer *p);

/*
 * Invalid UTF-8 is no part of any pattern: each run of invalid bytes is a piece of its own.
 * Return: 0; -ENOMEM; -E2BIG: a run of text needs more steps than the limit allows; what @piece returned.
 */
int pretokenizer_split(const struct pretokenizer *p, const char *text, size_t bytes, pretokenizer_piece piece,
                       void *ctx, struct errmsg *e);
