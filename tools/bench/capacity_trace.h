/*
 * Traces of requests for `kvcobra bench capacity`, in the format of Mooncake's public traces (FAST'25): JSON
 * lines, one request each, with "hash_ids", the ids of the blocks of its prompt: integers of any size, as
 * hashes of 64 bits without a sign, or texts. The id of a block stands for it and all blocks before it. How
 * many tokens a block has follows from "input_length", the tokens of a prompt, where requests have it. Other
 * members are ignored.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define CAPACITY_BLOCK_TOKENS 512 /* of Mooncake's traces */
#define CAPACITY_BLOCK_TOKENS_MAX 65536

struct capacity_trace {
    uint32_t n_requests;
    uint32_t n_distinct; /* blocks */
    size_t n_blocks;     /* of all requests */
    size_t *first;       /* [n_requests + 1] where the blocks of a request begin */
    uint32_t *blocks;    /* [n_blocks] each below n_distinct */
    /* a power of two that agrees with the lengths of all requests; 0: there is none */
    uint32_t block_tokens;
};

#define CAPACITY_TRACE_INIT                                                                                  \
    {                                                                                                        \
        .first = NULL                                                                                        \
    }

/**
 * capacity_trace_read() - read a file
 * @n_max: at most this many requests, from the beginning
 * @ret:   CAPACITY_TRACE_INIT; free with capacity_trace_deinit(), also after a failure
 *
 * Return: 0; -EINVAL: a line that is no request, or no request at all; -EFBIG: more than 2^26 blocks; errno
 * of the file; -ENOMEM; each with a sentence that names file and line.
 */
int capacity_trace_read(const char *path, uint32_t n_max, struct capacity_trace *ret, struct errmsg *e);
void capacity_trace_deinit(struct capacity_trace *t);

static inline size_t capacity_trace_length(const struct capacity_trace *t, uint32_t request)
{
    return t->first[request + 1] - t->first[request];
}
