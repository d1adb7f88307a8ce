#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/table/geometry.h"
#include "base/errmsg.h"

static struct geometry small(void)
{
    struct geometry g = {
        .n_layers = 2, .n_heads = 9, .n_kv_heads = 3, .d = 64, .n_rot = 4, .attn_scale = 0.125};

    g.freq[0] = 1.0;
    g.freq[1] = 0.01;
    return g;
}

static void test_indices(void)
{
    struct geometry g = small();

    CU_ASSERT_EQUAL(geometry_group(&g), 3);
    CU_ASSERT_EQUAL(head_side_count(&g), 12);
    CU_ASSERT_EQUAL(head_side_index(&g, 0, 0, SIDE_K), 0);
    CU_ASSERT_EQUAL(head_side_index(&g, 1, 2, SIDE_V), 11);
}

/* Each line breaks one field; the sentence must name it. */
static void test_limits(void)
{
    struct errmsg e = {""};
    struct geometry g = small();

    CU_ASSERT_EQUAL(geometry_validate(&g, &e), 0);
#define REFUSED(change, word)                                                                                \
    do {                                                                                                     \
        g = small();                                                                                         \
        change;                                                                                              \
        CU_ASSERT_EQUAL(geometry_validate(&g, &e), -EINVAL);                                                 \
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, word));                                                        \
        CU_ASSERT_EQUAL(geometry_validate(&g, NULL), -EINVAL);                                               \
    } while (0)
    REFUSED(g.n_layers = 0, "layers");
    REFUSED(g.n_layers = GEOMETRY_LAYERS_MAX + 1, "layers");
    REFUSED(g.n_heads = 0, "query heads");
    REFUSED(g.n_heads = GEOMETRY_HEADS_MAX + 3, "query heads");
    REFUSED(g.n_kv_heads = 0, "KV heads");
    REFUSED(g.n_kv_heads = 12, "KV heads");
    REFUSED(g.n_kv_heads = 2, "divide");
    REFUSED(g.d = 30, "head dimension");
    REFUSED(g.d = 258, "head dimension");
    REFUSED(g.d = 65, "odd");
    REFUSED(g.n_rot = 3, "rotary");
    REFUSED(g.n_rot = 66, "rotary");
    REFUSED(g.attn_scale = 0, "scale");
    REFUSED(g.attn_scale = NAN, "scale");
    REFUSED(g.freq[1] = INFINITY, "frequency 1");
    REFUSED(g.freq[0] = -0.0, "frequency 0");
#undef REFUSED
    g = small();
    g.n_layers = GEOMETRY_LAYERS_MAX;
    g.d = g.n_rot = 256;
    CU_ASSERT_EQUAL(geometry_validate(&g, &e), 0);
    g.freq[3] = NAN; /* unused planes do not matter */
    g.n_rot = 4;
    CU_ASSERT_EQUAL(geometry_validate(&g, &e), 0);
}

/* Computed with Python:
 * hashlib.sha256(b'KVCGEOM1' + struct.pack('<5I3d', 2,9,3,64,4, .125,1.,.01)).hexdigest() */
static void test_digest_known(void)
{
    struct geometry g = small();
    uint8_t digest[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1];

    g.freq[2] = 7; /* beyond n_rot / 2: not part of the geometry */
    geometry_digest(&g, digest);
    for (unsigned i = 0; i < DIGEST_BYTES; i++)
        (void) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    CU_ASSERT_STRING_EQUAL(hex, "10fe69606ee883bd0e9617f5bb05147321454292eea9bed35d1beca8a8099fbc");
}

/* ---- comparison ---- */

/* Each line changes one field of the model; the sentence has the field and both values. */
static void test_other_geometry_is_refused(void)
{
    const struct geometry table = small();
    struct errmsg e = {""};
    struct geometry g;

#define DIFFERS(change, field, model_value, table_value)                                                     \
    do {                                                                                                     \
        g = small();                                                                                         \
        change;                                                                                              \
        CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 65536, &e), -EINVAL);                                \
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, field " is " model_value " in the model"));                    \
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "and " table_value " in the table"));                          \
        CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 0, NULL), -EINVAL);                                  \
    } while (0)
    DIFFERS(g.n_layers = 3, "layers", "3", "2");
    DIFFERS(g.n_heads = 12, "query heads", "12", "9");
    DIFFERS(g.n_kv_heads = 1, "KV heads", "1", "3");
    DIFFERS(g.d = 66, "head dimension", "66", "64");
    DIFFERS(g.n_rot = 2, "rotated dimensions", "2", "4");
    DIFFERS(g.attn_scale = 0.25, "attention scale", "0.25", "0.125");
    DIFFERS(g.freq[1] = 0.02, "RoPE frequency of plane 1", "0.02", "0.01");
#undef DIFFERS
}

/* 2^-8 radians at n_positions is the first difference that is refused; frequencies that are powers of two and
 * their differences are exact. */
static void test_frequencies_may_differ_a_little(void)
{
    struct geometry table = small(), g;
    struct errmsg e = {""};

    table.freq[1] = 0x1p-6;
    for (int exponent = 4; exponent <= 20; exponent++) {
        uint32_t n = 1u << exponent;

        for (int sign = -1; sign <= 1; sign += 2) {
            g = table;
            g.freq[1] = 0x1p-6 + sign * 0x1p-8 / n;
            CU_ASSERT_EQUAL(geometry_check_same(&g, &table, n, &e), -EINVAL);
            CU_ASSERT_EQUAL(geometry_check_same(&g, &table, n - 1, &e), 0);
        }
    }
    g = table;
    g.freq[1] = 0x1p-6 + 0x1p-18; /* parts by 2^-8 at position 1024 */
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 65536, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "from position 1024 on"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "n_positions is 65536"));
    CU_ASSERT_PTR_NULL(strchr(e.text, '\n'));
    CU_ASSERT_EQUAL(e.text[strlen(e.text) - 1], 'e'); /* the sentence is whole: "must be the same" */
}

/* What an engine holds in binary32 is accepted; without positions every bit counts. */
static void test_rounded_numbers(void)
{
    const struct geometry table = small();
    struct geometry g = table;
    struct errmsg e = {""};

    g.attn_scale = table.attn_scale * (1 + 0x1p-24);
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 65536, &e), 0);
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 0, &e), -EINVAL);
    g.attn_scale = table.attn_scale * (1 + 2e-6);
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 65536, &e), -EINVAL);

    g = table;
    g.freq[1] = (float) 0.01;
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 65536, &e), 0);
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 0, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "must be equal"));
    g.freq[2] = 5; /* not a plane of this model */
    g.freq[1] = table.freq[1];
    CU_ASSERT_EQUAL(geometry_check_same(&g, &table, 0, &e), 0);
}

const struct test_case test_cases[] = {
    TEST(test_indices),
    TEST(test_limits),
    TEST(test_digest_known),
    TEST(test_other_geometry_is_refused),
    TEST(test_frequencies_may_differ_a_little),
    TEST(test_rounded_numbers),
    TEST_END,
};
const char test_suite[] = "geometry";
