/*
 * Levels for N(0,1), computed in binary64 at each call instead of tabulated: no constant can be mistyped, and
 * a width takes well under a millisecond. See levels_normal.h.
 */
#include "alloc/quantiser/levels_normal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

enum { N_MAX = 1 << TABLE_BITS_MAX };

static double levels_normal_density(double x)
{
    return isinf(x) ? 0.0 : exp(-0.5 * x * x) * (M_SQRT1_2 / sqrt(M_PI));
}

/* P(a < X < b), computed from the smaller tail: cells far from 0 keep their relative precision. */
static double levels_normal_probability(double a, double b)
{
    if (a > 0)
        return 0.5 * (erfc(a * M_SQRT1_2) - erfc(b * M_SQRT1_2));

    return 0.5 * (erfc(-b * M_SQRT1_2) - erfc(-a * M_SQRT1_2));
}

/* ---- error on N(0,1) ---- */

/*
 * Integral of (x - y)^2 over a cell (a, b):
 *     (1 + y^2) P(a < X < b) + a phi(a) - b phi(b) - 2 y (phi(a) - phi(b)).
 */
static double levels_normal_cell_error(double a, double b, double y)
{
    double pa = levels_normal_density(a), pb = levels_normal_density(b);
    double edge = (isinf(a) ? 0 : a * pa) - (isinf(b) ? 0 : b * pb);

    return (1.0 + y * y) * levels_normal_probability(a, b) + edge - 2.0 * y * (pa - pb);
}

double levels_normal_mse(const struct levels *l, unsigned b)
{
    unsigned n = 1u << b;
    double sum = 0;

    for (unsigned q = 0; q < n; q++)
        sum += levels_normal_cell_error(q > 0 ? (double) l->threshold[q - 1] : -INFINITY,
                                        q + 1 < n ? (double) l->threshold[q] : INFINITY, level_z(l, q));
    return sum;
}

/* ---- Lloyd-Max ---- */

/*
 * The positive half x_0 < ... < x_(m-1) of the optimal levels solves, for every i,
 *     F_i = x_i - c(t_i, t_(i+1)) = 0
 * where c is the centroid of a cell, and t_0 = 0, t_i = (x_(i-1) + x_i) / 2, t_m = infinity.
 *
 * Lloyd's iteration x <- c(x) needs thousands of rounds at 8 bits. Newton's method needs about ten, because
 * the Jacobian is tridiagonal. With P the probability of the cell:
 *     dc/da = phi(a) (c - a) / P
 *     dc/db = phi(b) (b - c) / P
 */
struct newton {
    unsigned m;
    double x[N_MAX / 2], f[N_MAX / 2];
    double lower[N_MAX / 2], diag[N_MAX / 2], upper[N_MAX / 2]; /* Jacobian of F at x */
};

/* Sets F and the Jacobian; returns max |F|. */
static double levels_normal_newton_eval(struct newton *s)
{
    double worst = 0;

    for (unsigned i = 0; i < s->m; i++) {
        double a = i > 0 ? 0.5 * (s->x[i - 1] + s->x[i]) : 0;
        double b = i + 1 < s->m ? 0.5 * (s->x[i] + s->x[i + 1]) : INFINITY;
        double p = levels_normal_probability(a, b),
               c = (levels_normal_density(a) - levels_normal_density(b)) / p;
        double da = i > 0 ? 0.5 * levels_normal_density(a) * (c - a) / p : 0; /* t_0 = 0 is fixed */
        double db = i + 1 < s->m ? 0.5 * levels_normal_density(b) * (b - c) / p : 0;

        s->f[i] = s->x[i] - c;
        s->lower[i] = -da;
        s->diag[i] = 1.0 - da - db;
        s->upper[i] = -db;
        worst = fmax(worst, fabs(s->f[i]));
    }

    return worst;
}

/* Thomas' algorithm: replaces f by the solution of J delta = f. */
static void levels_normal_newton_solve(struct newton *s)
{
    for (unsigned i = 1; i < s->m; i++) {
        double k = s->lower[i] / s->diag[i - 1];

        s->diag[i] -= k * s->upper[i - 1];
        s->f[i] -= k * s->f[i - 1];
    }
    s->f[s->m - 1] /= s->diag[s->m - 1];
    for (unsigned i = s->m - 1; i-- > 0;)
        s->f[i] = (s->f[i] - s->upper[i] * s->f[i + 1]) / s->diag[i];
}

static bool levels_normal_ascending(const double *x, unsigned m)
{
    for (unsigned i = 1; i < m; i++)
        if (x[i] <= x[i - 1])
            return false;
    return x[0] > 0;
}

/* x <- x - damping * delta; the damping is halved until the levels stay in order. */
static void levels_normal_newton_step(struct newton *s)
{
    double next[N_MAX / 2] = {0};

    for (double damping = 1.0; damping > 1e-6; damping *= 0.5) {
        for (unsigned i = 0; i < s->m; i++)
            next[i] = s->x[i] - damping * s->f[i];
        if (levels_normal_ascending(next, s->m)) {
            memcpy(s->x, next, s->m * sizeof(next[0]));
            return;
        }
    }
}

/* x with P(X > x) = p, by bisection. */
static double levels_normal_upper_quantile(double p)
{
    double lo = 0, hi = 10;

    for (unsigned i = 0; i < 60; i++) {
        double mid = 0.5 * (lo + hi);

        if (0.5 * erfc(mid * M_SQRT1_2) > p)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Start from companding (Panter and Dite): optimal levels lie about evenly under
 * the cube root of the density, N(0, 3). */
static void levels_normal_lloyd_max_normal(unsigned b, double *values)
{
    struct newton s = {.m = 1u << b >> 1};

    for (unsigned i = 0; i < s.m; i++)
        s.x[i] = sqrt(3.0) * levels_normal_upper_quantile(0.5 - (i + 0.5) / (2.0 * s.m));
    for (unsigned round = 0; round < 50 && levels_normal_newton_eval(&s) > 1e-13; round++) {
        levels_normal_newton_solve(&s);
        levels_normal_newton_step(&s);
    }

    for (unsigned i = 0; i < s.m; i++) {
        values[s.m + i] = s.x[i];
        values[s.m - 1 - i] = -s.x[i];
    }
}

/* ---- uniform ---- */

static void levels_normal_uniform_values(enum quantiser q, unsigned b, double step, double *values)
{
    int half = 1 << b >> 1;

    for (int i = 0; i < 2 * half; i++)
        values[i] = (i - half + (q == QUANT_UNIFORM ? 0.5 : 0.0)) * step;
}

static double levels_normal_uniform_mse(enum quantiser q, unsigned b, double step)
{
    double v[N_MAX] = {0}, sum = 0;
    unsigned n = 1u << b;

    levels_normal_uniform_values(q, b, step, v);
    for (unsigned i = 0; i < n; i++)
        sum += levels_normal_cell_error(i > 0 ? 0.5 * (v[i - 1] + v[i]) : -INFINITY,
                                        i + 1 < n ? 0.5 * (v[i] + v[i + 1]) : INFINITY, v[i]);
    return sum;
}

/* The step of least error by golden-section search: the error first falls with the step
 * (overload), then rises (granular error). */
static double levels_normal_best_step(enum quantiser q, unsigned b)
{
    const double golden = 0.5 * (sqrt(5.0) - 1.0);
    double cells = (double) (1u << b);
    double lo = 1.0 / cells, hi = 12.0 / cells; /* half the covered range: 0.5 to 6 standard deviations */
    double x1 = hi - golden * (hi - lo), x2 = lo + golden * (hi - lo);
    double f1 = levels_normal_uniform_mse(q, b, x1), f2 = levels_normal_uniform_mse(q, b, x2);

    while (hi - lo > 1e-9) {
        if (f1 <= f2) {
            hi = x2;
            x2 = x1;
            f2 = f1;
            x1 = hi - golden * (hi - lo);
            f1 = levels_normal_uniform_mse(q, b, x1);
        } else {
            lo = x1;
            x1 = x2;
            f1 = f2;
            x2 = lo + golden * (hi - lo);
            f2 = levels_normal_uniform_mse(q, b, x2);
        }
    }

    return 0.5 * (lo + hi);
}

double levels_normal_midtread_loading(unsigned b)
{
    assert(b >= 1 && b <= TABLE_BITS_MAX);
    /* the paper's Delta = 2 L sigma / 2^b, solved for L */
    return levels_normal_best_step(QUANT_UNIFORM_MIDTREAD, b) * (double) (1u << b) / 2.0;
}

int levels_normal(enum quantiser q, unsigned b, struct levels *ret)
{
    double values[N_MAX];

    if (b < 1 || b > TABLE_BITS_MAX)
        return -EINVAL;

    switch (q) {
    case QUANT_LLOYD_MAX:
        levels_normal_lloyd_max_normal(b, values);
        return levels_from_values(values, b, ret);
    case QUANT_UNIFORM:
    case QUANT_UNIFORM_MIDTREAD:
        levels_normal_uniform_values(q, b, levels_normal_best_step(q, b), values);
        return levels_from_values(values, b, ret);
    }

    return -EINVAL;
}
