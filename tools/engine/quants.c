/*
 * Block formats of GGUF tensors, decoded to binary32. Plain C: the oracle of the kernels in matvec_*.c, and
 * the path of prefill, where the matrix product takes far longer than the decoding.
 *
 * All numbers are little-endian; h(x) is the binary16 number at x; bytes are listed in file order.
 */
#include "tools/engine/quants.h"

#include "base/half.h"

#include <string.h>

static uint16_t quants_load16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t quants_load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static float quants_half_at(const uint8_t *p)
{
    return f16_to_f32(quants_load16(p));
}

static void quants_decode_f32(const uint8_t *src, size_t n_blocks, float *dst)
{
    memcpy(dst, src, n_blocks * sizeof(float));
}

static void quants_decode_f16(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (size_t i = 0; i < n_blocks; i++)
        dst[i] = quants_half_at(src + 2 * i);
}

static void quants_decode_bf16(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (size_t i = 0; i < n_blocks; i++)
        dst[i] = bf16_to_f32(quants_load16(src + 2 * i));
}

/* Q8_0: [d: h][q: 32 x int8]; w_i = d q_i */
static void quants_decode_q8_0(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 34, dst += 32) {
        float d = quants_half_at(src);

        for (unsigned i = 0; i < 32; i++)
            dst[i] = d * (float) (int8_t) src[2 + i];
    }
}

/* Q4_0: [d: h][q: 16 bytes]; byte i holds weight i in its low and weight i + 16 in its high half;
 * w = d (q - 8) */
static void quants_decode_q4_0(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 18, dst += 32) {
        float d = quants_half_at(src);

        for (unsigned i = 0; i < 16; i++) {
            dst[i] = d * (float) ((src[2 + i] & 15) - 8);
            dst[i + 16] = d * (float) ((src[2 + i] >> 4) - 8);
        }
    }
}

/* Q4_1: [d: h][m: h][q: 16 bytes as Q4_0]; w = d q + m */
static void quants_decode_q4_1(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 20, dst += 32) {
        float d = quants_half_at(src), m = quants_half_at(src + 2);

        for (unsigned i = 0; i < 16; i++) {
            dst[i] = d * (float) (src[4 + i] & 15) + m;
            dst[i + 16] = d * (float) (src[4 + i] >> 4) + m;
        }
    }
}

/* Q5_0: [d: h][high: u32][q: 16 bytes as Q4_0]; bit i of high is bit 4 of weight i; w = d (q - 16) */
static void quants_decode_q5_0(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 22, dst += 32) {
        float d = quants_half_at(src);
        uint32_t high = quants_load32(src + 2);

        for (unsigned i = 0; i < 16; i++) {
            dst[i] = d * (float) ((int) ((src[6 + i] & 15u) | (high >> i & 1) << 4) - 16);
            dst[i + 16] = d * (float) ((int) ((src[6 + i] >> 4) | (high >> (i + 16) & 1) << 4) - 16);
        }
    }
}

/* Q5_1: [d: h][m: h][high: u32][q: 16 bytes as Q4_0]; w = d q + m */
static void quants_decode_q5_1(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 24, dst += 32) {
        float d = quants_half_at(src), m = quants_half_at(src + 2);
        uint32_t high = quants_load32(src + 4);

        for (unsigned i = 0; i < 16; i++) {
            dst[i] = d * (float) ((src[8 + i] & 15u) | (high >> i & 1) << 4) + m;
            dst[i + 16] = d * (float) ((uint32_t) (src[8 + i] >> 4) | (high >> (i + 16) & 1) << 4) + m;
        }
    }
}

/*
 * Q4_K: [d: h][dmin: h][12 bytes: 8 scales s and 8 minima m of 6 bits][q: 128 bytes]
 * Weights in 8 groups of 32: groups 2j and 2j + 1 are the low and the high halves of bytes 32j .. 32j + 31
 * of q.
 * w = (d s_g) q - (dmin m_g)
 */
static void quants_decode_q4_k(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 144, dst += 256) {
        float d = quants_half_at(src), dmin = quants_half_at(src + 2);

        for (unsigned g = 0; g < 8; g++) {
            const uint8_t *q = src + 16 + 32 * (g / 2);
            uint8_t s, m;

            quant_k_scale_min(src + 4, g, &s, &m);
            for (unsigned i = 0; i < 32; i++)
                dst[32 * g + i] = d * (float) s * (float) (q[i] >> 4 * (g & 1) & 15) - dmin * (float) m;
        }
    }
}

/* Q5_K: [d: h][dmin: h][12 bytes as Q4_K][high: 32 bytes][q: 128 bytes as Q4_K]; bit g of high byte i is bit
 * 4 of weight i of group g. */
static void quants_decode_q5_k(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 176, dst += 256) {
        float d = quants_half_at(src), dmin = quants_half_at(src + 2);
        const uint8_t *high = src + 16;

        for (unsigned g = 0; g < 8; g++) {
            const uint8_t *q = src + 48 + 32 * (g / 2);
            uint8_t s, m;

            quant_k_scale_min(src + 4, g, &s, &m);
            for (unsigned i = 0; i < 32; i++) {
                unsigned v = (q[i] >> 4 * (g & 1) & 15u) | (high[i] >> g & 1u) << 4;

                dst[32 * g + i] = d * (float) s * (float) v - dmin * (float) m;
            }
        }
    }
}

/*
 * Q6_K: [low: 128 bytes][high: 64 bytes][s: 16 x int8][d: h]
 * Two halves of 128 weights, each from 64 low and 32 high bytes; a half is four runs of 32. Run r takes bits
 * 0..3 from the low (r < 2) or high half of low byte 32 (r & 1) + i, bits 4..5 from bits 2r, 2r + 1 of high
 * byte i. Every 16 weights have a scale: w = (d s) (q - 32)
 */
static void quants_decode_q6_k(const uint8_t *src, size_t n_blocks, float *dst)
{
    for (; n_blocks > 0; n_blocks--, src += 210, dst += 256) {
        const int8_t *s = (const int8_t *) (src + 192);
        float d = quants_half_at(src + 208);

        for (unsigned run = 0; run < 8; run++) {
            unsigned half = run / 4, r = run % 4;
            const uint8_t *low = src + 64 * half + 32 * (r & 1), *high = src + 128 + 32 * half;

            for (unsigned i = 0; i < 32; i++) {
                int q = (low[i] >> (r < 2 ? 0 : 4) & 15) | (high[i] >> 2 * r & 3) << 4;

                dst[32 * run + i] = d * (float) s[2 * run + i / 16] * (float) (q - 32);
            }
        }
    }
}

static const struct quant_type types[] = {
    {QUANT_F32, "F32", 1, 4, quants_decode_f32},        {QUANT_F16, "F16", 1, 2, quants_decode_f16},
    {QUANT_BF16, "BF16", 1, 2, quants_decode_bf16},     {QUANT_Q8_0, "Q8_0", 32, 34, quants_decode_q8_0},
    {QUANT_Q4_0, "Q4_0", 32, 18, quants_decode_q4_0},   {QUANT_Q4_1, "Q4_1", 32, 20, quants_decode_q4_1},
    {QUANT_Q5_0, "Q5_0", 32, 22, quants_decode_q5_0},   {QUANT_Q5_1, "Q5_1", 32, 24, quants_decode_q5_1},
    {QUANT_Q4_K, "Q4_K", 256, 144, quants_decode_q4_k}, {QUANT_Q5_K, "Q5_K", 256, 176, quants_decode_q5_k},
    {QUANT_Q6_K, "Q6_K", 256, 210, quants_decode_q6_k},
};

const struct quant_type *quant_type_of(uint32_t id)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const char *quant_type_name(uint32_t id)
{
    static const char *const others[] = {
        [9] = "Q8_1",     [10] = "Q2_K",  [11] = "Q3_K",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS",
        [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS",
        [24] = "I8",      [25] = "I16",   [26] = "I32",    [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",
        [34] = "TQ1_0",   [35] = "TQ2_0", [39] = "MXFP4",
    };
    const struct quant_type *t = quant_type_of(id);

    if (t)
        return t->name;
    if (id < sizeof(others) / sizeof(others[0]) && others[id])
        return others[id];

    return "unknown type";
}
