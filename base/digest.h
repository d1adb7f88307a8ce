/*
 * SHA-256 digests in hexadecimal, for logs, output, JSON and the names of table files. Tables, models and
 * statistics are named by their digests.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    DIGEST_HEX_BYTES = 65,    /* 64 digits and NUL */
    DIGEST_SHORT_DIGITS = 12, /* enough to distinguish tables on a screen */
};

/* 64 hexadecimal digits. Returns @ret. */
static inline const char *digest_hex(const uint8_t digest[static 32], char ret[static DIGEST_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < 32; i++) {
        ret[2 * i] = digits[digest[i] >> 4];
        ret[2 * i + 1] = digits[digest[i] & 15];
    }
    ret[64] = '\0';
    return ret;
}

/* The first DIGEST_SHORT_DIGITS digits. Returns @ret. */
static inline const char *digest_short(const uint8_t digest[static 32], char ret[static DIGEST_HEX_BYTES])
{
    (void) digest_hex(digest, ret);
    ret[DIGEST_SHORT_DIGITS] = '\0';
    return ret;
}
