/* See seal.h. */
#include "daemon/tier/seal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/tier/keyring.h"

_Static_assert(KEYRING_SECRET_BYTES == SEAL_SECRET_BYTES, "secrets of a key ring seal pages");

void seal_page(const struct keyring *k, const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
               uint8_t *ret_sealed)
{
    struct seal_key key = {keyring_newest(k), keyring_find(k, keyring_newest(k))};

    sealed_page_make(seal_cipher_fastest(), &key, s, page, page_bytes, ret_sealed);
}

/* The secret of the key that @head names. Return: as seal_open(). */
static int seal_find_secret(const struct keyring *k, const uint8_t *head, size_t sealed_bytes,
                            size_t page_bytes, const uint8_t **ret, struct errmsg *e)
{
    uint32_t id;
    int r = sealed_page_check(head, sealed_bytes, page_bytes, &id, e);

    if (r < 0)
        return r;

    *ret = keyring_find(k, id);
    return *ret ? 0
                : fail(e, -ENOKEY, "a page was sealed with key %" PRIu32 ", which the key ring does not have",
                       id);
}

int seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
              size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e)
{
    const uint8_t *secret;
    int r = seal_find_secret(k, sealed, sealed_bytes, page_bytes, &secret, e);

    return r < 0 ? r
                 : sealed_page_open(seal_cipher_fastest(), secret, s, sealed, sealed + SEAL_HEAD_BYTES,
                                    ret_page, page_bytes, e);
}

int seal_open_shared(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                     size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e)
{
    uint8_t head[SEAL_HEAD_BYTES] = {0};
    const uint8_t *secret;
    int r;

    memcpy(head, sealed, sealed_bytes < sizeof(head) ? sealed_bytes : sizeof(head));
    r = seal_find_secret(k, head, sealed_bytes, page_bytes, &secret, e);
    if (r < 0)
        return r;

    memcpy(ret_page, sealed + SEAL_HEAD_BYTES, page_bytes);
    r = sealed_page_open(seal_cipher_fastest(), secret, s, head, ret_page, ret_page, page_bytes, e);
    if (r < 0)
        memset(ret_page, 0, page_bytes);
    return r;
}
