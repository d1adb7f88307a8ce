/*
 * For tests of the client: a model with a random table, inputs that depend only on (layer, position), and
 * attention in binary64 over the vectors that kvc_seq_read() returns.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"
#include "client/kvcobra.h"

struct embedded {
    struct geometry g;
    void *bytes; /* of the table */
    size_t n_bytes;
    kvc_client *client;
    kvc_model *model;
    uint32_t first_head, n_heads; /* shard */
};

/* @n_heads_here 0: all. Failures are asserted. */
struct embedded embedded_new(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d, double bpd,
                             uint32_t first_head, uint32_t n_heads_here);
/* The same with @prediction for values; embedded_new() predicts from the head's own keys. */
struct embedded embedded_new_predicting(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                        double bpd, uint32_t first_head, uint32_t n_heads_here,
                                        enum prediction v_from);
/* The same, with RoPE on the first @n_rot dimensions only. */
struct embedded embedded_new_rotating(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                      uint32_t n_rot, double bpd, uint32_t first_head, uint32_t n_heads_here,
                                      enum prediction v_from);
void embedded_free(struct embedded *m);

kvc_model_id embedded_id(const struct embedded *m);

/* Encodes and decodes one token of one layer by the codec alone: rows [shard heads, d] in, decoded rows
 * out, which may be the same memory. */
void embedded_round_trip(const struct embedded *m, const struct table *t, uint32_t layer, const float *k,
                         const float *v, float *ret_k, float *ret_v);

/* Input vectors of positions [first, first + n): [n, shard heads, d]; queries [n, shard query heads, d].
 * @text makes different texts. Some key dimensions have a large common part, as models with a key bias do. */
float *embedded_input(const struct embedded *m, uint32_t text, uint32_t layer, enum kvc_side side,
                      size_t first, size_t n);
float *embedded_queries(const struct embedded *m, uint32_t text, uint32_t layer, size_t first, size_t n);

/* Appends [first, first + n) of @text in all layers; returns the first error. */
int embedded_append(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n);

/* Attention of queries at positions [first, first + n) over k, v [.., shard heads, d], in binary64. */
double *embedded_attention(const struct embedded *m, const float *k, const float *v, const float *q,
                           size_t first, size_t n);

/* Decoded vectors of all positions of a layer. */
float *embedded_read(const struct embedded *m, kvc_seq *s, uint32_t layer, enum kvc_side side, size_t n);

/*
 * The bound of nmse() of attention. The reference's scores and sums are binary32, exact rows binary16 of x -
 * mean, which read() returns alike: a few hundred terms of relative error 2^-24 stay below 2^-16 of the
 * output, and that squared is the limit. A wrong token, rotation or mask gives more than 1e-3, squared
 * 1e-6. Other kernels may take decode steps with 6 to 8 bits of weights and factors (gpu/cpu/decode.h;
 * gpu's own tests hold them to a bound derived case by case): 1 in 64, squared.
 * tests/unit/client/meson.build runs the tests on both.
 */
double embedded_nmse_max(const struct embedded *m);

/* sum (a - b)^2 / sum b^2 */
double nmse(const float *a, const double *b, size_t n);
