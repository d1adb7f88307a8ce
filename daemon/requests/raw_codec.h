/*
 * Encodes raw vectors to a page and back, for clients that leave this to the daemon (APPEND_RAW, READ_RAW).
 *
 * Uses only memory and an arena's descriptor, no state of the daemon, so it may run on any thread.
 * The arena is accessed by read(2) and write(2): a hole that the client punches meanwhile cannot fault.
 * Every byte is read once, so the client may write meanwhile.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/chunk.h"
#include "gpu/page_layout.h"

struct errmsg;

struct raw_place { /* in an arena */
    int fd;
    unsigned dtype; /* enum dtype */
    uint64_t offset;
};

/*
 * Bytes of one side of a chunk: @n_layers is all layers for APPEND_RAW, one for READ_RAW. False: too many
 * for this machine.
 */
bool raw_codec_bytes(const struct page_layout *l, unsigned dtype, uint32_t n_layers, uint64_t *ret);

/**
 * raw_codec_encode() - encode one layer of a page from whole vectors; layers in order: the first one also
 * clears the payload
 * @k, @v:   [n_layers, 64, heads of the shard, d], keys before RoPE
 * @first:   the chunk is a sequence's first: the table's sinks are stored exactly
 * @payload: layout->payload_bytes[class] bytes
 * @counts:  [2] by side, added to
 *
 * Return: 0; -EINVAL: a number is not finite, or a sink is too far from its mean for binary16; -EIO or
 * another errno of reading; -ENOMEM. Each failure has a sentence.
 */
int raw_codec_encode(const struct page_layout *l, uint32_t layer, const struct raw_place *k,
                     const struct raw_place *v, bool first, uint8_t *payload, struct encode_counts counts[2],
                     struct errmsg *e);

/*
 * Decodes one side of one layer, sinks exactly, to @to: [64, heads of the shard, d]. Return: 0; -ENOMEM;
 * errno of writing.
 */
int raw_codec_decode(const struct page_layout *l, const uint8_t *payload, bool first, uint32_t layer,
                     enum side side, const struct raw_place *to, struct errmsg *e);
