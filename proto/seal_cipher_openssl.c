/*
 * XChaCha20-Poly1305 by OpenSSL, which has ChaCha20-Poly1305 alone: HChaCha20 makes a key of the secret and
 * the first 16 bytes of the nonce, and the nonce of the cipher is four zeros and the last 8 bytes. libsodium
 * does the same, so the bytes are the same. See seal_cipher.h.
 *
 * OpenSSL gets a context of its own, so that neither openssl.cnf nor what other code of the process loads
 * changes what is computed. A context of the cipher lives as long as one page is worked on: freeing it clears
 * the key.
 */
#include "proto/seal_cipher.h"

#ifdef HAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>

enum { SUBKEY_BYTES = crypto_core_hchacha20_OUTPUTBYTES, IV_BYTES = 12, HCHACHA_NONCE_BYTES = 16 };
_Static_assert(SEAL_CIPHER_NONCE_BYTES == HCHACHA_NONCE_BYTES + IV_BYTES - 4, "nonce");

static EVP_CIPHER *seal_openssl_cipher; /* NULL: this OpenSSL has none; set once */

/* A context with key and nonce, which has taken @beside. NULL: OpenSSL failed. */
static EVP_CIPHER_CTX *seal_openssl_begin(bool encrypts, const uint8_t *secret, const uint8_t *nonce,
                                          const struct seal_text *beside)
{
    uint8_t subkey[SUBKEY_BYTES], iv[IV_BYTES] = {0};
    EVP_CIPHER_CTX *x = EVP_CIPHER_CTX_new();
    int n;
    bool good;

    (void) crypto_core_hchacha20(subkey, nonce, secret, NULL);
    memcpy(iv + 4, nonce + HCHACHA_NONCE_BYTES, IV_BYTES - 4);
    good = x && EVP_CipherInit_ex2(x, seal_openssl_cipher, subkey, iv, encrypts, NULL) == 1 &&
           EVP_CipherUpdate(x, NULL, &n, beside->bytes, (int) beside->n) == 1;
    sodium_memzero(subkey, sizeof(subkey));
    if (good)
        return x;
    EVP_CIPHER_CTX_free(x);
    return NULL;
}

/* Return: false: OpenSSL failed, as without memory. */
static bool seal_openssl_try(EVP_CIPHER_CTX *x, const uint8_t *page, size_t n, uint8_t *ret, uint8_t *ret_tag)
{
    int done, rest;

    return EVP_EncryptUpdate(x, ret, &done, page, (int) n) == 1 && (size_t) done == n &&
           EVP_EncryptFinal_ex(x, ret + n, &rest) == 1 && rest == 0 &&
           EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_AEAD_GET_TAG, SEAL_CIPHER_TAG_BYTES, ret_tag) == 1;
}

static void seal_openssl_encrypt(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                                 const uint8_t *page, size_t n, uint8_t *ret, uint8_t *ret_tag)
{
    EVP_CIPHER_CTX *x = seal_openssl_begin(true, secret, nonce, beside);
    bool good = x && seal_openssl_try(x, page, n, ret, ret_tag);

    EVP_CIPHER_CTX_free(x);
    if (!good) /* the same bytes */
        seal_cipher_sodium.encrypt(secret, nonce, beside, page, n, ret, ret_tag);
}

static bool seal_openssl_decrypt(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                                 const uint8_t *sealed, size_t n, const uint8_t *tag, uint8_t *ret)
{
    EVP_CIPHER_CTX *x = seal_openssl_begin(false, secret, nonce, beside);
    uint8_t own_tag[SEAL_CIPHER_TAG_BYTES];
    int done, rest;
    bool is_right;

    if (!x)
        return seal_cipher_sodium.decrypt(secret, nonce, beside, sealed, n, tag, ret);

    memcpy(own_tag, tag, sizeof(own_tag));
    is_right = EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_AEAD_SET_TAG, sizeof(own_tag), own_tag) == 1 &&
               EVP_DecryptUpdate(x, ret, &done, sealed, (int) n) == 1 && (size_t) done == n &&
               EVP_DecryptFinal_ex(x, ret + n, &rest) == 1; /* compares the tags */
    EVP_CIPHER_CTX_free(x);
    if (!is_right)
        memset(ret, 0, n); /* the cipher writes before it knows */
    return is_right;
}

static const struct seal_cipher seal_cipher_openssl = {
    .name = "OpenSSL", .encrypt = seal_openssl_encrypt, .decrypt = seal_openssl_decrypt};

/* The context and its provider stay until the process ends. */
static void seal_openssl_init(void)
{
    OSSL_LIB_CTX *own;

    if (OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL) != 1)
        return;
    own = OSSL_LIB_CTX_new();
    if (own && OSSL_PROVIDER_load(own, "default"))
        seal_openssl_cipher = EVP_CIPHER_fetch(own, "ChaCha20-Poly1305", NULL);
    if (!seal_openssl_cipher)
        OSSL_LIB_CTX_free(own);
}

const struct seal_cipher *seal_cipher_fastest(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void) pthread_once(&once, seal_openssl_init);
    return seal_openssl_cipher ? &seal_cipher_openssl : &seal_cipher_sodium;
}

#else

const struct seal_cipher *seal_cipher_fastest(void)
{
    return &seal_cipher_sodium;
}

#endif
