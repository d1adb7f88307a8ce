/* Decoding a whole chunk against decoding its codes token by token: the same bits, for every kind of
 * prediction and for dimensions that neither half-tiles nor vector registers divide. */
#include "gpu/chunk.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/table/trellis.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { HEADS = 3 };

struct chunk_case {
    struct table *table;
    struct page_layout layout;
    struct chunk_work work, oracle;
    uint8_t *payload;
    float *x; /* [64, d] */
};

static struct chunk_case case_new(uint32_t d, double bpd, enum prediction v_from, unsigned state_bits,
                                  struct shard shard)
{
    struct geometry g = random_table_geometry(2, HEADS, HEADS, d);
    struct chunk_case c = {.x = malloc((size_t) CHUNK_TOKENS * d * sizeof(float))};
    void *bytes;
    size_t n_bytes;

    CU_ASSERT_EQUAL_FATAL(state_bits > 0
                              ? random_table_bytes_trellis(&g, 1, bpd, v_from, state_bits, &bytes, &n_bytes)
                              : random_table_bytes(&g, 1, bpd, v_from, &bytes, &n_bytes),
                          0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n_bytes, &c.table, NULL), 0);
    free(bytes);
    CU_ASSERT_EQUAL_FATAL(page_layout_init(&c.layout, c.table, shard), 0);
    CU_ASSERT_EQUAL_FATAL(chunk_work_init(&c.work, &g, shard), 0);
    CU_ASSERT_EQUAL_FATAL(chunk_work_init(&c.oracle, &g, shard), 0);
    c.payload = malloc(c.layout.payload_bytes[PAGE_REST]);
    assert(c.payload && c.x);
    return c;
}

static void case_free(struct chunk_case *c)
{
    chunk_work_deinit(&c->work);
    chunk_work_deinit(&c->oracle);
    page_layout_deinit(&c->layout);
    (void) table_unref(c->table);
    free(c->payload);
    free(c->x);
}

static void encode(struct chunk_case *c, uint32_t layer)
{
    uint32_t d = c->table->geometry.d;
    struct encode_counts counts = {0};

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t head = 0; head < c->layout.shard.n_heads; head++) {
            for (size_t i = 0; i < (size_t) CHUNK_TOKENS * d; i++)
                c->x[i] = (float) test_rand_normal();
            CU_ASSERT_EQUAL_FATAL(chunk_encode(&c->layout, layer, head, (enum side) side, c->x, d, c->payload,
                                               &counts, &c->work),
                                  0);
        }
}

/* Codes [64, r] by block_unpack(), vectors by codec_decode_*(). */
static void decode_by_token(struct chunk_case *c, uint32_t layer, uint32_t head, enum side side, float *ret)
{
    uint32_t first = c->layout.shard.first_head, d = c->table->geometry.d;
    uint8_t *codes_v = c->oracle.codes + (size_t) c->layout.shard.n_heads * CHUNK_TOKENS * TABLE_RANK_MAX;
    struct head_view view = head_view(c->table, layer, first + head);

    for (uint32_t h = 0; h < c->layout.shard.n_heads; h++)
        block_unpack(head_view(c->table, layer, first + h), c->payload + page_block_off(&c->layout, layer, h),
                     (uint8_t *) (uintptr_t) c->oracle.keys[first + h], h == head ? codes_v : NULL);
    if (side == SIDE_K)
        codec_decode_keys(view, c->oracle.keys[first + head], CHUNK_TOKENS, ret, d, c->oracle.codec);
    else
        codec_decode_values(view, c->oracle.keys, codes_v, CHUNK_TOKENS, ret, d, c->oracle.codec);
}

static void run_with(uint32_t d, double bpd, enum prediction v_from, unsigned state_bits, struct shard shard)
{
    struct chunk_case c = case_new(d, bpd, v_from, state_bits, shard);
    size_t stride = d + 5, bytes = d * sizeof(float);
    float *got = malloc(CHUNK_TOKENS * stride * sizeof(*got)), *alone = malloc(CHUNK_TOKENS * bytes);

    for (uint32_t layer = 0; layer < 2; layer++) {
        encode(&c, layer);
        chunk_load_keys(&c.layout, c.payload, layer, &c.work);
        for (uint32_t i = 0; i < 2 * shard.n_heads; i++) {
            enum side side = (enum side)(i % 2);

            memset(got, 0, CHUNK_TOKENS * stride * sizeof(*got));
            if (side == SIDE_K)
                chunk_decode_keys(&c.layout, layer, i / 2, got, stride, &c.work);
            else
                chunk_decode_values(&c.layout, c.payload, layer, i / 2, got, stride, &c.work);
            decode_by_token(&c, layer, i / 2, side, c.x);
            chunk_decode(&c.layout, c.payload, layer, i / 2, side, alone, d, &c.oracle);
            CU_ASSERT_EQUAL(memcmp(alone, c.x, CHUNK_TOKENS * bytes), 0);
            for (size_t t = 0; t < CHUNK_TOKENS; t++) {
                CU_ASSERT_EQUAL(memcmp(got + t * stride, c.x + t * d, bytes), 0);
                CU_ASSERT_EQUAL(got[t * stride + d], 0);
            }
        }
    }
    free(got);
    free(alone);
    case_free(&c);
}

/* With scalar levels and with a trellis of either size. */
static void run(uint32_t d, double bpd, enum prediction v_from, struct shard shard)
{
    static const unsigned state_bits[] = {0, TRELLIS_STATE_BITS_MIN, TRELLIS_STATE_BITS_MAX};

    for (unsigned i = 0; i < sizeof(state_bits) / sizeof(state_bits[0]); i++)
        run_with(d, bpd, v_from, state_bits[i], shard);
}

static void test_shapes(void)
{
    static const uint32_t dims[] = {32, 34, 40, 72, 80, 128, 256};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (unsigned v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            run(dims[i], 2 + (double) i, (enum prediction) v_from, (struct shard){0, HEADS});
}

static void test_shard(void)
{
    run(64, 3, PREDICT_HEAD, (struct shard){1, 2});
    run(40, 4, PREDICT_NONE, (struct shard){2, 1});
}

/* Memory that a caller places is as good as allocated memory, up to its last byte. */
static void test_placed(void)
{
    struct geometry g = random_table_geometry(1, HEADS, HEADS, 40);
    struct shard shard = {1, 2};
    size_t bytes = chunk_work_bytes(&g, shard);
    uint8_t *memory = aligned_alloc(64, bytes);
    struct chunk_work w;

    assert(memory);
    CU_ASSERT_EQUAL(bytes % 64, 0);
    chunk_work_place(&w, &g, shard, memory);
    CU_ASSERT_PTR_NULL(w.keys[0]);
    CU_ASSERT(w.keys[2] - w.keys[1] == (ptrdiff_t) CHUNK_TOKENS * TABLE_RANK_MAX);
    CU_ASSERT((const uint8_t *) (w.keys + HEADS) <= memory + bytes);
    free(memory);
}

const char test_suite[] = "chunk";
const struct test_case test_cases[] = {TEST(test_shapes), TEST(test_shard), TEST(test_placed), TEST_END};
