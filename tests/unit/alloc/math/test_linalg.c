/* Eigenvectors: unit length, descending values, and the sign that makes tables the same with every LAPACK. */
#include "alloc/math/linalg.h"

#include <math.h>
#include <string.h>

#include "tests/lib/test.h"

enum { N = 7 };

static void test_eigen(void)
{
    double a[N * N], vectors[N * N], w[N];

    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j <= i; j++)
            a[i * N + j] = a[j * N + i] = test_rand_normal();
    memcpy(vectors, a, sizeof(a));
    CU_ASSERT_EQUAL_FATAL(linalg_eigen(N, vectors, w), 0);
    for (size_t k = 0; k < N; k++) {
        const double *v = vectors + k * N;
        size_t largest = 0;
        double norm = 0;

        for (size_t i = 0; i < N; i++) {
            double product = 0;

            for (size_t j = 0; j < N; j++)
                product += a[i * N + j] * v[j];
            CU_ASSERT_DOUBLE_EQUAL(product, w[k] * v[i], 1e-12);
            norm += v[i] * v[i];
            largest = fabs(v[i]) > fabs(v[largest]) ? i : largest;
        }
        CU_ASSERT_DOUBLE_EQUAL(norm, 1, 1e-12);
        CU_ASSERT(v[largest] > 0);
        CU_ASSERT(k == 0 || w[k] <= w[k - 1]);
    }
}

const char test_suite[] = "linalg";
const struct test_case test_cases[] = {TEST(test_eigen), TEST_END};
