/* Pages of raw vectors, compared with the codec called for one head at a time. */
#include "daemon/requests/raw_codec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/dtype.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "raw_codec";

enum { LAYERS = 3, HEADS = 2, D = 32, NUMBERS = LAYERS * CHUNK_TOKENS * HEADS * D };

static struct table *table;
static uint32_t first_head; /* of the shard's two heads */
static struct page_layout layout;
static float vectors[2][NUMBERS]; /* by side, [LAYERS][64][HEADS][D] */
static int arena;
static uint8_t *payload;

/* A shard of two heads of four; of two where values are predicted from the keys of all heads. */
static void setup(enum prediction v_from)
{
    struct geometry g = random_table_geometry(LAYERS, 8, v_from == PREDICT_LAYER ? HEADS : 4, D);
    void *bytes;
    size_t n;
    uint32_t x = 12345;

    assert(random_table_bytes(&g, 1, 4.0, v_from, &bytes, &n) == 0);
    assert(table_parse(bytes, n, &table, NULL) == 0);
    free(bytes);
    first_head = v_from == PREDICT_LAYER ? 0 : 1;
    assert(page_layout_init(&layout, table, (struct shard){first_head, HEADS}) == 0);
    for (unsigned side = 0; side < 2; side++)
        for (size_t i = 0; i < NUMBERS; i++) { /* sums of twelve uniform numbers: near N(0, 1) */
            float sum = -6;

            for (unsigned k = 0; k < 12; k++)
                sum += (float) ((x = x * 1664525 + 1013904223) >> 8) * 0x1p-24f;
            vectors[side][i] = f16_to_f32(f32_to_f16(sum)); /* the same number in both types */
        }
    arena = memfd_create("arena", MFD_CLOEXEC);
    assert(arena >= 0);
    payload = malloc(layout.payload_bytes[PAGE_FIRST] + 1);
    assert(payload);
}

static void teardown(void)
{
    free(payload);
    (void) close(arena);
    page_layout_deinit(&layout);
    table = table_unref(table);
}

static struct raw_place place(unsigned dtype, uint64_t offset)
{
    return (struct raw_place){.fd = arena, .dtype = dtype, .offset = offset};
}

/* K at byte 6, V behind a gap: no alignment is needed. */
static int encode(unsigned dtype, bool first, struct errmsg *e)
{
    static uint8_t numbers[NUMBERS * 4];
    struct encode_counts counts[2] = {{0}};
    size_t bytes = NUMBERS * dtype_bytes(dtype);
    struct raw_place k = place(dtype, 6), v = place(dtype, 6 + bytes + 10);
    int r = 0;

    for (unsigned side = 0; side < 2; side++) {
        dtype_store(dtype, vectors[side], NUMBERS, numbers);
        assert(pwrite(arena, numbers, bytes, (off_t) (side ? v.offset : k.offset)) == (ssize_t) bytes);
    }
    payload[layout.payload_bytes[first ? PAGE_FIRST : PAGE_REST]] = 0x5a;
    for (uint32_t layer = 0; r == 0 && layer < LAYERS; layer++)
        r = raw_codec_encode(&layout, layer, &k, &v, first, payload, counts, e);
    CU_ASSERT_EQUAL(payload[layout.payload_bytes[first ? PAGE_FIRST : PAGE_REST]], 0x5a);
    if (r == 0)
        CU_ASSERT(counts[SIDE_K].coords > 0 && counts[SIDE_V].coords > 0);
    return r;
}

static void decode(unsigned dtype, bool first, uint32_t layer, enum side side, float *ret)
{
    uint8_t numbers[CHUNK_TOKENS * HEADS * D * 4];
    struct raw_place to = place(dtype, 1 << 20);
    uint64_t bytes = 0;
    struct errmsg e;

    CU_ASSERT_EQUAL_FATAL(raw_codec_decode(&layout, payload, first, layer, side, &to, &e), 0);
    CU_ASSERT(raw_codec_bytes(&layout, dtype, 1, &bytes));
    CU_ASSERT_EQUAL_FATAL(bytes, CHUNK_TOKENS * HEADS * D * dtype_bytes(dtype));
    assert(pread(arena, numbers, bytes, 1 << 20) == (ssize_t) bytes);
    dtype_load(dtype, numbers, 0, CHUNK_TOKENS * HEADS * D, ret);
}

/* Rows of one head and side, with the mean in place of a sink. */
static const float *rows_of(uint32_t layer, uint32_t head, enum side side, bool first)
{
    static float rows[CHUNK_TOKENS][D];
    const float *mean = table_codec(table, layer, first_head + head, side)->enc_mean;

    for (unsigned t = 0; t < CHUNK_TOKENS; t++)
        for (unsigned i = 0; i < D; i++)
            rows[t][i] = first && t < RANDOM_TABLE_SINKS
                             ? mean[i]
                             : vectors[side][((layer * CHUNK_TOKENS + t) * HEADS + head) * D + i];
    return rows[0];
}

/*
 * Encodes and decodes one head of one layer by the codec alone, after the keys of all heads:
 * no page, no arena.
 */
static void by_hand(uint32_t layer, uint32_t head, bool first, float ret[2][CHUNK_TOKENS][D])
{
    static float scratch[1 << 17];
    static uint8_t codes[HEADS + 1][CHUNK_TOKENS * TABLE_RANK_MAX];
    struct head_view view = head_view(table, layer, first_head + head);
    const uint8_t *keys[4] = {NULL};
    struct encode_counts count = {0};

    assert(codec_scratch_floats() <= sizeof(scratch) / sizeof(scratch[0]));
    for (uint32_t h = 0; h < HEADS; h++) {
        keys[first_head + h] = codes[h];
        assert(codec_encode_keys(head_view(table, layer, first_head + h), rows_of(layer, h, SIDE_K, first), D,
                                 CHUNK_TOKENS, codes[h], &count, scratch) == 0);
    }
    assert(codec_encode_values(view, rows_of(layer, head, SIDE_V, first), D, CHUNK_TOKENS, keys, codes[HEADS],
                               &count, scratch) == 0);
    codec_decode_keys(view, codes[head], CHUNK_TOKENS, ret[SIDE_K][0], D, scratch);
    codec_decode_values(view, keys, codes[HEADS], CHUNK_TOKENS, ret[SIDE_V][0], D, scratch);
}

/* Both ways give the same bits of codes; a sink is within binary16's rounding of x - mean. */
static void check_against_codec(unsigned dtype, bool first)
{
    static float got[CHUNK_TOKENS * HEADS * D], want[2][CHUNK_TOKENS][D];
    double error = 0, energy = 0;

    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (unsigned side = 0; side < 2; side++) {
            decode(dtype, first, layer, side, got);
            for (uint32_t h = 0; h < HEADS; h++) {
                const float *mean = table_codec(table, layer, first_head + h, side)->mean;
                unsigned n_wrong = 0;

                by_hand(layer, h, first, want);
                for (unsigned t = 0; t < CHUNK_TOKENS; t++)
                    for (unsigned i = 0; i < D; i++) {
                        float x = vectors[side][((layer * CHUNK_TOKENS + t) * HEADS + h) * D + i];
                        float y = got[(t * HEADS + h) * D + i], w = want[side][t][i];
                        /* half a unit of binary16 in x - mean, and one of the result's own type */
                        float room = fabsf(x - mean[i]) * 0x1p-11f + 0x1p-24f + fabsf(x) * 0x1p-10f;

                        if (first && t < RANDOM_TABLE_SINKS)
                            n_wrong += !(fabsf(y - x) <= room);
                        else
                            n_wrong += dtype == DTYPE_F32 ? y != w : y != f16_to_f32(f32_to_f16(w));
                        error += (double) (y - x) * (y - x);
                        energy += (double) x * x;
                    }
                CU_ASSERT_EQUAL(n_wrong, 0);
            }
        }
    /*
     * 4 bits per number with levels for N(0, 1) leave 1 % of the energy; the random table's falling spectrum,
     * which these white vectors do not have, costs more: an order of magnitude is left for it, and none for
     * noise (100 %)
     */
    CU_ASSERT(error < 0.5 * energy);
}

static void against_codec(enum prediction v_from)
{
    struct errmsg e = {""};

    setup(v_from);
    for (unsigned dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (unsigned first = 0; first < 2; first++) {
            CU_ASSERT_EQUAL_FATAL(encode(dtype, first, &e), 0);
            check_against_codec(dtype, first);
        }
    teardown();
}

static void test_against_codec(void)
{
    for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
        against_codec((enum prediction) v_from);
}

/* The earlier bytes of the slot are overwritten. */
static void test_every_byte_is_written(void)
{
    struct errmsg e;
    uint8_t *copy;

    setup(PREDICT_HEAD);
    copy = malloc(layout.payload_bytes[PAGE_FIRST]);
    assert(copy);
    memset(payload, 0x00, layout.payload_bytes[PAGE_FIRST]);
    CU_ASSERT_EQUAL(encode(DTYPE_F32, true, &e), 0);
    memcpy(copy, payload, layout.payload_bytes[PAGE_FIRST]);
    memset(payload, 0xff, layout.payload_bytes[PAGE_FIRST]);
    CU_ASSERT_EQUAL(encode(DTYPE_F32, true, &e), 0);
    CU_ASSERT_EQUAL(memcmp(copy, payload, layout.payload_bytes[PAGE_FIRST]), 0);
    free(copy);
    teardown();
}

static size_t at(uint32_t layer, uint32_t token, uint32_t head, uint32_t i)
{
    return ((layer * CHUNK_TOKENS + token) * HEADS + head) * D + i;
}

static void test_bad_numbers(void)
{
    struct errmsg e = {""};

    setup(PREDICT_HEAD);
    vectors[SIDE_V][at(2, 63, 1, 31)] = INFINITY;
    CU_ASSERT_EQUAL(encode(DTYPE_F32, false, &e), -EINVAL);
    CU_ASSERT(strstr(e.text, "layer 2, KV head 2") != NULL);
    vectors[SIDE_V][at(2, 63, 1, 31)] = NAN;
    CU_ASSERT_EQUAL(encode(DTYPE_F16, true, &e), -EINVAL);
    vectors[SIDE_V][at(2, 63, 1, 31)] = 1e5f; /* far from the mean, which a code may be */
    CU_ASSERT_EQUAL(encode(DTYPE_F32, true, &e), 0);
    vectors[SIDE_K][at(1, 3, 0, 0)] = 1e5f; /* the same in a sink: binary16 cannot hold it */
    CU_ASSERT_EQUAL(encode(DTYPE_F32, true, &e), -EINVAL);
    CU_ASSERT(strstr(e.text, "layer 1, KV head 1, K of token 3") != NULL);
    CU_ASSERT_EQUAL(encode(DTYPE_F32, false, &e), 0);
    teardown();
}

static void test_short_arena(void)
{
    struct encode_counts counts[2] = {{0}};
    struct raw_place k, v;
    struct errmsg e = {""};

    setup(PREDICT_HEAD);
    CU_ASSERT_EQUAL(encode(DTYPE_F32, false, &e), 0);
    k = place(DTYPE_F32, 6);
    v = place(DTYPE_F32, 6 + NUMBERS * 4 + 10);
    assert(ftruncate(arena, (off_t) v.offset + NUMBERS * 4 - 1) == 0);
    CU_ASSERT_EQUAL(raw_codec_encode(&layout, 0, &k, &v, false, payload, counts, &e), 0);
    CU_ASSERT_EQUAL(raw_codec_encode(&layout, LAYERS - 1, &k, &v, false, payload, counts, &e), -EIO);
    CU_ASSERT(strstr(e.text, "arena") != NULL);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_against_codec),
    TEST(test_every_byte_is_written),
    TEST(test_bad_numbers),
    TEST(test_short_arena),
    TEST_END,
};
