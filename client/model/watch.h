/*
 * Watching how tables fit what is really encoded. A sampled share of new chunks is decoded again, and encoded
 * with the operator's shadow table too; error sums per layer and side go to the daemon (REPORT) with a
 * commit. If the program opted in, joint second moments of keys and values as well. No token and no vector
 * leaves the process.
 *
 * Costs a sampled chunk about three encodings. First chunks are left out: their sinks are not what tables are
 * made for.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/chunk.h"

struct errmsg;
struct kvc_model;
struct kvc_seq;
struct model_table;
struct moments;

#define WATCH_REPORT_MS 2000   /* between reports; the daemon hears a session once a second */
#define WATCH_TOKENS_MAX 65536 /* of one report: then sampling pauses */
#define WATCH_MOMENTS_TOKENS_MAX 1048576

struct watch_sums { /* of one layer: |x - mu|^2, |x - decoded|^2, the shadow's error, by side */
    double signal[2], error[2], shadow[2];
};

struct watch {
    uint32_t report_ppm; /* of chunks: the program's choice */
    bool wants_moments;
    uint32_t shadow_ppm;        /* the operator's */
    uint64_t shadow_word;       /* of the control page, as last seen */
    struct model_table *shadow; /* one reference; NULL: none */

    struct model_table *table; /* that the sums are of; borrowed, compared only */
    uint64_t tokens;
    struct watch_sums *layers;        /* [n_layers]; NULL until something is sampled */
    uint64_t coords[2], saturated[2]; /* of @table, reported already, by side */
    struct moments *moments;          /* since the last report that took them */
    uint64_t moments_tokens;
    int64_t reported_ms; /* 0: never */

    struct chunk_work own, other; /* decoding what was packed; encoding with the shadow */
    float *rows;                  /* [64, d] decoded */
    float *keys;                  /* [shard heads][64, d]: until their values come */
    uint8_t *payload;             /* of the shadow's pages */
};

/* Allocates what sampling needs. Return: 0; -ENOMEM. */
int watch_prepare(struct kvc_model *m);
void watch_deinit(struct kvc_model *m);

/* What the control page says of a shadow now; fetches its table. What fails is tried again when the word
 * changes. */
void watch_follow(struct kvc_model *m);

/* Whether chunk @chunk of @s is sampled: the same answer for every layer of it. */
bool watch_samples(const struct kvc_seq *s, size_t chunk);

/* A sampled chunk's rows x [64, d] of one head and side, which were just packed to @payload; keys of all
 * heads first. */
void watch_head(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side, const float *x,
                const uint8_t *payload);

/* Sends what has come together, if it is time and there is somebody to send it to. Never fails: it is tried
 * again. */
void watch_report(struct kvc_model *m);

/* The table of a new sequence: the canary for the daemon's share of them, else the current one. One
 * reference. */
struct model_table *watch_pick_table(struct kvc_model *m, const void *salt, size_t salt_bytes);
