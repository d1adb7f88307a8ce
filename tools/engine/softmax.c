/* See softmax.h. */
#include "tools/engine/softmax.h"

#include <math.h>
#include <string.h>

void softmax_masked(float *s, size_t n, size_t width)
{
    float max = s[0], scale;
    double sum = 0.0;

    for (size_t i = 1; i < n; i++)
        max = s[i] > max ? s[i] : max;
    for (size_t i = 0; i < n; i++) {
        s[i] = expf(s[i] - max);
        sum += (double) s[i];
    }

    scale = (float) (1.0 / sum);
    for (size_t i = 0; i < n; i++)
        s[i] *= scale;
    memset(s + n, 0, (width - n) * sizeof(*s));
}
