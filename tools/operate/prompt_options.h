/*
 * The beginning of a prompt as commands take it: options --prompt-file and --model or --tokens-file, --salt,
 * --heads; and its tokens.
 */
#pragma once

#include <argp.h>
#include <stdint.h>

#include "client/kvcobra-call.h"
#include "tools/command/document.h"

struct errmsg;

struct prompt_options {
    const char *model, *prompt_file, *tokens_file, *salt;
    uint32_t first_head, n_heads;           /* n_heads 0: all */
    struct document document;               /* prompt_options_load() */
    uint8_t model_digest[KVC_DIGEST_BYTES]; /* of --model; zeros without it */
};

/* A child of a command's struct argp; its input is a struct prompt_options. */
extern const struct argp prompt_options_argp;

/* What every help text of such a command says about prefixes. */
#define PROMPT_OPTIONS_DOC                                                                                   \
    "The prefix is that of a prompt file, as 'kvcobra generate MODEL --prompt-file' reads it, or a file of " \
    "token ids: numbers with blanks, commas or line ends between them. Tokens beyond the last whole 64 are " \
    "not looked at."

/* Reads the tokens. Return: 0; -EINVAL: fewer than a page has; an errno; with a sentence. */
int prompt_options_load(struct prompt_options *p, struct errmsg *e);
void prompt_options_deinit(struct prompt_options *p);

/* Tokens of whole pages. */
static inline size_t prompt_options_tokens(const struct prompt_options *p)
{
    return p->document.n_tokens / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS;
}
