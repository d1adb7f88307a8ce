/*
 * Header and sections of a statistics file, which alloc/README.md draws; stats_file.c writes and
 * stats_file_read.c checks them.
 */
#pragma once

#include <stdint.h>

#include "alloc/stats/stats_internal.h"

#define STATS_MAGIC "KVCSTATS"
#define STATS_VERSION 3
#define STATS_KEY_ORDER_HALF_SPLIT 1 /* rotary dimensions first, plane i = (i, i + n_rot/2) */
#define STATS_FLAG_ATTENTION 1u
#define STATS_FLAG_FISHER 2u
#define STATS_FLAG_OUTPUT 4u
#define STATS_FLAG_MIXED_SEEDS 8u
#define STATS_TOKENS_MAX ((uint64_t) 1 << 48) /* as of moments: sums of them stay exact in binary64 */
#define STATS_SECTION_ALIGN 64
#define STATS_FILE_BYTES_MAX ((size_t) 64 << 30)

/* A triangle is the lower one of a symmetric matrix [d, d], by rows: d (d + 1) / 2 numbers. */
enum stats_section_id {
    SECTION_FREQ,      /* f64 [n_rot/2] */
    SECTION_DOMAINS,   /* struct stats_stored_domain [n_domains], sorted */
    SECTION_MEAN,      /* f64 [n_domains, n_hs, d] */
    SECTION_SCATTER,   /* f64 [n_domains, n_hs] triangles */
    SECTION_QUERY,     /* f32 [n_hs/2] triangles, with METRIC or OUTPUT */
    SECTION_METRIC,    /* f32 [n_hs] triangles */
    SECTION_OUTPUT,    /* f32 [n_hs] triangles */
    SECTION_FISHER,    /* f32 [n_hs] triangles */
    SECTION_DEPTH,     /* {f64 kl, f64 D, u64 n} [n_layers, 2] */
    SECTION_SOURCES,   /* struct stats_source [n_sources], sorted */
    SECTION_IDS,       /* {u64 hash, u64 document, u64 position} [n_held], ascending */
    SECTION_DOMAIN_OF, /* u8 [n_held] */
    SECTION_OFFSET,    /* f32 [n_hs, d], with samples */
    SECTION_SCALE,     /* f32 [n_hs], with samples */
    SECTION_SAMPLES,   /* f16 [n_hs, n_held, d] of (x - offset) / scale */
    N_SECTIONS,
};

struct stats_section {
    uint64_t offset, bytes;
};

struct stats_stored_domain {
    uint8_t digest[DIGEST_BYTES];
    uint32_t kind, zero;
    uint64_t n_tokens;
};

struct stats_header {
    char magic[8];
    uint32_t version, flags;
    uint64_t file_bytes;
    uint8_t model_digest[DIGEST_BYTES], geometry_digest[DIGEST_BYTES];
    char model_name[128];
    uint32_t n_layers, n_heads, n_kv_heads, d, n_rot, key_order;
    double attn_scale;
    uint32_t n_sink, n_samples, key_stride, n_held;
    uint64_t seed, n_tokens, n_fisher, n_sources, n_domains;
    struct stats_section sections[N_SECTIONS];
    double kl_per_distortion;
    uint8_t zero[88];
};

_Static_assert(sizeof(struct stats_header) == 640, "README draws 640 bytes, without holes");
_Static_assert(sizeof(struct sample_id) == 24 && sizeof(struct depth_sums) == 24 &&
                   sizeof(struct stats_source) == 64 && sizeof(struct stats_stored_domain) == 48,
               "stored as in memory");

/* Computes the sections and the size from the other fields of the header. No overflow: geometry_validate()
 * and the limits of stats_alloc() bound every factor. */
void stats_file_lay_out(struct stats_header *h);
