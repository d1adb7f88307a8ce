/*
 * q8_0 and q4_0: blocks of 32 numbers with one binary16 scale, as ggml stores them; what llama.cpp offers for
 * the cache with -ctk and -ctv. Keys after RoPE. Blocks run along the row of all heads of a token.
 *
 *     q8_0   scale = max|x| / 127,                   code = round(x / scale)
 *            34 bytes: 8.5 bits per number
 *     q4_0   scale = x of largest magnitude / -8,    code = trunc(x / scale + 8.5), <= 15
 *            18 bytes: 4.5 bits per number
 *
 * Codes use the scale as computed and are decoded with the scale as stored. q4_0-rot first rotates each head
 * by a Hadamard matrix of the largest power of two that divides d, as llama.cpp does for caches in such
 * formats since 2026.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/rotation.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "lab/comparators/comparator.h"
#include "lab/comparators/rotate.h"

enum { BLOCK = 32 };

static void ggml_code_q8_0(const float *x, float *y)
{
    float most = 0, scale, inverse, stored;

    for (size_t i = 0; i < BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    scale = most / 127;
    inverse = scale > 0 ? 1 / scale : 0;
    stored = f16_to_f32(f32_to_f16(scale));
    for (size_t i = 0; i < BLOCK; i++)
        y[i] = roundf(x[i] * inverse) * stored;
}

static void ggml_code_q4_0(const float *x, float *y)
{
    float most = 0, scale, inverse, stored;

    for (size_t i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    scale = most / -8;
    inverse = scale != 0 ? 1 / scale : 0;
    stored = f16_to_f32(f32_to_f16(scale));
    for (size_t i = 0; i < BLOCK; i++)
        y[i] = (fminf(truncf(x[i] * inverse + 8.5f), 15) - 8) * stored;
}

static int ggml_prepare(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                        struct errmsg *e)
{
    uint32_t row = s->geometry.n_kv_heads * s->geometry.d;

    (void) ret_state;
    if (row % BLOCK != 0)
        return fail(
            e, -EINVAL,
            "%s codes blocks of %d numbers, which the %u numbers per token and layer do not divide into",
            c->name, BLOCK, row);

    return 0;
}

static int ggml_prepare_rotated(const struct comparator *c, const struct comparator_source *s,
                                void **ret_state, struct errmsg *e)
{
    uint32_t d = s->geometry.d;
    int r = ggml_prepare(c, s, ret_state, e);

    return r < 0 ? r : rotate_new(d, d & -d, 0, (struct rotate **) ret_state, e);
}

static int ggml_code(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t n_numbers = n * codec->geometry.n_kv_heads * codec->geometry.d;

    (void) layer;
    (void) side;
    for (size_t i = 0; i < n_numbers; i += BLOCK)
        (codec->what->bits == 8 ? ggml_code_q8_0 : ggml_code_q4_0)(x + i, ret_y + i);
    *ret_bits = n_numbers * codec->what->bits + n_numbers / BLOCK * 16;
    return 0;
}

static int ggml_code_rotated(const struct comparator_codec *codec, uint32_t layer, enum side side,
                             const float *x, size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t n_vectors = n * codec->geometry.n_kv_heads;
    _cleanup_(freep) float *z = malloc((n_vectors * codec->geometry.d + 1) * sizeof(*z));

    if (!z)
        return -ENOMEM;

    rotate_forward(codec->state, x, n_vectors, z);
    (void) ggml_code(codec, layer, side, z, n, z, ret_bits);
    rotate_inverse(codec->state, z, n_vectors, ret_y);
    return 0;
}

const struct comparator comparator_q8_0 = {
    .name = "q8_0",
    .what = "blocks of 32 along a token, 8 bits and a scale",
    .citation = "ggml, llama.cpp",
    .bits = 8,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = ggml_prepare,
    .code = ggml_code,
};
const struct comparator comparator_q4_0 = {
    .name = "q4_0",
    .what = "blocks of 32 along a token, 4 bits and a scale",
    .citation = "ggml, llama.cpp",
    .bits = 4,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = ggml_prepare,
    .code = ggml_code,
};
const struct comparator comparator_q4_0_rot = {
    .name = "q4_0-rot",
    .what = "q4_0 after a Hadamard rotation of each head",
    .citation = "llama.cpp since 2026",
    .bits = 4,
    .block_tokens = 1,
    .post_rope = true,
    .prepare = ggml_prepare_rotated,
    .code = ggml_code_rotated,
};
