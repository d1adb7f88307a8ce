/*
 * Block formats: known blocks, computed by hand from the descriptions in tools/engine/quants.c; then every
 * matrix-vector kernel that this processor supports, compared with decoding and adding in binary64.
 */
#include "tests/lib/test.h"

#include "base/half.h"
#include "tools/engine/matvec.h"
#include "tools/engine/quants.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- known ---- */

/* Little-endian binary16: 1 = 3c00, 2 = 4000, 0.5 = 3800, -1 = bc00 */
#define H1 0x00, 0x3c
#define H2 0x00, 0x40
#define H_HALF 0x00, 0x38
#define H_MINUS1 0x00, 0xbc

static void decode(uint32_t type, const uint8_t *block, float *y)
{
    quant_type_of(type)->decode(block, 1, y);
}

static void test_plain(void)
{
    const uint8_t f32[] = {0x00, 0x00, 0xc0, 0xbf}, f16[] = {H_MINUS1}, bf16[] = {0x49, 0x40};
    float y;

    decode(QUANT_F32, f32, &y);
    CU_ASSERT_EQUAL(y, -1.5f);
    decode(QUANT_F16, f16, &y);
    CU_ASSERT_EQUAL(y, -1.0f);
    decode(QUANT_BF16, bf16, &y);
    CU_ASSERT_EQUAL(y, 3.140625f); /* 0x40490000 */
}

static void test_q8_0(void)
{
    uint8_t b[34] = {H_HALF, 0x80, 0x7f, 0xff};
    float y[32];

    b[33] = 3;
    decode(QUANT_Q8_0, b, y);
    CU_ASSERT_EQUAL(y[0], -64.0f);
    CU_ASSERT_EQUAL(y[1], 63.5f);
    CU_ASSERT_EQUAL(y[2], -0.5f);
    CU_ASSERT_EQUAL(y[3], 0.0f);
    CU_ASSERT_EQUAL(y[31], 1.5f);
}

static void test_q4(void)
{
    uint8_t q4_0[18] = {H2, 0xf0, 0x19}, q4_1[20] = {H2, H_MINUS1, 0xf0, 0x19};
    float y[32];

    q4_0[17] = 0x7e;
    decode(QUANT_Q4_0, q4_0, y);
    CU_ASSERT_EQUAL(y[0], -16.0f); /* 2 (0 - 8) */
    CU_ASSERT_EQUAL(y[16], 14.0f); /* 2 (15 - 8) */
    CU_ASSERT_EQUAL(y[1], 2.0f);   /* 2 (9 - 8) */
    CU_ASSERT_EQUAL(y[17], -14.0f);
    CU_ASSERT_EQUAL(y[15], 12.0f);
    CU_ASSERT_EQUAL(y[31], -2.0f);
    q4_1[19] = 0x7e;
    decode(QUANT_Q4_1, q4_1, y);
    CU_ASSERT_EQUAL(y[0], -1.0f); /* 2 * 0 - 1 */
    CU_ASSERT_EQUAL(y[16], 29.0f);
    CU_ASSERT_EQUAL(y[1], 17.0f);
    CU_ASSERT_EQUAL(y[17], 1.0f);
    CU_ASSERT_EQUAL(y[15], 27.0f);
    CU_ASSERT_EQUAL(y[31], 13.0f);
}

static void test_q5(void)
{
    /* fifth bits of weights 0, 17 and 31 */
    uint8_t q5_0[22] = {H1, 0x01, 0x00, 0x02, 0x80, 0xf1, 0x23},
            q5_1[24] = {H1, H_HALF, 0x01, 0x00, 0x02, 0x80, 0xf1, 0x23};
    float y[32];

    decode(QUANT_Q5_0, q5_0, y);
    CU_ASSERT_EQUAL(y[0], 1.0f);   /* 1 + 16 - 16 */
    CU_ASSERT_EQUAL(y[16], -1.0f); /* 15 - 16 */
    CU_ASSERT_EQUAL(y[1], -13.0f); /* 3 - 16 */
    CU_ASSERT_EQUAL(y[17], 2.0f);  /* 2 + 16 - 16 */
    CU_ASSERT_EQUAL(y[31], 0.0f);
    CU_ASSERT_EQUAL(y[30], -16.0f);
    decode(QUANT_Q5_1, q5_1, y);
    CU_ASSERT_EQUAL(y[0], 17.5f);
    CU_ASSERT_EQUAL(y[16], 15.5f);
    CU_ASSERT_EQUAL(y[1], 3.5f);
    CU_ASSERT_EQUAL(y[17], 18.5f);
    CU_ASSERT_EQUAL(y[31], 16.5f);
}

/*
 * Scales s = { 1, 2, 3, 63, 16, 33, 50, 63 }, minima m = { 0, 1, 2, 3, 4, 5, 6, 63 }: the first four of each
 * stand in the low 6 bits of bytes 0..3 and 4..7; of the last four the low halves stand in bytes 8..11,
 * scale below minimum, and bits 4..5 in the top bits of bytes 0..3 (scales) and 4..7 (minima).
 */
static const uint8_t k_scales[12] = {
    1 | 1 << 6, 2 | 2 << 6, 3 | 3 << 6, 63 | 3 << 6, /* 16, 33, 50, 63 have top bits 1, 2, 3, 3 */
    0,          1,          2,          3 | 3 << 6,  /* 4, 5, 6, 63 have 0, 0, 0, 3 */
    0 | 4 << 4, 1 | 5 << 4, 2 | 6 << 4, 15 | 15 << 4,
};

static void test_k_scales(void)
{
    const uint8_t want_s[8] = {1, 2, 3, 63, 16, 33, 50, 63}, want_m[8] = {0, 1, 2, 3, 4, 5, 6, 63};

    for (unsigned j = 0; j < 8; j++) {
        uint8_t s, m;

        quant_k_scale_min(k_scales, j, &s, &m);
        CU_ASSERT_EQUAL(s, want_s[j]);
        CU_ASSERT_EQUAL(m, want_m[j]);
    }
}

static void test_q4_k(void)
{
    uint8_t b[144] = {H_HALF, H2};
    float y[256];

    memcpy(b + 4, k_scales, 12);
    b[16] = 0xa5;       /* weight 0 of groups 0 and 1 */
    b[16 + 96] = 0xf2;  /* weight 0 of groups 6 and 7 */
    b[16 + 127] = 0x10; /* weight 31 of groups 6 and 7 */
    decode(QUANT_Q4_K, b, y);
    CU_ASSERT_EQUAL(y[0], 2.5f);     /* 0.5 * 1 * 5 - 2 * 0 */
    CU_ASSERT_EQUAL(y[32], 8.0f);    /* 0.5 * 2 * 10 - 2 * 1 */
    CU_ASSERT_EQUAL(y[192], 38.0f);  /* 0.5 * 50 * 2 - 2 * 6 */
    CU_ASSERT_EQUAL(y[224], 346.5f); /* 0.5 * 63 * 15 - 2 * 63 */
    CU_ASSERT_EQUAL(y[255], -94.5f); /* 0.5 * 63 * 1 - 126 */
    CU_ASSERT_EQUAL(y[100], -6.0f);  /* group 3: 0 - 2 * 3 */
}

static void test_q5_k(void)
{
    uint8_t b[176] = {H_HALF, H2};
    float y[256];

    memcpy(b + 4, k_scales, 12);
    b[16] = 0x81; /* fifth bits of weight 0 of groups 0 and 7 */
    b[48] = 0xa5;
    b[48 + 96] = 0xf2;
    decode(QUANT_Q5_K, b, y);
    CU_ASSERT_EQUAL(y[0], 10.5f); /* 0.5 * 1 * 21 */
    CU_ASSERT_EQUAL(y[32], 8.0f);
    CU_ASSERT_EQUAL(y[192], 38.0f);
    CU_ASSERT_EQUAL(y[224], 850.5f); /* 0.5 * 63 * 31 - 126 */
    CU_ASSERT_EQUAL(y[225], -126.0f);
}

static void test_q6_k(void)
{
    uint8_t b[210] = {0};
    float y[256];

    for (unsigned i = 0; i < 16; i++)
        b[192 + i] = (uint8_t) (int8_t) (i % 2 ? -(int) i : (int) i + 1);
    b[208] = 0x00;
    b[209] = 0x38;      /* d = 0.5 */
    b[0] = 0x4f;        /* weights 0 (15) and 64 (4) */
    b[32] = 0x21;       /* weights 32 (1) and 96 (2) */
    b[128] = 0xe4;      /* bits 4..5 of weights 0, 32, 64, 96: 0, 1, 2, 3 */
    b[64 + 63] = 0x70;  /* weight 128 + 96 + 31: low bits 7; weight 128 + 32 + 31: 0 */
    b[128 + 63] = 0x0c; /* weight 128 + 32 + 31: bits 4..5 3 */
    decode(QUANT_Q6_K, b, y);
    CU_ASSERT_EQUAL(y[0], -8.5f);         /* 0.5 * 1 * (15 - 32) */
    CU_ASSERT_EQUAL(y[32], -22.5f);       /* scale 2 = 3: 0.5 * 3 * (17 - 32) */
    CU_ASSERT_EQUAL(y[64], 10.0f);        /* scale 4 = 5: 0.5 * 5 * (36 - 32) */
    CU_ASSERT_EQUAL(y[96], 63.0f);        /* scale 6 = 7: 0.5 * 7 * (50 - 32) */
    CU_ASSERT_EQUAL(y[16], 16.0f);        /* scale 1 = -1: 0.5 * -1 * (0 - 32) */
    CU_ASSERT_EQUAL(y[128 + 63], -88.0f); /* scale 11 = -11: 0.5 * -11 * (48 - 32) */
    CU_ASSERT_EQUAL(y[255], 187.5f);      /* scale 15 = -15: 0.5 * -15 * (7 - 32) */
}

static void test_names(void)
{
    CU_ASSERT_PTR_NULL(quant_type_of(10));
    CU_ASSERT_STRING_EQUAL(quant_type_name(10), "Q2_K");
    CU_ASSERT_STRING_EQUAL(quant_type_name(14), "Q6_K");
    CU_ASSERT_STRING_EQUAL(quant_type_name(4), "unknown type");
    CU_ASSERT_STRING_EQUAL(quant_type_name(UINT32_MAX), "unknown type");
}

/* ---- kernels against the reference ---- */

static const uint32_t all_types[] = {
    QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q8_0, QUANT_Q4_0, QUANT_Q4_1,
    QUANT_Q5_0, QUANT_Q5_1, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K,
};

/* All bytes are valid blocks if the binary16 scales are finite. */
static void fill_blocks(const struct quant_type *t, uint8_t *p, size_t n_blocks)
{
    static const struct {
        uint32_t id;
        unsigned at[2], n;
    } scales[] = {
        {QUANT_F16, {0}, 1},     {QUANT_Q8_0, {0}, 1},    {QUANT_Q4_0, {0}, 1},
        {QUANT_Q4_1, {0, 2}, 2}, {QUANT_Q5_0, {0}, 1},    {QUANT_Q5_1, {0, 2}, 2},
        {QUANT_Q4_K, {0, 2}, 2}, {QUANT_Q5_K, {0, 2}, 2}, {QUANT_Q6_K, {208}, 1},
    };

    for (size_t b = 0; b < n_blocks; b++, p += t->block_bytes) {
        float f = (float) test_rand_normal();
        uint16_t bf = f32_to_bf16(f);

        for (size_t i = 0; i < t->block_bytes; i++)
            p[i] = (uint8_t) test_rand();
        if (t->id == QUANT_F32)
            memcpy(p, &f, sizeof(f));
        if (t->id == QUANT_BF16)
            memcpy(p, &bf, sizeof(bf));
        for (size_t k = 0; k < sizeof(scales) / sizeof(scales[0]); k++)
            for (unsigned i = 0; scales[k].id == t->id && i < scales[k].n; i++) {
                uint16_t h = f32_to_f16((float) test_rand_normal());

                memcpy(p + scales[k].at[i], &h, sizeof(h));
            }
    }
}

/* A read beyond the returned bytes is a fault. */
static uint8_t *guarded(size_t bytes, void **ret_map, size_t *ret_map_bytes)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    uint8_t *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert(map != MAP_FAILED && mprotect(map + room, page, PROT_NONE) == 0);
    *ret_map = map;
    *ret_map_bytes = room + page;
    return map + room - bytes;
}

static void check_kernel(const struct matvec_ops *ops, const struct quant_type *t, size_t n_cols)
{
    enum { ROWS = 3 };
    struct matrix w = {
        .type = t, .n_rows = ROWS, .n_cols = n_cols, .row_bytes = n_cols / t->block_weights * t->block_bytes};
    void *map, *x_map;
    size_t map_bytes, x_bytes;
    uint8_t *blocks = guarded(ROWS * w.row_bytes, &map, &map_bytes);
    float *x = (float *) (void *) guarded(n_cols * sizeof(float), &x_map, &x_bytes);
    float *sums = calloc(n_cols / MATVEC_SUM_RUN + 1, sizeof(*sums)), want[ROWS], got[ROWS];

    assert(sums);
    w.data = blocks;
    fill_blocks(t, blocks, ROWS * n_cols / t->block_weights);
    for (size_t i = 0; i < n_cols; i++)
        x[i] = (float) test_rand_normal();
    matvec_sums(x, n_cols, sums);
    matvec_ref.rows(&w, 0, ROWS, x, sums, want);
    ops->rows(&w, 0, 1, x, sums, got);
    ops->rows(&w, 1, ROWS - 1, x, sums, got + 1);
    for (size_t r = 0; r < ROWS; r++) {
        float y[QUANT_BLOCK_MAX];
        double size = 0.0;

        /*
         * Adding n terms in chains of n / 8 at most (8 lanes, and a handful of steps to join them) is off by
         * no more than 2^-24 (n / 8 + 8) sum |terms|. The terms are s q x and m x rather than (s q + m) x;
         * apart they are larger: 4 covers minima of the size of the scale's range. Random roundings stay far
         * below, a wrong bit, scale or offset is far above.
         */
        for (size_t at = 0; at < n_cols; at += t->block_weights) {
            t->decode(blocks + r * w.row_bytes + at / t->block_weights * t->block_bytes, 1, y);
            for (size_t i = 0; i < t->block_weights; i++)
                size += fabs((double) y[i] * (double) x[at + i]);
        }

        CU_ASSERT(fabs((double) want[r] - (double) got[r]) <=
                  0x1p-24 * ((double) n_cols / 8 + 8) * 4 * (size + 1e-30));
    }

    free(sums);
    (void) munmap(map, map_bytes);
    (void) munmap(x_map, x_bytes);
}

static void test_kernels(void)
{
    const struct matvec_ops *ops[3];
    size_t n = matvec_runnable(ops);

    for (size_t k = 1; k < n; k++)
        for (size_t i = 0; i < sizeof(all_types) / sizeof(all_types[0]); i++) {
            const struct quant_type *t = quant_type_of(all_types[i]);
            static const size_t odd[] = {1, 7, 8, 9, 15, 16, 17, 31, 253};

            for (size_t blocks = 1; blocks <= 5; blocks++)
                check_kernel(ops[k], t, blocks * t->block_weights);
            for (size_t j = 0; t->block_weights == 1 && j < sizeof(odd) / sizeof(odd[0]); j++)
                check_kernel(ops[k], t, odd[j]);
        }
    if (n == 1)
        test_skip("this processor has neither AVX2 nor AVX-512");
    else
        printf("    best kernel: %s\n", matvec_ops()->name);
}

const struct test_case test_cases[] = {
    TEST(test_plain),    TEST(test_q8_0),    TEST(test_q4),   TEST(test_q5),
    TEST(test_k_scales), TEST(test_q4_k),    TEST(test_q5_k), TEST(test_q6_k),
    TEST(test_names),    TEST(test_kernels), TEST_END,
};
const char test_suite[] = "engine_quants";
