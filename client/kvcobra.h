/*
 * libkvcobra: a compressed, shared key-value cache for language models.
 *
 * A client is a connection to kvcobrad (or none: embedded mode). A model binds the client to one model's
 * geometry and to the allocation table in force. A sequence is one growing text: append the keys and values
 * of each layer as the model computes them, attend to them, publish them for others, start from what others
 * published.
 *
 * Threads: one thread at a time per client, its models and its sequences together; use one client per thread.
 * After fork() a child's calls return -ECHILD. The library never prints, exits, logs, starts threads or
 * touches signal handlers.
 *
 * Errors: 0 or a positive documented outcome is success; negative is -errno and kvc_last_error() has the
 * sentence. Outputs named ret_* are written on success only.
 */
#ifndef KVCOBRA_H
#define KVCOBRA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVC_EXPORT __attribute__((visibility("default")))
#else
#define KVC_EXPORT
#endif

#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_DIGEST_BYTES 32
#define KVC_CHUNK_TOKENS 64             /* what is published, matched and evicted together */
#define KVC_RECENT_TOKENS 64            /* newest tokens that stay exact */
#define KVC_APPEND_TOKENS_MAX (1 << 20) /* in one call */
#define KVC_SALT_BYTES_MAX 1024

typedef struct kvc_client kvc_client;
typedef struct kvc_model kvc_model;
typedef struct kvc_seq kvc_seq;

enum kvc_dtype { KVC_F32 = 0, KVC_F16 = 1, KVC_BF16 = 2 };
enum kvc_side { KVC_K = 0, KVC_V = 1 };

/* "0.1.0"; the running library's, which may be newer than the header's. */
KVC_EXPORT const char *kvc_version(void);

/* ---- client ---- */

/* Allocates only. Return: 0; -ENOMEM. */
KVC_EXPORT int kvc_client_new(kvc_client **ret_client);

/**
 * kvc_client_connect() - greet the daemon
 * @path: Unix socket; NULL = /run/kvcobra/kvcobra.sock
 *
 * Without this call (or after it failed) the client works embedded: kvc_model_open_table() and private
 * sequences.
 *
 * A connection that is lost later comes back by itself: calls that talk to the daemon try again, after waits
 * that grow from 0.1 to 10 s, and take 1 s at most for it. Until then sequences go on privately, with every
 * page that they have. Called on a client that has lost its daemon, this tries at once.
 *
 * Return: 0; -ENOENT, -ECONNREFUSED, -EACCES: no daemon or no right to talk to it; -EPROTO: not a kvcobrad,
 * or of an incompatible version; -EISCONN: connected, or @path is another than the first time; -ENOTCONN:
 * lost, and not back. On a GPU also -ENODEV: the daemon has no pool on it, or cannot open it now; -EAGAIN: it
 * has been opening it for 10 s.
 */
KVC_EXPORT int kvc_client_connect(kvc_client *c, const char *path);

typedef struct kvc_client_info {
    size_t struct_bytes; /* set by the caller: sizeof(kvc_client_info) */
    uint32_t connected;  /* now; looked up, not remembered */
    uint32_t resumed;    /* the last greeting resumed the session: all leases went on */
    uint32_t session;    /* its number in the daemon's log */
    uint32_t n_failed;   /* attempts to connect again, in a row; 0 while connected */
    uint32_t retry_ms;   /* until the next one is due */
    uint64_t n_reconnects;
    uint8_t boot_id[16]; /* of the daemon that answered last; zeros: never connected */
} kvc_client_info;
KVC_EXPORT int kvc_client_get_info(kvc_client *c, kvc_client_info *ret_info);

/* The sentence that explains the last negative return on this client or anything opened from it. Never NULL;
 * valid until the next call other than kvc_model_free() and kvc_seq_free(). */
KVC_EXPORT const char *kvc_last_error(const kvc_client *c);

typedef struct kvc_executor {
    size_t struct_bytes; /* sizeof(kvc_executor) */
    void *ctx;
    /* Calls @task(@arg, i, worker) once for every i below @n_items, on any threads, and returns when all are
     * done. Calls that run at the same time have different workers, below n_workers. */
    void (*run)(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n_items);
    unsigned n_workers; /* 1..256 */
} kvc_executor;

/**
 * kvc_client_set_executor() - lend threads to attention
 * @x: copied; NULL = back to the calling thread alone, which is where a client begins
 *
 * KV heads, sequences of a batch and runs of pages of a long sequence are then shared out, and merged in one
 * order: with another number of workers a result may differ in its last bits. No call of the library returns
 * while its tasks run.
 *
 * Return: 0; -EINVAL: n_workers, or no run; -EOPNOTSUPP: a client on a GPU has nothing for threads to do.
 */
KVC_EXPORT int kvc_client_set_executor(kvc_client *c, const kvc_executor *x);

typedef struct kvc_gpu_options {
    size_t struct_bytes; /* sizeof(kvc_gpu_options) */
    const char
        *uuid;    /* "GPU-8-4-4-4-12" or "MIG-...", as "nvidia-smi -L" lists them; NULL: the first device */
    void *stream; /* a CUstream (cudaStream_t) of the device's primary context; NULL: the default stream. It
                     outlives the client, or kvc_client_set_stream() before it goes */
} kvc_gpu_options;

/**
 * kvc_client_set_gpu() - keep this client's sequences in GPU memory
 *
 * Before kvc_client_connect() and any model. k, v, q, out of append, attend and read are device pointers from
 * then on, and those calls return when their work is queued on the stream. Loads the CUDA driver: not in a
 * child of a process that has. The client is not to be freed while its stream is being captured.
 *
 * Return: 0; -EOPNOTSUPP: no driver, too old a one, or no kernels for the device in this build; -ENODEV: no
 * such GPU; -EINVAL; -EBUSY: connected, or with models or an executor, or on a GPU already; -ENOMEM, -EIO: as
 * the driver says. After a failure the client is still one of the CPU.
 */
KVC_EXPORT int kvc_client_set_gpu(kvc_client *c, const kvc_gpu_options *o);

/* Later calls queue their work on @stream; waits for what was queued before. Return: 0; -EBUSY: a stream is
 * being captured; -EIO: the GPU is lost; -EINVAL: a client of the CPU. */
KVC_EXPORT int kvc_client_set_stream(kvc_client *c, void *stream);

/**
 * kvc_client_synchronize() - wait for everything that was queued
 *
 * Return: 0; -EINVAL: an input of a sequence, named, was NaN or infinite: it cannot be published, and what it
 * attends to is not to be used; -EBUSY: the stream is being captured; -EIO: the GPU is lost for this process:
 * every later call on this client says so, free it.
 */
KVC_EXPORT int kvc_client_synchronize(kvc_client *c);

/**
 * kvc_client_lend() - give memory of the caller's to the daemon's pool on this client's GPU, for engines that
 * own their memory
 * @device_memory: the whole of one allocation by cudaMalloc() or cuMemAlloc() on that GPU
 * @bytes:         as many as an extent of the pool has (kvcobrad's gpu-extent-bytes), a multiple of 2 MiB
 *
 * It is cleared, also if it is then refused, and holds pages of all clients of this user from then on.
 * Nothing but this process keeps it alive. Until kvc_client_free() has returned do not free it, write it or
 * read it, whatever becomes of the daemon. When that has returned, or this process ends, nobody finds pages
 * in it any more; but other processes may still have pages of it, and what they read of memory that was
 * freed, written, or of a process that has ended is UNDEFINED: the CUDA driver promises nothing and nobody
 * tells them. End those clients first. (Their sequences know of it only if the daemon is restarted: -ESTALE.)
 *
 * After a restart of the daemon the memory is not in the pool any more, and cannot be lent again by this
 * client.
 *
 * Return: 0; -EINVAL: not such memory, with a sentence, or a client of the CPU; -EEXIST: it was lent before;
 * -ENOTCONN: no daemon; if it was lost by this call the memory may have been lent and stays what it is now;
 * -EOPNOTSUPP: kvcobrad is not configured to take memory (gpu-lend); -EDQUOT, -ENOSPC: this client lends as
 * much as it may, the pool is as large as it may be; -EBUSY: the stream is being captured; -ESHUTDOWN:
 * kvcobrad is draining; -EIO: the GPU is lost.
 */
KVC_EXPORT int kvc_client_lend(kvc_client *c, void *device_memory, size_t bytes);

/* Frees what is still open below it too. NULL is fine. Returns NULL. */
KVC_EXPORT kvc_client *kvc_client_free(kvc_client *c);

/* ---- model ---- */

typedef struct kvc_geometry {
    size_t struct_bytes; /* sizeof(kvc_geometry) */
    uint32_t n_layers;
    uint32_t n_heads;        /* query heads per layer */
    uint32_t n_kv_heads;     /* query head h reads KV head h / (n_heads / n_kv_heads) */
    uint32_t head_dim;       /* even, 32..256 */
    uint32_t n_rot;          /* rotated dimensions, first in the vector, half-split pairs (i, i + n_rot/2) */
    double attn_scale;       /* usually 1/sqrt(head_dim) */
    const double *rope_freq; /* [n_rot/2] radians per position, scaling applied; borrowed during the call */
} kvc_geometry;

typedef struct kvc_model_id {
    size_t struct_bytes; /* sizeof(kvc_model_id) */
    kvc_geometry geometry;
    uint8_t model_digest[KVC_DIGEST_BYTES]; /* of all that determines K and V: weights, RoPE, adapter */
    uint32_t first_kv_head;                 /* shard; n_kv_heads_here 0 = all heads */
    uint32_t n_kv_heads_here;
} kvc_model_id;

/**
 * kvc_model_open() - bind to the daemon's active table of this model
 *
 * New sequences follow the daemon's table swaps; a sequence keeps its table for life. On a GPU nothing of a
 * table is looked at here: kvc_seq_new() says whether it can be used there.
 *
 * Return: 0; -ENOTCONN; -ENODATA: the daemon has no active table for this model; -EINVAL: geometry or shard,
 * named; -EDQUOT: a limit of the daemon; -EPROTO, -EBADMSG: its answer makes no sense.
 */
KVC_EXPORT int kvc_model_open(kvc_client *c, const kvc_model_id *id, kvc_model **ret_model);

/**
 * kvc_model_open_table() - bind to a table of the caller, embedded: pages stay in this process
 * @bytes: a table file's bytes; borrowed
 *
 * Return: 0; -EBADMSG: not a valid table; -EINVAL: table of another model or geometry.
 */
KVC_EXPORT int kvc_model_open_table(kvc_client *c, const kvc_model_id *id, const void *bytes, size_t n_bytes,
                                    kvc_model **ret_model);
KVC_EXPORT kvc_model *kvc_model_free(kvc_model *m);

typedef struct kvc_model_info {
    size_t struct_bytes;                    /* set by the caller: sizeof(kvc_model_info) */
    uint8_t table_digest[KVC_DIGEST_BYTES]; /* what the next sequence will use */
    uint64_t revision;                      /* of the daemon's active word; 0 embedded */
    double bpd_code;                        /* stored code bits per number, padding included */
    uint64_t page_bytes;                    /* one chunk of class rest: header and payload */
    uint64_t first_page_bytes;              /* class first: with the exact sinks */
    uint32_t n_sink;
    const char *kernel; /* what encode and attend run on: an instruction set, or "cuda" and a kernel */
} kvc_model_info;
KVC_EXPORT int kvc_model_get_info(kvc_model *m, kvc_model_info *ret_info);

typedef struct kvc_report_options {
    size_t struct_bytes; /* sizeof(kvc_report_options) */
    uint32_t share_ppm;  /* of new chunks that are measured, in millionths; 0: none */
    uint32_t moments;    /* 1: joint second moments of keys and values too, if the daemon takes them */
} kvc_report_options;

/**
 * kvc_model_report() - tell the daemon how the table fits what this model encodes
 *
 * Off until it is called. A measured chunk is decoded again and costs about twice its encoding; error sums
 * per layer, and moments, go out with a commit, every 2 s at most. No token and no vector does. The share of
 * chunks that an operator compares a shadow table on is not asked for here: it is the operator's.
 *
 * Return: 0; -EINVAL; -ENOMEM; -EOPNOTSUPP: an embedded model has nobody to tell, one on a GPU measures
 * nothing.
 */
KVC_EXPORT int kvc_model_report(kvc_model *m, const kvc_report_options *o);

/* ---- sequence ---- */

/**
 * kvc_seq_new() - an empty sequence with the table in force now
 * @salt: anything besides tokens and model that changes K and V (an image, an adapter); may be NULL with 0
 *
 * On a GPU the first sequence of a table waits for the stream while every kernel that the table selects is
 * held against the CPU: some ten milliseconds, and nothing later.
 *
 * Return: 0; -ENOMEM; -EINVAL: salt above 1024 bytes; of a client on a GPU: -EOPNOTSUPP: no kernel takes the
 * table, or one computes wrongly with it on this device, named: not with this table on this client, others go
 * on; -EBUSY: the stream is being captured; -EIO: the GPU is lost.
 */
KVC_EXPORT int kvc_seq_new(kvc_model *m, const void *salt, size_t salt_bytes, kvc_seq **ret_seq);

typedef struct kvc_eval_options {
    size_t struct_bytes; /* sizeof(kvc_eval_options) */
    uint32_t n_sink;     /* exact first tokens, whatever the table says */
    int32_t n_recent;    /* query m reads n > m - n_recent exactly; 0 = not even its own position;
                            -1 = what a decode step of the product would read exactly */
    /* For taking apart what costs what; zeros: everything is coded, as in the product. */
    uint32_t sides; /* 1 << KVC_K, 1 << KVC_V or both: read from codes; the other side exactly; 0 = both */
    uint32_t first_layer; /* layers first_layer .. first_layer + n_layers - 1 are read from codes, */
    uint32_t n_layers;    /* the others exactly; n_layers 0 = all */
    uint32_t post_rope;   /* 1: keys are rotated, coded and turned back; the table is of statistics of rotated
                             keys */
} kvc_eval_options;

/**
 * kvc_seq_new_eval() - a sequence that keeps every input beside what the codes decode to
 *
 * For measuring: each query of a long append sees what it would have seen alone (DESIGN 4). Costs 16 bytes
 * per number; cannot be published, matched or forked. Usage counts all codes, also of what is read exactly.
 * On the CPU alone: a client of a GPU gets -EOPNOTSUPP.
 */
KVC_EXPORT int kvc_seq_new_eval(kvc_model *m, const kvc_eval_options *o, kvc_seq **ret_seq);
KVC_EXPORT kvc_seq *kvc_seq_free(kvc_seq *s);

/**
 * kvc_seq_match() - start an empty sequence from published chunks
 * @ret_n: tokens found: a multiple of 64, below @n_tokens; 0 is success too
 *
 * The pages are leased until the sequence drops them. Only for a sequence of length 0.
 * Return: 0; -EINVAL; -EAGAIN, -EDQUOT, -EMFILE, -ENOMEM, -EPROTO …: nothing was leased, the sequence is
 * empty and usable. Without a daemon, or when it just went away: 0 with *ret_n = 0.
 */
KVC_EXPORT int kvc_seq_match(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_n);

/**
 * kvc_seq_append() - keys and values of the next @n_new tokens of one layer
 * @k, @v: [n_new, KV heads of the shard, head_dim] pre-RoPE, row-major; borrowed
 *
 * Return: 0; -EINVAL: layer, dtype, NaN or infinity in the input (named); -ENOSPC: arena full, nothing
 * changed: commit and retry; -ESTALE: a restarted daemon gave away pages of this sequence, truncate it
 * (append, attend, read, commit and fork say so). One token appended makes no system call.
 *
 * On a GPU @k and @v are device pointers, aligned as their type; the call returns when the work is queued and
 * waits for the device only where memory must grow and the device is full. NaN and infinity are found later:
 * kvc_client_synchronize() and kvc_seq_commit() say -EINVAL, from then on every call on the sequence does,
 * which keeps its length until it is truncated to where it was sound, or freed. -EFBIG: more than 2^31
 * tokens.
 */
KVC_EXPORT int kvc_seq_append(kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v,
                              size_t n_new);

typedef struct kvc_append_item {
    kvc_seq *seq;
    const void *k, *v; /* as in kvc_seq_append() */
    size_t n_new;
} kvc_append_item;

/**
 * kvc_seq_append_batch() - kvc_seq_append() to one layer of @n sequences of one client, of any lengths and
 * models
 * @items: borrowed; a sequence may stand in it once
 *
 * On a GPU a step of many sequences is few launches: one, or three where chunks are due, for up to 64
 * sequences of a table. Return: 0; as kvc_seq_append() for any of them, -EINVAL for sequences of several
 * clients or one twice: no sequence has changed, and the sentence says which of them it was. Only where a
 * GPU's driver refuses a launch, as when the GPU is lost (-EIO), those launched before have their tokens:
 * kvc_seq_length().
 */
KVC_EXPORT int kvc_seq_append_batch(const kvc_append_item *items, size_t n, uint32_t layer,
                                    enum kvc_dtype dtype);

/**
 * kvc_seq_replay() - before each launch of a CUDA graph in which steps of this sequence were captured
 * @n_new: tokens that the graph's appends, single or in batches, add to every layer; 0 for a graph that only
 * attends or reads
 *
 * While the client's stream is being captured, append, attend and read of a sequence on a GPU are recorded in
 * the graph and change nothing yet; every other call that would touch the sequence's memory fails with
 * -EBUSY. Run a step once before it is captured: memory for attention cannot grow meanwhile. This call then
 * does what an eager append would have done before it stored: it claims pages, packs chunks that are due, and
 * counts the tokens, on the client's stream, on which the graph must be launched next. Buffers of k, v, q and
 * out are the graph's: fill them anew for each launch. Attention is divided for the pages that the sequence
 * had room for when it was captured: capture anew now and then where a text grows very long.
 *
 * Return: 0; -EOPNOTSUPP: not on a GPU; -EINVAL: layers differ in length, or the sequence has an input that
 * was not finite; -EBUSY: called during a capture; -EFBIG: more than 2^31 tokens; -ENOMEM, -EIO, -ESTALE. On
 * failure nothing was counted: do not launch the graph.
 */
KVC_EXPORT int kvc_seq_replay(kvc_seq *s, size_t n_new);

/**
 * kvc_seq_attend() - attention of the newest @n_q tokens of one layer
 * @q:   [n_q, n_heads of the shard, head_dim] binary32, pre-RoPE
 * @out: like @q
 *
 * Query i stands at position length - n_q + i and sees 0 .. that position; RoPE, scale and softmax applied.
 * On a GPU @q and
 * @out are device pointers, written when the stream comes to it.
 */
KVC_EXPORT int kvc_seq_attend(kvc_seq *s, uint32_t layer, const float *q, size_t n_q, float *out);

typedef struct kvc_attend_options {
    size_t struct_bytes; /* sizeof(kvc_attend_options) */
    uint32_t window;     /* sliding window: a query at position m sees n > m - window, sinks too; 0 = all */
    uint32_t exact_rope; /* 1: turn every key in every RoPE plane; 0: slow planes may be folded, within 2^-11
                            of the scores' size (gpu/README.md). A GPU turns every plane either way */
} kvc_attend_options;

typedef struct kvc_attend_item {
    kvc_seq *seq;
    const float *q; /* as in kvc_seq_attend() */
    size_t n_q;
    float *out;
} kvc_attend_item;

/**
 * kvc_seq_attend_batch() - kvc_seq_attend() for @n sequences of one client, of any lengths and models
 * @items: borrowed; outputs must not overlap
 * @o:     NULL = all zero
 *
 * Return: 0; -EINVAL: as kvc_seq_attend() for any of them, or sequences of several clients: nothing was
 * written; -ENOMEM.
 */
KVC_EXPORT int kvc_seq_attend_batch(const kvc_attend_item *items, size_t n, uint32_t layer,
                                    const kvc_attend_options *o);

/* Decoded (pre-RoPE) vectors [n, KV heads of the shard, head_dim] of positions first .. first + n - 1; on a
 * GPU @out is a device pointer. */
KVC_EXPORT int kvc_seq_read(kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n,
                            float *out);

/**
 * kvc_seq_commit() - publish whole chunks that all layers have, parents first
 * @tokens:         the token ids of the whole sequence from position 0
 * @ret_published:  tokens of this sequence now in the daemon's pool; may be NULL
 *
 * The newest 64 tokens stay private. Embedded or disconnected: publishes nothing, *ret_published = 0.
 * Return: 0; -EDQUOT, -ENOSPC: quota or pool full; -EAGAIN: the tenant's guarantee is lent and was asked
 * back, or the daemon is busy; -ETIMEDOUT: busy for too long; -ESHUTDOWN: it is draining; -EFBIG: a page is
 * larger than its extents; -ESTALE: its table's drain time is over. After these the sequence goes on
 * privately, in memory of this process, and a later commit tries again. -EINVAL: layers differ in length, or
 * @tokens are not those that a chunk was published or matched with.
 *
 * On a GPU a call that has something to publish waits for the stream, and up to 1 s for the daemon to have
 * memory made. -EINVAL also: an input was not finite, nothing is published; -EBUSY: the stream is being
 * captured; -ENOMEM, -EIO: of the GPU; -EXDEV: a chunk is published in memory that this client cannot use
 * (kvc_client_lend() by another client of this process), it stays private.
 */
KVC_EXPORT int kvc_seq_commit(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_published);

/* Keeps at most @n tokens: exact inside the tail, else down to a chunk boundary. *ret_kept is what is left.
 * -EBUSY: a GPU's stream is being captured. */
KVC_EXPORT int kvc_seq_truncate(kvc_seq *s, size_t n, size_t *ret_kept);

/* A second sequence with the same contents; packed pages are shared, the tail is copied. -EBUSY: a GPU's
 * stream is being captured. */
KVC_EXPORT int kvc_seq_fork(kvc_seq *s, kvc_seq **ret_fork);

/* Tokens that every layer has. */
KVC_EXPORT size_t kvc_seq_length(const kvc_seq *s);

typedef struct kvc_usage {
    size_t struct_bytes; /* set by the caller: sizeof(kvc_usage) */
    uint64_t tokens;
    uint64_t numbers;       /* tokens x layers x KV heads x head_dim x 2 */
    uint64_t code_bytes;    /* codes of packed tokens, padding coordinates left out */
    uint64_t padding_bytes; /* padding coordinates, slot rounding */
    uint64_t header_bytes;
    uint64_t sink_bytes;
    uint64_t tail_bytes;   /* exact newest tokens, as the product holds them */
    uint64_t shared_bytes; /* of all these, in pages of the daemon's pool */
} kvc_usage;
KVC_EXPORT int kvc_seq_get_usage(kvc_seq *s, kvc_usage *ret_usage);

/* ---- tables and status (operator socket for changes and status) ---- */

enum kvc_table_state {
    KVC_TABLE_STAGED = 1,
    KVC_TABLE_VERIFIED = 2,
    KVC_TABLE_SHADOW = 3,
    KVC_TABLE_ACTIVE = 4,
    KVC_TABLE_DRAINING = 5,
    KVC_TABLE_RETIRED = 6,
    KVC_TABLE_REJECTED = 7
};

/* How codes fit live vectors, as clients reported. Errors are |x - decoded|^2 / |x - mean|^2, means over
 * layers. */
typedef struct kvc_fit {
    uint64_t reports, tokens;        /* tokens: measured */
    double error[2];                 /* by side */
    uint64_t coded[2], saturated[2]; /* coordinates, by side: quantised, beyond the last threshold */
    uint64_t shadow_tokens;          /* SHADOW: measured with the active table and with this one */
    double active_error[2], shadow_error[2];
} kvc_fit;

typedef struct kvc_table_info {
    uint8_t digest[KVC_DIGEST_BYTES];
    uint8_t model_digest[KVC_DIGEST_BYTES];
    enum kvc_table_state state;
    double bpd_code;
    uint64_t file_bytes, references, pages, revision;
    char reason[256];        /* why it was rejected */
    uint32_t shadow_ppm;     /* of new chunks that are encoded with it for comparison */
    uint32_t canary_share;   /* of 256 new sequences that use it */
    uint32_t canary_tenants; /* whose new sequences all use it */
    kvc_fit fit;
} kvc_table_info;

/* *ret_tables: malloc'ed array of *ret_n, free() it. Either socket. */
KVC_EXPORT int kvc_table_list(kvc_client *c, kvc_table_info **ret_tables, size_t *ret_n);

/* The bytes of a table that the daemon has; malloc'ed, free() them. Either socket. Return: 0; -ENOENT;
 * -ESTALE: retired. */
KVC_EXPORT int kvc_table_fetch(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], void **ret_bytes,
                               size_t *ret_n_bytes);

/* Operator. The daemon verifies before it answers. Return: 0; 1: already staged; -EBADMSG: rejected, sentence
 * says why. */
KVC_EXPORT int kvc_table_stage(kvc_client *c, const void *bytes, size_t n_bytes,
                               uint8_t ret_digest[KVC_DIGEST_BYTES]);

/* Operator. New sequences of the table's model use it. @revision 0 = next. Return: 0; 1: already active;
 * -ESTALE: the daemon is at a newer revision; -ENOENT: no such table. */
KVC_EXPORT int kvc_table_activate(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                  uint64_t *ret_revision);

/**
 * kvc_table_rollback() - operator: leave the active table @digest for the one that was active before it
 * @revision:     0 = the next one
 * @ret_active:   the table that is active afterwards; may be NULL
 * @ret_revision: may be NULL
 *
 * Possible while the earlier table drains. Return: 0; 1: @digest is not active (any more), nothing changed;
 * -ENODATA: no earlier table drains; -ESTALE, -EEXIST: the daemon is at a newer, at this revision; -ENOENT:
 * no such table.
 */
KVC_EXPORT int kvc_table_rollback(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                  uint8_t ret_active[KVC_DIGEST_BYTES], uint64_t *ret_revision);

/**
 * kvc_table_retire() - operator: no commits and references any more; its pages are evicted first
 * @revision:  0, or at least the daemon's
 * @ret_state: KVC_TABLE_RETIRED, or KVC_TABLE_DRAINING while somebody references or holds it; may be NULL
 *
 * Return: 0; 1: it was on its way out already; -EBUSY: it is active; -ESTALE; -ENOENT.
 */
KVC_EXPORT int kvc_table_retire(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                enum kvc_table_state *ret_state);

/**
 * kvc_table_shadow() - operator: clients encode a share of new chunks with a table that is not in use, and
 * report errors
 * @ppm:      millionths of new chunks; 0 = end. The table must be verified; one shadow per model
 * @revision: 0 = the next one; the same counter as kvc_table_activate()'s
 *
 * Return: 0; 1: it is so already; -ENOENT; -ENODATA: no active table beside which to try it; -EBUSY: it is in
 * use; -ESTALE, -EEXIST: the daemon is at a newer, at this revision.
 */
KVC_EXPORT int kvc_table_shadow(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t ppm,
                                uint64_t revision, uint64_t *ret_revision);

/**
 * kvc_table_canary() - operator: some new sequences use a table that is not active
 * @share:   of 256, at most 255; 0 and no tenant = end. A canary that was used drains then
 * @tenants: [n_tenants] whose new sequences all use it, at most 64
 * Return: see kvc_table_shadow(); -EINVAL: a share or a name that cannot be.
 */
KVC_EXPORT int kvc_table_canary(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t share,
                                const char *const *tenants, size_t n_tenants, uint64_t revision,
                                uint64_t *ret_revision);

/**
 * kvc_moments_fetch() - operator: joint second moments of live traffic, merged over tenants
 * @tenants:   [n_tenants]; none = all
 * @ret_bytes: malloc'ed file image of *ret_n_bytes, free() it: what "kvcobra solve" takes
 *
 * Return: 0; -ENODATA: nobody reported any; -ENOENT …
 */
KVC_EXPORT int kvc_moments_fetch(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES],
                                 const char *const *tenants, size_t n_tenants, void **ret_bytes,
                                 size_t *ret_n_bytes, uint64_t *ret_tokens);

/* Operator. Fit of one layer; *ret_layers: malloc'ed array of *ret_n, free() it. Return: 0; -ENOENT: no such
 * table. */
typedef struct kvc_layer_fit {
    double error[2], active_error[2], shadow_error[2];
} kvc_layer_fit;
KVC_EXPORT int kvc_table_get_fit(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], kvc_fit *ret_fit,
                                 kvc_layer_fit **ret_layers, size_t *ret_n);

/* Operator. Unheld pages go. @tenant NULL = all, @digest NULL = of every table. Outputs may be NULL. Return:
 * 0; -ENOENT. */
KVC_EXPORT int kvc_evict(kvc_client *c, const char *tenant, const uint8_t digest[KVC_DIGEST_BYTES],
                         uint64_t *ret_pages, uint64_t *ret_bytes);

#define KVC_QUOTA_KEEP UINT64_MAX /* as it is */

typedef struct kvc_quota_state {
    size_t struct_bytes;                 /* set by the caller: sizeof(kvc_quota_state) */
    uint64_t max_bytes, guarantee_bytes; /* now */
    uint64_t previous_max_bytes, previous_guarantee_bytes;
    uint64_t used_bytes; /* after unheld pages left for a lower maximum */
} kvc_quota_state;

/**
 * kvc_quota_set() - operator: what a tenant may have
 * @tenant:          "uid-1000"; made if nobody of it came yet
 * @max_bytes:       the most of pages and arenas; or KVC_QUOTA_KEEP
 * @guarantee_bytes: of the pool, in whole extents, whatever others do; or KVC_QUOTA_KEEP
 * @ret_state:       may be NULL
 *
 * Remembered over a restart if the daemon has a state folder.
 * Return: 0; -ENOENT: not a tenant's name; -ENOSPC: the guarantees of all tenants would not fit the pool;
 * -EINVAL: a maximum of 0 or below the guarantee, or nothing to change.
 */
KVC_EXPORT int kvc_quota_set(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                             kvc_quota_state *ret_state);

enum kvc_drain { KVC_DRAIN_OFF = 0, KVC_DRAIN_ON = 1, KVC_DRAIN_ASK = 2 };

typedef struct kvc_drain_state {
    size_t struct_bytes; /* set by the caller: sizeof(kvc_drain_state) */
    int draining;
    uint64_t sessions;
    uint64_t reservations; /* pages that are being written */
    uint64_t held_pages;   /* idle: this and reservations are 0 */
} kvc_drain_state;

/* Operator. New sessions, models and pages are refused (-ESHUTDOWN), what is there goes on. @ret_state may be
 * NULL. */
KVC_EXPORT int kvc_drain(kvc_client *c, enum kvc_drain what, kvc_drain_state *ret_state);

typedef struct kvc_tenant_status {
    char name[64];
    uint64_t quota_bytes, used_bytes, held_bytes, arena_bytes, pages, sessions, hits, misses, evictions;
    int isolated;
    uint64_t leases;
    uint64_t guarantee_bytes;  /* of the pool */
    uint64_t extent_bytes;     /* memory of the pool that it has */
    uint64_t asked_back_bytes; /* of it, lent by a tenant that needs it now */
    uint64_t misses_unknown, misses_evicted, misses_other_table,
        misses_retired_table; /* first missing chunks */
} kvc_tenant_status;

typedef struct kvc_space_status { /* per (table, shard) */
    uint8_t table_digest[KVC_DIGEST_BYTES];
    uint32_t first_kv_head, n_kv_heads;
    uint64_t pages, page_bytes, tokens, tokens_free;
    uint64_t held_pages, leased, evictions; /* pages; the last two since the daemon started */
} kvc_space_status;

enum kvc_device_state { KVC_DEVICE_READY = 1, KVC_DEVICE_OPENING = 2, KVC_DEVICE_UNAVAILABLE = 3 };

typedef struct kvc_device_status { /* where pages lie: the host's memory first, then GPUs */
    char name[16];                 /* "cpu", "gpu0" */
    char uuid[48], product[128];   /* "" for the host's memory; of a GPU, once it is known */
    int state;                     /* enum kvc_device_state */
    char message[512]; /* unavailable: why; ready: why no more memory could be had the last time */
    uint64_t pool_bytes, extent_bytes, page_bytes, waste_bytes, held_bytes, guaranteed_bytes, pages, sessions;
    uint32_t spare_extents;     /* made ahead, of nobody */
    uint32_t retired_extents;   /* a dead process may still use them: nothing new comes in */
    uint64_t quarantined_slots; /* of dead processes, not yet free again */
    uint32_t lent_extents;      /* memory of clients: kvc_client_lend() */
} kvc_device_status;

typedef struct kvc_status { /* pool_bytes to waste_bytes, guaranteed_bytes: of the host's memory */
    uint64_t pid, uptime_ms, pool_bytes, extent_bytes, page_bytes, waste_bytes;
    uint64_t sessions, leases, held_pages, refused_packets;
    char version[32], event_backend[16], restart[16];
    size_t n_tenants, n_spaces;
    kvc_tenant_status *tenants;
    kvc_space_status *spaces;
    int draining;
    uint64_t evictions;
    uint64_t slot_record_bytes, index_bytes, hold_bytes,
        heap_bytes;                      /* what the daemon needs beside the pages */
    uint32_t work_threads, work_waiting; /* threads beside its loop, requests waiting */
    uint64_t work_done, work_refused, work_expired;
    uint64_t guaranteed_bytes; /* of all tenants */
    size_t n_devices;
    kvc_device_status *devices;
    uint64_t mover_pid, mover_restarts; /* kvcobra-mover; 0: none runs */
} kvc_status;

/* Operator. */
KVC_EXPORT int kvc_status_get(kvc_client *c, kvc_status **ret_status);
KVC_EXPORT kvc_status *kvc_status_free(kvc_status *s);

#ifdef __cplusplus
}
#endif

#endif
