/* See curve.h. */
#include "alloc/curve.h"

#include "alloc/solve_paper.h"

int curve_model_init(struct curve_model *m, enum curve curve, enum quantiser q)
{
    m->curve = curve;
    m->mse[0] = 1;
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        int r = levels_normal(q, b, &m->levels[b]);

        if (r < 0)
            return r;

        m->mse[b] = levels_normal_mse(&m->levels[b], b);
    }
    return 0;
}

static double curve_measured(const struct levels *l, unsigned b, const float *z, size_t n, size_t n_coords,
                             size_t stride)
{
    float level[1 << TABLE_BITS_MAX];
    double sum = 0;

    for (unsigned q = 0; q < 1u << b; q++)
        level[q] = (float) level_z(l, q);
    for (size_t t = 0; t < n; t++) {
        float token = 0;

        for (size_t i = 0; i < n_coords; i++) {
            float v = z[t * stride + i], e = v - level[quantise_fast(l, b, v)];

            token += e * e;
        }

        sum += (double) token;
    }

    return sum / (double) n;
}

static double curve_power(const float *z, size_t n, size_t n_coords, size_t stride)
{
    double sum = 0;

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_coords; i++)
            sum += (double) z[t * stride + i] * (double) z[t * stride + i];
    return sum / (double) n;
}

void curve_band(const struct curve_model *m, const float *z, size_t n, size_t n_coords, size_t stride,
                double ret[static TABLE_BITS_MAX + 1])
{
    for (unsigned b = 0; b <= TABLE_BITS_MAX; b++) {
        if (m->curve == CURVE_MEASURED)
            ret[b] = b == 0 ? curve_power(z, n, n_coords, stride)
                            : curve_measured(&m->levels[b], b, z, n, n_coords, stride);
        else if (m->curve == CURVE_BENNETT) /* paper, Eq. 1 */
            ret[b] = (double) n_coords * (b == 0 ? 1.0 : paper_bennett((double) b));
        else
            ret[b] = (double) n_coords * m->mse[b];
    }
}
