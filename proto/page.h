/*
 * The 128-byte header of a page, and the key that finds a page. The bytes are the same in arena, pool, disk
 * and shared tier.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/crc32c.h" /* of header and payload */

struct errmsg;

#define PAGE_MAGIC 0x4750564bu /* "KVPG" little-endian */
#define PAGE_FORMAT_VERSION 1
#define PAGE_CODEC_HALF_TILES 1 /* the at-rest layout of gpu/page_layout.h */
#define PAGE_CODEC_BYTES 2      /* the vectors of an engine's cache, as its exact table says */
#define CHUNK_KEY_BYTES 16
#define INDEX_KEY_BYTES 32

enum { PAGE_FLAG_FIRST = 1 }; /* class first: sinks at the end of the payload, if the table has sinks */

struct chunk_key {
    uint8_t bytes[CHUNK_KEY_BYTES];
};

struct page_header { /* in memory; page_header_store() writes the 128 little-endian bytes */
    uint16_t format_version;
    uint16_t codec_id;
    uint8_t table_digest[32];
    uint8_t model_digest[32];
    struct chunk_key key;
    uint32_t first_head, n_heads; /* at most 65535 each on the wire */
    uint64_t first_position;
    uint32_t n_tokens;
    uint32_t flags;
    uint64_t payload_bytes;
    uint32_t payload_crc32c;
};

/* Byte offsets: magic 0, version 4, codec 6, table 8, model 40, key 72, first head 88 (u16), heads 90 (u16),
 * tokens 92 (u16), flags 94 (u16), first position 96 (u64), payload bytes 104 (u64), payload CRC 112, zero
 * 116..123, header CRC 124. The header CRC covers bytes 0..123. */
void page_header_store(const struct page_header *h, uint8_t ret_bytes[static 128]);

/* Return: 0; -EBADMSG (magic, version, CRC, reserved bytes) with a sentence. */
int page_header_load(const uint8_t bytes[static 128], struct page_header *ret_header, struct errmsg *e);

struct chunk_identity {          /* input of a chunk key besides parent and tokens */
    const uint8_t *table_digest; /* [32] */
    const uint8_t *model_digest; /* [32] */
    uint32_t first_head, n_heads;
    const void *salt;
    size_t salt_bytes; /* <= CHUNK_SALT_BYTES_MAX */
    bool repeatable;   /* K and V follow from attention that reads earlier chunks from codes: other vectors */
};

#define CHUNK_SALT_BYTES_MAX 1024

/*
 * Bytes 8 to 11 of a key are the first four of its parent's (zeros in a first chunk), so that it can be said
 * which pages continue a page. All other bytes are a hash. Index, filter and ghosts use none of these four.
 */
enum { CHUNK_KEY_MARK_OFFSET = 8, CHUNK_KEY_MARK_BYTES = 4 };

/**
 * chunk_key_derive() - keyed BLAKE2b of one chunk, with the mark of its parent (DESIGN 5.2)
 * @index_key: [INDEX_KEY_BYTES] of the tenant
 * @parent:    NULL for the first chunk (zeros)
 * @tokens:    [64]
 */
void chunk_key_derive(const uint8_t index_key[static INDEX_KEY_BYTES], const struct chunk_identity *id,
                      const struct chunk_key *parent, const uint32_t tokens[static 64],
                      struct chunk_key *ret_key);
