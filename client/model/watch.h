/*
 * Measuring how well tables fit live vectors. The client decodes a sample of new chunks again, and encodes it
 * with the shadow table too. A commit sends error sums per layer and side to the daemon (REPORT) and, if the
 * program requested it, joint second moments of keys and values. No token and no vector leaves the process.
 * The sums also stay here, for the program itself (kvc_model_get_fit()).
 *
 * A sampled chunk costs about three encodings more. First chunks are not sampled: tables
 * are not solved for their sinks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/chunk.h"

struct errmsg;
struct kvc_model;
struct model_table;
struct moments;

#define WATCH_REPORT_MS 2000   /* between reports; the daemon accepts one report per session and second */
#define WATCH_TOKENS_MAX 65536 /* of one report: sampling pauses until it is sent; embedded it does not */
#define WATCH_MOMENTS_TOKENS_MAX 1048576

/* Of one layer, by side: |x - mu|^2, |x - decoded|^2, and the same error with the shadow table. */
struct watch_sums {
    double signal[2], error[2], shadow[2];
};

struct watch {
    uint32_t report_ppm; /* of chunks: the program's choice */
    bool wants_moments, joint_refused;
    uint32_t shadow_ppm;        /* the operator's */
    uint64_t shadow_word;       /* of the control page, as last read */
    struct model_table *shadow; /* one reference; NULL: none */

    struct model_table *table; /* whose chunks the sums count; borrowed, compared only */
    uint64_t tokens, sent_tokens;
    struct watch_sums *layers;        /* [n_layers] not reported yet; NULL until a chunk is sampled */
    struct watch_sums *sent;          /* [n_layers] reported */
    uint64_t coords[2], saturated[2]; /* counts of @table that were reported already, by side */
    struct moments *moments;          /* since the last report that sent them */
    uint64_t moments_tokens;
    int64_t reported_ms; /* 0: never */

    struct chunk_work own, other; /* for decoding what was packed; for encoding with the shadow table */
    float *rows;                  /* [64, d] decoded */
    float *keys, *values;         /* [64, shard heads, d]: a layer of a chunk, head by head */
    uint8_t *payload;             /* of a page of the shadow table */
};

/* One head and side of a chunk that was just packed. */
struct watch_chunk {
    struct model_table *table;
    uint32_t layer, head;
    enum side side;
    const float *x;         /* [64, d] before packing */
    const uint8_t *payload; /* of its page */
};

/* Allocates what sampling needs. Return: 0; -ENOMEM. */
int watch_prepare(struct kvc_model *m);
void watch_deinit(struct kvc_model *m);

/* Takes over the shadow table that the control page names now. A failure is
 * repeated when the page changes. */
void watch_follow(struct kvc_model *m);

/* Whether chunk @chunk of the model's sequence number @seq, which uses @t, is sampled:
 * the same answer for every layer. A report is of chunks of the current table or of the canary. */
bool watch_samples(const struct kvc_model *m, const struct model_table *t, uint64_t seq, size_t chunk);

/* Measures a sampled chunk; keys of all heads first, then values. */
void watch_add(struct kvc_model *m, const struct watch_chunk *c);

/* Mean over layers of error / signal, by side, of all chunks of the current table that were measured; zeros
 * if there are none. Return: their tokens. */
uint64_t watch_fit(const struct kvc_model *m, double ret_error[static 2]);

/* Sends the sums, if there are any, it is time, and the model is connected. A failure
 * is repeated by a later call. */
void watch_report(struct kvc_model *m);

/* The table of a new sequence: the canary for the daemon's share of them, else the
 * current one. One reference. */
struct model_table *watch_pick_table(struct kvc_model *m, const void *salt, size_t salt_bytes);
