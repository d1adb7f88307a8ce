/*
 * Received bytes of one connection as replies. The value of a GET goes where it is wanted as it arrives, and
 * is copied nowhere else; every other reply is made by the reader of reply.h, with its limits.
 *
 *     room = intake_room(...): receive into it, and say so by intake_filled(); or receive elsewhere
 *     while intake_take(...) == 1: a reply
 *
 * Only a string is received into its place, of at least INTAKE_VALUE_BYTES_MIN bytes and at most those of the
 * place: the memory behind it is not written.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct intake;
struct reply;

#define INTAKE_VALUE_BYTES_MIN 1024

struct intake_place {
    uint8_t *to; /* [bytes]; NULL: the value goes into the reply */
    size_t bytes;
};

struct intake_bytes { /* received, and not taken yet */
    const uint8_t *at;
    size_t n;
};

/* @bytes_max: of a reply that has no place. NULL: out of memory. */
struct intake *intake_new(size_t bytes_max);
struct intake *intake_free(struct intake *i); /* NULL is allowed; returns NULL */

/* Where the next [*ret_bytes] belong. NULL: no value is on its way to a place. */
uint8_t *intake_room(const struct intake *i, size_t *ret_bytes);
/* @n bytes are in the room. */
void intake_filled(struct intake *i, size_t n);

/*
 * Takes the next reply. @place: of its value. A STRING that was received into its place has no text. Return:
 * 1; 0: all bytes were taken, and no reply is whole; -EFBIG, -EBADMSG, -ENOMEM: as of reply.h, and *i can
 * only be freed.
 */
int intake_take(struct intake *i, const struct intake_place *place, struct intake_bytes *b,
                struct reply **ret);

/* The value that is on its way is no longer wanted: its place is not written. */
void intake_discard(struct intake *i);
