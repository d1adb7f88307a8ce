/* Freed heap goes back to the kernel, also between blocks that are still used. */
#include "daemon/loop/heap.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/loop/usage.h"
#include "tests/lib/test.h"

const char test_suite[] = "heap";

enum { N = 16384, BLOCK_BYTES = 4000, KEPT_EVERY = 64 };

static void *blocks[N];

static void free_blocks(bool all)
{
    for (size_t i = 0; i < N; i++)
        if (all || i % KEPT_EVERY != 0) {
            free(blocks[i]);
            blocks[i] = NULL;
        }
}

static void test_holes_go_back(void)
{
    struct heap h = {0};
    uint64_t before, peak;

#ifdef __SANITIZE_ADDRESS__
    return; /* its allocator keeps what is freed */
#endif
    heap_init();
    before = usage_of_process();
    for (size_t i = 0; i < N; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        CU_ASSERT_PTR_NOT_NULL_FATAL(blocks[i]);
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    peak = usage_of_process();
    CU_ASSERT(peak - before > (uint64_t) N * BLOCK_BYTES * 9 / 10);
    free_blocks(false);
    heap_note_freed(&h, (uint64_t) N * BLOCK_BYTES);
    CU_ASSERT(heap_is_due(&h));
    heap_tick(&h, HEAP_TRIM_MS);
    CU_ASSERT_FALSE(heap_is_due(&h));
    CU_ASSERT(usage_of_process() < before + (peak - before) / 8);
    free_blocks(true);
}

/* Little is not worth a trim, and a second trim comes later. */
static void test_when(void)
{
    struct heap h = {.trimmed_ms = 1000};

    heap_note_freed(&h, HEAP_TRIM_BYTES - 1);
    CU_ASSERT_FALSE(heap_is_due(&h));
    heap_tick(&h, 1000 + 10 * HEAP_TRIM_MS);
    CU_ASSERT_EQUAL(h.freed_bytes, HEAP_TRIM_BYTES - 1);
    heap_note_freed(&h, 1);
    heap_tick(&h, 1000 + HEAP_TRIM_MS - 1);
    CU_ASSERT_TRUE(heap_is_due(&h));
    heap_tick(&h, 1000 + HEAP_TRIM_MS);
    CU_ASSERT_EQUAL(h.freed_bytes, 0);
    CU_ASSERT_EQUAL(h.trimmed_ms, 1000 + HEAP_TRIM_MS);
}

const struct test_case test_cases[] = {TEST(test_holes_go_back), TEST(test_when), TEST_END};
