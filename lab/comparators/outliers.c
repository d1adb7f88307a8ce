/* See outliers.h. */
#include "lab/comparators/outliers.h"

#include <math.h>
#include <string.h>

size_t outliers_each(double share, size_t n)
{
    return (size_t) lround(share * (double) n / 2);
}

size_t outliers_find(const float *x, size_t n, size_t stride, size_t n_each, uint8_t *ret_mark)
{
    size_t marked = 0;

    memset(ret_mark, 0, n);
    for (int sign = -1; sign <= 1; sign += 2)
        for (size_t k = 0; k < n_each && marked < n; k++, marked++) {
            size_t best = n;

            for (size_t i = 0; i < n; i++)
                if (!ret_mark[i] &&
                    (best == n || (float) sign * x[i * stride] > (float) sign * x[best * stride]))
                    best = i;
            ret_mark[best] = 1;
        }
    return marked;
}

float outliers_rest_mean(const float *x, size_t n, size_t stride, const uint8_t *mark)
{
    double sum = 0;
    size_t rest = 0;

    for (size_t i = 0; i < n; i++)
        if (!mark[i]) {
            sum += (double) x[i * stride];
            rest++;
        }
    return rest ? (float) (sum / (double) rest) : 0;
}
