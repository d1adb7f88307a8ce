/*
 * Replies of a server of a cluster, in one piece and in pieces of the first byte's length: both give the same
 * replies. Each is read as a map of slots and as a redirection.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "cluster/reply.h"
#include "cluster/slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES_MAX = 1 << 16 };

static void check(bool ok)
{
    if (!ok)
        abort();
}

static uint64_t sum(const struct reply *r, unsigned depth)
{
    uint64_t s = r->kind + 31 * (uint64_t) r->integer + 7 * r->n;

    check(depth <= REPLY_DEPTH_MAX && r->n <= BYTES_MAX + REPLY_ITEMS_MAX);
    if (r->text)
        check(r->text[r->n] == '\0');
    for (size_t i = 0; i < r->n && r->kind == REPLY_ARRAY; i++)
        s = 33 * s + sum(r->items[i], depth + 1);
    for (size_t i = 0; i < r->n && r->text; i++)
        s = 33 * s + (uint8_t) r->text[i];
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > BYTES_MAX)
        return 0;
    check(read_all(data + 1, size - 1, size) == read_all(data + 1, size - 1, 1 + (size_t) data[0]));
    return 0;
}
