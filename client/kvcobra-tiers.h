/*
 * libkvcobra with pages beyond memory. For schedulers of engines: where the chunks of a prompt are, in memory
 * or on a disk, and how to bring them to memory before the prompt's turn comes; no call here leases anything
 * or needs a sequence. For operators, on their socket (kvcobra-operator.h): the same for any tenant's prompt,
 * which they can also flush or pin, and the disk tier itself.
 */
#ifndef KVCOBRA_TIERS_H
#define KVCOBRA_TIERS_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * kvc_model_peek_tiers() - kvc_model_peek() with two numbers
 * @ret_memory: tokens of the leading chunks in memory
 * @ret_all:    of those in memory or probably on a disk, which is wrong for one chunk in a thousand
 *
 * Sends one message more than kvc_model_peek() after the daemon has made another list of the chunks on the
 * disk, which is rare.
 *
 * Return: as kvc_model_peek().
 */
KVC_EXPORT int kvc_model_peek_tiers(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                                    size_t n_tokens, size_t *ret_memory, size_t *ret_all);

#define KVC_PREFETCH_PARTS_MAX 64 /* of a client at one time; a part has 512 chunks of a prompt, or fewer */

/**
 * kvc_model_prefetch() - start to bring a prompt's chunks from a disk to memory
 * @o:            as for kvc_model_peek(), and fetch_ms: how long the daemon may take for a part of the prompt
 * @ret_prefetch: number for kvc_model_prefetch_cancel(); 0: there is nothing to fetch, or no connection
 *
 * For prompts that wait for their turn: a later match finds in memory what arrived. The call does not wait
 * for the disk. It sends messages as kvc_model_peek_tiers() does, and one per part, whose reply it does not
 * wait for. The parts of a client are sent two at a time; its later calls, of any kind that talks to the
 * daemon, send the others. A call that maps memory of the daemon for the first time waits for the parts that
 * were sent.
 *
 * Nothing is leased, so what arrived can be evicted again, and neither hits nor misses are counted. Only
 * chunks of tables that this client has open are fetched: after a swap, those of the new table once the
 * client has a sequence of it. With KVC_FETCH_NEVER nothing is fetched.
 *
 * Return: 0; -EAGAIN: more than KVC_PREFETCH_PARTS_MAX parts, and nothing was started; -EINVAL, -EOPNOTSUPP:
 * see kvc_seq_new_with(); -ENOMEM; -EPROTO, -EBADMSG: the daemon's reply is invalid.
 */
KVC_EXPORT int kvc_model_prefetch(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                                  size_t n_tokens, uint64_t *ret_prefetch);

/**
 * kvc_model_prefetch_cancel() - drop what was not sent yet of a prefetch
 * @prefetch: number from kvc_model_prefetch(); 0: all prefetches of the model
 *
 * What the daemon fetches already still arrives, within fetch_ms.
 *
 * Return: 0, also if the prefetch has ended; -EINVAL: @m is NULL.
 */
KVC_EXPORT int kvc_model_prefetch_cancel(kvc_model *m, uint64_t prefetch);

/* ---- prompts, for operators ---- */

/* Whose beginning of a prompt: for kvc_flush(), kvc_lookup() and kvc_pin() */
typedef struct kvc_prefix_options {
    size_t struct_bytes;         /* sizeof(kvc_prefix_options) */
    const char *tenant;          /* as in kvc_status; "@gpu0" behind it on a GPU */
    const uint8_t *table_digest; /* [KVC_DIGEST_BYTES] */
    const void *salt;            /* [salt_bytes] as in kvc_seq_new() */
    size_t salt_bytes;
    uint32_t first_kv_head; /* of the shard */
    uint32_t n_kv_heads;    /* 0 = all heads */
    /* kvc_flush(): how many tokens at the end of the prefix lose their pages, a multiple of 64; 0 = 64 */
    size_t n_flushed_tokens;
    int with_shared; /* kvc_lookup(): 1 = find is_shared, which reads the keys of all pages of the tenant */
} kvc_prefix_options;

typedef struct kvc_flush_state {
    size_t struct_bytes; /* sizeof(kvc_flush_state) */
    uint64_t tokens;     /* of the whole chunks of the prefix */
    uint32_t pages;      /* found in memory: 0 to 2 a chunk, one without and one with KVC_SEQ_REPEATABLE */
    uint32_t held;       /* of these: sequences hold them, and keep them until they end */
} kvc_flush_state;

/**
 * kvc_flush() - make a prefix, or its end, unfindable on this host: in memory, on the disk, in the cluster
 * @tokens:    [n_tokens] of the prefix, at least 64; tokens beyond whole chunks of 64 are not looked at
 * @ret_state: struct_bytes set by the caller; may be NULL
 *
 * The pages of the last whole chunk, or of the last n_flushed_tokens, go: no sequence finds them, nor what
 * continues the prefix. Pages of earlier chunks stay: other prompts begin with them. Sequences that hold a
 * page keep it. What continues the prefix is found again if a client publishes these chunks again before that
 * was evicted. Pins of the pages end.
 *
 * A disk or a cluster that replays old bytes can bring a flushed page back: the seal of a page says whose it
 * is, not when it was written. To exclude that, replace the index secret in the key file: no old page is
 * found then.
 *
 * Return: 0; -ENOENT: no such tenant or table; -ESTALE: the table is retired; -ENODEV, -ETIMEDOUT, -EAGAIN:
 * the disk or the cluster may still have the page: call again; -ENOSPC: as -EAGAIN, for a page that is held.
 */
KVC_EXPORT int kvc_flush(kvc_client *c, const kvc_prefix_options *o, const uint32_t *tokens, size_t n_tokens,
                         kvc_flush_state *ret_state);

enum kvc_miss {
    KVC_MISS_NONE = 0,    /* the page is in memory, on the disk or in the cluster */
    KVC_MISS_UNKNOWN = 1, /* never published with these tokens, table, salt and heads, or forgotten since */
    KVC_MISS_EVICTED = 2, /* it had to make room, or an operator dropped it */
    KVC_MISS_RETIRED_TABLE = 4
};

typedef struct kvc_chunk_place {
    size_t struct_bytes; /* sizeof(kvc_chunk_place) */
    int repeatable;      /* 1: of sequences with KVC_SEQ_REPEATABLE, whose pages are others */
    uint64_t first_token;
    int in_memory, on_disk;
    uint32_t holds;     /* sequences that hold the page in memory */
    int reason;         /* enum kvc_miss */
    uint64_t pinned_ms; /* how long it stays pinned; 0: it is not */
    int in_cluster;     /* asked only for a page that this host does not have */
    /* with_shared: pages of other prompts continue it, in memory or on the disk. Two pages must continue that
     * of the last whole chunk, since one may be of this prompt and its answer */
    int is_shared;
} kvc_chunk_place;

/**
 * kvc_lookup() - where the pages of a prompt are
 * @tokens:     [n_tokens] at least 64; tokens beyond whole chunks of 64 are not looked at
 * @item_bytes: sizeof(kvc_chunk_place)
 * @ret_places: [ret_n] two for each chunk, in the order of the tokens; free() it
 *
 * A client that is connected to the socket of clients may ask about its own tenant, whose name may be "".
 * Nothing is fetched, held or counted as a hit or a miss. A sequence finds the chunks up to the first one
 * that is nowhere; what is behind that one is reported too.
 *
 * Return: 0; -ENOENT: no such tenant or table; -ESTALE: the table is retired; -ENODEV, -ETIMEDOUT, -EAGAIN:
 * the disk or the cluster did not answer.
 */
KVC_EXPORT int kvc_lookup(kvc_client *c, const kvc_prefix_options *o, const uint32_t *tokens, size_t n_tokens,
                          size_t item_bytes, kvc_chunk_place **ret_places, size_t *ret_n);

typedef struct kvc_pin_state {
    size_t struct_bytes;   /* sizeof(kvc_pin_state) */
    uint64_t tokens;       /* of the whole chunks of the prefix */
    uint32_t pages;        /* pinned now, or no longer */
    uint32_t missing;      /* chunks without a page in memory */
    uint64_t pinned_bytes; /* of the tenant, after the call */
    uint64_t limit_bytes;  /* of the tenant: half of its quota, at most half of the pool */
} kvc_pin_state;

/**
 * kvc_pin() - keep the pages of a prompt in memory for some time
 * @tokens:    [n_tokens] at least 64; tokens beyond whole chunks of 64 are not looked at
 * @ms:        from now on, whatever time the pages had, at most a year; 0: no longer
 * @ret_state: struct_bytes set by the caller; may be NULL
 *
 * Only pages in memory are pinned: those of the disk alone, and those that are published later, are not. A
 * pin ends also when the prefix is flushed, when an operator evicts the tenant's pages, when the table is
 * retired or its drain time is over, when another tenant needs its guarantee, and at a restart.
 *
 * Return: 0; -ENOENT: no such tenant or table; -ESTALE: the table is being retired; -EDQUOT: too much would
 * be pinned: the chunks before that are pinned.
 */
KVC_EXPORT int kvc_pin(kvc_client *c, const kvc_prefix_options *o, const uint32_t *tokens, size_t n_tokens,
                       uint64_t ms, kvc_pin_state *ret_state);

/* ---- the disk tier and the cluster tier ---- */

enum kvc_tier_action {
    KVC_TIER_ASK = 0,    /* only get the state */
    KVC_TIER_FLUSH = 1,  /* begin to write all pages that the disk should have: ask until flushed is 1 */
    KVC_TIER_RESUME = 2, /* open a tier that is off again; the state follows later */
    KVC_TIER_DROP = 3,   /* drop pages from the disk; what is in memory stays, and may be written again */
};

typedef struct kvc_tier_state {
    size_t struct_bytes; /* sizeof(kvc_tier_state) */
    char state[16];      /* "ready", "opening", "off"; "none": the daemon has a cluster tier only */
    char message[512];   /* off: why; ready: why it has less than its size; else empty */
    char folder[1024];
    int flushed; /* 1: no page waits to be written, or the tier is off */
    int locked;  /* 1: bounce buffers are registered with the kernel */
    uint64_t segment_bytes, segments, segments_max;
    uint64_t physical_bytes; /* allocated by the file system */
    uint64_t pages;
    uint64_t writing, fetching; /* pages on their way */
    /* since the daemon started */
    uint64_t written_pages, written_bytes, read_pages, read_bytes;
    uint64_t missed;  /* pages that were looked for in vain: about one in a thousand, and dropped ones */
    uint64_t refused; /* pages that had no room */
    uint64_t timeouts, failed;
    uint64_t unopened;  /* pages that did not decrypt: damaged, or of another key */
    uint64_t discarded; /* pages that newer ones replaced */
    uint64_t lost;      /* pages that left memory before they were written */
    /* the cluster tier */
    char cluster_state[16];    /* "none", "absent", "joining", "ready", "refused" */
    char cluster_message[512]; /* why it, or a part of it, is not ready; else empty */
    uint64_t cluster_nodes, cluster_nodes_ready;
    uint64_t cluster_waiting; /* pages that wait to be written */
    /* since the daemon started */
    uint64_t cluster_asked, cluster_found; /* pages that matches looked for there */
    uint64_t cluster_read_pages, cluster_read_bytes;
    uint64_t cluster_missed;   /* found pages that did not come */
    uint64_t cluster_unopened; /* pages that did not decrypt, or are none */
    uint64_t cluster_written_pages, cluster_written_bytes;
    uint64_t cluster_failed;    /* writes that the cluster did not take */
    uint64_t cluster_dropped;   /* writes without a place in the queue, or whose page was evicted before */
    uint64_t cluster_late;      /* requests that ended at their deadline */
    uint64_t cluster_refreshed; /* times to live that were set anew */
} kvc_tier_state;

/**
 * kvc_tier_control() - look after the disk tier, and get the state of the cluster tier
 * @tenant:    DROP: of this tenant only; NULL: of all
 * @digest:    DROP: of this table only; NULL: of all
 * @ret_state: struct_bytes set by the caller; may be NULL
 *
 * Return: 0; -EOPNOTSUPP: the daemon has no disk tier, and for ASK no cluster tier either; -EALREADY: RESUME,
 * and it is not off; -ENODEV: DROP, and it is off; -EAGAIN, -ETIMEDOUT: DROP; -EINVAL: an argument is not
 * valid.
 */
KVC_EXPORT int kvc_tier_control(kvc_client *c, enum kvc_tier_action action, const char *tenant,
                                const uint8_t digest[KVC_DIGEST_BYTES], kvc_tier_state *ret_state);

#ifdef __cplusplus
}
#endif

#endif
