/* Tests of daemon/tier/disk_buffers.c. */
#include "daemon/tier/disk_buffers.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "disk_buffers";

enum { UNIT = DISK_BUFFER_UNIT_BYTES, N_UNITS = 8 };

static void test_runs(void)
{
    struct disk_buffers b;
    uint8_t *a, *c, *d;

    CU_ASSERT_EQUAL_FATAL(disk_buffers_init(&b, (uint64_t) N_UNITS * UNIT, NULL), 0);
    a = disk_buffers_take(&b, 3 * UNIT, false);
    c = disk_buffers_take(&b, 1, false);
    d = disk_buffers_take(&b, 3 * UNIT + 1, false); /* four units */
    CU_ASSERT(a && c && d && a != c);
    CU_ASSERT((uintptr_t) a % UNIT == 0 && (uintptr_t) c % UNIT == 0);
    CU_ASSERT(c == a + 3 * UNIT && d == c + UNIT);
    memset(a, 1, 3 * UNIT);
    memset(d, 2, 4 * UNIT);
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 1, false)); /* full */
    disk_buffers_give_back(&b, a);
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 4 * UNIT, false)); /* no run is so long */
    CU_ASSERT_PTR_EQUAL(disk_buffers_take(&b, 2 * UNIT, false), a);
    disk_buffers_give_back(&b, a);
    disk_buffers_give_back(&b, c);
    CU_ASSERT_PTR_EQUAL(disk_buffers_take(&b, 4 * UNIT, false), a); /* both runs together */
    disk_buffers_give_back(&b, a);
    disk_buffers_give_back(&b, d);
    CU_ASSERT_EQUAL(b.n_used, 0);
    disk_buffers_deinit(&b);
}

static void test_room_for_reads(void)
{
    struct disk_buffers b;
    uint8_t *w;

    CU_ASSERT_EQUAL_FATAL(disk_buffers_init(&b, (uint64_t) N_UNITS * UNIT, NULL), 0);
    w = disk_buffers_take(&b, 3 * UNIT, true);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w);
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 2 * UNIT, true)); /* half of the units is for writes */
    CU_ASSERT_PTR_NOT_NULL(disk_buffers_take(&b, UNIT, true));
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 1, true));
    CU_ASSERT_PTR_NOT_NULL(disk_buffers_take(&b, 4 * UNIT, false));
    disk_buffers_give_back(&b, w);
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 4 * UNIT, true));
    CU_ASSERT_PTR_NOT_NULL(disk_buffers_take(&b, 3 * UNIT, true));
    disk_buffers_deinit(&b);
}

static void test_limits(void)
{
    struct disk_buffers b = {.memory = NULL};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(disk_buffers_init(&b, DISK_BUFFERS_BYTES_MAX + 1, &e), -EINVAL);
    CU_ASSERT_EQUAL(disk_buffers_init(&b, 2 * UNIT - 1, &e), -EINVAL);
    CU_ASSERT(e.text[0] != '\0');
    disk_buffers_deinit(&b); /* nothing was made */
    CU_ASSERT_EQUAL_FATAL(disk_buffers_init(&b, DISK_BUFFERS_BYTES_MAX, &e), 0);
    CU_ASSERT_EQUAL(disk_buffers_bytes(&b), DISK_BUFFERS_BYTES_MAX);
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, 0, false));
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, DISK_BUFFERS_BYTES_MAX / 2 + 1, false));
    CU_ASSERT_PTR_NULL(disk_buffers_take(&b, UINT64_MAX, false));
    CU_ASSERT_PTR_NOT_NULL(disk_buffers_take(&b, DISK_BUFFERS_BYTES_MAX / 2, true));
    disk_buffers_deinit(&b);
}

const struct test_case test_cases[] = {
    TEST(test_runs),
    TEST(test_room_for_reads),
    TEST(test_limits),
    TEST_END,
};
