/*
 * Whether a page that a client wrote, or that a slower tier had, has the contents that its header and
 * reservation promise. Reads the daemon's own copy only.
 */
#pragma once

#include <stdint.h>

#include "gpu/page_layout.h"
#include "proto/page.h"

struct errmsg;

struct page_expectation {
    const struct page_layout *layout; /* of the table and shard */
    const uint8_t *model_digest;
    const struct chunk_key *key;
    unsigned page_class;
};

/**
 * page_check() - check header, length, checksum and sinks of @page, layout->page_bytes[class] bytes
 *
 * Every header field must equal what table, shard, reservation and chunk say; sinks and the vectors of an
 * exact table must be finite. Codes need no check: every bit pattern is a code.
 *
 * Return: 0; -EBADMSG with a sentence that names the field.
 */
int page_check(const uint8_t *page, const struct page_expectation *x, uint32_t *ret_payload_crc32c,
               struct errmsg *e);
