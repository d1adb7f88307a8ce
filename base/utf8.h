/*
 * Checks UTF-8 as defined by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. Uses
 * libunistring, which the client library does not link.
 */
#pragma once

#include <stddef.h>

/* Bytes of the character that begins at @p, of @n readable bytes; 0 if no valid character begins there. */
size_t utf8_length(const char *p, size_t n);

/* Offset of the first byte of @p that is not part of valid UTF-8; @n if all of it is valid. */
size_t utf8_error(const char *p, size_t n);
