/*
 * Everything that `kvcobra inspect --html` and `--json` say of a table, of statistics, or of both: gathered
 * once, in numbers; inspect_json.c writes it down, inspect_page.c draws it.
 *
 * What the input cannot say is said to be unavailable, with the reason.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/shape.h"
#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/table.h"
#include "base/errmsg.h"
#include "client/kvcobra.h"

struct progress;

#define INSPECT_BUDGETS_MAX 16

/* What can be missing, each with its reason; the keys of "unavailable" in the JSON. */
enum inspect_part { PART_TABLE, PART_SPECTRA, PART_SHAPES, PART_CURVES, PART_DISTORTION, INSPECT_PARTS };
const char *inspect_part_name(enum inspect_part part);

struct inspect_request {
    const char *table_path, *stats_path; /* NULL: not given */
    double
        budgets[INSPECT_BUDGETS_MAX]; /* ascending, of the rate-distortion curves; none: no solves for them */
    size_t n_budgets;
};

/* A method at a budget; with n_methods per budget in this order. */
enum inspect_method {
    CURVE_OF_BANDS,
    CURVE_OF_EQUAL,
    CURVE_OF_DP,
    CURVE_OF_PAPER_KL,
    CURVE_OF_PAPER_MSE,
    INSPECT_METHODS
};
const char *inspect_method_name(enum inspect_method m);

struct rate_point {
    enum inspect_method method;
    double budget; /* asked */
    bool solved;
    char why[ERRMSG_BYTES]; /* if not */
    double bpd;             /* charged: stored bits of bands, sum r b of the paper's methods */
    double k_bpd, v_bpd, bpd_stored;
    double distortion[2]; /* by side, under the inspection's metric */
};

/* Medians over the coordinates of one head-side; NaN where nothing varies. */
struct head_shape {
    double kurtosis[SHAPE_STAGES];
};

#define KURTOSIS_MIN (-2.0) /* the least there is */
#define KURTOSIS_BINS 80
#define KURTOSIS_BIN 0.1 /* the last counts all above */

/* All coordinates of one side at one stage. */
struct kurtosis_summary {
    uint64_t n;
    double median, median_abs, p95_abs;
    uint64_t bins[KURTOSIS_BINS];
};

struct inspection {
    struct inspect_request request;
    char unavailable[INSPECT_PARTS][ERRMSG_BYTES]; /* "" = there */

    struct table *table;         /* or NULL */
    kvc_model_info info;         /* of the table */
    char unsolved[ERRMSG_BYTES]; /* why not the next: the table does not say how it was made */
    bool has_solved;             /* it does: */
    struct solve_options solved;
    uint8_t solved_from[DIGEST_BYTES];

    struct stats *stats; /* or NULL */
    uint8_t stats_digest[DIGEST_BYTES];
    enum metric metric; /* that harm and spectra are counted in: the best that the statistics have */
    double power;

    const struct geometry *g;  /* of either */
    double *lambda, *weighted; /* [n_hs, d] */
    struct head_shape *shapes; /* [n_hs] */
    struct shape_pool *pools;  /* [2] */
    struct kurtosis_summary kurtosis[2][SHAPE_STAGES];
    struct rate_point *points; /* [n_points], budget by budget */
    size_t n_points;
    double distortion_budget;              /* bits per number of the two below */
    double *distortion, *distortion_equal; /* [n_hs]: as solved (the table, or bands); with the same budget
                                              for every head-side */
};

/* Loads and checks what @request names. Return: 0, or a negative errno with the sentence. */
int inspection_open(struct inspection *x, const struct inspect_request *request, struct errmsg *e);
void inspection_close(struct inspection *x);

/* Computes everything; takes minutes for large models with many budgets. @p: started, unit NULL. */
int inspection_fill(struct inspection *x, struct progress *p, struct errmsg *e);

/* Rate-distortion curves and harm per head (inspection_curves.c). */
int inspection_fill_curves(struct inspection *x, struct progress *p, struct errmsg *e);

/* Bits per number that the table is charged: what bands store, sum r b of the paper's methods. */
double inspection_charged(const struct inspection *x);

/* "Bytes of a sequence of @n_tokens, as the product holds them" (inspection_bytes.c). */
struct sequence_bytes {
    uint64_t tokens, pages;
    uint64_t codes, padding, headers, sinks, tail, total, binary16;
    double bpd_true;
};
void inspection_bytes(const struct inspection *x, uint64_t n_tokens, struct sequence_bytes *ret);

/* Context lengths that are shown. */
#define INSPECT_CONTEXTS 6
extern const uint64_t inspect_contexts[INSPECT_CONTEXTS];

/* Q-Q points: quantiles of the pooled coordinates beside those of N(0,1), -4 to 4. NaN where fewer than 10
 * lie beyond. */
#define INSPECT_QQ 33
double inspect_qq_normal(int i);
double inspect_qq(const struct inspection *x, enum side side, enum shape_stage stage, int i);

/* Stored bits per token of all codecs of one side, and the same per number of that side. */
uint64_t inspect_code_bits(const struct table *t, enum side side);
double inspect_side_bpd(const struct table *t, enum side side);

/* Coordinates of a codec that carry bits, and their mean width. */
unsigned inspect_codec_stored(const struct codec *c);
double inspect_codec_mean_bits(const struct codec *c);
