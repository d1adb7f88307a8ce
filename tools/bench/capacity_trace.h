/*
 * Traces of requests for `kvcobra bench capacity`: JSON lines, one request each, in one of two forms.
 * Mooncake's (FAST'25) and Alibaba's public traces have "hash_ids", the ids of the blocks of the prompt:
 * integers of any size, as hashes of 64 bits without a sign, or texts. The id of a block stands for it and
 * all blocks before it. How many tokens a block has follows from "input_length", the tokens of a prompt,
 * where requests have it. Requests for vLLM's benchmark and server have the prompt itself: "prompt", a text
 * or token ids, or "prompt_token_ids". It is cut into blocks here. Other members are ignored.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define CAPACITY_BLOCK_TOKENS 512 /* of Mooncake's traces */
#define CAPACITY_BLOCK_TOKENS_MAX 65536
#define CAPACITY_PROMPT_TOKENS 64 /* of a block of a prompt: those of a page */
#define CAPACITY_TEXT_BYTES 4     /* of a token of a prompt that is a text, on average */

struct capacity_trace {
    uint32_t n_requests;
    uint32_t n_distinct; /* blocks */
    size_t n_blocks;     /* of all requests */
    size_t *first;       /* [n_requests + 1] where the blocks of a request begin */
    uint32_t *blocks;    /* [n_blocks] each below n_distinct */
    /* a power of two that agrees with the lengths of all requests, or that of prompts; 0: there is none */
    uint32_t block_tokens;
    bool has_prompts, has_texts; /* requests have prompts; some of them texts */
};

#define CAPACITY_TRACE_INIT                                                                                  \
    {                                                                                                        \
        .first = NULL                                                                                        \
    }

/**
 * capacity_trace_read() - read a file
 * @n_max:        at most this many requests, from the beginning
 * @block_tokens: of the blocks that prompts are cut into; 0: CAPACITY_PROMPT_TOKENS
 * @ret:          CAPACITY_TRACE_INIT; free with capacity_trace_deinit(), also after a failure
 *
 * Return: 0; -EINVAL: a line that is no request, or no request at all; -EFBIG: more than 2^26 blocks; errno
 * of the file; -ENOMEM; each with a sentence that names file and line.
 */
int capacity_trace_read(const char *path, uint32_t n_max, uint32_t block_tokens, struct capacity_trace *ret,
                        struct errmsg *e);
void capacity_trace_deinit(struct capacity_trace *t);

static inline size_t capacity_trace_length(const struct capacity_trace *t, uint32_t request)
{
    return t->first[request + 1] - t->first[request];
}
