/* See cluster_wire.h. */
#include "proto/cluster_wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers of packets are little-endian");

struct cluster_wire_request { /* then the names */
    uint16_t kind, zero;
    uint32_t n_names;
    uint64_t id;
    uint32_t timeout_ms, version;
    uint64_t offset, bytes, ttl_ms;
    uint8_t fleet[CLUSTER_FLEET_BYTES];
};
_Static_assert(sizeof(struct cluster_wire_request) == CLUSTER_REQUEST_HEAD_BYTES, "no padding");

struct cluster_wire_reply { /* then the bits; or struct cluster_wire_status */
    uint16_t kind, zero;
    int32_t result;
    uint64_t id, bytes;
    uint32_t n_bits, version;
};
_Static_assert(sizeof(struct cluster_wire_reply) == CLUSTER_REPLY_HEAD_BYTES, "no padding");

struct cluster_wire_status {
    uint64_t counters[CLUSTER_N_COUNTERS];
    char sentence[CLUSTER_SENTENCE_BYTES];
};
_Static_assert(sizeof(struct cluster_wire_reply) + sizeof(struct cluster_wire_status) ==
                   CLUSTER_REPLY_BYTES_MAX,
               "no padding");

static bool cluster_wire_is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* ---- requests ---- */

static bool cluster_range_is_valid(const struct cluster_request *q)
{
    return q->bytes > 0 && q->bytes <= CLUSTER_MEMORY_BYTES_MAX &&
           q->offset <= CLUSTER_MEMORY_BYTES_MAX - q->bytes;
}

/* Members that the kind has are in their ranges, and all others are zero. */
static bool cluster_request_is_valid(const struct cluster_request *q)
{
    bool has_names = cluster_kind_has_bits(q->kind);
    bool has_range = q->kind == CLUSTER_GET || q->kind == CLUSTER_PUT;
    bool has_ttl = q->kind == CLUSTER_PUT || q->kind == CLUSTER_TOUCH;
    bool is_hello = q->kind == CLUSTER_HELLO;
    uint32_t n_names_min = has_names || has_range, n_names_max = has_names ? CLUSTER_NAMES_MAX : n_names_min;

    if (q->kind < CLUSTER_HELLO || q->kind > CLUSTER_REMOVE || (q->id != 0) == is_hello)
        return false;
    if (q->n_names < n_names_min || q->n_names > n_names_max)
        return false;
    if (has_names || has_range ? q->timeout_ms == 0 || q->timeout_ms > CLUSTER_TIMEOUT_MS_MAX
                               : q->timeout_ms != 0)
        return false;
    if (has_ttl ? q->ttl_ms == 0 || q->ttl_ms > CLUSTER_TTL_MS_MAX : q->ttl_ms != 0)
        return false;
    if (has_range ? !cluster_range_is_valid(q) : q->offset != 0)
        return false;
    if (is_hello ? q->bytes == 0 || q->bytes > CLUSTER_MEMORY_BYTES_MAX : !has_range && q->bytes != 0)
        return false;
    return is_hello || (q->version == 0 && cluster_wire_is_zero(q->fleet, sizeof(q->fleet)));
}

int cluster_request_decode(const void *packet, size_t bytes, struct cluster_request *ret)
{
    struct cluster_wire_request w;
    struct cluster_request q;

    if (bytes < sizeof(w) || bytes > CLUSTER_REQUEST_BYTES_MAX)
        return -EBADMSG;

    memcpy(&w, packet, sizeof(w));
    q = (struct cluster_request){
        .kind = (enum cluster_kind) w.kind,
        .n_names = w.n_names,
        .id = w.id,
        .timeout_ms = w.timeout_ms,
        .version = w.version,
        .offset = w.offset,
        .bytes = w.bytes,
        .ttl_ms = w.ttl_ms,
        .names = (const uint8_t(*)[CLUSTER_NAME_BYTES])((const uint8_t *) packet + sizeof(w)),
    };
    memcpy(q.fleet, w.fleet, sizeof(q.fleet));
    if (w.zero != 0 || !cluster_request_is_valid(&q) ||
        bytes != sizeof(w) + (size_t) q.n_names * CLUSTER_NAME_BYTES)
        return -EBADMSG;

    *ret = q;
    return 0;
}

size_t cluster_request_encode(const struct cluster_request *q, uint8_t *ret)
{
    size_t bytes = (size_t) q->n_names * CLUSTER_NAME_BYTES;
    struct cluster_wire_request w = {
        .kind = (uint16_t) q->kind,
        .n_names = q->n_names,
        .id = q->id,
        .timeout_ms = q->timeout_ms,
        .version = q->version,
        .offset = q->offset,
        .bytes = q->bytes,
        .ttl_ms = q->ttl_ms,
    };

    assert(q->n_names <= CLUSTER_NAMES_MAX);
    memcpy(w.fleet, q->fleet, sizeof(w.fleet));
    memcpy(ret, &w, sizeof(w));
    if (bytes > 0)
        memcpy(ret + sizeof(w), q->names, bytes);
    return sizeof(w) + bytes;
}

/* ---- replies ---- */

static size_t cluster_reply_bytes(const struct cluster_reply *r)
{
    if (cluster_kind_has_bits(r->kind))
        return CLUSTER_REPLY_HEAD_BYTES + (r->n_bits + 7) / 8;
    return r->kind == CLUSTER_STATUS ? CLUSTER_REPLY_BYTES_MAX : CLUSTER_REPLY_HEAD_BYTES;
}

static bool cluster_reply_is_valid(const struct cluster_reply *r)
{
    bool is_hello = r->kind == CLUSTER_HELLO;

    if (r->kind < CLUSTER_HELLO || r->kind > CLUSTER_REMOVE || (r->id != 0) == is_hello)
        return false;
    if (r->result > 0 || r->result < -4095 || (r->version != 0) != is_hello)
        return false;
    if (r->bytes > (r->kind == CLUSTER_GET && r->result == 0 ? CLUSTER_MEMORY_BYTES_MAX : 0))
        return false;
    return cluster_kind_has_bits(r->kind) ? r->n_bits > 0 && r->n_bits <= CLUSTER_NAMES_MAX : r->n_bits == 0;
}

/* The bits behind the last one are zero, so that a reply has one form only. */
static bool cluster_bits_end(const struct cluster_reply *r)
{
    return r->n_bits % 8 == 0 || r->bits[r->n_bits / 8] >> (r->n_bits % 8) == 0;
}

static bool cluster_reply_load_status(const uint8_t *p, struct cluster_reply *r)
{
    struct cluster_wire_status w;

    memcpy(&w, p, sizeof(w));
    memcpy(r->counters, w.counters, sizeof(r->counters));
    memcpy(r->sentence, w.sentence, sizeof(r->sentence));
    if (r->counters[CLUSTER_COUNTER_STATE] > CLUSTER_DEGRADED)
        return false;

    for (size_t i = strnlen(r->sentence, sizeof(r->sentence)), n = i; i < sizeof(r->sentence); i++)
        if (n == sizeof(r->sentence) || r->sentence[i] != '\0')
            return false;
    return r->sentence[sizeof(r->sentence) - 1] == '\0';
}

int cluster_reply_decode(const void *packet, size_t bytes, struct cluster_reply *ret)
{
    const uint8_t *rest = (const uint8_t *) packet + CLUSTER_REPLY_HEAD_BYTES;
    struct cluster_wire_reply w;
    struct cluster_reply r;

    if (bytes < sizeof(w))
        return -EBADMSG;

    memcpy(&w, packet, sizeof(w));
    r = (struct cluster_reply){
        .kind = (enum cluster_kind) w.kind,
        .result = w.result,
        .id = w.id,
        .bytes = w.bytes,
        .n_bits = w.n_bits,
        .version = w.version,
    };
    if (w.zero != 0 || !cluster_reply_is_valid(&r) || bytes != cluster_reply_bytes(&r))
        return -EBADMSG;

    if (cluster_kind_has_bits(r.kind))
        memcpy(r.bits, rest, (r.n_bits + 7) / 8);
    if (!cluster_bits_end(&r) || (r.kind == CLUSTER_STATUS && !cluster_reply_load_status(rest, &r)))
        return -EBADMSG;

    *ret = r;
    return 0;
}

size_t cluster_reply_encode(const struct cluster_reply *r, uint8_t *ret)
{
    const struct cluster_wire_reply w = {
        .kind = (uint16_t) r->kind,
        .result = r->result,
        .id = r->id,
        .bytes = r->bytes,
        .n_bits = r->n_bits,
        .version = r->version,
    };

    memcpy(ret, &w, sizeof(w));
    if (cluster_kind_has_bits(r->kind))
        memcpy(ret + sizeof(w), r->bits, (r->n_bits + 7) / 8);
    if (r->kind == CLUSTER_STATUS) {
        struct cluster_wire_status s = {.sentence = ""};

        memcpy(s.counters, r->counters, sizeof(s.counters));
        memcpy(s.sentence, r->sentence, strnlen(r->sentence, CLUSTER_SENTENCE_BYTES - 1));
        memcpy(ret + sizeof(w), &s, sizeof(s));
    }
    return cluster_reply_bytes(r);
}
