/*
 * XChaCha20-Poly1305 of sealed pages, by libsodium, or by OpenSSL where that is built: the same bytes, in
 * less time. Functions here are called by threads, at the same time too.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SEAL_CIPHER_SECRET_BYTES = 32, SEAL_CIPHER_NONCE_BYTES = 24, SEAL_CIPHER_TAG_BYTES = 16 };

struct seal_text { /* what a tag covers beside the page */
    const uint8_t *bytes;
    size_t n;
};

struct seal_cipher {
    const char *name; /* of the library */
    /* @ret: [n], @ret_tag: [SEAL_CIPHER_TAG_BYTES]; they do not overlap @page. It cannot fail. */
    void (*encrypt)(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                    const uint8_t *page, size_t n, uint8_t *ret, uint8_t *ret_tag);
    /* @ret: may be @sealed. Return: whether the tag is right; else @ret has zeros, or is unchanged. */
    bool (*decrypt)(const uint8_t *secret, const uint8_t *nonce, const struct seal_text *beside,
                    const uint8_t *sealed, size_t n, const uint8_t *tag, uint8_t *ret);
};

extern const struct seal_cipher seal_cipher_sodium;

/*
 * The faster one of this process: OpenSSL's, or libsodium's where OpenSSL is not built or has no ChaCha20, as
 * in FIPS builds. openssl.cnf is not read. It is in a library of its own, kvc_seal, so that libkvcobra needs
 * no OpenSSL.
 */
const struct seal_cipher *seal_cipher_fastest(void);
