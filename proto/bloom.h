/*
 * A Bloom filter over the chunk keys that one tenant has on a slower tier. Clients map it read-only and ask
 * it without a system call: "no" is certain, "probably" is wrong for about one key in a thousand.
 *
 * Layout of the object (little-endian, offsets from its start):
 *   0    struct bloom_head, 128 bytes
 *   128  blocks[n_blocks], 64 bytes each: 8 words of 64 bits
 *
 * The block of a key is x * n_blocks >> 32, where x is the upper half of the key's second word; the key has
 * one bit in each of the block's words, at 6 bits of the key's first word. Keys are hashes already, so no
 * other hash is needed. One access to memory answers a question. With 32 keys a block, 16 bits a key, 39 %
 * of the bits are set, and the share of wrong answers is 0.39^8 = 0.06 %, with blocks of unequal load 0.1
 * %.
 *
 * Bits are only added. A filter from which many keys went, or that is full, is replaced by a new object, and
 * the old one answers BLOOM_MOVED.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"

struct errmsg;

#define BLOOM_MAGIC 0x4d4c424bu /* "KBLM" */
#define BLOOM_VERSION 1
#define BLOOM_KEYS_PER_BLOCK 32
#define BLOOM_BLOCK_WORDS 8

enum bloom_result {
    BLOOM_NO = 0,
    BLOOM_PROBABLY = 1,
    BLOOM_MOVED = 2, /* this object is obsolete, or its memory was given back: ask for the new one */
};

struct bloom_reader { /* the object may change at any time: each word is loaded once */
    const uint8_t *object;
    uint64_t n_blocks;
};

/* @object: mapped read-only, @bytes its fstat'ed size. Return: 0; -EBADMSG with a sentence. */
int bloom_reader_init(struct bloom_reader *r, const void *object, size_t bytes, struct errmsg *e);
enum bloom_result bloom_lookup(const struct bloom_reader *r, const struct chunk_key *key);

struct bloom_writer { /* one thread at a time */
    uint8_t *object;
    uint64_t n_blocks;
    uint64_t n_added; /* keys, also equal ones */
};

size_t bloom_object_bytes(uint64_t n_keys);            /* a multiple of 4096 with room for so many keys */
uint64_t bloom_capacity(const struct bloom_writer *w); /* keys at BLOOM_KEYS_PER_BLOCK */
void bloom_writer_init(struct bloom_writer *w, void *object, size_t bytes); /* @object: zeros */
void bloom_add(struct bloom_writer *w, const struct chunk_key *key);
void bloom_mark_moved(struct bloom_writer *w);
