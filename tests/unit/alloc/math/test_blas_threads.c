/* Scopes with one BLAS thread: one inside another, and overlapping. */
#include "tests/lib/test.h"

#include <cblas.h>

#include "alloc/math/blas_threads.h"
#include "base/cleanup.h"

static void nest(void)
{
    _cleanup_(blas_threads_restore) int outer = blas_threads_single();

    CU_ASSERT_EQUAL(openblas_get_num_threads(), 1);
    {
        _cleanup_(blas_threads_restore) int inner = blas_threads_single();

        (void) inner;
        CU_ASSERT_EQUAL(openblas_get_num_threads(), 1);
    }
    (void) outer;
    CU_ASSERT_EQUAL(openblas_get_num_threads(), 1);
}

/* The first scope ends before the second one: OpenBLAS must not keep the second one's idea of "before". */
static void test_scopes(void)
{
    int before = openblas_get_num_threads();

    openblas_set_num_threads(3);
    nest();
    CU_ASSERT_EQUAL(openblas_get_num_threads(), 3);
    (void) blas_threads_single();
    (void) blas_threads_single();
    blas_threads_restore(NULL);
    CU_ASSERT_EQUAL(openblas_get_num_threads(), 1);
    blas_threads_restore(NULL);
    CU_ASSERT_EQUAL(openblas_get_num_threads(), 3);
    openblas_set_num_threads(before);
}

const struct test_case test_cases[] = {TEST(test_scopes), TEST_END};
const char test_suite[] = "blas_threads";
