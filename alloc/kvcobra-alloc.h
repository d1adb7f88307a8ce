/*
 * libkvcobra-alloc: from a model's activations to an allocation table. For programs that run a model
 * themselves and want tables for libkvcobra; alloc/BRING-YOUR-OWN-MODEL.md explains what to hand over.
 *
 * A program creates an allocator, which keeps the sentence of the last error. It creates statistics for one
 * model, adds windows of text layer by layer as the model computes them, and solves: a bit budget becomes the
 * bytes of a table, which kvc_model_open_table() and the daemon read.
 *
 * Threads: an allocator and its statistics are used by one thread at a time; allocators are independent of
 * each other. kvc_solve() starts threads, as many as its options say. Matrix products of statistics run on
 * the threads of OpenBLAS, which the process shares: OPENBLAS_NUM_THREADS in the environment, read when the
 * program starts, limits them. Their number may change the last bits of statistics. The library never prints,
 * exits, logs or changes signal handlers.
 *
 * Errors: 0 is success. On failure a call returns -errno, and kvc_alloc_error() returns the sentence that
 * explains it. Outputs named ret_* are written on success only. A call without an allocator or statistics
 * (NULL) returns -EINVAL without a sentence.
 *
 * Structs that begin with struct_bytes follow the rule of kvcobra.h. A member that is 0 has the default
 * that its comment names.
 */
#ifndef KVCOBRA_ALLOC_H
#define KVCOBRA_ALLOC_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_SAMPLES_DEFAULT 12288       /* tokens whose vectors statistics store */
#define KVC_KEY_STRIDE_DEFAULT 8        /* see kvc_stats_options */
#define KVC_WINDOW_TOKENS_MAX (1 << 20) /* tokens of a window */
#define KVC_HEAD_BANDS_MAX 32           /* bands of 8 directions of the largest head */
#define KVC_BITS_MAX 8                  /* bits of a stored number */

typedef struct kvc_alloc kvc_alloc;
typedef struct kvc_stats kvc_stats;
typedef struct kvc_table_view kvc_table_view;

/* What weighs an error; DESIGN.md section 3.1 has the formulas. */
enum kvc_metric {
    KVC_METRIC_DEFAULT =
        0, /* bands: the first of fisher, output, attention and mse that the statistics have */
    KVC_METRIC_MSE = 1,
    KVC_METRIC_QUERY = 2,
    KVC_METRIC_ATTENTION = 3,
    KVC_METRIC_FISHER = 4,
    KVC_METRIC_OUTPUT = 5
};

/* The version of the running library, such as "0.1.0". It may be newer than that of the header. */
KVC_EXPORT const char *kvc_alloc_version(void);

/* ---- allocator ---- */

/* Creates an allocator. Only allocates memory. Return: 0; -EINVAL: @ret_alloc is NULL; -ENOMEM. */
KVC_EXPORT int kvc_alloc_new(kvc_alloc **ret_alloc);

/* The sentence that explains the last negative return value of this allocator, its statistics and its views.
 * Never NULL. Valid until the next call, except those that free statistics or a view. */
KVC_EXPORT const char *kvc_alloc_error(const kvc_alloc *a);

/* Frees the allocator, with its statistics and views that still exist. @a may be NULL. Return: NULL. */
KVC_EXPORT kvc_alloc *kvc_alloc_free(kvc_alloc *a);

/* ---- statistics ---- */

/* Metrics that statistics collect besides mse. */
#define KVC_WITH_OUTPUT 1u    /* needs queries, W_O and the residual stream; the best without gradients */
#define KVC_WITH_ATTENTION 2u /* needs queries and W_O; weighs all layers equally: tables are worse */

typedef struct kvc_stats_options {
    size_t struct_bytes; /* sizeof(kvc_stats_options) */
    kvc_geometry geometry;
    uint8_t model_digest[KVC_DIGEST_BYTES]; /* as in kvc_model_id: a table opens for this model only */
    const char *model_name;                 /* shown to users, at most 127 bytes; NULL = "" */
    uint32_t n_sink;  /* first tokens of a sequence that stay exact and are not counted: 0..16; 4 is usual */
    uint32_t metrics; /* KVC_WITH_*; 0: keys and values alone, for metric mse */
    uint32_t n_samples;  /* tokens whose vectors are stored, 1..1048576; 0 = KVC_SAMPLES_DEFAULT, or fewer if
                          * their vectors would take more than 2 GiB */
    uint32_t key_stride; /* queries weigh every key_stride-th key, 1..4096; 0 = KVC_KEY_STRIDE_DEFAULT */
    uint64_t seed;       /* decides which tokens and keys are sampled */
} kvc_stats_options;

typedef struct kvc_stats_estimate {
    size_t struct_bytes;      /* sizeof(kvc_stats_estimate) */
    uint64_t stats_bytes;     /* statistics in memory, and nearly their file */
    uint64_t gradients_bytes; /* what gradients add to stats_bytes */
    uint64_t window_bytes;    /* scratch memory while a window is added */
    uint32_t n_samples;       /* of the options, or their default */
    uint32_t unused;          /* 0 */
} kvc_stats_estimate;

/* Estimates the memory that statistics need, for windows of @window tokens.
 * Return: 0; -EINVAL: an option is not valid. */
KVC_EXPORT int kvc_stats_get_estimate(kvc_alloc *a, const kvc_stats_options *o, size_t window,
                                      kvc_stats_estimate *ret_estimate);

/* Creates statistics of no tokens. Return: 0; -EINVAL: an option is not valid; -ENOMEM. */
KVC_EXPORT int kvc_stats_new(kvc_alloc *a, const kvc_stats_options *o, kvc_stats **ret_stats);

/* Frees statistics. @s may be NULL. Return: NULL. */
KVC_EXPORT kvc_stats *kvc_stats_free(kvc_stats *s);

typedef struct kvc_stats_projection {
    size_t struct_bytes; /* sizeof(kvc_stats_projection) */
    uint32_t layer;
    uint32_t dtype; /* enum kvc_dtype */
    /* W_O, which maps the outputs of all heads to the residual stream: [n_embd, n_heads * head_dim], as
     * the weight of a torch.nn.Linear is stored. Number (i, h * head_dim + j) is what number j of the
     * output of query head h adds to number i of the residual stream */
    const void *wo;
    size_t n_embd;
    /* distances in numbers; 0: row-major without gaps. For a transposed W_O: row_stride 1 and column_stride
     * n_embd */
    size_t row_stride, column_stride;
} kvc_stats_projection;

/**
 * kvc_stats_set_output_projection() - hand over W_O of one layer, before the first window
 *
 * Needed for KVC_WITH_OUTPUT and KVC_WITH_ATTENTION. Products of W_O are kept, not W_O. They are not saved:
 * hand W_O over again to add windows to loaded statistics.
 *
 * Return: 0; -EINVAL: no such layer, a number that is not finite, or an argument is not valid; -ENOMEM.
 */
KVC_EXPORT int kvc_stats_set_output_projection(kvc_stats *s, const kvc_stats_projection *p);

typedef struct kvc_stats_layer {
    size_t struct_bytes; /* sizeof(kvc_stats_layer) */
    uint64_t document;   /* any number of the caller; (document, position) names a token and occurs once */
    uint64_t position;   /* of the first token of the window in its sequence; 0 if the model started afresh */
    uint32_t layer;
    uint32_t dtype; /* enum kvc_dtype of q, k, v and residual */
    uint32_t keys;  /* enum kvc_keys: whether q and k are before or after RoPE */
    uint32_t pairs; /* enum kvc_pairs: order of the dimensions of q and k */
    size_t n;       /* tokens of the window, 1..KVC_WINDOW_TOKENS_MAX */
    const void *q;  /* [n, n_heads, head_dim] after all norms; NULL: statistics without metrics */
    const void *k;  /* [n, n_kv_heads, head_dim] after all norms */
    const void *v;  /* [n, n_kv_heads, head_dim] */
    /* [n, n_embd] the residual stream after this layer's attention was added; NULL: without KVC_WITH_OUTPUT
     * */
    const void *residual;
    size_t n_embd;
    /* distances in numbers from one token to the next, and from one head to the next; 0: row-major without
     * gaps. For rows of a fused qkv tensor, or [heads, tokens, head_dim] */
    size_t q_token_stride, q_head_stride;
    size_t k_token_stride, k_head_stride;
    size_t v_token_stride, v_head_stride;
    size_t residual_token_stride;
} kvc_stats_layer;

/**
 * kvc_stats_add_layer() - add one window of one layer
 * @x: borrowed during the call
 *
 * A window is a run of tokens that the model read together. Every layer of a window is added, in ascending
 * order, with the same document, position and n; then comes the next window. In a window that starts at
 * position 0, the first n_sink tokens are not counted. Attention is causal within the window: queries do
 * not see tokens of earlier windows, so a model should start each window afresh, at position 0.
 *
 * If a window fails after its first layer, the sums contain a part of it. Then these statistics can only be
 * freed. To lose less, add windows to several statistics and merge them.
 *
 * Return: 0, or
 *   -EINVAL  NaN or infinity (the sentence names layer and head), layers out of order, a sampled token that
 *            was added before, no W_O, or an argument is not valid
 *   -ENOMEM  out of memory
 */
KVC_EXPORT int kvc_stats_add_layer(kvc_stats *s, const kvc_stats_layer *x);

typedef struct kvc_stats_gradients {
    size_t struct_bytes; /* sizeof(kvc_stats_gradients) */
    uint64_t position;   /* as in kvc_stats_layer */
    uint32_t layer;
    uint32_t side;                    /* enum kvc_side */
    uint32_t dtype;                   /* enum kvc_dtype */
    uint32_t keys;                    /* enum kvc_keys: gradients by keys before or after RoPE */
    uint32_t pairs;                   /* enum kvc_pairs */
    uint32_t unused;                  /* 0 */
    size_t n;                         /* tokens of the window */
    const void *g;                    /* [n, n_kv_heads, head_dim] */
    size_t token_stride, head_stride; /* as in kvc_stats_layer */
} kvc_stats_gradients;

/**
 * kvc_stats_add_gradients() - add gradients of log p(y) by the keys or values of one layer
 *
 * y is drawn from the model's own distribution at each position; the gradient is that of the sum over the
 * window. The same windows must be added for every layer and side, in any order. Gradients make metric
 * fisher available. Sinks are not counted.
 *
 * Return: 0; -EINVAL: a number that is not finite, statistics made of moments, or an argument is not valid;
 * -ENOMEM.
 */
KVC_EXPORT int kvc_stats_add_gradients(kvc_stats *s, const kvc_stats_gradients *x);

enum kvc_source_kind {
    KVC_SOURCE_TEXT = 0,  /* a file of raw text */
    KVC_SOURCE_LINES = 1, /* a file with a document per line */
    KVC_SOURCE_MODEL = 2, /* token ids (uint32) that the model wrote */
    KVC_SOURCE_REST = 3   /* kvc_stats_begin_source(): small sources that are added up */
};

typedef struct kvc_stats_source {
    size_t struct_bytes;              /* sizeof(kvc_stats_source) */
    uint8_t digest[KVC_DIGEST_BYTES]; /* SHA-256 of the bytes of the file or the ids */
    uint64_t bytes;                   /* of the file or the ids */
    uint64_t tokens, windows;         /* added to these statistics */
    uint32_t window;                  /* most tokens of a window */
    uint32_t kind;                    /* enum kvc_source_kind */
} kvc_stats_source;

/* Records a text that windows came from; tables name it in their provenance. A second call for the same text
 * adds tokens and windows. Return: 0; -EINVAL: an unknown kind, or more than 2048 texts; -ENOMEM. */
KVC_EXPORT int kvc_stats_add_source(kvc_stats *s, const kvc_stats_source *x);

/**
 * kvc_stats_begin_source() - name the source of the windows that follow
 * @kind:   enum kvc_source_kind
 * @digest: 32 bytes that are the same in all statistics of this source, such as the SHA-256 of its text; may
 *          be NULL for KVC_SOURCE_REST
 *
 * A source is a text, or a kind of text. The sums of at most 8 sources stay apart: a ninth and the smallest
 * one so far are added up, and later ones too. kvc_solve() fits tables to sources that were left out, if
 * there are several: such tables are better on text that they never saw. Windows before the first call have
 * one unnamed source.
 *
 * Return: 0; -EINVAL: a window is not complete, statistics made of moments, or an argument is not valid.
 */
KVC_EXPORT int kvc_stats_begin_source(kvc_stats *s, uint32_t kind, const uint8_t *digest);

/**
 * kvc_stats_set_kl_per_distortion() - store what a table's KL is of its distortion, for expected_kl of solves
 * @x: nats per token for each unit of e'Me, measured with a table of default options; 0: not measured
 *
 * `kvcobra calibrate` without --quick measures it. Return: 0; -EINVAL: not finite, below 0 or above 1e12.
 */
KVC_EXPORT int kvc_stats_set_kl_per_distortion(kvc_stats *s, double x);

/**
 * kvc_stats_merge() - add the tokens of @other to @s, as if one program had read all windows
 * @other: unchanged; of the same allocator or of another one that no thread uses meanwhile
 *
 * Sums of the same source are added, others stay apart (kvc_stats_begin_source()). The seeds may differ.
 * Merging in another order may change the last bits, since sampled vectors are rounded to binary16 again. On
 * failure @s is unchanged; after -ENOMEM free it.
 *
 * Return: 0; -EINVAL: another model, geometry or options, or the same sampled token in both, named; -ENOMEM.
 */
KVC_EXPORT int kvc_stats_merge(kvc_stats *s, const kvc_stats *other);

/* Writes a file. A full disk or a crash leaves an earlier file unchanged.
 * Return: 0; -EINVAL: a window is not complete; -ENOSPC, -EACCES and others of the file system; -ENOMEM. */
KVC_EXPORT int kvc_stats_save(kvc_stats *s, const char *path);

/**
 * kvc_stats_load() - read a file of statistics, or of moments (`kvcobra calibrate --moments-only`)
 * @metric_from: for moments: statistics of the same model that have the metric, or NULL for metric mse; for
 *               statistics NULL. Only read
 *
 * Return: 0; -EBADMSG: not such a file, or damaged; -EINVAL: @metric_from is of another model, or not for
 * this file; -ENOENT, -EACCES and others of the file system; -ENOMEM.
 */
KVC_EXPORT int kvc_stats_load(kvc_alloc *a, const char *path, const kvc_stats *metric_from,
                              kvc_stats **ret_stats);

typedef struct kvc_stats_info {
    size_t struct_bytes; /* sizeof(kvc_stats_info) */
    uint64_t tokens;     /* counted; sinks are not */
    uint64_t samples;    /* tokens whose vectors are stored */
    uint64_t sources;    /* texts; kvc_stats_get_source() */
    uint64_t file_bytes; /* of kvc_stats_save(); 0: moments, which cannot be saved */
    uint32_t metrics;    /* KVC_WITH_* */
    uint32_t gradients;  /* 1: metric fisher is available */
    uint32_t moments;    /* 1: made of moments, without vectors */
    uint32_t depth;      /* 1: `kvcobra calibrate` measured depth weights for metric attention */
    uint32_t n_sink, n_samples, key_stride; /* as in kvc_stats_options, without defaults */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t unused; /* 0 */
    uint64_t seed;
    uint8_t model_digest[KVC_DIGEST_BYTES];
    const char *model_name; /* belongs to the statistics */
    double
        kl_per_distortion; /* nats per token for each unit of distortion e'Me of a table; 0: not measured */
} kvc_stats_info;

/* Describes statistics. Return: 0; -EINVAL: an argument is not valid. */
KVC_EXPORT int kvc_stats_get_info(kvc_stats *s, kvc_stats_info *ret_info);

/* The @i-th text, in an order of the library's. Return: 0; -EINVAL: no such text, or an argument is not
 * valid. */
KVC_EXPORT int kvc_stats_get_source(kvc_stats *s, size_t i, kvc_stats_source *ret_source);

/* ---- solving ---- */

enum kvc_method {
    KVC_METHOD_BANDS = 0,     /* each band of 8 directions of each head gets its own width */
    KVC_METHOD_PAPER_MSE = 1, /* the paper's allocator with squared error */
    KVC_METHOD_PAPER_KL = 2,  /* the paper's allocator with its attention-KL weight */
    KVC_METHOD_DP = 3         /* the paper's codecs, budgets by exact dynamic programming */
};

enum kvc_curve {
    KVC_CURVE_DEFAULT = 0,
    KVC_CURVE_MEASURED = 1,
    KVC_CURVE_GAUSSIAN = 2,
    KVC_CURVE_BENNETT = 3
};

enum kvc_quantiser {
    KVC_QUANTISER_DEFAULT = 0, /* bands: Lloyd-Max; others: uniform with a level at 0 */
    KVC_QUANTISER_LLOYD_MAX = 1,
    KVC_QUANTISER_UNIFORM = 2,
    KVC_QUANTISER_UNIFORM_MIDTREAD = 3
};

enum kvc_predict {
    KVC_PREDICT_DEFAULT = 0, /* bands: head; others: none */
    KVC_PREDICT_NONE = 1,
    KVC_PREDICT_HEAD = 2, /* code values as residuals of a prediction from their head's keys */
    KVC_PREDICT_LAYER = 3 /* from the keys of all heads of the layer: every process needs all heads */
};

enum kvc_decoder {
    KVC_DECODER_DEFAULT = 0, /* bands with sampled vectors: least squares; others: inverse */
    KVC_DECODER_INVERSE = 1,
    KVC_DECODER_LEAST_SQUARES = 2
};

#define KVC_SOLVE_NORMAL_LEVELS 1u    /* levels of a normal distribution instead of fitted ones */
#define KVC_SOLVE_NO_DEPTH_WEIGHTS 2u /* metric attention: weigh all layers equally */
/* bands: fit to the sources themselves, not to sources that were left out; a table that is better on these
 * texts and worse on all others */
#define KVC_SOLVE_OWN_SOURCES 4u
/* matrices of a table with trellises in binary32, as in tables without: twice the bytes. Else in binary16 */
#define KVC_SOLVE_BINARY32 8u
/* bands: RoPE planes that turn by more than 0.1 radians per token, and the others, have bases of their own in
 * keys: attention on a CPU is faster, and the KL at a budget is higher */
#define KVC_SOLVE_BLOCKS 16u

/* Parameters of the paper's methods. */
typedef struct kvc_paper_options {
    size_t struct_bytes;   /* sizeof(kvc_paper_options) */
    double b_min_budget;   /* B_min: least budget of a head in bits per token; the paper has 8 */
    double eta;            /* damping of C2; the paper has 0.3 */
    uint32_t rounds;       /* of C2; the paper has 5 */
    uint32_t rank_step;    /* ranks are multiples of it; the paper has 2 */
    uint32_t b_min, b_max; /* bits of a stored coordinate, 1..8; the paper has 2 and 8 */
} kvc_paper_options;

typedef struct kvc_solve_options {
    size_t struct_bytes; /* sizeof(kvc_solve_options) */
    double bpd;          /* stored code bits per number, keys and values together: above 0, at most 8 */
    double k_bpd, v_bpd; /* separate budgets instead of bpd; 0, 0: none */
    uint32_t method;     /* enum kvc_method */
    uint32_t metric;     /* enum kvc_metric */
    uint32_t curve;      /* enum kvc_curve; default: measured, where the statistics have vectors */
    uint32_t quantiser;  /* enum kvc_quantiser */
    uint32_t predict;    /* enum kvc_predict */
    uint32_t decoder;    /* enum kvc_decoder */
    uint32_t flags;      /* KVC_SOLVE_* */
    /* 1..8: solve without this source of the statistics, to measure the table on it; 0: none */
    uint32_t without;
    double temper; /* raise the metric to this power, at most 2, and keep its trace; 0: 0.75 for fisher and
                          * output, 1 for attention */
    double floor_bpd, ceil_bpd; /* of every head and side; ceil_bpd 0 = 8 */
    /* bands: levels and thresholds are as many times those of least squared error, 1 to 2, so that loud
     * tokens are cut less; 0: the default, chosen by KL, which is smaller for codes of one bit. Not with
     * levels_from, which have theirs */
    double loading_k, loading_v;
    /* bands: how much of the contrast that least squares takes from what is decoded is given back, up to 1;
     * 0: the default, chosen by KL; -1: nothing */
    double contrast_k, contrast_v;
    uint64_t seed;           /* signs of rotations */
    const void *levels_from; /* [levels_from_bytes] a table whose levels are used; NULL: none */
    size_t levels_from_bytes;
    const kvc_paper_options *paper; /* NULL: the paper's values. Not for bands */
    /* Called by the thread that solves, now and then: @what is a part of the work, @fraction 0..1. It must
     * not call this allocator. NULL: none */
    void (*progress)(void *ctx, const char *what, double fraction);
    void *progress_ctx;
    /* that share the work, at most 256; 0: as many as the process may use processors. The table does not
     * depend on it */
    uint32_t threads;
    /* bands with the quantiser lloyd-max: widths up to four bits have trellis-coded levels of 64, 128 or 256
     * states, which lose less and take longer to encode; 0: the default, 64; 1: none, scalar levels. Not with
     * levels_from, which have theirs */
    uint32_t trellis_states;
} kvc_solve_options;

typedef struct kvc_solve_report {
    size_t struct_bytes;                    /* sizeof(kvc_solve_report) */
    uint8_t table_digest[KVC_DIGEST_BYTES]; /* SHA-256 of the table's bytes: its name everywhere */
    double bpd_code;                        /* stored code bits per number, padding included */
    double bpd_nominal;                     /* without padding */
    double k_bpd, v_bpd;                    /* of keys and of values, padding included */
    /* the mean of e'Me: squared errors of the sampled vectors in the metric. 0 if not measured */
    double distortion, distortion_k, distortion_v;
    double distortion_estimated; /* before the table was built */
    /* |x - decoded|^2 / |x - mean|^2 of the sampled vectors, mean over layers. 0 if not measured */
    double error_k, error_v;
    uint32_t measured; /* 1: the statistics have vectors */
    uint32_t metric;   /* enum kvc_metric that was used, never the default */
    /* distortion and errors to expect of a source that the table was not fitted to; 0 with one source */
    double unseen_distortion, unseen_error_k, unseen_error_v;
    /* share of the largest source, if the others are too few to leave it out: the table is then fitted to the
     * sources themselves; else 0 */
    double largest_share;
    double without_distortion; /* of the source kvc_solve_options.without, measured; 0: none */
    /* bit i: source i + 1 varies ten times less or more than most of the text, as one token that repeats
     * does, and counts as at most 1 % of the tokens. Never with KVC_SOLVE_OWN_SOURCES */
    uint64_t reduced_sources;
    /* an estimate of the KL to the exact model on other text, nats per token, by kvc_stats_info's
     * kl_per_distortion; 0: none, which needs default quantisers and the default metric */
    double expected_kl;
} kvc_solve_report;

/**
 * kvc_solve() - divide a bit budget among all heads, and make the table
 * @ret_bytes:  malloc'ed contents of a table file; free() them
 * @ret_report: may be NULL
 *
 * The same statistics, options and version give the same bytes. Needs about twice the memory of the
 * statistics and, for each thread, (2 sources + 1) (m + d)^2 binary64 numbers: m is d, or d times the KV
 * heads if values are predicted from all keys of a layer. OpenBLAS has one thread for the whole process until
 * the last solve that runs returns; then it has as many as before. A program that calls
 * openblas_set_num_threads() meanwhile loses that setting.
 *
 * Return: 0, or
 *   -EINVAL   the statistics are empty, incomplete or lack the metric, or options exclude each other
 *   -EBADMSG  levels_from is not a valid table
 *   -ERANGE   the budget cannot be met; the sentence names the smallest possible
 *   -EAGAIN   the threads that the options ask for could not be started
 *   -ENOMEM   out of memory
 */
KVC_EXPORT int kvc_solve(kvc_stats *s, const kvc_solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
                         kvc_solve_report *ret_report);

/* The metric that a solve with these options uses. Return: 0; -EINVAL: an option is not valid. */
KVC_EXPORT int kvc_solve_get_metric(kvc_stats *s, const kvc_solve_options *o, uint32_t *ret_metric);

/* ---- looking into tables ---- */

/**
 * kvc_table_view_new() - check the contents of a table file and look into them
 * @bytes: [n_bytes] copied
 *
 * Return: 0; -EBADMSG: not a valid table; -ENOMEM; -EINVAL.
 */
KVC_EXPORT int kvc_table_view_new(kvc_alloc *a, const void *bytes, size_t n_bytes, kvc_table_view **ret_view);

/* Frees the view. @v may be NULL. Return: NULL. */
KVC_EXPORT kvc_table_view *kvc_table_view_free(kvc_table_view *v);

typedef struct kvc_table_summary {
    size_t struct_bytes; /* sizeof(kvc_table_summary) */
    uint8_t table_digest[KVC_DIGEST_BYTES], model_digest[KVC_DIGEST_BYTES];
    double bpd_code, bpd_nominal; /* as in kvc_solve_report */
    double k_bpd, v_bpd;
    uint64_t fixed_bytes; /* means, bases and levels: once per process */
    uint32_t n_sink;
    uint32_t predict; /* enum kvc_predict: what values are predicted from */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    /* JSON text of the statistics, texts and options that the table was solved with, and the errors to
     * expect ("expected": {"error_k", "error_v"}); belongs to the view */
    const char *provenance;
} kvc_table_summary;

/* Describes a table. Return: 0; -EINVAL: an argument is not valid. */
KVC_EXPORT int kvc_table_view_get_summary(kvc_table_view *v, kvc_table_summary *ret_summary);

typedef struct kvc_table_head {
    size_t struct_bytes;              /* sizeof(kvc_table_head) */
    uint32_t code_bits;               /* stored bits per token, padding included */
    uint32_t nominal_bits;            /* without padding */
    uint32_t rank;                    /* stored coordinates, without padding */
    uint32_t n_bands;                 /* stored bands, padding bands included */
    uint8_t bits[KVC_HEAD_BANDS_MAX]; /* [n_bands] width of each band of 8 coordinates, descending */
} kvc_table_head;

/* Describes the codec of one layer, KV head and side (enum kvc_side).
 * Return: 0; -EINVAL: no such layer, head or side, or an argument is not valid. */
KVC_EXPORT int kvc_table_view_get_head(kvc_table_view *v, uint32_t layer, uint32_t head, uint32_t side,
                                       kvc_table_head *ret_head);

#ifdef __cplusplus
}
#endif

#endif
