/* The operations of gpu/cuda/kernels/pairs.h on the CPU, lane by lane. */
#pragma once

/* Bit 3 of a selector would repeat signs; no kernel uses that, so it ends the program. */
static inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t both = (uint64_t) b << 32 | a;
    uint32_t r = 0;

    for (unsigned i = 0; i < 4; i++) {
        if (which >> 4 * i & 8)
            abort();
        r |= (uint32_t) (both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    }
    return r;
}

/* Both halves of x y + z in binary64, rounded to binary16. */
static inline uint32_t on_cpu_pairs(uint32_t x, uint32_t y, uint32_t z)
{
    float r[2];

    for (unsigned i = 0; i < 2; i++)
        r[i] = (float) ((double) f16_to_f32((uint16_t) (x >> 16 * i)) *
                            (double) f16_to_f32((uint16_t) (y >> 16 * i)) +
                        (double) f16_to_f32((uint16_t) (z >> 16 * i)));
    return pack_halves(r[0], r[1]);
}

static inline uint32_t fma_pairs(uint32_t x, uint32_t y, uint32_t z)
{
    return on_cpu_pairs(x, y, z);
}

static inline uint32_t mul_pairs(uint32_t x, uint32_t y)
{
    return on_cpu_pairs(x, y, 0);
}

static inline uint32_t add_pairs(uint32_t x, uint32_t y)
{
    return on_cpu_pairs(x, 0x3c003c00, y); /* 1 x + y */
}

static inline uint32_t negate_pair(uint32_t x)
{
    return x ^ 0x80008000;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float value_across(float x, unsigned lanes)
{
    float r;

    on_cpu_give(&x, sizeof(x));
    r = *(const float *) on_cpu_given(threadIdx.x % 32 ^ lanes);
    on_cpu_taken();
    return r;
}

static inline uint32_t transpose_8x8(uint32_t pair)
{
    unsigned row = threadIdx.x % 32 / 4, col = 2 * (threadIdx.x % 4);
    uint32_t r = 0;

    on_cpu_give(&pair, sizeof(pair));
    for (unsigned i = 0; i < 2; i++) { /* element (col + i, row) */
        uint32_t from = *(const uint32_t *) on_cpu_given(4 * (col + i) + row / 2);

        r |= (from >> 16 * (row % 2) & 0xffff) << 16 * i;
    }
    on_cpu_taken();
    return r;
}

static inline struct words4 words_at(const void *at)
{
    return load_16_bytes(at);
}

static inline void mma_16x8x32(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    unsigned lane = threadIdx.x % 32;
    int32_t sums[4];

    on_cpu_give(mine, sizeof(mine));
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + (i >> 1) * 8, col = 2 * (lane % 4) + (i & 1);

        sums[i] = 0;
        for (unsigned k = 0; k < 32; k++) {
            const uint32_t *left = (const uint32_t *) on_cpu_given(4 * (row % 8) + k % 16 / 4);
            const uint32_t *right = (const uint32_t *) on_cpu_given(4 * col + k % 16 / 4);

            sums[i] += (int8_t) (left[row / 8 + k / 16 * 2] >> 8 * (k % 4)) *
                       (int32_t) (right[4 + k / 16] >> 8 * (k % 4) & 0xff);
        }
    }
    on_cpu_taken();
    for (unsigned i = 0; i < 4; i++)
        c[i] += sums[i];
}

/* Copies arrive when a thread waits for them; until then the destination holds 0xff. */
void copy_begin(void *to, const void *from);
void copies_group();
void on_cpu_copies_wait(unsigned n);

template <int N> static inline void copies_wait()
{
    on_cpu_copies_wait(N);
}
