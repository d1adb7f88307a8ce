/* See rotation.h. Codecs are built with these matrices folded into enc and dec; no kernel sees them. */
#include "alloc/math/rotation.h"

#include <math.h>
#include <stdbool.h>

#include "base/splitmix64.h"

/* One draw per column: its top bit is the sign. */
static double rotation_next_sign(uint64_t *state)
{
    return splitmix64_next(state) >> 63 ? -1.0 : 1.0;
}

/* Sylvester: H[i][j] = (-1)^(number of ones in i & j) */
static double rotation_sylvester(size_t i, size_t j)
{
    return __builtin_parityll(i & j) ? -1.0 : 1.0;
}

/* cas x = cos x + sin x. The angle is reduced exactly, by i j mod n, so that large products lose nothing. */
static double rotation_hartley(size_t i, size_t j, size_t n)
{
    double x = 2.0 * M_PI * (double) (i * j % n) / (double) n;

    return cos(x) + sin(x);
}

void rotation_matrix(size_t n, uint64_t seed, double *ret)
{
    bool power_of_two = (n & (n - 1)) == 0;
    double scale = 1.0 / sqrt((double) n);

    for (size_t j = 0; j < n; j++) {
        double s = scale * rotation_next_sign(&seed);

        for (size_t i = 0; i < n; i++)
            ret[i * n + j] = s * (power_of_two ? rotation_sylvester(i, j) : rotation_hartley(i, j, n));
    }
}
