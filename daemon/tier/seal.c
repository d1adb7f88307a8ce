/* See seal.h. */
#include "daemon/tier/seal.h"

#include <errno.h>
#include <inttypes.h>

#include "base/errmsg.h"
#include "daemon/tier/keyring.h"

_Static_assert(KEYRING_SECRET_BYTES == SEAL_SECRET_BYTES, "secrets of a key ring seal pages");

void seal_page(const struct keyring *k, const struct seal_subject *s, const uint8_t *page, size_t page_bytes,
               uint8_t *ret_sealed)
{
    struct seal_key key = {keyring_newest(k), keyring_find(k, keyring_newest(k))};

    sealed_page_make(seal_cipher_fastest(), &key, s, page, page_bytes, ret_sealed);
}

int seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
              size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e)
{
    const uint8_t *secret;
    uint32_t id;
    int r = sealed_page_check(sealed, sealed_bytes, page_bytes, &id, e);

    if (r < 0)
        return r;

    secret = keyring_find(k, id);
    if (!secret)
        return fail(e, -ENOKEY, "a page was sealed with key %" PRIu32 ", which the key ring does not have",
                    id);
    return sealed_page_open(seal_cipher_fastest(), secret, s, sealed, ret_page, page_bytes, e);
}
