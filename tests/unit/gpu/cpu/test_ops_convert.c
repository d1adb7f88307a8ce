/* The loops that convert vectors: each variant against the definition in this file or in base/half.h, to the
 * bit. Sizes around every vector width, unaligned pointers, numbers behind the end untouched. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/table.h"
#include "base/half.h"
#include "gpu/cpu.h"
#include "gpu/cpu/ops.h"
#include "tests/lib/test.h"

static const unsigned masks[] = {0, CPU_AVX2, CPU_AVX2 | CPU_AVX512};
enum { N_MASKS = sizeof(masks) / sizeof(masks[0]), N = 253 };

/* NULL if this machine cannot run it. */
static const struct ops *variant(size_t i)
{
    return (masks[i] & ~cpu_capabilities()) == 0 ? ops_select(masks[i]) : NULL;
}

/* Bits of any number: zeros, subnormals, infinities and NaN are among them. */
static float any_number(void)
{
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                       0x00000001, 0x477fefff, 0x477ff000, 0x38800000, 0x387fffff, 0x33000000,
                                       0x33000001, 0x7f7fffff, 0x3f808000, 0x3f818000};
    uint64_t r = test_rand();

    return half_bits_to_float(r % 4 == 0 ? special[r / 4 % 16] : (uint32_t) (r >> 32));
}

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

/* Thresholds themselves and their neighbours, NaN and infinity, at every width. */
static void check_quantise(const struct ops *ops, unsigned b, size_t lanes)
{
    enum { N_CODES = 8 * OPS_LANES };
    struct levels l;
    float z[N_CODES + 1];
    uint8_t codes[N_CODES + 1];
    struct quantise_limits limits = {-1.5f, 1.25f};
    size_t outside = 0;

    CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
    for (size_t i = 1; i <= N_CODES; i++) {
        float at = l.threshold[test_rand_below((1u << b) - 1)];

        const float choices[] = {at, nextafterf(at, 9), nextafterf(at, -9), (float) test_rand_normal()};

        z[i] = choices[i % 4];
    }
    z[3] = NAN;
    z[17] = INFINITY;
    z[18] = -INFINITY;
    z[40] = limits.low;
    z[41] = limits.high;
    codes[N_CODES] = 77;
    for (size_t i = 0; i < N_CODES; i++)
        outside += i % OPS_LANES < lanes && (z[1 + i] < limits.low || z[1 + i] > limits.high);
    CU_ASSERT_EQUAL(ops->quantise(&l, b, limits, z + 1, N_CODES, lanes, codes), outside);
    for (size_t i = 0; i < N_CODES; i++)
        CU_ASSERT_EQUAL(codes[i], levels_quantise(&l, b, z[1 + i]));
    CU_ASSERT_EQUAL(codes[N_CODES], 77);
}

static void test_quantise(void)
{
    for (size_t i = 0; i < N_MASKS; i++)
        for (unsigned b = 1; b <= 8 && variant(i); b++)
            for (size_t lanes = 1; lanes <= OPS_LANES; lanes += 5)
                check_quantise(variant(i), b, lanes);
}

static void test_transpose(void)
{
    enum { FROM = 19, TO = 23 };

    for (size_t v = 0; v < N_MASKS && variant(v); v++) {
        float x[FROM * OPS_LANES], ret[TO * OPS_LANES];

        for (size_t i = 0; i < FROM * OPS_LANES; i++)
            x[i] = (float) i;
        for (size_t i = 0; i < TO * OPS_LANES; i++)
            ret[i] = -1;
        variant(v)->transpose(x + 1, FROM, ret + 1, TO);
        for (size_t i = 0; i < TO * OPS_LANES; i++) {
            size_t row = (i + TO - 1) / TO, col = (i + TO - 1) % TO; /* ret + 1 is row 1, column 0 */
            float want = i == 0 || col >= OPS_LANES ? -1 : (float) (col * FROM + row);

            CU_ASSERT_EQUAL(ret[i], want);
        }
    }
}

static void test_centre(void)
{
    for (size_t v = 0; v < N_MASKS && variant(v); v++)
        for (unsigned bad = 0; bad < 4; bad++) {
            static const float not_finite[] = {0, NAN, INFINITY, -INFINITY};
            float x[5 * OPS_LANES], want[5 * OPS_LANES], mean[5];

            for (size_t i = 0; i < 5; i++)
                mean[i] = (float) test_rand_normal();
            for (size_t i = 0; i < 5 * OPS_LANES; i++) {
                x[i] = (float) test_rand_normal();
                want[i] = x[i] - mean[i / OPS_LANES];
            }
            if (bad) {
                size_t at = test_rand_below(5 * OPS_LANES);

                x[at] = want[at] = not_finite[bad];
            }
            CU_ASSERT_EQUAL(variant(v)->centre(mean, 5, x), bad == 0);
            for (size_t i = 0; i < 5 * OPS_LANES; i++)
                CU_ASSERT(x[i] == want[i] || (isnan(x[i]) && isnan(want[i])));
        }
}

/* All values of bfloat16, at an odd address. */
static void test_from_brain(void)
{
    enum { ALL = 65536 };
    char *bytes = malloc(2 * ALL + 1);
    float *ret = malloc((ALL + 1) * sizeof(*ret));

    assert(bytes && ret);
    for (size_t i = 0; i < ALL; i++)
        memcpy(bytes + 1 + 2 * i, &(uint16_t){(uint16_t) i}, 2);
    for (size_t v = 0; v < N_MASKS && variant(v); v++) {
        variant(v)->from_brain(bytes + 1, ALL, ret);
        for (size_t i = 0; i < ALL; i++)
            CU_ASSERT_EQUAL(half_float_to_bits(ret[i]), (uint32_t) i << 16);
        for (size_t n = 0; n < 40; n++) {
            ret[n] = 77;
            variant(v)->from_brain(bytes + 1 + 2 * (ALL / 4), n, ret);
            CU_ASSERT_EQUAL(ret[n], 77);
        }
    }
    free(bytes);
    free(ret);
}

/* NaN must only stay NaN. */
static bool equal_or_nan(uint16_t a, uint16_t b, bool brain)
{
    float x = brain ? bf16_to_f32(a) : f16_to_f32(a), y = brain ? bf16_to_f32(b) : f16_to_f32(b);

    return a == b || (isnan(x) && isnan(y));
}

static void check_narrow(const struct ops *ops, size_t n)
{
    float x[N + 1] = {0};
    char halves[2 * N + 3], brains[2 * N + 3];
    bool finite = true;

    memset(halves, 0x5a, sizeof(halves));
    memset(brains, 0x5a, sizeof(brains));
    for (size_t i = 0; i < n; i++)
        x[1 + i] = n % 2 ? any_number() : (float) test_rand_normal();
    for (size_t i = 0; i < n; i++)
        finite = finite && (f32_to_f16(x[1 + i]) & 0x7c00) != 0x7c00;
    CU_ASSERT_EQUAL(ops->to_half(x + 1, n, halves + 1), finite);
    ops->to_brain(x + 1, n, brains + 1);
    for (size_t i = 0; i < n; i++) {
        uint16_t half, brain;

        memcpy(&half, halves + 1 + 2 * i, 2);
        memcpy(&brain, brains + 1 + 2 * i, 2);
        CU_ASSERT_TRUE(equal_or_nan(half, f32_to_f16(x[1 + i]), false));
        CU_ASSERT_TRUE(equal_or_nan(brain, f32_to_bf16(x[1 + i]), true));
    }
    CU_ASSERT(halves[0] == 0x5a && halves[1 + 2 * n] == 0x5a);
    CU_ASSERT(brains[0] == 0x5a && brains[1 + 2 * n] == 0x5a);
}

static void test_to_narrow_types(void)
{
    for (size_t v = 0; v < N_MASKS && variant(v); v++)
        for (size_t n = 0; n <= N; n++)
            check_narrow(variant(v), n);
}

/* Each product and each sum rounded: volatile forbids what a compiler might merge. */
static void test_turn(void)
{
    for (size_t v = 0; v < N_MASKS && variant(v); v++)
        for (size_t n = 0; n <= 70; n++) {
            float x[4][72], want[2][72], sign = n % 2 ? 1 : -1;

            for (size_t i = 0; i < 4 * 72; i++)
                x[i / 72][i % 72] = (float) test_rand_normal();
            memcpy(want, x, sizeof(want));
            for (size_t i = 1; i <= n; i++) {
                volatile float s = sign * x[3][i], a = x[0][i] * x[2][i], b = x[1][i] * s;
                volatile float c = x[1][i] * x[2][i], d = x[0][i] * s;

                want[0][i] = a - b;
                want[1][i] = c + d;
            }
            variant(v)->turn(x[0] + 1, x[1] + 1, x[2] + 1, x[3] + 1, sign, n);
            CU_ASSERT_TRUE(same_bits(x, want, sizeof(want)));
        }
}

const char test_suite[] = "ops convert";
const struct test_case test_cases[] = {
    TEST(test_quantise),        TEST(test_transpose), TEST(test_centre), TEST(test_from_brain),
    TEST(test_to_narrow_types), TEST(test_turn),      TEST_END,
};
