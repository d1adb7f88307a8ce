/* See sealed_page.h. */
#include "proto/sealed_page.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "base/errmsg.h"

enum {
    NONCE_OFFSET = 24,
    TAG_OFFSET = 48,
    NONCE_BYTES = SEAL_CIPHER_NONCE_BYTES,
    TAG_BYTES = SEAL_CIPHER_TAG_BYTES,
    TENANT_BYTES_MAX = 255,
    HEADER_BYTES = 128, /* of a page: proto/page.h */
};
_Static_assert(NONCE_OFFSET + NONCE_BYTES == TAG_OFFSET && TAG_OFFSET + TAG_BYTES == SEAL_HEAD_BYTES, "head");
_Static_assert(SEAL_SECRET_BYTES == SEAL_CIPHER_SECRET_BYTES, "secret");

struct seal_head { /* bytes 0 to 23 */
    uint32_t magic;
    uint16_t format, zero;
    uint32_t key_id, zero2;
    uint64_t page_bytes;
};
_Static_assert(sizeof(struct seal_head) == NONCE_OFFSET, "head of a sealed page");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored integers are little-endian");

/* What the tag covers beside the page: head and nonce, chunk key, length of the name, name. */
struct seal_context {
    uint8_t bytes[TAG_OFFSET + CHUNK_KEY_BYTES + 1 + TENANT_BYTES_MAX];
    size_t n;
};

static void sealed_page_make_context(const uint8_t *head, const struct seal_subject *s,
                                     struct seal_context *ret)
{
    size_t n = strlen(s->tenant);

    assert(n <= TENANT_BYTES_MAX);
    memcpy(ret->bytes, head, TAG_OFFSET);
    memcpy(ret->bytes + TAG_OFFSET, s->key->bytes, CHUNK_KEY_BYTES);
    ret->bytes[TAG_OFFSET + CHUNK_KEY_BYTES] = (uint8_t) n;
    memcpy(ret->bytes + TAG_OFFSET + CHUNK_KEY_BYTES + 1, s->tenant, n);
    ret->n = TAG_OFFSET + CHUNK_KEY_BYTES + 1 + n;
}

void sealed_page_make(const struct seal_cipher *cipher, const struct seal_key *k,
                      const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
                      uint8_t *ret_sealed)
{
    struct seal_head h = {
        .magic = SEAL_MAGIC, .format = SEAL_FORMAT, .key_id = k->id, .page_bytes = page_bytes};
    struct seal_context c;

    assert(page_bytes <= SEAL_PAGE_BYTES_MAX);
    memcpy(ret_sealed, &h, sizeof(h));
    randombytes_buf(ret_sealed + NONCE_OFFSET, NONCE_BYTES);
    sealed_page_make_context(ret_sealed, s, &c);
    cipher->encrypt(k->secret, ret_sealed + NONCE_OFFSET, &(struct seal_text){c.bytes, c.n}, page, page_bytes,
                    ret_sealed + SEAL_HEAD_BYTES, ret_sealed + TAG_OFFSET);
}

int sealed_page_check(const uint8_t *sealed, size_t sealed_bytes, size_t page_bytes, uint32_t *ret_id,
                      struct errmsg *e)
{
    struct seal_head h;

    if (page_bytes < HEADER_BYTES || page_bytes > SEAL_PAGE_BYTES_MAX ||
        sealed_bytes != seal_bytes(page_bytes))
        return fail(e, -EBADMSG, "a sealed page has %zu bytes instead of %zu", sealed_bytes,
                    seal_bytes(page_bytes));

    memcpy(&h, sealed, sizeof(h));
    if (h.magic != SEAL_MAGIC || h.zero != 0 || h.zero2 != 0)
        return fail(e, -EBADMSG, "not a sealed page");
    if (h.format != SEAL_FORMAT)
        return fail(e, -EBADMSG, "a sealed page of format %u instead of %d", h.format, SEAL_FORMAT);
    if (h.page_bytes != page_bytes)
        return fail(e, -EBADMSG, "a sealed page of %" PRIu64 " bytes instead of %zu", h.page_bytes,
                    page_bytes);
    *ret_id = h.key_id;
    return 0;
}

/* The tag is right: a holder of the key sealed the page for this chunk. Its header says so, too. */
static int sealed_page_check_header(const uint8_t *page, const struct chunk_key *key, struct errmsg *e)
{
    struct page_header h;
    int r = page_header_load(page, &h, e);

    if (r < 0)
        return r;
    if (memcmp(&h.key, key, sizeof(h.key)) != 0)
        return fail(e, -EBADMSG, "the header of a sealed page names another chunk");
    return 0;
}

int sealed_page_open(const struct seal_cipher *cipher, const uint8_t *secret, const struct seal_subject *s,
                     const uint8_t *head, const uint8_t *body, uint8_t *ret_page, size_t page_bytes,
                     struct errmsg *e)
{
    struct seal_context c;
    int r;

    sealed_page_make_context(head, s, &c);
    if (!cipher->decrypt(secret, head + NONCE_OFFSET, &(struct seal_text){c.bytes, c.n}, body, page_bytes,
                         head + TAG_OFFSET, ret_page))
        return fail(e, -EBADMSG, "a sealed page was changed, or is of another tenant or chunk");

    r = sealed_page_check_header(ret_page, s->key, e);
    if (r < 0)
        memset(ret_page, 0, page_bytes);
    return r;
}
