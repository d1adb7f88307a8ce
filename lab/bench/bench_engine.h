/*
 * The measurements of `kvcobra-lab bench engine`: an engine that keeps its own cache of bfloat16 keys (after
 * RoPE) and values publishes a text, and reads one back into its blocks.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "client/kvcobra.h"
#include "tools/bench/timing.h"

struct errmsg;

enum { ENGINE_BLOCK_TOKENS = 16 };

/* An engine's cache of one text. */
struct engine_cache {
    const struct table *table; /* borrowed */
    size_t n_tokens, side_numbers;
    uint16_t *text;   /* [n_layers, 2, n_tokens, KV heads, d] what the model computed */
    uint16_t *blocks; /* [n_layers, 2, n_blocks, 16, KV heads, d] */
    void **bases;     /* [n_layers, 2] in blocks */
    int64_t *order;   /* [n_blocks] */
    uint32_t *tokens; /* [n_tokens] ids */
};

struct engine_result {
    struct timing publish; /* processor time of all threads: append to all layers, commit */
    struct timing decode;  /* processor time of all threads: kvc_seq_read_blocks() */
    struct timing read;    /* elapsed time of kvc_seq_read_blocks() */
    struct timing copy;    /* elapsed time of memcpy() of the same bytes */
    struct timing ratio;   /* read over copy */
    double error;          /* of what was read, relative to the text */
};

/* A text of random codes of the table. Return: 0; -ENOMEM. */
int engine_cache_init(struct engine_cache *e, const struct table *table, size_t n_tokens);
void engine_cache_deinit(struct engine_cache *e);

/**
 * engine_cache_measure() - publish and read the text @repeat times
 * @m: embedded, with the table of @cache
 *
 * The first text is checked: blocks and kvc_seq_read() agree to the bit, and with the text within the table's
 * error.
 *
 * Return: 0; a negative errno with a sentence.
 */
int engine_cache_measure(const struct engine_cache *cache, kvc_client *c, kvc_model *m, size_t repeat,
                         struct engine_result *ret, struct errmsg *e);
