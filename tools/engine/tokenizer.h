/* Byte-level BPE from a GGUF file: text to token ids and back. Pre-tokeniser patterns run on PCRE2. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct gguf;
struct tokenizer;

/**
 * tokenizer_new() - build the tokeniser of a GGUF file
 * @g: used during the call only
 *
 * Return: 0; -EOPNOTSUPP: another kind of tokeniser or pre-tokeniser, named; -EBADMSG: its keys contradict
 * each other; -ENOMEM.
 */
int tokenizer_new(const struct gguf *g, struct tokenizer **ret_tokenizer, struct errmsg *e);
struct tokenizer *tokenizer_free(struct tokenizer *t);
static inline void tokenizer_freep(struct tokenizer **t)
{
    *t = tokenizer_free(*t);
}

/**
 * tokenizer_encode() - UTF-8 text to ids
 * @parse_special: recognise control tokens ("<|im_start|>") in the text; never set it for untrusted documents
 * @ret_ids:       malloc'ed, caller frees
 *
 * Invalid UTF-8 is encoded as single bytes. No BOS is added.
 * Return: 0; -ENOMEM; -E2BIG: text above 1 GiB.
 */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool parse_special,
                     uint32_t **ret_ids, size_t *ret_n, struct errmsg *e);

/* Bytes of one token (not NUL-terminated, may be part of a UTF-8 character). Borrowed. NULL if @id is out of
 * range. */
const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_bytes);
uint32_t tokenizer_size(const struct tokenizer *t);
