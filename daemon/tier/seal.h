/*
 * Sealed pages (proto/sealed_page.h) with the keys of a key ring: what the disk and the cluster store.
 *
 * Functions here work for a millisecond per megabyte: threads call them, never the loop.
 */
#pragma once

#include "proto/sealed_page.h"

struct keyring;

/* sealed_page_make() with the newest key of the ring. */
void seal_page(const struct keyring *k, const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
               uint8_t *ret_sealed);

/**
 * seal_open() - open a sealed page
 * @sealed:   [sealed_bytes], bytes of anybody; no other thread or process writes them meanwhile
 * @ret_page: as in sealed_page_open()
 *
 * Return: 0; -EBADMSG: not a sealed page of this size and subject; -ENOKEY: the ring has no key with its id;
 * each with a sentence.
 */
int seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
              size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);

/*
 * The same for bytes that another process may write to meanwhile: they are copied once, into @ret_page, and
 * opened there. @ret_page: zeros or unchanged on failure.
 */
int seal_open_shared(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                     size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);
