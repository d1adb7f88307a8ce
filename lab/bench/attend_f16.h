/*
 * The baseline of `kvcobra-lab bench attend`: query tokens of one KV head against a plain binary16 cache, as
 * fast as we can make it. Keys are rotated (after RoPE) and transposed in blocks of 64, so that neither
 * keys nor values need a sum across lanes; all query heads of the KV head share each load. The baseline is
 * not part of the library.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ATTEND_F16_ROWS_MAX 64

struct attend_f16_args {
    size_t d;          /* a multiple of 16, at most 256 */
    size_t group;      /* query heads */
    size_t n_tokens;   /* the newest tokens, each of which sees itself and older ones; n_tokens * group rows,
                        * 1..ATTEND_F16_ROWS_MAX */
    size_t n_blocks;   /* of 64 keys each */
    const uint16_t *k; /* [n_blocks][d][64] */
    const uint16_t *v; /* [n_blocks][64][d] */
    const float *q;    /* [n_tokens, group, d] rotated to their positions, times the attention scale */
    float *out;        /* [n_tokens, group, d] */
};

struct attend_f16 {
    const char *name;
    void (*attend)(const struct attend_f16_args *a);
};

/* The variant for the capabilities in @mask (gpu/cpu.h); NULL if there is none. */
const struct attend_f16 *attend_f16_select(unsigned mask);
