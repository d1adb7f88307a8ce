/* See solve_rows.h. */
#include "alloc/solve/solve_rows.h"

#include "alloc/solve/solver.h"
#include "alloc/stats/stats_sample.h"

bool solve_rows_next(const struct solver *v, size_t step, struct solve_rows *r)
{
    size_t row = r->n == 0 ? 0 : r->first + r->n * r->step, end;

    if (row >= v->n)
        return false;
    if (r->n == 0)
        r->source = 0;
    while (row >= v->first[r->source + 1])
        r->source++;
    end = v->first[r->source + 1];
    r->first = row;
    r->step = step;
    r->n = solve_rows_count(end - row, step);
    if (r->n > SOLVE_BLOCK)
        r->n = SOLVE_BLOCK;
    return true;
}

void solve_rows_read(const struct solver *v, uint32_t head_side, const struct solve_rows *r,
                     const double *mean, float *ret_u)
{
    size_t d = v->g->d;

    sample_code_read(v->s, head_side, v->rows + r->first, r->n, r->step, ret_u);
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < d; j++)
            ret_u[i * d + j] = (float) ((double) ret_u[i * d + j] - mean[j]);
}
