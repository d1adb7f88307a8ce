/* See cluster_wire.h. */
#include "proto/cluster_wire.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

/*
 *     request                        reply
 *     0   2   kind                   0   2   kind
 *     2   2   zero                   2   2   zero
 *     4   4   n_names                4   4   result
 *     8   8   id                     8   8   id
 *     16  4   timeout_ms             16  8   bytes
 *     20  4   version                24  4   n_bits
 *     24  8   offset                 28  4   version
 *     32  8   bytes                  32  ... bits; or counters and sentence
 *     40  8   ttl_ms
 *     48  16  fleet
 *     64  ... names
 */

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return le16toh(v);
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

static void store16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof(v));
}

static void store32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static void store64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

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
    const uint8_t *p = packet;
    struct cluster_request q;

    if (bytes < CLUSTER_REQUEST_HEAD_BYTES || bytes > CLUSTER_REQUEST_BYTES_MAX || load16(p + 2) != 0)
        return -EBADMSG;

    q = (struct cluster_request){
        .kind = (enum cluster_kind) load16(p),
        .n_names = load32(p + 4),
        .id = load64(p + 8),
        .timeout_ms = load32(p + 16),
        .version = load32(p + 20),
        .offset = load64(p + 24),
        .bytes = load64(p + 32),
        .ttl_ms = load64(p + 40),
        .names = (const uint8_t(*)[CLUSTER_NAME_BYTES])(p + CLUSTER_REQUEST_HEAD_BYTES),
    };
    memcpy(q.fleet, p + 48, sizeof(q.fleet));
    if (!cluster_request_is_valid(&q) ||
        bytes != CLUSTER_REQUEST_HEAD_BYTES + (size_t) q.n_names * CLUSTER_NAME_BYTES)
        return -EBADMSG;

    *ret = q;
    return 0;
}

size_t cluster_request_encode(const struct cluster_request *q, uint8_t *ret)
{
    size_t bytes = (size_t) q->n_names * CLUSTER_NAME_BYTES;

    assert(q->n_names <= CLUSTER_NAMES_MAX);
    store16(ret, (uint16_t) q->kind);
    store16(ret + 2, 0);
    store32(ret + 4, q->n_names);
    store64(ret + 8, q->id);
    store32(ret + 16, q->timeout_ms);
    store32(ret + 20, q->version);
    store64(ret + 24, q->offset);
    store64(ret + 32, q->bytes);
    store64(ret + 40, q->ttl_ms);
    memcpy(ret + 48, q->fleet, sizeof(q->fleet));
    if (bytes > 0)
        memcpy(ret + CLUSTER_REQUEST_HEAD_BYTES, q->names, bytes);
    return CLUSTER_REQUEST_HEAD_BYTES + bytes;
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
    for (unsigned i = 0; i < CLUSTER_N_COUNTERS; i++)
        r->counters[i] = load64(p + 8 * i);
    memcpy(r->sentence, p + 8 * CLUSTER_N_COUNTERS, sizeof(r->sentence));
    if (r->counters[CLUSTER_COUNTER_STATE] > CLUSTER_REFUSED)
        return false;

    for (size_t i = strnlen(r->sentence, sizeof(r->sentence)), n = i; i < sizeof(r->sentence); i++)
        if (n == sizeof(r->sentence) || r->sentence[i] != '\0')
            return false;
    return r->sentence[sizeof(r->sentence) - 1] == '\0';
}

int cluster_reply_decode(const void *packet, size_t bytes, struct cluster_reply *ret)
{
    const uint8_t *p = packet;
    struct cluster_reply r;

    if (bytes < CLUSTER_REPLY_HEAD_BYTES || load16(p + 2) != 0)
        return -EBADMSG;

    r = (struct cluster_reply){
        .kind = (enum cluster_kind) load16(p),
        .result = (int) load32(p + 4),
        .id = load64(p + 8),
        .bytes = load64(p + 16),
        .n_bits = load32(p + 24),
        .version = load32(p + 28),
    };
    if (!cluster_reply_is_valid(&r) || bytes != cluster_reply_bytes(&r))
        return -EBADMSG;

    if (cluster_kind_has_bits(r.kind))
        memcpy(r.bits, p + CLUSTER_REPLY_HEAD_BYTES, (r.n_bits + 7) / 8);
    if (!cluster_bits_end(&r) ||
        (r.kind == CLUSTER_STATUS && !cluster_reply_load_status(p + CLUSTER_REPLY_HEAD_BYTES, &r)))
        return -EBADMSG;

    *ret = r;
    return 0;
}

size_t cluster_reply_encode(const struct cluster_reply *r, uint8_t *ret)
{
    size_t bytes = cluster_reply_bytes(r);

    memset(ret, 0, bytes);
    store16(ret, (uint16_t) r->kind);
    store32(ret + 4, (uint32_t) r->result);
    store64(ret + 8, r->id);
    store64(ret + 16, r->bytes);
    store32(ret + 24, r->n_bits);
    store32(ret + 28, r->version);
    if (cluster_kind_has_bits(r->kind))
        memcpy(ret + CLUSTER_REPLY_HEAD_BYTES, r->bits, (r->n_bits + 7) / 8);
    if (r->kind == CLUSTER_STATUS) {
        for (unsigned i = 0; i < CLUSTER_N_COUNTERS; i++)
            store64(ret + CLUSTER_REPLY_HEAD_BYTES + 8 * i, r->counters[i]);
        memcpy(ret + CLUSTER_REPLY_HEAD_BYTES + 8 * CLUSTER_N_COUNTERS, r->sentence,
               strnlen(r->sentence, CLUSTER_SENTENCE_BYTES - 1));
    }
    return bytes;
}
