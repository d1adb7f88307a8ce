/*
 * All numbers that `kvcobra inspect --html` and `--json` show of a table, of statistics, or of both.
 * inspection*.c compute them; inspect_json.c and inspect_page.c write them.
 *
 * A part that the input cannot provide is unavailable, with a reason.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/solve/shape.h"
#include "alloc/solve/solve.h"
#include "alloc/kvcobra-alloc.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/errmsg.h"
#include "client/kvcobra.h"

struct progress;

#define INSPECT_BUDGETS_MAX 16

/* Parts that can be unavailable; the keys of "unavailable" in the JSON. */
enum inspect_part { PART_TABLE, PART_SPECTRA, PART_SHAPES, PART_CURVES, PART_DISTORTION, INSPECT_PARTS };
const char *inspect_part_name(enum inspect_part part);

struct inspect_request {
    const char *table_path, *stats_path; /* NULL: not given */
    double budgets[INSPECT_BUDGETS_MAX]; /* ascending, of the rate-distortion curves; may be none */
    size_t n_budgets;
};

/* The methods of the curves, in the order of the points of a budget. */
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
    double budget; /* nominal */
    bool solved;
    char why[ERRMSG_BYTES]; /* the reason if not solved */
    double bpd;             /* charged: stored bits of bands, sum r b of the paper's methods */
    double k_bpd, v_bpd, bpd_stored;
    double distortion[2]; /* e'Me per token by side, under the inspection's metric */
};

/* Medians over the coordinates of one head-side; NaN where nothing varies. */
struct head_shape {
    double kurtosis[SHAPE_STAGES];
};

#define KURTOSIS_MIN (-2.0) /* the minimum of any distribution */
#define KURTOSIS_BINS 80
#define KURTOSIS_BIN 0.1 /* the last bin counts all larger values */

/* All coordinates of one side at one stage. */
struct kurtosis_summary {
    uint64_t n;
    double median, median_abs, p95_abs;
    uint64_t bins[KURTOSIS_BINS];
};

/* Of `kvcobra eval --json`, with the inspected table and one text. */
struct inspect_eval {
    double ppl_exact, ppl;
    double kl; /* to the exact model, nats per token */
    double tokens, window;
};

struct inspection {
    struct inspect_request request;
    char unavailable[INSPECT_PARTS][ERRMSG_BYTES]; /* "": available */

    struct table *table; /* or NULL */
    bool has_eval;
    struct inspect_eval eval;
    kvc_model_info info;         /* of the table */
    char unsolved[ERRMSG_BYTES]; /* why has_solved is false */
    bool has_solved;             /* the provenance has the options of the solve: */
    struct solve_options solved;
    uint8_t solved_from[DIGEST_BYTES];

    kvc_alloc *alloc;          /* owns the statistics */
    const struct stats *stats; /* or NULL */
    uint8_t stats_digest[DIGEST_BYTES];
    enum metric metric; /* of distortion and spectra: the best that the statistics have */
    double power;

    const struct geometry *g;  /* of either */
    double *lambda, *weighted; /* [n_hs, d] */
    struct head_shape *shapes; /* [n_hs] */
    struct shape_pool *pools;  /* [2] */
    struct kurtosis_summary kurtosis[2][SHAPE_STAGES];
    struct rate_point *points; /* [n_points], budget by budget */
    size_t n_points;
    double distortion_budget; /* bits per number of the next two */
    /* [n_hs] e'Me per token: as solved (the table, or bands), and with equal budgets */
    double *distortion, *distortion_equal;
};

/* Loads and checks what @request names. Return: 0, or a negative errno with the sentence. */
int inspection_open(struct inspection *x, const struct inspect_request *request, struct errmsg *e);
void inspection_close(struct inspection *x);

/**
 * inspection_read_eval() - the result of a table in the output of `kvcobra eval --json` (inspection_eval.c)
 *
 * Return: 0; -EINVAL: it has none of this table, or not of all layers and both sides; an errno of reading.
 */
int inspection_read_eval(struct inspection *x, const char *path, struct errmsg *e);

/* Computes all available parts; takes minutes for large models with many budgets. @p: started, unit NULL. */
int inspection_fill(struct inspection *x, struct progress *p, struct errmsg *e);

/* Rate-distortion curves and distortion per head (inspection_curves.c). */
int inspection_fill_curves(struct inspection *x, struct progress *p, struct errmsg *e);

/* Bits per number that the table is charged: stored bits of bands, sum r b of the paper's methods. */
double inspection_charged(const struct inspection *x);

/* Bytes that the product holds for a sequence (inspection_bytes.c). */
struct sequence_bytes {
    uint64_t tokens, pages;
    uint64_t codes, padding, headers, sinks, tail, total, binary16;
    double bpd_true;
};
void inspection_bytes(const struct inspection *x, uint64_t n_tokens, struct sequence_bytes *ret);

/* Context lengths of the byte counts. */
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
