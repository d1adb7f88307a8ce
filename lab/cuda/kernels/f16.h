/* The parameters of the kernels of the binary16 baseline (f16.cu), passed by value. Plain structs, the same
 * in C, C++ and CUDA; pointers are device pointers. For benches: not part of the library. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    F16_GROUP_MAX = 16, /* query heads per KV head */
    F16_THREADS = 128,
    F16_WARPS = F16_THREADS / 32,
};

struct f16_attend {
    uint32_t d; /* 64, 128, 256 */
    uint32_t group, n_kv_heads;
    uint32_t n_keys;       /* of every sequence, > 0; a query sees all of them */
    uint32_t ld;           /* rows of a (sequence, KV head) in k and v, >= n_keys */
    uint32_t n_splits;     /* blocks that share one (sequence, KV head) */
    float scale;           /* of scores, without log2 e */
    const uint16_t *k, *v; /* [n_seqs][n_kv_heads][ld][d] binary16, keys after RoPE; aligned to 16 */
    const float *q;        /* [n_seqs][n_kv_heads * group][d] after RoPE */
    float *out;            /* same shape as q */
    float *partials;       /* [n_seqs][n_kv_heads][n_splits * F16_WARPS][F16_PARTIAL_FLOATS(d)] */
};

/* Maxima and sums per query head, then [F16_GROUP_MAX][d] weighted values. */
#define F16_PARTIAL_FLOATS(d) (F16_GROUP_MAX * (2u + (d)))

/* X(name, parameters) */
#define F16_KERNELS(X)                                                                                       \
    X(kvc_f16_64, f16_attend)                                                                                \
    X(kvc_f16_128, f16_attend) X(kvc_f16_256, f16_attend) X(kvc_f16_merge, f16_attend)

#ifdef __cplusplus
}
#endif
