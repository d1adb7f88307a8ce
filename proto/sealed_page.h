/*
 * Sealed pages: what leaves memory. The bytes are the same on a disk, in a cluster and in a file of exported
 * pages.
 *
 *     offset  bytes
 *     0       4     magic "KVSP"
 *     4       2     format, 1
 *     6       2     zero
 *     8       4     id of the sealing key
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
 * Functions here work for a millisecond per megabyte: the daemon's loop never calls them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"
#include "proto/seal_cipher.h"

struct errmsg;

#define SEAL_MAGIC 0x5053564bu /* "KVSP" little-endian */
#define SEAL_FORMAT 1
#define SEAL_HEAD_BYTES 64
#define SEAL_SECRET_BYTES 32
#define SEAL_PAGE_BYTES_MAX (UINT64_C(1) << 30)

struct seal_subject { /* whose page it is */
    const char *tenant;
    const struct chunk_key *key;
};

struct seal_key {
    uint32_t id;
    const uint8_t *secret; /* [SEAL_SECRET_BYTES] */
};

static inline size_t seal_bytes(size_t page_bytes)
{
    return SEAL_HEAD_BYTES + page_bytes;
}

/**
 * sealed_page_make() - seal a page
 * @cipher:     which library works; all have the same bytes
 * @page:       [page_bytes], at most SEAL_PAGE_BYTES_MAX
 * @ret_sealed: [seal_bytes(page_bytes)]; does not overlap @page
 */
void sealed_page_make(const struct seal_cipher *cipher, const struct seal_key *k,
                      const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
                      uint8_t *ret_sealed);

/**
 * sealed_page_check() - the head of a sealed page
 * @sealed: [sealed_bytes], bytes of anybody
 * @ret_id: of the key that sealed it, as the head says
 *
 * Return: 0; -EBADMSG with a sentence: not a sealed page of this size.
 */
int sealed_page_check(const uint8_t *sealed, size_t sealed_bytes, size_t page_bytes, uint32_t *ret_id,
                      struct errmsg *e);

/**
 * sealed_page_open() - open a page whose head was checked
 * @secret:   [SEAL_SECRET_BYTES] of the key that sealed it
 * @head:     [SEAL_HEAD_BYTES]
 * @body:     [page_bytes], what follows the head; no other thread or process writes either meanwhile
 * @ret_page: [page_bytes]; zeros or unchanged on failure; is @body, or does not overlap it
 *
 * The page's header names the chunk of @s. The caller checks its other fields.
 *
 * Return: 0; -EBADMSG with a sentence: a changed page, or one of another subject or key.
 */
int sealed_page_open(const struct seal_cipher *cipher, const uint8_t *secret, const struct seal_subject *s,
                     const uint8_t *head, const uint8_t *body, uint8_t *ret_page, size_t page_bytes,
                     struct errmsg *e);
