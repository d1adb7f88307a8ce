/*
 * Sequences of exact tables: what is read is what was appended, byte for byte, in each form, through tail,
 * pages, forks and cuts; and what is refused.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "base/half.h"
#include "client/kvcobra-eval.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

const char test_suite[] = "seq_exact";

enum { LAYERS = 2, HEADS = 4, D = 48, WIDTH = HEADS * D, TOKENS = 200 };

struct exact {
    struct embedded m;
    uint32_t packed; /* enum kvc_exact */
    enum kvc_dtype dtype;
    size_t number;
};

static struct exact exact_new(uint32_t packed)
{
    struct exact x = {.m = {.g = random_table_geometry(LAYERS, 2 * HEADS, HEADS, D), .n_heads = HEADS},
                      .packed = packed,
                      .dtype = (enum kvc_dtype)((packed & 3) - 1)};
    struct exact_form form;
    kvc_model_id id;

    x.m.g.n_rot = 32;
    x.number = x.dtype == KVC_F32 ? 4 : 2;
    id = embedded_id(&x.m);
    CU_ASSERT_FATAL(exact_form_unpack(packed, &form));
    CU_ASSERT_EQUAL_FATAL(table_exact_build(&x.m.g, id.model_digest, &form, &x.m.bytes, &x.m.n_bytes, NULL),
                          0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&x.m.client), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open_table(x.m.client, &id, x.m.bytes, x.m.n_bytes, &x.m.model), 0);
    return x;
}

static kvc_seq_options options_of(const struct exact *x, uint32_t flags)
{
    return (kvc_seq_options){.struct_bytes = sizeof(kvc_seq_options),
                             .keys = x->packed >> 2 & 1,
                             .pairs = x->packed >> 3 & 1,
                             .flags = flags};
}

/* Any finite bits, the same for the same place; with -0, subnormal and largest numbers. */
static void fill(const struct exact *x, uint32_t layer, unsigned side, size_t first, size_t n, uint8_t *to)
{
    uint16_t exponent = x->dtype == KVC_F16 ? 0x7c00 : 0x7f80, *half = (void *) to;
    size_t n_half = n * WIDTH * x->number / 2;

    for (size_t i = 0; i < n_half; i++) {
        uint64_t v = (first * WIDTH * x->number / 2 + i) * 0x9e3779b97f4a7c15u + layer * 2 + side;

        v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
        half[i] = (uint16_t) (v >> 40);
        if ((half[i] & exponent) == exponent)
            half[i] &= (uint16_t) ~0x0400;
        if (x->dtype == KVC_BF16 || x->dtype == KVC_F32)
            half[i] &= (uint16_t) ((half[i] & exponent) == exponent ? ~0x0080 : 0xffff);
    }
}

/* A buffer of [n, heads, d] of one layer and side. */
static uint8_t *vectors(const struct exact *x, uint32_t layer, unsigned side, size_t first, size_t n)
{
    uint8_t *p = calloc(n, WIDTH * x->number);

    assert(p);
    fill(x, layer, side, first, n, p);
    return p;
}

static void append(const struct exact *x, kvc_seq *s, size_t first, size_t n)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        _cleanup_(freep) uint8_t *k = vectors(x, layer, 0, first, n), *v = vectors(x, layer, 1, first, n);

        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, layer, x->dtype, k, v, n), 0);
    }
}

/* Positions first .. first + n - 1 are those that were appended, in the form of an engine with blocks. */
static void check(const struct exact *x, kvc_seq *s, size_t first, size_t n)
{
    void *bases[2 * LAYERS];
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .dtype = x->dtype};

    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        bases[i] = calloc(n, WIDTH * x->number);
        assert(bases[i]);
    }
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s, first, n, &to), 0);
    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        _cleanup_(freep) uint8_t *want = vectors(x, i / 2, i % 2, first, n);

        CU_ASSERT_EQUAL(memcmp(bases[i], want, n * WIDTH * x->number), 0);
        free(bases[i]);
    }
}

static void check_form(uint32_t packed, uint32_t flags)
{
    struct exact x = exact_new(packed);
    kvc_seq_options o = options_of(&x, flags);
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_seq *s = NULL, *fork = NULL;
    size_t kept = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(x.m.model, &o, &s), 0);
    append(&x, s, 0, 130);
    append(&x, s, 130, 1);
    append(&x, s, 131, TOKENS - 131);
    check(&x, s, 0, TOKENS);
    check(&x, s, 3, 70);
    check(&x, s, 190, 10);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT(u.code_bytes % (64 * (size_t) LAYERS * 2 * WIDTH * x.number) == 0 && u.code_bytes > 0);
    CU_ASSERT_EQUAL(u.tail_bytes, (TOKENS - u.header_bytes / 128 * 64) * LAYERS * 2 * WIDTH * x.number);
    CU_ASSERT_EQUAL(u.sink_bytes, 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &fork), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 64, &kept), 0);
    CU_ASSERT_EQUAL(kept, 64);
    append(&x, s, 64, 5);
    check(&x, s, 0, 69);
    append(&x, fork, TOKENS, 60);
    check(&x, fork, 0, TOKENS + 60);
    (void) kvc_seq_free(fork);
    (void) kvc_seq_free(s);
    embedded_free(&x.m);
}

static void test_forms(void)
{
    for (uint32_t packed = 1; packed < 16; packed++)
        if ((packed & 3) != 0)
            check_form(packed, packed % 2 ? KVC_SEQ_PUBLISH_ALL : 0);
}

/* A reader with another number type gets the numbers rounded to it, keys still in the engine's form. */
static void test_other_type(void)
{
    struct exact x = exact_new(KVC_EXACT_BF16 + KVC_EXACT_AFTER_ROPE);
    kvc_seq_options o = options_of(&x, KVC_SEQ_PUBLISH_ALL);
    _cleanup_(freep) uint8_t *k = vectors(&x, 1, 0, 0, 100);
    _cleanup_(freep) float *out = malloc(100 * WIDTH * sizeof(float));
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(x.m.model, &o, &s), 0);
    append(&x, s, 0, 100);
    append(&x, s, 100, 1);
    CU_ASSERT_EQUAL(kvc_seq_read(s, 1, KVC_K, 0, 100, out), 0);
    for (size_t i = 0; i < 100 * WIDTH; i++) {
        float want = bf16_to_f32(((uint16_t *) (void *) k)[i]);

        CU_ASSERT(memcmp(&out[i], &want, sizeof(want)) == 0);
    }
    (void) kvc_seq_free(s);
    embedded_free(&x.m);
}

static void test_refused(void)
{
    struct exact x = exact_new(KVC_EXACT_F16 + KVC_EXACT_AFTER_ROPE);
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    kvc_eval_options eval = {.struct_bytes = sizeof(eval)};
    kvc_seq_options o = options_of(&x, 0);
    _cleanup_(freep) uint16_t *k = (uint16_t *) (void *) vectors(&x, 0, 0, 0, 2);
    float q[2 * WIDTH] = {0}, out[2 * WIDTH];
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL(kvc_model_get_info(x.m.model, &info), 0);
    CU_ASSERT_EQUAL(info.exact, x.packed);
    o.keys = KVC_KEYS_BEFORE_ROPE;
    CU_ASSERT_EQUAL(kvc_seq_new_with(x.m.model, &o, &s), -EINVAL);
    CU_ASSERT(strstr(kvc_last_error(x.m.client), "binary16, keys after RoPE") != NULL);
    o = options_of(&x, 0);
    o.pairs = KVC_PAIRS_INTERLEAVED;
    CU_ASSERT_EQUAL(kvc_seq_new_with(x.m.model, &o, &s), -EINVAL);
    o = options_of(&x, KVC_SEQ_REPEATABLE);
    CU_ASSERT_EQUAL(kvc_seq_new_with(x.m.model, &o, &s), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_new_eval(x.m.model, &eval, &s), -EINVAL);

    o = options_of(&x, 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(x.m.model, &o, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_BF16, k, k, 2), -EINVAL);
    CU_ASSERT(strstr(kvc_last_error(x.m.client), "binary16") != NULL);
    k[WIDTH + D + 3] = 0x7c00; /* infinity in the second token, head 1 */
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F16, k, k, 2), -EINVAL);
    CU_ASSERT(strstr(kvc_last_error(x.m.client), "KV head 1, K of new token 1 is not finite") != NULL);
    k[WIDTH + D + 3] = 0x7bff;
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F16, k, k, 2), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 1, out), -EOPNOTSUPP);
    CU_ASSERT(strstr(kvc_last_error(x.m.client), "kvc_seq_read_blocks()") != NULL);
    (void) kvc_seq_free(s);
    embedded_free(&x.m);
}

const struct test_case test_cases[] = {
    TEST(test_forms),
    TEST(test_other_type),
    TEST(test_refused),
    TEST_END,
};
