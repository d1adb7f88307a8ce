/*
 * Header and sections of a statistics file, which alloc/README.md draws and stats_file.c writes and checks.
 */
#pragma once

#include <stdint.h>

#include "alloc/stats_internal.h"

#define STATS_MAGIC "KVCSTATS"
#define STATS_VERSION 2
#define STATS_KEY_ORDER_HALF_SPLIT 1 /* rotary dimensions first, plane i = (i, i + n_rot/2) */
#define STATS_FLAG_ATTENTION 1u
#define STATS_FLAG_FISHER 2u
#define STATS_FLAG_OUTPUT 4u
#define STATS_SECTION_ALIGN 64
#define STATS_FILE_BYTES_MAX ((size_t) 64 << 30)

enum stats_section_id {
    SECTION_FREQ,    /* f64 [n_rot/2] */
    SECTION_MEAN,    /* f64 [n_hs, d] */
    SECTION_SCATTER, /* f64 [n_hs, d, d] */
    SECTION_QUERY,   /* f64 [n_hs/2, d, d] with METRIC or OUTPUT */
    SECTION_METRIC,  /* f64 [n_hs, d, d] */
    SECTION_OUTPUT,  /* f64 [n_hs, d, d] */
    SECTION_FISHER,  /* f64 [n_hs, d, d] */
    SECTION_DEPTH,   /* {f64 kl, f64 D, u64 n} [n_layers, 2] */
    SECTION_SOURCES, /* struct stats_source [n_sources], sorted */
    SECTION_IDS,     /* {u64 hash, u64 document, u64 position} [n_held], ascending */
    SECTION_SAMPLES, /* f32 [n_hs, n_held, d] */
    N_SECTIONS,
};

struct stats_section {
    uint64_t offset, bytes;
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
    uint64_t seed, n_tokens, n_fisher, n_sources;
    struct stats_section sections[N_SECTIONS];
    uint8_t zero[40];
};

_Static_assert(sizeof(struct stats_header) == 512, "README draws 512 bytes, without holes");
_Static_assert(sizeof(struct sample_id) == 24 && sizeof(struct depth_sums) == 24 &&
                   sizeof(struct stats_source) == 64,
               "stored as in memory");
