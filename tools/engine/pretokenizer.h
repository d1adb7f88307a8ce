/*
 * Cutting text into the pieces for byte-pair merging, by the patterns of the model families, which
 * tokenizer.ggml.pre names.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct pretokenizer;

/* Called for every piece, in order; together they are the text. A non-zero return stops with that value. */
typedef int (*pretokenizer_piece)(void *ctx, const char *piece, size_t bytes);

/* Return: 0; -EOPNOTSUPP: an unknown name; -ENOMEM. */
int pretokenizer_new(const char *name, size_t name_bytes, struct pretokenizer **ret_pre, struct errmsg *e);
struct pretokenizer *pretokenizer_free(struct pretokenizer *p);

/* Whether pieces that are whole tokens are not merged (Llama 3). */
bool pretokenizer_ignores_merges(const struct pretokenizer *p);

/*
 * No pattern matches invalid UTF-8: each run of invalid bytes is a piece.
 * Return: 0; -ENOMEM; -E2BIG: a run of text needs more steps than the limit allows; the return value of
 * @piece.
 */
int pretokenizer_split(const struct pretokenizer *p, const char *text, size_t bytes, pretokenizer_piece piece,
                       void *ctx, struct errmsg *e);
