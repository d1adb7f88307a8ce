/* Usage of product sequences: each item is checked, and their sum equals the bytes held. */
#include <stdio.h>
#include <stdlib.h>

#include "alloc/table/table.h"
#include "gpu/page_layout.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

/* Codes of one token in the shard, padding coordinates included, from the table's own numbers. */
static uint64_t stored_bits(const struct table *t, const struct embedded *m)
{
    uint64_t bits = 0;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (uint32_t h = 0; h < m->n_heads; h++)
            for (unsigned side = 0; side < 2; side++)
                bits += table_codec(t, layer, m->first_head + h, side)->code_bits;
    return bits;
}

static void run(uint32_t first, uint32_t n_here)
{
    struct embedded m =
        embedded_new(3, 4, 4, 80, 3, first, n_here); /* 80: padded to 96 coordinates at most */
    struct shard shard = {m.first_head, m.n_heads};
    struct page_layout layout;
    struct table *t = NULL;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(table_parse(m.bytes, m.n_bytes, &t, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(page_layout_init(&layout, t, shard), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    for (size_t at = 0; at < 400; at++) {
        kvc_usage u = {.struct_bytes = sizeof(u)};
        size_t n = at + 1, n_pages = n / 64 > 0 ? n / 64 - 1 : 0; /* packed when length is n */
        size_t n_claimed = n >= 48 ? (n + 16) / 64 - 1 : 0;       /* 16 tokens earlier */
        uint64_t slots, row = (uint64_t) 3 * m.n_heads * 80 * 2 * 2, sum;

        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, at, 1), 0);
        if (n % 64 > 1 && n % 64 < 63 && n % 10 != 0)
            continue;
        CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
        slots =
            n_claimed ? layout.slot_bytes[PAGE_FIRST] + (n_claimed - 1) * layout.slot_bytes[PAGE_REST] : 0;
        CU_ASSERT_EQUAL(u.tokens, n);
        CU_ASSERT_EQUAL(u.numbers, n * 3 * m.n_heads * 80 * 2);
        CU_ASSERT_EQUAL(u.header_bytes, n_pages * 128);
        CU_ASSERT_EQUAL(u.sink_bytes, n_pages ? 4 * row : 0);
        CU_ASSERT_EQUAL(u.tail_bytes, (n - 64 * n_pages) * row);
        CU_ASSERT(u.code_bytes <= n_pages * 8 * stored_bits(t, &m));
        CU_ASSERT(u.code_bytes + u.padding_bytes >= n_pages * 8 * stored_bits(t, &m));
        sum = u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes + u.tail_bytes;
        CU_ASSERT_EQUAL(sum, slots + u.tail_bytes);
        CU_ASSERT_EQUAL(u.shared_bytes, 0);
    }
    page_layout_deinit(&layout);
    (void) table_unref(t);
    embedded_free(&m);
}

static void test_all_heads(void)
{
    run(0, 0);
}

static void test_shard(void)
{
    run(1, 2);
}

const struct test_case test_cases[] = {TEST(test_all_heads), TEST(test_shard), TEST_END};
const char test_suite[] = "usage";
