/*
 * METHOD_PAPER_MSE and METHOD_PAPER_KL: the paper's codecs on our statistics. C1 in C2 on keys, C1 alone with uniform
 * budgets on values (its section "Joint K+V compression"); one rank and one width per head; a rotation over all
 * retained coordinates; one scale per head. DESIGN 3.4.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/linalg.h"
#include "alloc/metric.h"
#include "alloc/rotation.h"
#include "alloc/solve_internal.h"
#include "alloc/solve_paper.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

#define SEARCH_ROUNDS 40

/* Spectra of one side: what C1 and C2 see, and the bases that go with them. */
struct spectra {
    uint32_t n_heads, d;
    double *w;                    /* [n_heads, d] weights, descending */
    double *lambda;               /* [n_heads, d] eigenvalues in that order */
    double *basis;                /* [n_heads, d, d] rows u_i' in that order */
    struct paper_choice *choice;  /* [n_heads] of the round being tried */
    struct paper_choice *best;    /* [n_heads] of the best so far */
};

static void spectra_deinit(struct spectra *p)
{
    free(p->w);
    free(p->choice);
}

static int spectra_init(struct spectra *p, uint32_t n_heads, uint32_t d)
{
    size_t n = (size_t) n_heads * d;

    *p = (struct spectra) { .n_heads = n_heads, .d = d };
    p->w = calloc(n * (2 + d), sizeof(double));
    p->choice = calloc((size_t) n_heads * 2, sizeof(*p->choice));
    if (!p->w || !p->choice)
        return -ENOMEM;
    p->lambda = p->w + n;
    p->basis = p->lambda + n;
    p->best = p->choice + n_heads;
    return 0;
}

/* Sorts directions by weight, descending; equal weights keep the order of their eigenvalues. Insertion: d is small. */
static void reorder(size_t d, double *w, double *lambda, double *basis)
{
    double row[GEOMETRY_DIM_MAX];

    for (size_t i = 1; i < d; i++) {
        double weight = w[i], value = lambda[i];
        size_t to = i;

        while (to > 0 && w[to - 1] < weight)
            to--;
        memcpy(row, basis + i * d, d * sizeof(*row));
        memmove(w + to + 1, w + to, (i - to) * sizeof(*w));
        memmove(lambda + to + 1, lambda + to, (i - to) * sizeof(*lambda));
        memmove(basis + (to + 1) * d, basis + to * d, (i - to) * d * sizeof(*basis));
        w[to] = weight;
        lambda[to] = value;
        memcpy(basis + to * d, row, d * sizeof(*row));
    }
}

/* Eigenvalues and, for the KL weight, w_i = sQ_i^2 lambda_i (paper, Eq. kl-obj) of every head of @side. */
static int fill_spectra(struct solver *v, enum side side, struct spectra *p, struct errmsg *e)
{
    size_t d = p->d;

    for (uint32_t i = 0; i < p->n_heads; i++) {
        uint32_t layer = i / v->g->n_kv_heads, head = i % v->g->n_kv_heads;
        double *basis = p->basis + i * d * d, *w = p->w + i * d, *lambda = p->lambda + i * d;
        int r;

        solver_covariance(v, i * 2 + (uint32_t) side, basis);
        r = linalg_eigen(d, basis, lambda);
        if (r < 0)
            return solver_fail(layer, head, side, r, e);
        if (side == SIDE_K && v->o.method == METHOD_PAPER_KL)
            metric_query_variance(v->s, layer, head, basis, w);
        else
            for (size_t c = 0; c < d; c++)
                w[c] = 1;
        for (size_t c = 0; c < d; c++) {
            lambda[c] = fmax(lambda[c], 0);
            w[c] *= lambda[c];
        }
        reorder(d, w, lambda, basis);
    }
    return 0;
}

/* Bits per token that the paper charges: sum of r b, without our padding. */
static double charged_bits(const struct paper_choice *c, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double) c[i].r * c[i].b;
    return sum;
}

static int allocate_at(struct spectra *p, enum side side, double nominal)
{
    struct paper_options o;

    paper_options_default(&o, nominal);
    if (side == SIDE_K)
        return paper_c2(p->w, p->n_heads, p->d, &o, p->choice, NULL);
    for (uint32_t i = 0; i < p->n_heads; i++)
        p->choice[i] = paper_c1(p->w + (size_t) i * p->d, p->d, nominal * p->d, &o);
    return 0;
}

/*
 * b = round(B / r) may spend more than B. So that methods are compared at equal cost, the nominal budget is searched
 * whose charged bits come closest to the target from below.
 */
static int search_budget(struct spectra *p, enum side side, double target, struct errmsg *e)
{
    double numbers = (double) p->n_heads * p->d, low = 0, high = 2 * target, most = -1, least = INFINITY;

    for (int i = 0; i < SEARCH_ROUNDS; i++) {
        double nominal = i == 0 ? target : (low + high) / 2, charged;
        int r = allocate_at(p, side, nominal);

        if (r < 0)
            return fail(e, r, "out of memory for the paper's allocator");
        charged = charged_bits(p->choice, p->n_heads) / numbers;
        if (charged > 0)
            least = fmin(least, charged);
        if (charged > target * (1 + 1e-12)) {
            high = nominal;
            continue;
        }
        low = nominal;
        if (charged > most) {
            most = charged;
            memcpy(p->best, p->choice, p->n_heads * sizeof(*p->best));
        }
    }
    if (most <= 0)
        return fail(e, -ERANGE, "%g bits per number for %c are too few for the paper's rank 2 at 2 bits: the smallest "
                    "possible budget is about %.4f", target, side == SIDE_K ? 'K' : 'V',
                    isfinite(least) ? least : 4.0 / p->d);
    return 0;
}

/* E = H_r U_r' and D = U_r H_r', scaled to unit variance by the rms of the rotated coordinates. */
static int make_head(struct solver *v, uint32_t hs, const double *lambda, const double *basis,
                     const struct paper_choice *c)
{
    struct head *h = &v->heads[hs];
    size_t d = v->g->d, r = c->r;
    _cleanup_(freep) double *H = NULL;
    double kept = 0, scale;

    for (size_t i = 0; i < d; i++) {
        h->t.w[i] = lambda[i];
        h->t.trace += lambda[i];
        kept += i < r ? lambda[i] : 0;
    }
    if (!(kept > 0)) /* nothing chosen, or a constant head */
        return 0;
    H = malloc(r * r * sizeof(*H));
    if (!H)
        return -ENOMEM;
    rotation_matrix(r, seed_mix(v->o.seed, hs), H);
    linalg_product(r, d, r, H, basis, h->t.enc);
    scale = sqrt(kept / (double) r);
    for (size_t i = 0; i < r * d; i++) {
        h->t.dec[i] = h->t.enc[i] * scale;
        h->t.enc[i] /= scale;
    }
    h->t.n_coords = c->r;
    h->t.n_bands = (c->r + BAND_COORDS - 1) / BAND_COORDS;
    for (uint32_t b = 0; b < h->t.n_bands; b++) {
        h->t.scale[b] = scale;
        h->bits[b] = (uint8_t) c->b;
    }
    return 0;
}

static int solve_side(struct solver *v, enum side side, double bpd, struct errmsg *e)
{
    _cleanup_(spectra_deinit) struct spectra p = { 0 };
    int r = spectra_init(&p, v->n_heads / 2, v->g->d);

    if (r < 0)
        return fail(e, r, "out of memory for the paper's allocator");
    solver_progress(v, side == SIDE_K ? "keys" : "values", side == SIDE_K ? 0.0 : 0.5);
    r = fill_spectra(v, side, &p, e);
    if (r == 0)
        r = search_budget(&p, side, bpd, e);
    for (uint32_t i = 0; r == 0 && i < p.n_heads; i++) {
        r = make_head(v, i * 2 + (uint32_t) side, p.lambda + (size_t) i * p.d, p.basis + (size_t) i * p.d * p.d,
                      &p.best[i]);
        if (r < 0)
            return solver_fail(i / v->g->n_kv_heads, i % v->g->n_kv_heads, side, r, e);
        v->estimated += p.best[i].D;
    }
    return r;
}

int solve_paper_method(struct solver *v, struct errmsg *e)
{
    bool apart = v->o.k_bpd > 0;
    int r = solve_side(v, SIDE_K, apart ? v->o.k_bpd : v->o.bpd, e);

    return r < 0 ? r : solve_side(v, SIDE_V, apart ? v->o.v_bpd : v->o.bpd, e);
}
