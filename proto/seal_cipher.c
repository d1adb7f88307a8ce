/* XChaCha20-Poly1305 by libsodium; see seal_cipher.h. */
#include "proto/seal_cipher.h"

#include <sodium.h>

_Static_assert(SEAL_CIPHER_SECRET_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "secret");
_Static_assert(SEAL_CIPHER_NONCE_BYTES == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES, "nonce");
_Static_assert(SEAL_CIPHER_TAG_BYTES == crypto_aead_xchacha20poly1305_ietf_ABYTES, "tag");

static void seal_cipher_encrypt(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                                const uint8_t *page, size_t n, uint8_t *ret, uint8_t *ret_tag)
{
    (void) crypto_aead_xchacha20poly1305_ietf_encrypt_detached(ret, ret_tag, NULL, page, n, beside->bytes,
                                                               beside->n, NULL, nonce, secret);
}

static bool seal_cipher_decrypt(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                                const uint8_t *sealed, size_t n, const uint8_t *tag, uint8_t *ret)
{
    return crypto_aead_xchacha20poly1305_ietf_decrypt_detached(ret, NULL, sealed, n, tag, beside->bytes,
                                                               beside->n, nonce, secret) == 0;
}

const struct seal_cipher seal_cipher_sodium = {
    .name = "libsodium", .encrypt = seal_cipher_encrypt, .decrypt = seal_cipher_decrypt};
