/* See request.h. */
#include "cluster/request.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/node.h"
#include "cluster/reply.h"
#include "cluster/router.h"
#include "daemon/loop/ev.h"

struct request {
    struct requests *all;
    uint64_t deadline_ms, number;
    bool waits; /* a PUT above the rate */
    uint32_t n_left;
    uint64_t offset;
    struct cluster_reply reply;
    uint32_t n;
    struct command commands[]; /* [n] */
};

/* Sends the reply. @r is freed. */
static void request_end(struct request *r)
{
    struct requests *s = r->all;

    for (unsigned i = 0; i < s->n; i++) {
        if (s->list[i] == r) {
            s->list[i] = s->list[--s->n];
            break;
        }
    }
    if (r->reply.result < 0 && r->reply.result != -ENOENT && r->reply.result != -EEXIST)
        s->counters[CLUSTER_COUNTER_FAILED]++;
    s->reply(s->ctx, &r->reply);
    free(r);
}

/* ---- replies of the cluster ---- */

static int request_take_bit(struct request *r, uint32_t i, const struct reply *reply)
{
    uint64_t *counters = r->all->counters;

    if (reply->kind != REPLY_INTEGER || (reply->integer != 0 && reply->integer != 1))
        return -EBADMSG;

    if (reply->integer == 1)
        r->reply.bits[i / 8] |= (uint8_t) (1u << (i % 8));
    if (r->reply.kind == CLUSTER_EXISTS)
        counters[reply->integer == 1 ? CLUSTER_COUNTER_FOUND : CLUSTER_COUNTER_MISSED]++;
    return 0;
}

/* GETRANGE of a key that does not exist is an empty string. */
static int request_take_value(struct request *r, const struct reply *reply)
{
    if (reply->kind != REPLY_STRING)
        return -EBADMSG;
    if (reply->n == 0)
        return -ENOENT;
    if (reply->n > r->commands[0].value_bytes)
        return -EFBIG;

    if (reply->text) /* else it was received there */
        memcpy(r->all->memory + r->offset, reply->text, reply->n);
    r->reply.bytes = reply->n;
    r->all->counters[CLUSTER_COUNTER_READ]++;
    r->all->counters[CLUSTER_COUNTER_READ_BYTES] += reply->n;
    return 0;
}

static int request_take_stored(struct request *r, const struct reply *reply)
{
    if (reply->kind == REPLY_NIL)
        return -EEXIST;
    if (reply->kind != REPLY_STATUS)
        return -EBADMSG;

    r->all->counters[CLUSTER_COUNTER_WRITTEN]++;
    r->all->counters[CLUSTER_COUNTER_WRITTEN_BYTES] += r->commands[0].value_bytes;
    return 0;
}

static int request_take(struct request *r, uint32_t i, const struct reply *reply)
{
    switch (r->reply.kind) {
    case CLUSTER_GET:
        return request_take_value(r, reply);
    case CLUSTER_PUT:
        return request_take_stored(r, reply);
    default:
        return request_take_bit(r, i, reply);
    }
}

static void request_on_done(struct command *c, int result, const struct reply *reply)
{
    struct request *r = c->ctx;

    if (result == 0)
        result = request_take(r, (uint32_t) (c - r->commands), reply);
    if (result < 0 && r->reply.result == 0)
        r->reply.result = result;
    if (--r->n_left == 0)
        request_end(r);
}

/* ---- requests of kvcobrad ---- */

static void request_init_command(struct request *r, struct command *c, const struct cluster_request *q,
                                 const uint8_t name[static CLUSTER_NAME_BYTES])
{
    static const enum command_kind kinds[] = {[CLUSTER_EXISTS] = COMMAND_EXISTS,
                                              [CLUSTER_GET] = COMMAND_GET,
                                              [CLUSTER_PUT] = COMMAND_SET,
                                              [CLUSTER_TOUCH] = COMMAND_EXPIRE,
                                              [CLUSTER_REMOVE] = COMMAND_UNLINK};
    char hex[2 * CLUSTER_NAME_BYTES + 1];

    c->kind = kinds[q->kind];
    c->ttl_ms = q->ttl_ms;
    c->value = q->kind == CLUSTER_PUT ? r->all->memory + q->offset : NULL;
    c->to = q->kind == CLUSTER_GET ? r->all->memory + q->offset : NULL;
    c->value_bytes = q->bytes;
    if (q->kind == CLUSTER_GET && c->value_bytes > r->all->value_bytes_max)
        c->value_bytes = r->all->value_bytes_max;
    c->done = request_on_done;
    c->ctx = r;
    (void) sodium_bin2hex(hex, sizeof(hex), name, CLUSTER_NAME_BYTES);
    c->key_bytes = (uint16_t) snprintf(c->key, sizeof(c->key), "%s%s", r->all->prefix, hex);
}

/* NULL: out of memory. */
static struct request *request_new(struct requests *s, const struct cluster_request *q)
{
    struct request *r = calloc(1, sizeof(*r) + q->n_names * sizeof(r->commands[0]));

    if (!r)
        return NULL;
    r->all = s;
    r->n = q->n_names;
    r->offset = q->offset;
    r->deadline_ms = ev_now_ms(s->ev) + q->timeout_ms;
    r->reply.kind = q->kind;
    r->reply.id = q->id;
    if (cluster_kind_has_bits(q->kind))
        r->reply.n_bits = q->n_names;
    for (uint32_t i = 0; i < r->n; i++)
        request_init_command(r, &r->commands[i], q, q->names[i]);
    return r;
}

/* One more than the commands are left, so that the request outlives commands that end at once. */
static void request_submit(struct request *r)
{
    r->waits = false;
    r->n_left = r->n + 1;
    for (uint32_t i = 0; i < r->n; i++)
        router_submit(r->all->router, &r->commands[i]);
    if (--r->n_left == 0)
        request_end(r);
}

static void requests_refuse(struct requests *s, const struct cluster_request *q, int result)
{
    struct cluster_reply reply = {.kind = q->kind, .id = q->id, .result = result};

    if (cluster_kind_has_bits(q->kind))
        reply.n_bits = q->n_names;
    s->counters[CLUSTER_COUNTER_FAILED]++;
    s->reply(s->ctx, &reply);
}

/* ---- the rate of writes ---- */

/* What is left grows by the rate, up to a quarter of a second of it. */
static void requests_fill(struct requests *s)
{
    uint64_t now_ms = ev_now_ms(s->ev), past_ms = now_ms - s->filled_ms;
    int64_t most = (int64_t) (s->write_bytes_per_s / 4);

    if (past_ms > 250)
        past_ms = 250;
    s->filled_ms = now_ms;
    s->write_bytes_left += (int64_t) (s->write_bytes_per_s * past_ms / 1000);
    if (s->write_bytes_left > most)
        s->write_bytes_left = most;
}

static struct request *requests_oldest_put(const struct requests *s)
{
    struct request *oldest = NULL;

    for (unsigned i = 0; i < s->n; i++)
        if (s->list[i]->waits && (!oldest || s->list[i]->number < oldest->number))
            oldest = s->list[i];
    return oldest;
}

static void requests_write(struct requests *s)
{
    struct request *r;

    requests_fill(s);
    while (s->write_bytes_left > 0 && (r = requests_oldest_put(s))) {
        s->write_bytes_left -= (int64_t) r->commands[0].value_bytes;
        request_submit(r);
    }
}

void requests_start(struct requests *s, const struct cluster_request *q)
{
    bool has_range = q->kind == CLUSTER_GET || q->kind == CLUSTER_PUT;
    struct request *r;

    if (s->n == CLUSTER_REQUESTS_MAX) {
        requests_refuse(s, q, -EBUSY);
        return;
    }
    if (has_range && (q->bytes > s->memory_bytes || q->offset > s->memory_bytes - q->bytes)) {
        requests_refuse(s, q, -EINVAL);
        return;
    }
    r = request_new(s, q);
    if (!r) {
        requests_refuse(s, q, -ENOMEM);
        return;
    }

    s->list[s->n++] = r;
    if (q->kind == CLUSTER_PUT) {
        r->waits = true;
        r->number = ++s->n_started;
        requests_write(s);
    } else {
        request_submit(r);
    }
}

/* ---- ends ---- */

static void request_forget(struct request *r, bool is_late)
{
    for (uint32_t i = 0; i < r->n; i++)
        node_forget(&r->commands[i], is_late);
}

void requests_tick(struct requests *s)
{
    uint64_t now_ms = ev_now_ms(s->ev);

    for (unsigned i = s->n; i-- > 0;) { /* ending one moves the last into its place */
        struct request *r = s->list[i];

        if (now_ms < r->deadline_ms)
            continue;
        request_forget(r, true);
        r->reply.result = -ETIMEDOUT;
        r->reply.bytes = 0;
        s->counters[CLUSTER_COUNTER_LATE]++;
        request_end(r);
    }
    requests_write(s);
}

void requests_drop(struct requests *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        request_forget(s->list[i], false);
        free(s->list[i]);
    }
    s->n = 0;
}
