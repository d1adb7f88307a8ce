/*
 * libkvcobra: a compressed, shared key-value cache for language models. This header is for inference engines;
 * kvcobra-gpu.h adds the calls of clients on a GPU, kvcobra-tiers.h those of schedulers, kvcobra-call.h
 * those of programs that operate kvcobrad.
 *
 * A client is a connection to kvcobrad, or works without one (embedded). A model binds the client to the
 * geometry of one language model and to its active allocation table. A sequence is one growing text. The
 * engine appends keys and values of each layer as the model computes them, attends to them, and publishes
 * them for other clients. A new sequence can start from chunks that other clients published.
 *
 * Threads: a client, its models and its sequences are used by one thread at a time; use one client per
 * thread. After fork() the child's calls return -ECHILD. The library never prints, exits, logs or changes
 * signal handlers, and starts threads in kvc_client_set_threads() only.
 *
 * Errors: on success a call returns 0, or a positive outcome that its comment lists. On failure it returns
 * -errno, and kvc_last_error() returns the sentence that explains it. Outputs named ret_* are written on
 * success only.
 *
 * Structs: a struct that begins with struct_bytes may get members at its end in a later version. The caller
 * sets struct_bytes to the sizeof of the struct, for inputs and for outputs. Programs and libraries of
 * different versions then work together by one rule:
 *
 *   input   A member that an older caller does not have counts as 0. A newer caller may set members that this
 *           library does not know to 0 only; else the call returns -EINVAL.
 *   output  An older caller gets the members that it has. Members that this library does not know become 0.
 *   array   Items lie struct_bytes apart, which must be the same in all items.
 *   inside  A struct inside another one (kvc_geometry) never grows; the outer one does.
 *
 * A call returns -EINVAL if struct_bytes is below the size of the struct's first version, or above 65536.
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
#define KVC_CHUNK_TOKENS 64             /* tokens that are published, matched and evicted together */
#define KVC_RECENT_TOKENS 64            /* newest tokens that stay exact */
#define KVC_APPEND_TOKENS_MAX (1 << 20) /* tokens in one append */
#define KVC_SALT_BYTES_MAX 1024
#define KVC_ROPE_FREQ_MAX 128 /* RoPE frequencies of the largest head: head_dim / 2 */

typedef struct kvc_client kvc_client;
typedef struct kvc_model kvc_model;
typedef struct kvc_seq kvc_seq;

enum kvc_dtype { KVC_F32 = 0, KVC_F16 = 1, KVC_BF16 = 2 };
enum kvc_side { KVC_K = 0, KVC_V = 1 };
enum kvc_keys { KVC_KEYS_BEFORE_ROPE = 0, KVC_KEYS_AFTER_ROPE = 1 };
/* The two dimensions that RoPE rotates together: (i, i + n_rot/2), or (2 i, 2 i + 1) */
enum kvc_pairs { KVC_PAIRS_HALF_SPLIT = 0, KVC_PAIRS_INTERLEAVED = 1 };

/* The version of the running library, such as "0.1.0". It may be newer than that of the header. */
KVC_EXPORT const char *kvc_version(void);

/* ---- client ---- */

enum kvc_socket { KVC_SOCKET_CLIENTS = 0, KVC_SOCKET_OPERATORS = 1 };

/**
 * kvc_socket_path() - the socket at which a program of this user finds kvcobrad
 * @which:     the clients' socket, which kvc_client_connect() finds so, too, or that of operators
 * @path:      what the user of the program chose, such as an option; NULL or "": nothing
 * @ret_path:  [ret_bytes] the path, with its final zero byte; untouched on failure
 *
 * The first of these: @path; the environment variable KVCOBRA_SOCKET, for operators KVCOBRA_OPERATOR_SOCKET;
 * the socket of the user's own daemon (kvcobrad --user) in $XDG_RUNTIME_DIR/kvcobra/,
 * /run/user/UID/kvcobra/ or /tmp/kvcobra-UID/, if it exists and the folder is private to the user; that of
 * the system's daemon, /run/kvcobra/kvcobra.sock, for operators /run/kvcobra/operator.sock. Programs with
 * rights that their user lacks, such as setuid programs, ignore the environment.
 *
 * Return: 0; -EINVAL; -ENOSPC: the path is longer than @ret_bytes - 1.
 */
KVC_EXPORT int kvc_socket_path(enum kvc_socket which, const char *path, char *ret_path, size_t ret_bytes);

/* Creates a client; kvc_client_connect() connects. Return: 0; -ENOMEM; -EPERM: madvise(2) is forbidden. */
KVC_EXPORT int kvc_client_new(kvc_client **ret_client);

/**
 * kvc_client_connect() - connect to kvcobrad
 * @path: Unix socket; NULL or "": the one that kvc_socket_path() finds. In the folders of kvcobrad --user,
 *        only this user and root may serve a socket
 *
 * A client that never called this, or whose call failed, works embedded: it opens models with
 * kvc_model_open_table(), and its sequences are private.
 *
 * The library opens a lost connection again: calls that need the daemon try to reconnect, at intervals that
 * grow from 0.1 to 10 s, and spend at most 0.1 s on it. Meanwhile sequences stay usable and private, with
 * every page that they have. On a client that has lost its connection, this call tries at once.
 *
 * Return: 0, or
 *   -ENOENT, -ECONNREFUSED, -EACCES  no daemon, no permission to connect, or another user serves it
 *   -EPROTO                          the peer is not kvcobrad, or has an incompatible version
 *   -ETIMEDOUT                       no answer within 12 s, or the time of kvc_client_connect_with()
 *   -EISCONN                         the client is already connected, or @path differs from the first call's
 *   -ENOTCONN                        the connection was lost and could not be opened again
 *   -ENODEV                          GPU: the daemon has no pool on this GPU, or cannot open it now
 *   -EAGAIN                          GPU: the daemon has been opening the GPU for 10 s; retry later
 */
KVC_EXPORT int kvc_client_connect(kvc_client *c, const char *path);

typedef struct kvc_client_info {
    size_t struct_bytes;   /* sizeof(kvc_client_info) */
    uint32_t connected;    /* 1: connected now; this call checks the socket */
    uint32_t resumed;      /* 1: the last connection resumed the session, so all leases are still held */
    uint32_t n_failed;     /* failed attempts to reconnect, in a row; 0 while connected */
    uint32_t retry_ms;     /* milliseconds until the next attempt */
    uint64_t session;      /* the session's number in the daemon's log */
    uint64_t n_reconnects; /* successful reconnections since kvc_client_new() */
    uint8_t boot_id[16];   /* identifies the daemon that replied last; zeros: never connected */
} kvc_client_info;

/* Describes the connection. Return: 0; -EINVAL. */
KVC_EXPORT int kvc_client_get_info(kvc_client *c, kvc_client_info *ret_info);

/* The sentence that explains the last negative return value of this client, its models and its sequences.
 * Never NULL. Valid until the next call, except kvc_model_free() and kvc_seq_free(), which keep it. */
KVC_EXPORT const char *kvc_last_error(const kvc_client *c);

typedef struct kvc_executor {
    size_t struct_bytes; /* sizeof(kvc_executor) */
    void *ctx;           /* first argument of run */
    /* Calls @task(@arg, i, worker) once for every i below @n_items, on any threads, and returns when all
     * calls have returned. Calls at the same time have different worker numbers, all below n_workers. */
    void (*run)(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n_items);
    unsigned n_workers; /* 1..256 */
} kvc_executor;

/**
 * kvc_client_set_executor() - run attention on threads of the caller
 * @x: copied; NULL = the calling thread alone, which is also the initial state
 *
 * kvc_client_set_threads() needs no code of the caller. The library divides attention into tasks by KV head,
 * by sequence of a batch and by range of pages of a long sequence, and merges their results in a fixed order;
 * it divides packing by chunk and head, and reading by layer and chunk. The number of workers may change the
 * last bits of attention. No task runs after the call that started it has returned.
 *
 * Return: 0; -EINVAL: n_workers is out of range, or run is NULL; -EOPNOTSUPP: this client's pages are on a
 * GPU.
 */
KVC_EXPORT int kvc_client_set_executor(kvc_client *c, const kvc_executor *x);

/**
 * kvc_client_set_threads() - run the work of long calls on @n threads that the library starts
 * @n: 1..256, the calling thread included; 1 ends the threads, which is also the initial state
 *
 * Replaces an executor of the caller. The threads block all signals and sleep between calls. A child process
 * after fork() has none of them.
 *
 * Return: 0; -EINVAL: @n is out of range; -EAGAIN, -ENOMEM: no thread could be started, and nothing changed;
 * -EOPNOTSUPP: this client's pages are on a GPU.
 */
KVC_EXPORT int kvc_client_set_threads(kvc_client *c, unsigned n);

/* Frees the client, with its models, sequences and fetches that still exist: with one message, whose answer
 * it awaits for a second at most. @c may be NULL. Return: NULL. */
KVC_EXPORT kvc_client *kvc_client_free(kvc_client *c);

/* ---- model ---- */

/*
 * rope_freq are fixed numbers, so RoPE whose frequencies depend on the length of the text (longrope, dynamic
 * NTK) fits only while one set of them is in use, and M-RoPE, which rotates by several positions, does not
 * fit. The square of an attention factor (YaRN) belongs to attn_scale; keys after RoPE must not contain it.
 */
typedef struct kvc_geometry {
    size_t struct_bytes; /* sizeof(kvc_geometry) */
    uint32_t n_layers;
    uint32_t n_heads;    /* query heads per layer */
    uint32_t n_kv_heads; /* query head h reads KV head h / (n_heads / n_kv_heads) */
    uint32_t head_dim;   /* even, 32..256 */
    uint32_t n_rot;      /* rotated dimensions, first in the vector, in pairs (i, i + n_rot/2); 0: no RoPE */
    double attn_scale;   /* usually 1/sqrt(head_dim) */
    const double *rope_freq; /* [n_rot/2] radians per position, with scaling; borrowed during the call */
} kvc_geometry;

/* What pages of an exact table hold: one of the number types, and flags. */
enum kvc_exact {
    KVC_EXACT_F32 = 1,
    KVC_EXACT_F16 = 2,
    KVC_EXACT_BF16 = 3,
    KVC_EXACT_AFTER_ROPE = 4, /* as KVC_KEYS_AFTER_ROPE */
    KVC_EXACT_INTERLEAVED = 8 /* as KVC_PAIRS_INTERLEAVED */
};

typedef struct kvc_model_id {
    size_t struct_bytes; /* sizeof(kvc_model_id) */
    kvc_geometry geometry;
    uint8_t model_digest[KVC_DIGEST_BYTES]; /* of all inputs that determine K and V: weights, RoPE, adapter */
    uint32_t first_kv_head;                 /* first KV head of this shard */
    uint32_t n_kv_heads_here;               /* KV heads of this shard; 0 = all heads */
    uint32_t n_positions;                   /* longest sequence; 0 = 65536 */
    /* 0: a table with codes only. Else the caller's number type and form of keys, a sum of enum kvc_exact:
     * while no table is active, pages may hold the bytes of the caller's cache, if the daemon's configuration
     * allows it. Sequences then have this type and form, and are appended to, published, matched and read,
     * but not attended to */
    uint32_t exact;
} kvc_model_id;

/**
 * kvc_client_get_geometry() - the geometry of a model that the daemon has an active table for
 * @model_digest: as in kvc_model_id, or an alias of it (AliasModel of kvcobra.proto)
 * @ret_freq:     the frequencies; ret_geometry->rope_freq points there
 *
 * Return: 0; -ENOTCONN; -ENODATA: the daemon has no active table for this model; -EINVAL; -ENOMEM; -EPROTO,
 * -EBADMSG: the daemon's reply is not valid.
 */
KVC_EXPORT int kvc_client_get_geometry(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES],
                                       kvc_geometry *ret_geometry, double ret_freq[KVC_ROPE_FREQ_MAX]);

/**
 * kvc_table_geometry() - the model and the geometry that a table file is for
 * @c:     only explains errors; need not be connected
 * @bytes: [n_bytes] contents of the file; borrowed during the call
 *
 * Return: 0; -EBADMSG: not a valid table; -EINVAL; -ENOMEM.
 */
KVC_EXPORT int kvc_table_geometry(kvc_client *c, const void *bytes, size_t n_bytes,
                                  uint8_t ret_model_digest[KVC_DIGEST_BYTES], kvc_geometry *ret_geometry,
                                  double ret_freq[KVC_ROPE_FREQ_MAX]);

/**
 * kvc_model_open() - open a model with the daemon's active table
 *
 * The geometry must be the table's. RoPE frequencies may differ by so little that no angle up to n_positions
 * differs by 2^-8 radians, and the scale by 1e-6 of its size; the table's are used.
 *
 * A new sequence uses the table that is active when it is created, or a canary, a table that an operator
 * tries on some sequences, and keeps it for life. On a GPU kvc_seq_new() checks the table, not this call.
 *
 * Return: 0; -ENOTCONN: no daemon; -ENODATA: the daemon has no active table for this model; -EINVAL:
 * geometry or shard is not valid, as the sentence says; -EDQUOT: a limit of the daemon is reached;
 * -EPROTO, -EBADMSG: the daemon's reply is not valid
 */
KVC_EXPORT int kvc_model_open(kvc_client *c, const kvc_model_id *id, kvc_model **ret_model);

/**
 * kvc_model_open_table() - open a model with a table of the caller; all pages stay in this process (embedded)
 * @bytes: [n_bytes] contents of a table file; borrowed during the call
 *
 * Return: 0; -EBADMSG: not a valid table; -EINVAL: the table is for another model or geometry.
 */
KVC_EXPORT int kvc_model_open_table(kvc_client *c, const kvc_model_id *id, const void *bytes, size_t n_bytes,
                                    kvc_model **ret_model);

/* Frees the handle. Sequences of the model stay valid. @m may be NULL. Return: NULL. */
KVC_EXPORT kvc_model *kvc_model_free(kvc_model *m);

typedef struct kvc_model_info {
    size_t struct_bytes;                    /* sizeof(kvc_model_info) */
    uint8_t table_digest[KVC_DIGEST_BYTES]; /* the table that the next sequence will use */
    uint64_t revision;                      /* of the daemon's active table; 0 if embedded */
    double bpd_code;                        /* stored code bits per number, padding included */
    uint64_t page_bytes;                    /* a page of class "rest": header and payload of one chunk */
    uint64_t first_page_bytes;              /* a page of class "first", which also has the exact sinks */
    uint32_t n_sink;                        /* first tokens that stay exact */
    uint32_t exact;     /* 0: a table with codes; else an exact one: a sum of enum kvc_exact */
    const char *kernel; /* name of the kernels: an instruction set, or "cuda " and the name of a kernel */
} kvc_model_info;

/* Describes the active table. Return: 0; -EINVAL: struct_bytes is not valid; as kvc_model_open(). */
KVC_EXPORT int kvc_model_get_info(kvc_model *m, kvc_model_info *ret_info);

typedef struct kvc_report_options {
    size_t struct_bytes; /* sizeof(kvc_report_options) */
    uint32_t share_ppm;  /* share of new chunks that are measured, in millionths; 0: none */
    uint32_t moments;    /* 1: also joint second moments of keys and values, if the daemon accepts them */
} kvc_report_options;

/**
 * kvc_model_report() - measure how well the table fits this model's keys and values
 *
 * Measuring is off until this call. A measured chunk is decoded again, which about doubles the cost of
 * encoding it. kvc_model_get_fit() has the result. Commits send sums of errors per layer, and moments, to the
 * daemon, at most every 2 s; they never send tokens or vectors. An embedded model sends nothing. The operator
 * sets the share of chunks that are encoded with a shadow table (ShadowTable of kvcobra.proto).
 *
 * Return: 0; -EINVAL; -ENOMEM; -ENOSPC: moments of a model of this size need a larger arena-bytes of
 * kvcobrad; -EOPNOTSUPP: moments of an embedded model, or the model is on a GPU, where chunks are not
 * measured.
 */
KVC_EXPORT int kvc_model_report(kvc_model *m, const kvc_report_options *o);

typedef struct kvc_model_fit {       /* arrays are indexed by enum kvc_side */
    size_t struct_bytes;             /* sizeof(kvc_model_fit) */
    uint64_t tokens;                 /* measured; first chunks of texts are not */
    double error[2];                 /* of them: |x - decoded|^2 / |x - mean|^2, averaged over layers */
    double expected_error[2];        /* the same of the vectors that the table was solved from; 0: unknown */
    uint64_t coded[2], saturated[2]; /* as in kvc_usage */
    double expected_saturated[2];    /* of coded, of these vectors; -1: unknown */
} kvc_model_fit;

/* How well the table that new sequences use fits what this client encoded. If error is twice expected_error,
 * or the saturated share twice expected_saturated, calibrate with other text. Return: 0; -EINVAL. */
KVC_EXPORT int kvc_model_get_fit(kvc_model *m, kvc_model_fit *ret_fit);

/* ---- sequence ---- */

/**
 * kvc_seq_new() - create an empty sequence with the active table
 * @salt: [salt_bytes] anything besides tokens and model that changes K and V, such as an image or an adapter;
 *        NULL if salt_bytes is 0
 *
 * On a GPU the first sequence of a table waits for the stream while every kernel that the table selects is
 * checked against the CPU. This takes some ten milliseconds; later sequences do not wait.
 *
 * Return: 0; -ENOMEM; -EINVAL: salt_bytes is above KVC_SALT_BYTES_MAX; on a GPU -EOPNOTSUPP: no kernel
 * supports the table, or the kernel that the sentence names computes wrong results with it on this device,
 * and this client can use other tables; -EBUSY: the stream is being captured; -EIO: the GPU is lost
 */
KVC_EXPORT int kvc_seq_new(kvc_model *m, const void *salt, size_t salt_bytes, kvc_seq **ret_seq);

/* Flags of a sequence. */
#define KVC_SEQ_PUBLISH_ALL 1u /* publish every full chunk: for callers with an exact cache of their own */
#define KVC_SEQ_REPEATABLE 2u  /* attention depends neither on how a prompt was cut nor on a match */
#define KVC_SEQ_COUNTED 4u     /* its matches count neither hits nor misses: another sequence counts them */
#define KVC_FETCH_NEVER 0xffffffffu /* fetch_ms: a match uses pages in memory only */

typedef struct kvc_seq_options {
    size_t struct_bytes; /* sizeof(kvc_seq_options) */
    const void *salt;    /* [salt_bytes] as in kvc_seq_new() */
    size_t salt_bytes;
    const uint8_t *table_digest; /* [KVC_DIGEST_BYTES] use this table; NULL = the active one or a canary */
    uint32_t keys;               /* enum kvc_keys: of keys in append and read, and of queries in attend */
    uint32_t pairs;              /* enum kvc_pairs: order of the dimensions of keys and queries */
    uint32_t flags;              /* KVC_SEQ_* */
    uint32_t fetch_ms;           /* a match waits so long for pages of slower tiers; at most 8000; 0: 1000 */
    uint32_t compute_tokens_per_s; /* at which the engine computes a prompt; 0: unknown */
    uint32_t window;               /* that the layers attend to, in tokens; 0: all tokens */
} kvc_seq_options;

/**
 * kvc_seq_new_with() - create an empty sequence for an engine
 * @o: NULL = all members 0, which is kvc_seq_new() without a salt
 *
 * Keys after RoPE: the position of a token is its index in the sequence. Keys are rotated back when they are
 * appended, and rotated when they are read; queries of attend are after RoPE too.
 *
 * KVC_SEQ_PUBLISH_ALL: a full chunk is packed at the next append or commit, and a commit publishes it. Until
 * then attend reads it exactly. Without this flag the newest 64 tokens stay private.
 *
 * KVC_SEQ_REPEATABLE: a query reads the sinks and its own chunk exactly, and all earlier chunks from codes.
 * Its attention has the same bits however the text was appended, and after a match, which finds chunks of
 * such sequences only. Attend before the next append or commit, else -EINVAL. Without the flag an append's
 * queries read all its keys exactly, like an engine's own attention: a run with a match and a cold one differ
 * by the error of the codes. With it they are the same for a caller that computes chunk by chunk.
 *
 * KVC_SEQ_COUNTED: for an engine that matches one request in several processes, in all but the first.
 *
 * window: a query at position m attends to positions n > m - window only. A match needs only the chunks of
 * the last window - 1 tokens, and finds the longest text that has all of these. Earlier chunks cannot be read
 * or attended to (-EINVAL); kvc_seq_truncate() goes to 0 if they would be in the window before its end.
 *
 * compute_tokens_per_s: a match does not wait for a disk or other hosts whose pages come later than the
 * engine computes them, by the rate at which they came lately; once a minute it waits all the same, to
 * measure. The fetches of a prompt ahead of its match (kvcobra-tiers.h) do the same.
 *
 * Return: as kvc_seq_new(), or
 *   -EINVAL      an option is not valid, such as fetch_ms above 8000 that is not KVC_FETCH_NEVER
 *   -ENOENT      neither this client nor the daemon has the table @o->table_digest for this model
 *   -ESTALE      that table is neither active nor a canary, and no sequence of this client uses it
 *   -ENOTCONN    that table must be fetched, and the connection is lost
 *   -EOPNOTSUPP  GPU: keys after RoPE, interleaved pairs and the first two flags need a client on the CPU
 */
KVC_EXPORT int kvc_seq_new_with(kvc_model *m, const kvc_seq_options *o, kvc_seq **ret_seq);

/* Frees the sequence and releases its pages. @s may be NULL. Return: NULL. */
KVC_EXPORT kvc_seq *kvc_seq_free(kvc_seq *s);

/**
 * kvc_model_peek() - estimate how many leading tokens are published
 * @o:     salt, table_digest, flags and window of the sequence; NULL = all members 0. Without a
 *         table_digest chunks of the active table are looked up, also where a new sequence would get a canary
 * @ret_n: tokens that a match would find: a multiple of 64, at most @n_tokens
 *
 * Leases nothing, so the pages may be gone when a sequence matches, and counts neither hits nor misses. Sends
 * no message, except one after the daemon has built a larger index or another control page, which is rare.
 * Never connects: without a connection *ret_n is 0, as for a table_digest that is unknown.
 *
 * Return: 0; -EINVAL; -EOPNOTSUPP: see kvc_seq_new_with(); -EPROTO, -EBADMSG: the daemon's reply is invalid.
 */
KVC_EXPORT int kvc_model_peek(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens, size_t n_tokens,
                              size_t *ret_n);

/**
 * kvc_seq_match() - start an empty sequence from published chunks
 * @ret_n: number of tokens found: a multiple of 64, below @n_tokens; 0 is success too
 *
 * The sequence must be empty, or hold nothing but matched chunks; then the call looks for further ones, and
 * *ret_n is the new length. The sequence holds leases on the pages until it drops them. Without a daemon, or
 * if the connection was just lost, the call returns 0 and finds nothing. Until 64 tokens were appended, the
 * sequence has fewer exact newest tokens than others.
 *
 * Return: 0; -EINVAL: the sequence has tokens that were not matched, @tokens differ from those matched, or an
 * argument is not valid; -ESTALE: see kvc_seq_append(); -EAGAIN, -EDQUOT, -EMFILE, -ENOMEM, -EPROTO and
 * others: no further page was leased; the sequence is usable.
 */
KVC_EXPORT int kvc_seq_match(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_n);

typedef struct kvc_fetch kvc_fetch;

/**
 * kvc_fetch_start() - start a match without waiting for it
 * @s:       as for kvc_seq_match(); until kvc_fetch_free() other calls than kvc_seq_free() return -EBUSY
 * @tokens:  [n_tokens] borrowed during the call
 * @n_leave: tokens at the end that stay for the caller to compute; kvc_seq_match() leaves 1, and 0 is allowed
 *
 * The client stays usable for other sequences, and may run any number of fetches. Without a connection the
 * fetch finds nothing. The call waits for one exchange with the daemon if that has built a larger index, and
 * kvc_fetch_result() does for each extent (64 MiB by default) that this client has not mapped yet.
 *
 * Return: 0; -EBUSY: the sequence has a fetch that was not freed; -EINVAL, -EMFILE, -ENOMEM, -ESTALE: see
 * kvc_seq_match(), nothing was started.
 */
KVC_EXPORT int kvc_fetch_start(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t n_leave,
                               kvc_fetch **ret_fetch);

/* A descriptor for poll(): readable when kvc_fetch_result() should be called, and from the end of the fetch
 * on. Valid until kvc_fetch_free(); do not read, write or close it. Return: it; -EINVAL. */
KVC_EXPORT int kvc_fetch_fd(const kvc_fetch *f);

/* The result, without waiting for the daemon to find pages. Further calls return the same. If the connection
 * is lost before the end, or a reply does not come within 12 s, nothing is found.
 * Return: 0 with *ret_n as in kvc_seq_match(); -EINPROGRESS: not finished; -ECANCELED: the sequence was
 * freed; errors of kvc_seq_match(); on a GPU -EBUSY: the stream is being captured, call again later. */
KVC_EXPORT int kvc_fetch_result(kvc_fetch *f, size_t *ret_n);

/* Frees the handle. A fetch that has not finished is cancelled: the sequence keeps what it had before. What
 * the daemon still grants is given back by a later call. @f may be NULL. Return: NULL. */
KVC_EXPORT kvc_fetch *kvc_fetch_free(kvc_fetch *f);

/**
 * kvc_seq_append() - store keys and values of the next @n_new tokens of one layer
 * @k, @v: [n_new, KV heads of the shard, head_dim] row-major; borrowed during the call. Keys before RoPE, or
 *          as kvc_seq_options say
 *
 * Appending one token makes no system call, apart from waking threads when a chunk is packed.
 *
 * On a GPU @k and @v are device pointers, aligned as their type. The call returns when the work is queued; it
 * waits for the device only if memory must grow and the device is full. NaN and infinity are detected later:
 * kvc_client_synchronize() and kvc_seq_commit() return -EINVAL, and from then on every call on the sequence
 * does. The sequence keeps its length until it is freed, or cut to a length at which its input was finite.
 *
 * Return: 0, or
 *   -EINVAL  layer, dtype or strides are not valid, or the input has NaN or infinity
 *   -ENOSPC  the arena is full and nothing changed: commit, then append again
 *   -ESTALE  a restarted daemon no longer has pages of this sequence: truncate it. Append, attend, read,
 *            commit and fork return this
 *   -EFBIG   GPU: more than 2^31 tokens; -EOPNOTSUPP: strides
 */
KVC_EXPORT int kvc_seq_append(kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v,
                              size_t n_new);

typedef struct kvc_append_item {
    size_t struct_bytes; /* sizeof(kvc_append_item) */
    kvc_seq *seq;
    const void *k, *v; /* as in kvc_seq_append() */
    size_t n_new;
    /* distances in numbers from one token to the next, and from one head to the next; 0: row-major without
     * gaps. For rows of a fused qkv tensor, or [heads, tokens, head_dim] */
    size_t k_token_stride, k_head_stride;
    size_t v_token_stride, v_head_stride;
} kvc_append_item;

/**
 * kvc_seq_append_batch() - kvc_seq_append() to one layer of @n sequences of one client
 * @items: [n] borrowed during the call; each sequence at most once
 *
 * The sequences may have different lengths and models. On a GPU a decode step of a batch needs few launches:
 * one, or three if chunks become due, for up to 64 sequences of one table.
 *
 * After a failure no sequence has changed, with one exception: if the driver of a GPU refuses a launch
 * (-EIO), the sequences of earlier launches have their new tokens (see kvc_seq_length()).
 *
 * Return: 0, or
 *   an error of kvc_seq_append() for one of the sequences; the sentence has the number of the item
 *   -EINVAL  the sequences are of several clients, or one is listed twice
 *   -EINVAL  without a sentence: the first item has no valid struct_bytes or no sequence
 *   -ENOMEM  out of memory
 */
KVC_EXPORT int kvc_seq_append_batch(const kvc_append_item *items, size_t n, uint32_t layer,
                                    enum kvc_dtype dtype);

/**
 * kvc_seq_attend() - compute attention of the newest @n_q tokens of one layer
 * @q:   [n_q, n_heads of the shard, head_dim] binary32; before RoPE, or as kvc_seq_options say
 * @out: same shape as @q
 *
 * Query i is at position length - n_q + i and attends to positions 0 up to its own. The call applies RoPE,
 * scale and softmax. On a GPU @q and @out are device pointers. @out is valid when the stream has done it.
 *
 * Return: 0; -EINVAL, also if a query is NaN or infinite; -ENOMEM; -ESTALE: see kvc_seq_append(); on a GPU
 * -EIO, and queries are not checked there: those that are not finite give outputs that are not.
 */
KVC_EXPORT int kvc_seq_attend(kvc_seq *s, uint32_t layer, const float *q, size_t n_q, float *out);

typedef struct kvc_attend_options {
    size_t struct_bytes; /* sizeof(kvc_attend_options) */
    /* A query at position m attends to positions n > m - window only; sinks are no exception. 0 = all. */
    uint32_t window;
    /* 1: rotate every key in every RoPE plane. 0: slow planes may be folded, with an error of at most 2^-11
     * of the scores' size (gpu/README.md). A GPU always rotates all. */
    uint32_t exact_rope;
} kvc_attend_options;

typedef struct kvc_attend_item {
    size_t struct_bytes; /* sizeof(kvc_attend_item) */
    kvc_seq *seq;
    const void *q; /* as in kvc_seq_attend(), of number type dtype */
    size_t n_q;
    void *out;
    /* distances in numbers, as in kvc_append_item; 0: row-major without gaps */
    size_t q_token_stride, q_head_stride;
    size_t out_token_stride, out_head_stride;
    uint32_t dtype;  /* enum kvc_dtype of q and out */
    uint32_t unused; /* 0 */
} kvc_attend_item;

/**
 * kvc_seq_attend_batch() - kvc_seq_attend() for @n sequences of one client, of any lengths and models
 * @items: [n] borrowed during the call; outputs must not overlap
 * @o:     NULL = all members 0
 *
 * If the call returns -EINVAL or -ESTALE, it has written no output.
 *
 * Return: 0, or
 *   an error of kvc_seq_attend() for one of the sequences
 *   -EINVAL  the sequences are of several clients, or dtype or strides are not valid
 *   -EINVAL  without a sentence: the first item has no valid struct_bytes or no sequence
 *   -ENOMEM  out of memory; -EOPNOTSUPP: GPU: strides, or another dtype than KVC_F32
 */
KVC_EXPORT int kvc_seq_attend_batch(const kvc_attend_item *items, size_t n, uint32_t layer,
                                    const kvc_attend_options *o);

/* Decodes the vectors of positions first .. first + n - 1 into @out: [n, KV heads of the shard, head_dim]
 * binary32; keys as kvc_seq_options say. On a GPU @out is a device pointer. Return: as kvc_seq_attend(). */
KVC_EXPORT int kvc_seq_read(kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n,
                            float *out);

typedef struct kvc_blocks {
    size_t struct_bytes; /* sizeof(kvc_blocks) */
    void *const *bases;  /* [n_layers, 2] by layer and side; NULL: this layer and side is not read */
    /* distances in numbers from one number, token, head or block to the next; 0: block_tokens tokens per
     * block, row-major [tokens, heads, head_dim] without gaps (dim_stride 0: 1) */
    size_t dim_stride, token_stride, head_stride, block_stride;
    size_t block_tokens;   /* tokens per block; 0: one block */
    const int64_t *blocks; /* [position / block_tokens] block of a position; NULL: block i is at i */
    uint32_t dtype;        /* enum kvc_dtype */
    uint32_t unused;       /* 0 */
} kvc_blocks;

/**
 * kvc_seq_read_blocks() - decode positions into an engine's cache, both sides of all layers in one call
 * @first, @n: positions first .. first + n - 1, which every layer that is read must have
 * @to:        borrowed during the call. Position p goes to block b = blocks[p / block_tokens], there to
 *             token p % block_tokens; without blocks, position @first goes to token 0
 *
 * Keys are as kvc_seq_options say. Bases are aligned to the number type. Contents of a block that is named
 * twice are undefined: one unused block can take all positions that are not needed.
 *
 * Return: 0; -EINVAL: nothing is written; -ENOMEM; -ESTALE: see kvc_seq_append(); on a GPU
 * -EOPNOTSUPP, or with pages in host memory -EBUSY, -EIO.
 */
KVC_EXPORT int kvc_seq_read_blocks(kvc_seq *s, size_t first, size_t n, const kvc_blocks *to);

/**
 * kvc_seq_commit() - publish whole chunks that every layer has, in order of position
 * @tokens:        [n_tokens] token ids of the whole sequence from position 0
 * @ret_published: number of tokens of this sequence that are now in the daemon's pool; may be NULL
 *
 * The newest 64 tokens stay private, unless the sequence has KVC_SEQ_PUBLISH_ALL. A client that is embedded
 * or disconnected publishes nothing: the call returns 0 with *ret_published = 0. On a GPU a call that
 * publishes waits for the stream, and up to 1 s for the daemon to allocate memory.
 *
 * Return: 0, or
 *   -EINVAL  layers differ in length, or @tokens differ from those of a chunk that was published or matched
 *
 *   After these errors the sequence stays usable and private, in memory of this process, and a later commit
 *   tries again:
 *   -EDQUOT, -ENOSPC  the tenant's quota, or the pool, is full
 *   -EAGAIN           memory that is guaranteed to the tenant is lent to other tenants and is being
 *                     reclaimed, or the daemon is busy
 *   -ETIMEDOUT        the daemon was busy for too long
 *   -ESHUTDOWN        the daemon is draining
 *   -EFBIG            a page is larger than the pool's extents
 *   -ESTALE           the drain time of the sequence's table is over; or see kvc_seq_append()
 *
 *   On a GPU also:
 *   -EINVAL        an input was not finite; nothing is published
 *   -EBUSY         the stream is being captured
 *   -ENOMEM, -EIO  errors of the GPU
 */
KVC_EXPORT int kvc_seq_commit(kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t *ret_published);

/* Keeps the first @n tokens if position @n is in the tail, else the whole chunks before @n. *ret_kept is the
 * new length.
 * Return: 0; -EINVAL; on a GPU also -EBUSY: the stream is being captured, -ENOMEM, -EIO. */
KVC_EXPORT int kvc_seq_truncate(kvc_seq *s, size_t n, size_t *ret_kept);

/* Creates a second sequence with the same contents. Both share the packed pages; the tail is copied.
 * Return: 0; -EINVAL; -ENOMEM; -ESTALE: see kvc_seq_append(); on a GPU also
 * -EBUSY: the stream is being captured, -EIO. */
KVC_EXPORT int kvc_seq_fork(kvc_seq *s, kvc_seq **ret_fork);

/* The number of tokens that every layer has. */
KVC_EXPORT size_t kvc_seq_length(const kvc_seq *s);

typedef struct kvc_usage {
    size_t struct_bytes; /* sizeof(kvc_usage) */
    uint64_t tokens;
    uint64_t numbers;    /* tokens x layers x KV heads x head_dim x 2, of tokens that a match left out none */
    uint64_t code_bytes; /* codes of packed tokens, without padding coordinates */
    uint64_t padding_bytes; /* padding coordinates, and rounding to slots */
    uint64_t header_bytes;
    uint64_t sink_bytes;
    uint64_t tail_bytes;   /* newest tokens, stored exactly */
    uint64_t shared_bytes; /* the part of all these bytes that is in the daemon's pool */
    /* by side (enum kvc_side), of all that this client encoded with the sequence's table: coordinates, and
     * those beyond the quantiser's range; kvc_model_fit has the share to expect */
    uint64_t coded[2], saturated[2];
} kvc_usage;

/* Counts the bytes of a sequence by purpose, and the codes that saturated. Return: 0; -EINVAL. */
KVC_EXPORT int kvc_seq_get_usage(kvc_seq *s, kvc_usage *ret_usage);

#ifdef __cplusplus
}
#endif

#endif
