/*
 * The paper's allocator: C1 (rank and bit width of one head) inside C2 (budgets across heads), and q(b). Pure
 * functions of spectra; alloc/solve/solve.h makes codecs of the result. Letters as in the paper: w spectrum
 * or KL weight, d head dimension, r rank, b bits, B a head's budget in bits per token, D distortion.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* q(b) = 2^-2b / 12 (paper, Eq. 1). */
double paper_bennett(double b);

struct paper_choice {
    uint32_t r; /* even; 0 if B < 2 b_min */
    uint32_t b;
    double D;
};

struct paper_options {
    double bpd;            /* B_tot = bpd * d * n_heads */
    double B_min;          /* 8 bits */
    double eta;            /* 0.3 */
    uint32_t rounds;       /* 5 */
    uint32_t rank_step;    /* 2 */
    uint32_t b_min, b_max; /* 2, 8 */
};
void paper_options_default(struct paper_options *o, double bpd);

/*
 * C1 (Eq. 2, section "Per-head optimum"): enumerates r = step, 2 step, ..., min(d, floor(B / b_min)) with
 * b = round-half-even(B / r), clipped. Returns the choice with the smallest
 *     D = sum_{i>r} w + q(b) sum_{i<=r} w,
 * ties to the smallest r. @w: [d].
 */
struct paper_choice paper_c1(const double *w, uint32_t d, double B, const struct paper_options *o);

/* C2: damped proportional update (Eq. c2-update), renormalised after the maximum, C1 once more at the end.
 * @w [n_heads, d] each descending; @ret_choice [n_heads]; @ret_B [n_heads] or NULL. Return: 0; -ENOMEM. */
int paper_c2(const double *w, uint32_t n_heads, uint32_t d, const struct paper_options *o,
             struct paper_choice *ret_choice, double *ret_B);
