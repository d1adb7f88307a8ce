/*
 * A file of exported pages: the leading pages of one prompt. Clients write and read it
 * (client/publishing/page_export.c, page_import.c); the daemon does not know of it.
 *
 *     offset  bytes
 *     0       4     magic "KVPF"
 *     4       2     format, 1
 *     6       2     first KV head
 *     8       2     number of KV heads
 *     10      6     zero
 *     16      8     number of pages
 *     24      32    table digest
 *     56      32    model digest
 *     88      16    fleet
 *     104     20    zero
 *     124     4     CRC32C of bytes 0 to 123
 *     128     ...   for each page: its chunk key [16], and the page, sealed (sealed_page.h)
 *
 * Integers are little-endian. The pages are those of chunks 0, 1, 2 ... of the prompt, so that the table
 * fixes the size of each.
 *
 * The secret that seals, and the fleet, derive from the tenant's index key. So a file can be opened by
 * processes of that tenant, on any host that has the fleet's key file: exactly where the chunk keys in it can
 * be found. Others learn no more than the header and the number of bytes.
 */
#pragma once

#include <stdint.h>

#include "proto/sealed_page.h"

#define PAGE_FILE_HEADER_BYTES 128
#define PAGE_FILE_FLEET_BYTES 16
#define PAGE_FILE_KEY_ID 1 /* of the one secret that a tenant seals files with */

struct page_file_header {
    uint32_t first_head, n_heads; /* at most 65535 each */
    uint64_t n_pages;
    uint8_t table_digest[32], model_digest[32];
    uint8_t fleet[PAGE_FILE_FLEET_BYTES]; /* names the index key without telling it */
};

void page_file_header_store(const struct page_file_header *h, uint8_t ret[static PAGE_FILE_HEADER_BYTES]);

/* @n: bytes of the file, if it is shorter than a header; what is behind them is not looked at.
 * Return: 0; -EBADMSG with a sentence: another file, another format, a cut file or damage. */
int page_file_header_load(const uint8_t bytes[static PAGE_FILE_HEADER_BYTES], size_t n,
                          struct page_file_header *ret, struct errmsg *e);

struct page_file_keys {
    uint8_t secret[SEAL_SECRET_BYTES];
    uint8_t fleet[PAGE_FILE_FLEET_BYTES];
};

void page_file_keys_derive(const uint8_t index_key[static INDEX_KEY_BYTES], struct page_file_keys *ret);

/* Of one page in the file. */
static inline size_t page_file_record_bytes(size_t page_bytes)
{
    return CHUNK_KEY_BYTES + seal_bytes(page_bytes);
}

/* @ret: [page_file_record_bytes(page_bytes)] */
void page_file_seal(const struct page_file_keys *k, const struct chunk_key *key, const uint8_t *page,
                    size_t page_bytes, uint8_t *ret);

/**
 * page_file_open() - open the page of a record
 * @record:   [page_file_record_bytes(page_bytes)] bytes of anybody
 * @ret_page: [page_bytes]; zeros or unchanged on failure
 *
 * Return: 0; -EBADMSG with a sentence.
 */
int page_file_open(const struct page_file_keys *k, const uint8_t *record, uint8_t *ret_page,
                   size_t page_bytes, struct chunk_key *ret_key, struct errmsg *e);
