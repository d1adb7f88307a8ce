/* The tokeniser's data: tokenizer_load.c builds it, tokenizer.c reads it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/engine/bpe.h"

#define TOKENIZER_NONE UINT32_MAX

struct pretokenizer;

struct special_token {
    uint32_t id;
    bool always; /* "user-defined": recognised in any text; a control token only with @parse_special */
};

struct tokenizer {
    uint32_t n_vocab;
    char *pool;       /* the bytes of all tokens */
    size_t *offsets;  /* [n_vocab + 1] token i is pool[offsets[i] .. offsets[i + 1] - 1] */
    uint32_t *sorted; /* ordinary tokens in the order of their bytes */
    size_t n_sorted;
    struct special_token *specials; /* in the order of their bytes */
    size_t n_specials;
    size_t *special_lengths; /* their different lengths, longest first */
    size_t n_special_lengths;
    uint32_t byte_ids[256]; /* the token of each byte, or the unknown token */
    struct bpe_rule *rules;
    size_t n_rules;
    struct pretokenizer *pre;
};

/* The ordinary token with these bytes (the lowest id), or TOKENIZER_NONE. */
uint32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t bytes);
