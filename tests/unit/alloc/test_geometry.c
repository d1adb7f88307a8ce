#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/geometry.h"
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

const struct test_case test_cases[] = {
    TEST(test_indices),
    TEST(test_limits),
    TEST(test_digest_known),
    TEST_END,
};
const char test_suite[] = "geometry";
