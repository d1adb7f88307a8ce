/*
 * Replies of a server of a cluster, in one piece by the reader alone, and in pieces of the first byte's
 * length, also with a place for values: all give the same replies. Each is read as a map of slots and as a
 * redirection.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "cluster/intake.h"
#include "cluster/reply.h"
#include "cluster/slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES_MAX = 1 << 16, PLACE_BYTES = 2048 };

static uint8_t place_bytes[PLACE_BYTES];

static void check(bool ok)
{
    if (!ok)
        abort();
}

static uint64_t sum(const struct reply *r, unsigned depth)
{
    const uint8_t *text = r->text ? (const uint8_t *) r->text : place_bytes;
    uint64_t s = r->kind + 31 * (uint64_t) r->integer + 7 * r->n;
    bool has_text = r->kind == REPLY_STRING || r->kind == REPLY_STATUS || r->kind == REPLY_ERROR;

    check(depth <= REPLY_DEPTH_MAX && r->n <= BYTES_MAX + REPLY_ITEMS_MAX);
    if (r->text)
        check(r->text[r->n] == '\0');
    else if (has_text)
        check(r->n <= PLACE_BYTES && depth == 0);
    for (size_t i = 0; i < r->n && r->kind == REPLY_ARRAY; i++)
        s = 33 * s + sum(r->items[i], depth + 1);
    for (size_t i = 0; i < r->n && has_text; i++)
        s = 33 * s + text[i];
    return s;
}

static void on_range(void *ctx, const struct slots_range *s)
{
    (void) ctx;
    check(s->first <= s->last && s->last < SLOTS_N && strlen(s->host) < HOST_BYTES);
}

static uint64_t use(const struct reply *r)
{
    struct redirection d;
    struct errmsg gap = {""}, e = {""};

    check(slots_parse(r, true, on_range, NULL, &gap, &e) == 0 || e.text[0] != '\0');
    if (slots_parse_redirection(r, true, &d) == 0)
        check(d.slot < SLOTS_N && (d.port > 0 || d.host[0]) && strlen(d.host) < HOST_BYTES);
    return sum(r, 0);
}

/* Return: a sum over all replies. */
static uint64_t read_all(const uint8_t *data, size_t size, size_t piece)
{
    struct reply_reader *reader = reply_reader_new(BYTES_MAX);
    uint64_t s = 0;
    int r = 0;

    check(reader);
    for (size_t at = 0; at < size && r >= 0; at += piece) {
        struct reply *reply = NULL;

        r = reply_feed(reader, data + at, size - at < piece ? size - at : piece);
        while (r >= 0 && (r = reply_take(reader, &reply)) == 1) {
            s = 1000003 * s + use(reply);
            reply = reply_free(reply);
        }
    }
    (void) reply_reader_free(reader);
    return s;
}

/* The same by an intake. */
static uint64_t take_all(const uint8_t *data, size_t size, size_t piece, const struct intake_place *place)
{
    struct intake *intake = intake_new(BYTES_MAX);
    uint64_t s = 0;
    int r = 0;

    check(intake);
    for (size_t at = 0; at < size && r >= 0;) {
        size_t n = size - at < piece ? size - at : piece, room = n;
        uint8_t *to = intake_room(intake, &room);
        struct intake_bytes b = {.at = data + at, .n = n};
        struct reply *reply = NULL;

        if (to) {
            n = n < room ? n : room;
            memcpy(to, data + at, n);
            intake_filled(intake, n);
            b.n = 0;
        }
        at += n;
        while (r >= 0 && (r = intake_take(intake, place, &b, &reply)) == 1) {
            s = 1000003 * s + use(reply);
            reply = reply_free(reply);
        }
        check(r < 0 || b.n == 0);
    }
    (void) intake_free(intake);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct intake_place none = {.to = NULL}, place = {place_bytes, sizeof(place_bytes)};
    uint64_t whole;

    if (size < 1 || size > BYTES_MAX)
        return 0;

    whole = read_all(data + 1, size - 1, size);
    check(whole == read_all(data + 1, size - 1, 1 + (size_t) data[0]));
    check(whole == take_all(data + 1, size - 1, 1 + (size_t) data[0], &none));
    check(whole == take_all(data + 1, size - 1, 1 + (size_t) data[0], &place));
    return 0;
}
