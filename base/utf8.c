/* See utf8.h. */
#include "base/utf8.h"

#include <stdint.h>
#include <unistr.h>

size_t utf8_length(const char *p, size_t n)
{
    int length = n > 0 ? u8_mblen((const uint8_t *) p, n) : -1;

    if (length == 0) /* u8_mblen() returns 0 for NUL, which is a character of one byte */
        return 1;

    return length < 0 ? 0 : (size_t) length;
}

size_t utf8_error(const char *p, size_t n)
{
    const uint8_t *bad = u8_check((const uint8_t *) p, n);

    return bad ? (size_t) (bad - (const uint8_t *) p) : n;
}
