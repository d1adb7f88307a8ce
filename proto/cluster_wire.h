/*
 * Packets between kvcobrad and kvcobra-cluster, the process that speaks to a Redis or Valkey cluster for it
 * (cluster/README.md). A Unix SOCK_SEQPACKET socket, one message per packet, integers little-endian.
 *
 *     kvcobrad listens, kvcobra-cluster connects
 *     kvcobrad -> HELLO with the descriptor of a memory object     -> HELLO's reply
 *     kvcobrad -> EXISTS, GET, PUT, TOUCH, REMOVE, STATUS, in any number   -> one reply each, in any order
 *
 * Values travel in the memory object, which kvcobrad makes and seals SHRINK and GROW: a request names a
 * range of it, and kvcobrad leaves the range alone until the reply. Packets are structs of fixed size
 * instead of protobuf-c messages, since all requests have the same seven fields and a list of names: reading
 * one allocates nothing, and has no budget to exceed.
 *
 * Trust. kvcobra-cluster gets sealed pages, names that are keyed hashes, times to live and the fleet's id;
 * it gets no key, no tenant's name and no token. kvcobrad believes nothing that it says: it may write to the
 * memory object at any time, so kvcobrad copies a value out before it opens the seal, and takes a page that
 * does not open for a miss. A wrong bit of EXISTS costs a GET and, for a while, the room of a page in memory.
 * kvcobra-cluster trusts kvcobrad with its own
 * memory only as far as the checks here: ranges lie in the object, counts have limits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLUSTER_WIRE_VERSION 4
/* of a name: a keyed hash; the name in the cluster is a prefix and its hexadecimal digits */
#define CLUSTER_NAME_BYTES 16
#define CLUSTER_FLEET_BYTES 16   /* keyring_fleet() */
#define CLUSTER_NAMES_MAX 1024   /* of one request */
#define CLUSTER_REQUESTS_MAX 128 /* without a reply; the replies fit the socket's buffer */
#define CLUSTER_TIMEOUT_MS_MAX 60000
#define CLUSTER_TTL_MS_MAX (UINT64_C(400) * 24 * 3600 * 1000)
#define CLUSTER_MEMORY_BYTES_MAX (UINT64_C(1) << 30)

#define CLUSTER_REQUEST_HEAD_BYTES 64
#define CLUSTER_REQUEST_BYTES_MAX (CLUSTER_REQUEST_HEAD_BYTES + CLUSTER_NAMES_MAX * CLUSTER_NAME_BYTES)
#define CLUSTER_REPLY_HEAD_BYTES 32
#define CLUSTER_SENTENCE_BYTES 256
#define CLUSTER_REPLY_BYTES_MAX (CLUSTER_REPLY_HEAD_BYTES + 8 * CLUSTER_N_COUNTERS + CLUSTER_SENTENCE_BYTES)

enum cluster_kind {
    CLUSTER_HELLO = 1,  /* the first packet, with one descriptor */
    CLUSTER_EXISTS = 2, /* which of the names the cluster has */
    CLUSTER_GET = 3,    /* the value of one name, to the range */
    CLUSTER_PUT = 4,    /* the range, as the value of one name */
    CLUSTER_TOUCH = 5,  /* sets the time to live of the names that the cluster has */
    CLUSTER_STATUS = 6,
    CLUSTER_REMOVE = 7, /* the cluster does not have the names any longer */
};

struct cluster_request { /* members that a kind does not use are zero */
    enum cluster_kind kind;
    uint64_t id;                        /* of the reply; not 0, except in HELLO */
    uint32_t timeout_ms;                /* all but HELLO and STATUS: 1 to CLUSTER_TIMEOUT_MS_MAX */
    uint32_t version;                   /* HELLO: CLUSTER_WIRE_VERSION */
    uint64_t offset, bytes;             /* GET, PUT: range of the memory object; HELLO: 0 and its size */
    uint64_t ttl_ms;                    /* PUT, TOUCH: 1 to CLUSTER_TTL_MS_MAX */
    uint8_t fleet[CLUSTER_FLEET_BYTES]; /* HELLO */
    uint32_t n_names;                   /* EXISTS, TOUCH, REMOVE: 1 to CLUSTER_NAMES_MAX; GET, PUT: 1 */
    const uint8_t (*names)[CLUSTER_NAME_BYTES]; /* [n_names]; borrowed: a part of the packet */
};

enum cluster_state {
    CLUSTER_JOINING = 0, /* no map of slots yet, or the fleet's id was not compared: every request fails */
    CLUSTER_READY = 1,
    CLUSTER_REFUSED = 2, /* the sentence has the reason: another fleet's cluster, or not one cluster */
    /* as READY, but slots have no node, or one that does not answer: their pages are misses; the sentence
     * has how many and why */
    CLUSTER_DEGRADED = 3,
};

enum cluster_counter {
    CLUSTER_COUNTER_STATE, /* enum cluster_state */
    CLUSTER_COUNTER_NODES,
    CLUSTER_COUNTER_NODES_READY,
    CLUSTER_COUNTER_WAITING, /* requests */
    CLUSTER_COUNTER_FOUND,   /* names of EXISTS; from here on: since the start */
    CLUSTER_COUNTER_MISSED,
    CLUSTER_COUNTER_READ,
    CLUSTER_COUNTER_READ_BYTES,
    CLUSTER_COUNTER_WRITTEN,
    CLUSTER_COUNTER_WRITTEN_BYTES,
    CLUSTER_COUNTER_FAILED, /* requests with an error other than -ENOENT and -EEXIST */
    CLUSTER_COUNTER_LATE,   /* requests that ended at their deadline */
    CLUSTER_COUNTER_REDIRECTED,
    CLUSTER_COUNTER_REFRESHED, /* maps of slots */
    CLUSTER_COUNTER_NODE_FAILURES,
    /* times that values may have gone: the fleet's key was stored anew, a node answers for the first time or
     * anew */
    CLUSTER_COUNTER_LOSSES,
    CLUSTER_N_COUNTERS
};

struct cluster_reply {
    enum cluster_kind kind;
    uint64_t id;
    /*
     * 0, or negative errno. All: -EAGAIN: joining, or the cluster cannot answer now; -EPERM: refused;
     * -ETIMEDOUT; -EHOSTDOWN: the node does not answer; -EHOSTUNREACH: no node has the slot; -EACCES: the
     * cluster refuses the user; -ENOBUFS: too much waits for the node; -EBUSY: above CLUSTER_REQUESTS_MAX;
     * -EBADMSG: another type of value or reply; -ECONNRESET; -ENOMEM; -EINVAL: the range is not in the memory
     * object, or HELLO's memory object cannot be used. GET: -ENOENT; -EFBIG: larger than the range, or than
     * the process takes.
     * PUT: -EEXIST: the first value stays, since all values of a name are good; -ENOSPC: the cluster is full.
     */
    int result;
    uint32_t version; /* HELLO */
    uint64_t bytes;   /* GET: of the value */
    /*
     * EXISTS, TOUCH, REMOVE: [n_bits] bits, 1: the cluster has the name, or had it. Bits of names for which
     * no answer came are 0, and result says why; the others are valid also then.
     */
    uint32_t n_bits;
    uint8_t bits[CLUSTER_NAMES_MAX / 8];
    uint64_t counters[CLUSTER_N_COUNTERS]; /* STATUS */
    char sentence[CLUSTER_SENTENCE_BYTES]; /* STATUS: terminated UTF-8; why it is not READY; else empty */
};

/* Whether the request has a list of names, and its reply a bit for each. */
static inline bool cluster_kind_has_bits(enum cluster_kind k)
{
    return k == CLUSTER_EXISTS || k == CLUSTER_TOUCH || k == CLUSTER_REMOVE;
}

static inline bool cluster_bit(const struct cluster_reply *r, uint32_t i)
{
    return i < r->n_bits && (r->bits[i / 8] >> (i % 8) & 1) != 0;
}

/* Return: 0; -EBADMSG: no request, or one outside the limits. *ret is untouched on failure. */
int cluster_request_decode(const void *packet, size_t bytes, struct cluster_request *ret);
int cluster_reply_decode(const void *packet, size_t bytes, struct cluster_reply *ret);

/* Into CLUSTER_REQUEST_BYTES_MAX or CLUSTER_REPLY_BYTES_MAX bytes. Return: the packet's bytes. */
size_t cluster_request_encode(const struct cluster_request *q, uint8_t *ret);
size_t cluster_reply_encode(const struct cluster_reply *r, uint8_t *ret);
