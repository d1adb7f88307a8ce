/* See page_file.h. */
#include "proto/page_file.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

#include "base/errmsg.h"

#define PAGE_FILE_MAGIC 0x4650564bu /* "KVPF" little-endian */
#define PAGE_FILE_FORMAT 1

struct page_file_image {
    uint32_t magic;
    uint16_t format, first_head, n_heads, zero[3];
    uint64_t n_pages;
    uint8_t table_digest[32], model_digest[32], fleet[PAGE_FILE_FLEET_BYTES], zero2[20];
    uint32_t crc;
};
_Static_assert(sizeof(struct page_file_image) == PAGE_FILE_HEADER_BYTES, "header of a file of pages");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored integers are little-endian");

/* ---- header ---- */

void page_file_header_store(const struct page_file_header *h, uint8_t ret[static PAGE_FILE_HEADER_BYTES])
{
    struct page_file_image x = {
        .magic = PAGE_FILE_MAGIC,
        .format = PAGE_FILE_FORMAT,
        .first_head = (uint16_t) h->first_head,
        .n_heads = (uint16_t) h->n_heads,
        .n_pages = h->n_pages,
    };

    memcpy(x.table_digest, h->table_digest, sizeof(x.table_digest));
    memcpy(x.model_digest, h->model_digest, sizeof(x.model_digest));
    memcpy(x.fleet, h->fleet, sizeof(x.fleet));
    memcpy(ret, &x, sizeof(x));
    x.crc = crc32c(ret, offsetof(struct page_file_image, crc));
    memcpy(ret + offsetof(struct page_file_image, crc), &x.crc, sizeof(x.crc));
}

int page_file_header_load(const uint8_t bytes[static PAGE_FILE_HEADER_BYTES], size_t n,
                          struct page_file_header *ret, struct errmsg *e)
{
    static const struct page_file_image zeros;
    struct page_file_image x;

    memcpy(&x, bytes, sizeof(x));
    if (n < sizeof(x.magic) || x.magic != PAGE_FILE_MAGIC)
        return fail(e, -EBADMSG, "not a file of pages: 'kvcobra export' writes them");
    if (n < PAGE_FILE_HEADER_BYTES)
        return fail(e, -EBADMSG, "the file of pages was cut: it ends in its header");
    if (x.crc != crc32c(bytes, offsetof(struct page_file_image, crc)))
        return fail(e, -EBADMSG, "the beginning of the file of pages is damaged");
    if (x.format != PAGE_FILE_FORMAT)
        return fail(e, -EBADMSG, "a file of pages of format %u: this version reads format %d", x.format,
                    PAGE_FILE_FORMAT);
    if (memcmp(x.zero, zeros.zero, sizeof(x.zero)) != 0 ||
        memcmp(x.zero2, zeros.zero2, sizeof(x.zero2)) != 0 || x.n_heads == 0 || x.n_pages == 0)
        return fail(e, -EBADMSG, "the header of the file of pages is not valid");

    *ret = (struct page_file_header){.first_head = x.first_head, .n_heads = x.n_heads, .n_pages = x.n_pages};
    memcpy(ret->table_digest, x.table_digest, sizeof(x.table_digest));
    memcpy(ret->model_digest, x.model_digest, sizeof(x.model_digest));
    memcpy(ret->fleet, x.fleet, sizeof(x.fleet));
    return 0;
}

/* ---- pages ---- */

void page_file_keys_derive(const uint8_t index_key[static INDEX_KEY_BYTES], struct page_file_keys *ret)
{
    static const char secret[] = "kvcobra seal key of files 1", fleet[] = "kvcobra fleet of files 1";

    (void) crypto_generichash(ret->secret, sizeof(ret->secret), (const uint8_t *) secret, sizeof(secret) - 1,
                              index_key, INDEX_KEY_BYTES);
    (void) crypto_generichash(ret->fleet, sizeof(ret->fleet), (const uint8_t *) fleet, sizeof(fleet) - 1,
                              index_key, INDEX_KEY_BYTES);
}

/* The keys are those of one tenant, so its name is not needed in the seal. */
static struct seal_subject page_file_subject(const struct chunk_key *key)
{
    return (struct seal_subject){.tenant = "", .key = key};
}

void page_file_seal(const struct page_file_keys *k, const struct chunk_key *key, const uint8_t *page,
                    size_t page_bytes, uint8_t *ret)
{
    struct seal_key sk = {PAGE_FILE_KEY_ID, k->secret};
    struct seal_subject s = page_file_subject(key);

    memcpy(ret, key->bytes, CHUNK_KEY_BYTES);
    sealed_page_make(&seal_cipher_sodium, &sk, &s, page, page_bytes, ret + CHUNK_KEY_BYTES);
}

int page_file_open(const struct page_file_keys *k, const uint8_t *record, uint8_t *ret_page,
                   size_t page_bytes, struct chunk_key *ret_key, struct errmsg *e)
{
    struct chunk_key key;
    struct seal_subject s = page_file_subject(&key);
    uint32_t id;
    int r;

    memcpy(key.bytes, record, CHUNK_KEY_BYTES);
    r = sealed_page_check(record + CHUNK_KEY_BYTES, seal_bytes(page_bytes), page_bytes, &id, e);
    if (r == 0 && id != PAGE_FILE_KEY_ID)
        r = fail(e, -EBADMSG, "a page was sealed with key %u instead of %d", id, PAGE_FILE_KEY_ID);
    if (r == 0)
        r = sealed_page_open(&seal_cipher_sodium, k->secret, &s, record + CHUNK_KEY_BYTES,
                             record + CHUNK_KEY_BYTES + SEAL_HEAD_BYTES, ret_page, page_bytes, e);
    if (r == 0)
        *ret_key = key;
    return r;
}
