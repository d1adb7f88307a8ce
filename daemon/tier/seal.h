/*
 * Sealed pages: what leaves memory. The bytes are the same on a disk and in a cluster.
 *
 *     offset  bytes
 *     0       4     magic "KVSP"
 *     4       2     format, 1
 *     6       2     zero
 *     8       4     id of the sealing key (keyring.h)
 *     12      4     zero
 *     16      8     bytes of the page
 *     24      24    nonce, random for each write
 *     48      16    tag of Poly1305
 *     64      ...   the page, header and payload, encrypted with XChaCha20
 *
 * Integers are little-endian. The tag authenticates the page with its header, and beside it bytes 0 to 47,
 * the tenant's name and the chunk key. So a page of another tenant, of another chunk or of another format
 * does not open, nor does one with a changed bit. The header of the page is encrypted, too: a disk or a
 * cluster learns neither models nor chunk keys from it.
 *
 * Functions here work for a millisecond per megabyte: threads call them, never the loop.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"

struct errmsg;
struct keyring;

#define SEAL_MAGIC 0x5053564bu /* "KVSP" little-endian */
#define SEAL_FORMAT 1
#define SEAL_HEAD_BYTES 64
#define SEAL_PAGE_BYTES_MAX (UINT64_C(1) << 30)

struct seal_subject { /* whose page it is */
    const char *tenant;
    const struct chunk_key *key;
};

static inline size_t seal_bytes(size_t page_bytes)
{
    return SEAL_HEAD_BYTES + page_bytes;
}

/**
 * seal_page() - seal a page with the newest key
 * @page:       [page_bytes], at most SEAL_PAGE_BYTES_MAX
 * @ret_sealed: [seal_bytes(page_bytes)]; does not overlap @page
 */
void seal_page(const struct keyring *k, const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
               uint8_t *ret_sealed);

/**
 * seal_open() - open a sealed page
 * @sealed:   [sealed_bytes], bytes of anybody; no other thread or process writes them meanwhile
 * @ret_page: [page_bytes]; zeros or unchanged on failure; does not overlap @sealed
 *
 * The page's header names the chunk of @s. The caller checks its other fields.
 *
 * Return: 0; -EBADMSG: not a sealed page of this size and subject; -ENOKEY: the ring has no key with its id;
 * each with a sentence.
 */
int seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
              size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);
