/* The page header in memory and as bytes; see page.h. */
#include "proto/page.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/errmsg.h"

enum {
    OFF_MAGIC = 0,
    OFF_VERSION = 4,
    OFF_CODEC = 6,
    OFF_TABLE = 8,
    OFF_MODEL = 40,
    OFF_KEY = 72,
    OFF_FIRST_HEAD = 88,
    OFF_HEADS = 90,
    OFF_TOKENS = 92,
    OFF_FLAGS = 94,
    OFF_FIRST_POSITION = 96,
    OFF_PAYLOAD_BYTES = 104,
    OFF_PAYLOAD_CRC = 112,
    OFF_ZERO = 116,
    OFF_HEADER_CRC = 124,
};

static void page_put16(uint8_t *p, uint32_t v)
{
    uint16_t le = htole16((uint16_t) v);

    assert(v <= UINT16_MAX);
    memcpy(p, &le, sizeof(le));
}

static void page_put32(uint8_t *p, uint32_t v)
{
    uint32_t le = htole32(v);

    memcpy(p, &le, sizeof(le));
}

static void page_put64(uint8_t *p, uint64_t v)
{
    uint64_t le = htole64(v);

    memcpy(p, &le, sizeof(le));
}

static uint16_t page_get16(const uint8_t *p)
{
    uint16_t le;

    memcpy(&le, p, sizeof(le));
    return le16toh(le);
}

static uint32_t page_get32(const uint8_t *p)
{
    uint32_t le;

    memcpy(&le, p, sizeof(le));
    return le32toh(le);
}

static uint64_t page_get64(const uint8_t *p)
{
    uint64_t le;

    memcpy(&le, p, sizeof(le));
    return le64toh(le);
}

void page_header_store(const struct page_header *h, uint8_t ret_bytes[static 128])
{
    uint8_t b[128] = {0};

    page_put32(b + OFF_MAGIC, PAGE_MAGIC);
    page_put16(b + OFF_VERSION, h->format_version);
    page_put16(b + OFF_CODEC, h->codec_id);
    memcpy(b + OFF_TABLE, h->table_digest, sizeof(h->table_digest));
    memcpy(b + OFF_MODEL, h->model_digest, sizeof(h->model_digest));
    memcpy(b + OFF_KEY, h->key.bytes, sizeof(h->key.bytes));
    page_put16(b + OFF_FIRST_HEAD, h->first_head);
    page_put16(b + OFF_HEADS, h->n_heads);
    page_put16(b + OFF_TOKENS, h->n_tokens);
    page_put16(b + OFF_FLAGS, h->flags);
    page_put64(b + OFF_FIRST_POSITION, h->first_position);
    page_put64(b + OFF_PAYLOAD_BYTES, h->payload_bytes);
    page_put32(b + OFF_PAYLOAD_CRC, h->payload_crc32c);
    page_put32(b + OFF_HEADER_CRC, crc32c(b, OFF_HEADER_CRC));
    memcpy(ret_bytes, b, sizeof(b));
}

int page_header_load(const uint8_t bytes[static 128], struct page_header *ret_header, struct errmsg *e)
{
    static const uint8_t zero[OFF_HEADER_CRC - OFF_ZERO];
    uint8_t b[128]; /* a copy, since another process may still write to @bytes */
    struct page_header h = {0};

    memcpy(b, bytes, sizeof(b));
    if (page_get32(b + OFF_MAGIC) != PAGE_MAGIC)
        return fail(e, -EBADMSG, "page header: magic is %08x, not a page", page_get32(b + OFF_MAGIC));
    if (page_get32(b + OFF_HEADER_CRC) != crc32c(b, OFF_HEADER_CRC))
        return fail(e, -EBADMSG, "page header: its checksum does not match, the page is damaged");

    h.format_version = page_get16(b + OFF_VERSION);
    if (h.format_version != PAGE_FORMAT_VERSION)
        return fail(e, -EBADMSG, "page header: format version %u, this library reads %u", h.format_version,
                    PAGE_FORMAT_VERSION);
    if (memcmp(b + OFF_ZERO, zero, sizeof(zero)) != 0)
        return fail(e, -EBADMSG, "page header: reserved bytes are not zero");

    h.codec_id = page_get16(b + OFF_CODEC);
    memcpy(h.table_digest, b + OFF_TABLE, sizeof(h.table_digest));
    memcpy(h.model_digest, b + OFF_MODEL, sizeof(h.model_digest));
    memcpy(h.key.bytes, b + OFF_KEY, sizeof(h.key.bytes));
    h.first_head = page_get16(b + OFF_FIRST_HEAD);
    h.n_heads = page_get16(b + OFF_HEADS);
    h.n_tokens = page_get16(b + OFF_TOKENS);
    h.flags = page_get16(b + OFF_FLAGS);
    h.first_position = page_get64(b + OFF_FIRST_POSITION);
    h.payload_bytes = page_get64(b + OFF_PAYLOAD_BYTES);
    h.payload_crc32c = page_get32(b + OFF_PAYLOAD_CRC);
    *ret_header = h;
    return 0;
}
