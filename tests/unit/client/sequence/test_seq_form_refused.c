/* Distances, number types and blocks that are refused by name, before anything is stored. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { LAYERS = 2 };

static void expect_refused(const struct embedded *m, int r, int want, const char *says)
{
    if (r != want || !strstr(kvc_last_error(m->client), says))
        printf("    %d, \"%s\" does not say \"%s\"\n", r, kvc_last_error(m->client), says);
    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), says));
}

static void test_refused_strides(void)
{
    static const size_t bad[][2] = {{127, 0},       {128, 63},          {0, 65},
                                    {SIZE_MAX, 64}, {SIZE_MAX / 8, 64}, {64, 128}};
    struct embedded m = embedded_new(1, 2, 2, 64, 3, 0, 0);
    float *x = calloc(4096, sizeof(*x));
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, 0, KVC_F32, x, x, 3), 0);
    for (unsigned i = 0; i < 6; i++) {
        kvc_append_item a = {.struct_bytes = sizeof(a), .seq = s, .k = x, .v = x, .n_new = 3}, b = a;
        kvc_attend_item q = {.struct_bytes = sizeof(q), .seq = s, .q = x, .n_q = 3, .out = x + 2048}, o = q;

        a.k_token_stride = b.v_token_stride = q.q_token_stride = o.out_token_stride = bad[i][0];
        a.k_head_stride = b.v_head_stride = q.q_head_stride = o.out_head_stride = bad[i][1];
        expect_refused(&m, kvc_seq_append_batch(&a, 1, 0, KVC_F32), -EINVAL, "k: vectors of 64 numbers");
        expect_refused(&m, kvc_seq_append_batch(&b, 1, 0, KVC_F32), -EINVAL, "v: vectors of 64 numbers");
        expect_refused(&m, kvc_seq_attend_batch(&q, 1, 0, NULL), -EINVAL, "q: vectors of 64 numbers");
        expect_refused(&m, kvc_seq_attend_batch(&o, 1, 0, NULL), -EINVAL, "out: vectors of 64 numbers");
    }
    CU_ASSERT_EQUAL(kvc_seq_length(s), 3);

    kvc_attend_item q = {.struct_bytes = sizeof(q), .seq = s, .q = x, .n_q = 1, .out = x + 2048, .dtype = 3};

    expect_refused(&m, kvc_seq_attend_batch(&q, 1, 0, NULL), -EINVAL, "number type 3");
    q.dtype = KVC_F32;
    q.unused = 1;
    expect_refused(&m, kvc_seq_attend_batch(&q, 1, 0, NULL), -EINVAL, "unused is 1");
    free(x);
    embedded_free(&m);
}

static void test_refused_blocks(void)
{
    static const int64_t blocks[] = {0, 3, -1, 2}, huge[] = {0, INT64_MAX, 1, 1};
    struct embedded m = embedded_new(LAYERS, 2, 2, 64, 3, 0, 0);
    float *x = calloc(200 * 128, sizeof(*x));
    void *bases[2 * LAYERS] = {x}, *const nothing[2 * LAYERS] = {NULL};
    const kvc_blocks good = {.struct_bytes = sizeof(good), .bases = bases};
    kvc_blocks b = good;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, 0, KVC_F32, x, x, 100), 0);
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, NULL), -EINVAL, "NULL");
    b.struct_bytes = 3;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, &b), -EINVAL, "kvc_blocks");
    b = good, b.bases = NULL;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, &b), -EINVAL, "bases is NULL");
    b = good, b.dtype = 3;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, &b), -EINVAL, "number type 3");
    b = good, b.unused = 1;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, &b), -EINVAL, "unused is 1");
    b = good, b.blocks = blocks;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 10, &b), -EINVAL, "block_tokens is 0");
    b.block_tokens = 16;
    expect_refused(&m, kvc_seq_read_blocks(s, 20, 13, &b), -EINVAL,
                   "blocks[2], of positions from 32 on, is -1");
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s, 20, 12, &b), 0); /* the wrong one is not used */
    b.blocks = huge;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "exceed the memory");
    b = good, b.block_tokens = SIZE_MAX / 2, b.blocks = blocks;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "exceed the memory");
    b = good, b.dim_stride = 2;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "overlap");
    b = good, b.token_stride = 64;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "overlap");
    b = good, b.block_tokens = 16, b.block_stride = 16 * 128 - 1;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "overlap");
    b = good, bases[1] = (char *) x + 1;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 20, &b), -EINVAL, "bases[1] is not aligned");
    bases[1] = NULL;
    expect_refused(&m, kvc_seq_read_blocks(s, 90, 11, &b), -EINVAL, "layer 0 has 100 tokens");
    expect_refused(&m, kvc_seq_read_blocks(s, 90, SIZE_MAX, &b), -EINVAL, "layer 0 has 100 tokens");
    bases[2] = x;
    expect_refused(&m, kvc_seq_read_blocks(s, 0, 1, &b), -EINVAL, "layer 1 has 0 tokens");
    b.bases = nothing;
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s, SIZE_MAX, SIZE_MAX, &b), 0); /* nothing is read */
    for (size_t i = 0; i < 100 * 128; i++)
        CU_ASSERT_FATAL(fabsf(x[i]) < 100);
    free(x);
    embedded_free(&m);
}

const struct test_case test_cases[] = {TEST(test_refused_strides), TEST(test_refused_blocks), TEST_END};
const char test_suite[] = "form refused";
