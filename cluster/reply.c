/* See reply.h. */
#include "cluster/reply.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

struct reply_reader {
    redisReader *reader;
    size_t bytes_max, n_fed; /* bytes since the last whole reply */
    size_t n_items;          /* of the reply that is being read */
};

/* Since 1.0 hiredis passes a size_t. */
#if HIREDIS_MAJOR >= 1
typedef size_t reply_count;
#else
typedef int reply_count;
#endif

/* Makes an object and puts it where its parent has a place for it. NULL: out of memory, or too many. */
static struct reply *reply_new(const redisReadTask *t, enum reply_kind kind)
{
    struct reply_reader *r = t->privdata;
    struct reply *o;

    if (r->n_items == REPLY_ITEMS_MAX)
        return NULL;

    o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    r->n_items++;
    o->kind = kind;
    return o;
}

/* The last step of each function below: an object without a place would be lost after a failure. */
static void *reply_place(const redisReadTask *t, struct reply *o)
{
    struct reply *parent = t->parent ? t->parent->obj : NULL;

    if (parent)
        parent->items[t->idx] = o;
    return o;
}

static void *reply_new_string(const redisReadTask *t, char *text, size_t n)
{
    enum reply_kind kind = t->type == REDIS_REPLY_STATUS ? REPLY_STATUS : REPLY_STRING;
    struct reply *o = reply_new(t, t->type == REDIS_REPLY_ERROR ? REPLY_ERROR : kind);

    if (!o)
        return NULL;
    o->text = malloc(n + 1);
    if (!o->text)
        return reply_free(o);

    memcpy(o->text, text, n);
    o->text[n] = '\0';
    o->n = n;
    return reply_place(t, o);
}

static void *reply_new_array(const redisReadTask *t, reply_count n)
{
    const struct reply_reader *r = t->privdata;
    unsigned depth = 0;
    struct reply *o;

    for (const redisReadTask *p = t->parent; p; p = p->parent)
        if (++depth == REPLY_DEPTH_MAX)
            return NULL;
    if (n < 0 || (size_t) n > REPLY_ITEMS_MAX - r->n_items)
        return NULL;

    o = reply_new(t, REPLY_ARRAY);
    if (o && n > 0) {
        o->items = calloc((size_t) n, sizeof(struct reply *));
        if (!o->items)
            return reply_free(o);
        o->n = (size_t) n;
    }
    return o ? reply_place(t, o) : NULL;
}

static void *reply_new_integer(const redisReadTask *t, long long v)
{
    struct reply *o = reply_new(t, REPLY_INTEGER);

    if (o)
        o->integer = v;
    return o ? reply_place(t, o) : NULL;
}

static void *reply_new_nil(const redisReadTask *t)
{
    struct reply *o = reply_new(t, REPLY_NIL);

    return o ? reply_place(t, o) : NULL;
}

/* Types of RESP3, which this program never asks for. Without functions the reader would make objects up. */
#if HIREDIS_MAJOR >= 1
static void *reply_refuse_double(const redisReadTask *t, double v, char *text, size_t n)
{
    (void) t, (void) v, (void) text, (void) n;
    return NULL;
}

static void *reply_refuse_bool(const redisReadTask *t, int v)
{
    (void) t, (void) v;
    return NULL;
}
#endif

static void reply_free_object(void *o)
{
    (void) reply_free(o);
}

static redisReplyObjectFunctions reply_functions = {
    .createString = reply_new_string,
    .createArray = reply_new_array,
    .createInteger = reply_new_integer,
    .createNil = reply_new_nil,
#if HIREDIS_MAJOR >= 1
    .createDouble = reply_refuse_double,
    .createBool = reply_refuse_bool,
#endif
    .freeObject = reply_free_object,
};

struct reply_reader *reply_reader_new(size_t bytes_max)
{
    struct reply_reader *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->bytes_max = bytes_max;
    r->reader = redisReaderCreateWithFunctions(&reply_functions);
    if (!r->reader) {
        free(r);
        return NULL;
    }
    r->reader->privdata = r;
    return r;
}

struct reply_reader *reply_reader_free(struct reply_reader *r)
{
    if (!r)
        return NULL;

    redisReaderFree(r->reader);
    free(r);
    return NULL;
}

int reply_feed(struct reply_reader *r, const void *bytes, size_t n)
{
    if (n > r->bytes_max || r->n_fed > r->bytes_max - n)
        return -EFBIG;
    if (redisReaderFeed(r->reader, bytes, n) != REDIS_OK)
        return -ENOMEM;

    r->n_fed += n;
    return 0;
}

int reply_take(struct reply_reader *r, struct reply **ret)
{
    void *o = NULL;

    if (redisReaderGetReply(r->reader, &o) != REDIS_OK)
        return -EBADMSG;
    if (!o)
        return 0;

    r->n_items = 0;
    r->n_fed = r->reader->len - r->reader->pos; /* what follows in the reader's buffer */
    *ret = o;
    return 1;
}

bool reply_reader_is_empty(const struct reply_reader *r)
{
    return r->n_fed == 0;
}

/* Recursion ends: reply_new_array() refuses deeper arrays. */
struct reply *reply_free(struct reply *r)
{
    if (!r)
        return NULL;

    for (size_t i = 0; r->items && i < r->n; i++)
        (void) reply_free(r->items[i]);
    free(r->items);
    free(r->text);
    free(r);
    return NULL;
}

bool reply_is_error(const struct reply *r, const char *word)
{
    size_t n = strlen(word);

    return r->kind == REPLY_ERROR && r->n >= n && memcmp(r->text, word, n) == 0 &&
           (r->n == n || r->text[n] == ' ');
}
