/*
 * Conversions between binary16 or bfloat16 and binary32. Round to nearest, ties to even;
 * NaN stays NaN. Integer code: the same bits on every machine. Kernels use the
 * instructions of their instruction set instead.
 */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float half_bits_to_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t half_float_to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t) (h & 0x8000) << 16;
    uint32_t exp = (h >> 10) & 0x1f;
    uint32_t man = h & 0x3ff;

    if (exp == 31)
        return half_bits_to_float(sign | 0x7f800000 | man << 13);
    if (exp == 0) /* zero or subnormal: man * 2^-24 is exact in binary32 */
        return half_bits_to_float(sign | half_float_to_bits((float) man * 0x1p-24f));
    return half_bits_to_float(sign | (exp + 112) << 23 | man << 13);
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t u = half_float_to_bits(f);
    uint16_t sign = (uint16_t) (u >> 16 & 0x8000);
    uint32_t abs = u & 0x7fffffff;

    if (abs >= 0x7f800000) /* infinity stays, NaN becomes a quiet one */
        return (uint16_t) (sign | 0x7c00 | (abs > 0x7f800000 ? 0x200 : 0));
    if (abs >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (abs < 0x38800000) { /* below 2^-14: subnormal; adding 0.5 rounds at 2^-24 in hardware */
        float v = half_bits_to_float(abs) + 0.5f;

        return (uint16_t) (sign | (half_float_to_bits(v) - half_float_to_bits(0.5f)));
    }
    abs += 0xfff + (abs >> 13 & 1);
    return (uint16_t) (sign | (abs - 0x38000000) >> 13);
}

static inline float bf16_to_f32(uint16_t h)
{
    return half_bits_to_float((uint32_t) h << 16);
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u = half_float_to_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t) (u >> 16 | 0x40);
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
