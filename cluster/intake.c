/* See intake.h. */
#include "cluster/intake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/reply.h"

enum { LINE_BYTES_MAX = 24, LENGTH_DIGITS_MAX = 12 };
static const char line_end[2] = "\r\n";

/* What the reply in the reader still has behind its first bytes. */
enum intake_behind { BEHIND_BYTES, BEHIND_LINE, BEHIND_ALL };

struct intake {
    struct reply_reader *reader;
    char line[LINE_BYTES_MAX]; /* first bytes of a reply */
    size_t n_line;
    enum intake_behind behind;
    size_t n_behind;        /* BEHIND_BYTES */
    bool is_value;          /* a value is on its way to a place */
    uint8_t *to;            /* [n_value]; NULL: it is dropped */
    size_t n_value, n_done; /* done: also of the line's end behind the value */
};

struct intake *intake_new(size_t bytes_max)
{
    struct intake *i = calloc(1, sizeof(*i));

    if (!i)
        return NULL;
    i->reader = reply_reader_new(bytes_max);
    return i->reader ? i : intake_free(i);
}

struct intake *intake_free(struct intake *i)
{
    if (!i)
        return NULL;

    i->reader = reply_reader_free(i->reader);
    free(i);
    return NULL;
}

static void intake_skip(struct intake_bytes *b, size_t n)
{
    b->at += n;
    b->n -= n;
}

/* ---- values in their place ---- */

uint8_t *intake_room(const struct intake *i, size_t *ret_bytes)
{
    if (!i->is_value || !i->to || i->n_done >= i->n_value)
        return NULL;

    *ret_bytes = i->n_value - i->n_done;
    return i->to + i->n_done;
}

void intake_filled(struct intake *i, size_t n)
{
    i->n_done += n;
}

void intake_discard(struct intake *i)
{
    i->to = NULL;
}

static int intake_end_value(struct intake *i, struct reply **ret)
{
    struct reply *o = calloc(1, sizeof(*o));

    if (!o)
        return -ENOMEM;

    o->kind = REPLY_STRING;
    o->n = i->n_value;
    i->is_value = false;
    i->to = NULL;
    *ret = o;
    return 1;
}

static int intake_take_value(struct intake *i, struct intake_bytes *b, struct reply **ret)
{
    if (i->n_done < i->n_value) {
        size_t left = i->n_value - i->n_done, n = left < b->n ? left : b->n;

        if (i->to && n > 0)
            memcpy(i->to + i->n_done, b->at, n);
        i->n_done += n;
        intake_skip(b, n);
    }
    for (; b->n > 0 && i->n_done < i->n_value + sizeof(line_end); intake_skip(b, 1))
        if ((char) *b->at != line_end[i->n_done++ - i->n_value])
            return -EBADMSG;
    return i->n_done < i->n_value + sizeof(line_end) ? 0 : intake_end_value(i, ret);
}

/* ---- lines ---- */

/* Return: whether the first line of a reply is there, or more of it than the line of a string has. */
static bool intake_take_line(struct intake *i, struct intake_bytes *b)
{
    while (b->n > 0) {
        i->line[i->n_line++] = (char) *b->at;
        intake_skip(b, 1);
        if (i->line[i->n_line - 1] == '\n' || i->n_line == sizeof(i->line))
            return true;
    }
    return false;
}

/* Return: whether the line is that of a string, of *ret bytes. */
static bool intake_read_length(const struct intake *i, size_t *ret)
{
    size_t n = 0, n_digits = i->n_line - 1 - sizeof(line_end);

    if (i->line[0] != '$' || i->n_line < 1 + 1 + sizeof(line_end) || n_digits > LENGTH_DIGITS_MAX ||
        memcmp(i->line + 1 + n_digits, line_end, sizeof(line_end)) != 0)
        return false;
    for (size_t k = 1; k <= n_digits; k++) {
        if (i->line[k] < '0' || i->line[k] > '9')
            return false;
        n = n * 10 + (size_t) (i->line[k] - '0');
    }
    *ret = n;
    return true;
}

/* How much of the bytes the reader needs for its reply: none of the next one, which may have a place. */
static size_t intake_count_behind(const struct intake *i, const struct intake_bytes *b)
{
    const uint8_t *end = i->behind == BEHIND_LINE && b->n > 0 ? memchr(b->at, '\n', b->n) : NULL;

    if (end)
        return (size_t) (end - b->at) + 1;
    return i->behind == BEHIND_BYTES && i->n_behind < b->n ? i->n_behind : b->n;
}

/* What follows the line in the reply. @is_string: of @n bytes. */
static void intake_set_behind(struct intake *i, bool is_string, size_t n)
{
    bool has_end = i->line[i->n_line - 1] == '\n', is_one_line = strchr("+-:$", i->line[0]) != NULL;

    i->n_behind = is_string ? n + sizeof(line_end) : 0;
    if (is_string || (has_end && is_one_line))
        i->behind = BEHIND_BYTES;
    else
        i->behind = is_one_line ? BEHIND_LINE : BEHIND_ALL;
}

/* ---- replies ---- */

static int intake_read(struct intake *i, const void *bytes, size_t n, struct reply **ret)
{
    int r = n > 0 ? reply_feed(i->reader, bytes, n) : 0;

    return r < 0 ? r : reply_take(i->reader, ret);
}

static int intake_begin(struct intake *i, const struct intake_place *place, struct intake_bytes *b,
                        struct reply **ret)
{
    size_t n = 0, n_line;
    bool is_string;

    if (!intake_take_line(i, b))
        return 0;

    n_line = i->n_line;
    is_string = intake_read_length(i, &n);
    intake_set_behind(i, is_string, n);
    i->n_line = 0;
    if (!is_string || !place->to || n < INTAKE_VALUE_BYTES_MIN || n > place->bytes)
        return intake_read(i, i->line, n_line, ret);

    i->is_value = true;
    i->to = place->to;
    i->n_value = n;
    i->n_done = 0;
    return intake_take_value(i, b, ret);
}

int intake_take(struct intake *i, const struct intake_place *place, struct intake_bytes *b,
                struct reply **ret)
{
    int r;

    if (i->is_value)
        return intake_take_value(i, b, ret);
    if (reply_reader_is_empty(i->reader)) {
        r = intake_begin(i, place, b, ret);
        if (r != 0 || i->is_value || reply_reader_is_empty(i->reader))
            return r;
    }

    do {
        size_t n = intake_count_behind(i, b);

        r = intake_read(i, b->at, n, ret);
        intake_skip(b, n);
        if (i->behind == BEHIND_BYTES)
            i->n_behind -= n;
        if (r == 0 && b->n > 0)
            i->behind = BEHIND_ALL; /* no such reply goes on: the reader decides */
    } while (r == 0 && b->n > 0);
    return r;
}
