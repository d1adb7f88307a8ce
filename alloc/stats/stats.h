/*
 * Calibration statistics: streaming, mergeable, one file for every budget (DESIGN 3.1, 3.5). Calibration
 * fills them; solvers, `merge` and `inspect` read them.
 *
 * Per head-side: count, mean, centred scatter, metric sums. Per sampled token: the pre-RoPE K and V of all
 * layers and heads, for curves, levels and prediction. Sinks are left out of everything.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct atomic_file;
struct errmsg;
struct stats;

/* Predictions and decoders are fitted to the samples: 4096 instead of 12288 cost 7 % KL at
 * 2 bits per number (alloc/README.md). */
#define STATS_SAMPLES_DEFAULT 12288

struct stats_options {
    struct geometry geometry;
    uint8_t model_digest[DIGEST_BYTES];
    char model_name[128];
    uint32_t n_sink;     /* 4 */
    uint32_t n_samples;  /* tokens whose vectors are stored */
    uint32_t key_stride; /* 8: attention metric from every 8th key, seeded offset per window */
    /* attention metric; needs queries and W_O. This or want_output also gives query moments */
    bool want_attention;
    /* output metric; needs queries, W_O and the mean squares of the residual stream */
    bool want_output;
    uint64_t seed;
};
void stats_options_default(struct stats_options *o, const struct geometry *g);

/* Return: 0; -EINVAL: an option out of range, named. */
int stats_options_check(const struct stats_options *o, struct errmsg *e);

/* Bytes that statistics with these options take in memory and, nearly, on disk. `calibrate` prints them
 * before it starts. */
uint64_t stats_bytes(const struct stats_options *o);

/* Default number of tokens whose vectors are stored: STATS_SAMPLES_DEFAULT, or as many as fit
 * STATS_SAMPLES_BYTES. A model of 32 layers, 8 KV heads and d = 128 has 128 KiB per token, so 12288 tokens
 * take 1.5 GiB. */
#define STATS_SAMPLES_BYTES ((uint64_t) 2 << 30)
uint32_t stats_samples_default(const struct geometry *g);

int stats_new(const struct stats_options *o, struct stats **ret_stats, struct errmsg *e);
struct stats *stats_free(struct stats *s);
static inline void stats_freep(struct stats **s)
{
    *s = stats_free(*s);
}

#define STATS_EMBD_MAX (1 << 24) /* numbers of a residual stream; BLAS counts in int */

/* Both metrics without gradients need W_O of every layer: [n_embd, n_heads * d] row-major; only W_O' W_O per
 * head is stored. */
int stats_set_output_projection(struct stats *s, uint32_t layer, const float *wo, uint32_t n_embd,
                                struct errmsg *e);

/**
 * stats_add_layer() - one window of one layer; called for every layer of the window in ascending order
 * @document, @position:
 *     document and first position of the window; (seed, document, position) decides which tokens are sampled.
 *     At position 0 a sequence starts: its first n_sink tokens are sinks and are left out
 * @q:        [n, n_heads, d] before RoPE; may be NULL without either metric
 * @k, @v:    [n, n_kv_heads, d] before RoPE
 * @residual: [n] mean square of each token's residual stream after this layer's attention; may be NULL
 *            without want_output
 *
 * Attention is causal within the window; positions for RoPE are 0..n-1. If a window fails after its first
 * layer, the sums contain a part of it: such statistics can only be freed.
 *
 * Return: 0; -EINVAL: NaN or infinity, naming layer and head, or a residual stream of length 0; layers
 * out of order; a token added before; -ENOMEM.
 */
int stats_add_layer(struct stats *s, uint64_t document, uint64_t position, uint32_t layer, size_t n,
                    const float *q, const float *k, const float *v, const float *residual, struct errmsg *e);

/* Adds gradients g of log p(y), y drawn from the model, by the vectors of one (layer, side):
 * [n, n_kv_heads, d]. The same n for every layer and side. Makes the `fisher` metric available.
 * Return: 0; -EINVAL: not finite; -ENOMEM. */
int stats_add_fisher(struct stats *s, uint32_t layer, enum side side, size_t n, const float *g,
                     struct errmsg *e);

/* Bytes of scratch memory that adding a window of @n tokens takes for the metrics. */
uint64_t stats_window_bytes(const struct stats_options *o, size_t n);

/* Bytes that gradients add to stats_bytes(). */
uint64_t stats_fisher_bytes(const struct stats_options *o);

/* Depth weight measurement (DESIGN 3.1): @kl in nats per token when only (layer, side) is compressed, @D the
 * mean e'Me on the same tokens, summed over its heads. */
int stats_set_depth(struct stats *s, uint32_t layer, enum side side, double kl, double D);
/* The means of the measurements. Return: 0; -ENODATA: not measured. */
int stats_get_depth(const struct stats *s, uint32_t layer, enum side side, double *ret_kl, double *ret_D);

/* A text that windows came from. A table's provenance lists them. */
enum stats_source_kind {
    SOURCE_TEXT = 0,  /* raw */
    SOURCE_LINES = 1, /* a document per line */
    SOURCE_MODEL = 2, /* written by the model */
    SOURCE_REST = 3,  /* of a domain only: several small sources */
};
struct stats_source {
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the file's bytes, or of the ids (u32) that the model wrote */
    uint64_t bytes;               /* of the file or the ids */
    uint64_t tokens, windows;     /* counted in these statistics */
    uint32_t window;              /* most tokens of a window */
    uint32_t kind;
};

/**
 * stats_add_source() - record the text that windows came from
 *
 * A second call with the same digest, bytes, window and kind adds tokens and windows. The list is sorted, so
 * that merging in any order gives the same list.
 *
 * Return: 0; -EINVAL: an unknown kind, or more than STATS_SOURCES_MAX; -ENOMEM.
 */
#define STATS_SOURCES_MAX 2048
int stats_add_source(struct stats *s, const struct stats_source *source, struct errmsg *e);
size_t stats_sources(const struct stats *s, const struct stats_source **ret_sources); /* borrowed */

/**
 * stats_begin_source() - name the source of the windows that follow
 * @digest: of a text; any 32 bytes that are the same in all statistics of this source. SOURCE_REST: ignored
 *
 * The moments of each source stay apart, and each sampled token keeps its source, so that a solver can leave
 * a source out. At most STATS_DOMAINS_MAX of them: one more and the smallest one so far are added up as
 * SOURCE_REST, and later ones too. Windows before the first call have an unnamed source.
 *
 * Return: 0; -EINVAL: within a window, or an unknown kind.
 */
#define STATS_DOMAINS_MAX 8
int stats_begin_source(struct stats *s, uint32_t kind, const uint8_t digest[static DIGEST_BYTES],
                       struct errmsg *e);

/* Sources that are apart, in the order of kinds and digests. Statistics of moments have none. */
uint32_t stats_domains(const struct stats *s);
struct stats_domain_info {
    uint8_t digest[DIGEST_BYTES];
    uint32_t kind;
    uint64_t n_tokens;
    size_t n_samples; /* of the sampled tokens */
};
void stats_domain_info(const struct stats *s, uint32_t domain, struct stats_domain_info *ret);

/* Adds @other to @s. Their seeds may differ. Return: 0; -EINVAL: another model, geometry or options, or a
 * sampled token of both, named; -ENOMEM: @s can only be freed. */
int stats_merge(struct stats *s, const struct stats *other, struct errmsg *e);

int stats_save(const struct stats *s, const char *path, struct errmsg *e);
/* Writes the bytes of the file, stats_file_bytes() many, into an open file. */
int stats_put(const struct stats *s, struct atomic_file *f, struct errmsg *e);
uint64_t stats_file_bytes(const struct stats *s);
int stats_load(const char *path, struct stats **ret_stats, struct errmsg *e);
int stats_parse(const void *bytes, size_t n_bytes, struct stats **ret_stats, struct errmsg *e);

const struct stats_options *stats_get_options(const struct stats *s);
uint64_t stats_tokens(const struct stats *s); /* counted, sinks left out */

/*
 * KL of a table over its distortion e'Me, nats per token: a number of the model, by which a solve expects
 * the KL of its table. Measured with default options (calibration_kl.c); 0: not measured. Setting it returns
 * -EINVAL unless it is 0, or above 0 and at most STATS_KL_MAX. Merging gives the mean by tokens.
 */
#define STATS_KL_MAX 1e12
int stats_set_kl_per_distortion(struct stats *s, double x, struct errmsg *e);
double stats_kl_per_distortion(const struct stats *s);
/* Puts samples into the order of a statistics file, so that measurements do not depend on whether the samples
 * came from a file. */
int stats_sort_samples(struct stats *s);
size_t stats_samples(const struct stats *s); /* tokens whose vectors are stored */
bool stats_has_depth(const struct stats *s); /* depth weights measured for every layer and side */
bool stats_has_fisher(const struct stats *s);
bool stats_is_moments(const struct stats *s);  /* made by stats_from_moments(): without vectors */
bool stats_has_queries(const struct stats *s); /* query moments: metric `query`, the paper's methods */

/* The name of these statistics in a table's provenance: the SHA-256 at the end of their file, or that of the
 * moments they were made of. */
int stats_digest(const struct stats *s, uint8_t ret_digest[static DIGEST_BYTES], struct errmsg *e);
