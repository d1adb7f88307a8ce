/*
 * Replies of a Redis or Valkey server, parsed by the reader of hiredis. The server is hostile: a reply has at
 * most REPLY_ITEMS_MAX items, and the bytes of one reply a limit, so the memory for it is bounded.
 *
 * hiredis 0.14.1 makes its own objects with a multiplication that can overflow, and keeps a count of items
 * in an int (CVE-2021-32765). This file passes functions of its own, which refuse such counts. They also
 * refuse more than seven levels of arrays, as the reader of 0.14.1 does and newer ones do not; no reply that
 * this program asks for has more than four.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPLY_ITEMS_MAX 262144 /* a map of slots with 16384 ranges and a replica each */
#define REPLY_DEPTH_MAX 7

enum reply_kind { REPLY_NIL, REPLY_INTEGER, REPLY_STRING, REPLY_STATUS, REPLY_ERROR, REPLY_ARRAY };

struct reply {
    enum reply_kind kind;
    long long integer;
    size_t n;             /* bytes of @text, or items */
    char *text;           /* STRING, STATUS, ERROR: [n], then a NUL; NULL: a STRING elsewhere (intake.h) */
    struct reply **items; /* ARRAY: [n]; NULL for items that have not arrived */
};

struct reply_reader;

/* @bytes_max: of one reply. NULL: out of memory. */
struct reply_reader *reply_reader_new(size_t bytes_max);
struct reply_reader *reply_reader_free(struct reply_reader *r); /* NULL is allowed; returns NULL */

/*
 * Adds received bytes. Return: 0; -ENOMEM; -EFBIG: the reply is too large. After a failure the reader can
 * only be freed.
 */
int reply_feed(struct reply_reader *r, const void *bytes, size_t n);

/*
 * Takes the next reply. Return: 1; 0: it is not whole; -EBADMSG: not RESP, above the limits, or out of
 * memory.
 */
int reply_take(struct reply_reader *r, struct reply **ret);

/* No byte waits for a reply. */
bool reply_reader_is_empty(const struct reply_reader *r);

struct reply *reply_free(struct reply *r); /* NULL is allowed; returns NULL */
static inline void reply_freep(struct reply **r)
{
    *r = reply_free(*r);
}

/* Whether an error begins with @word and a blank, or is @word. */
bool reply_is_error(const struct reply *r, const char *word);
