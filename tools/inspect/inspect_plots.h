/*
 * The figures of an inspection, one function each: they draw into the page's stream and know nothing of the
 * page. Where two panels belong together they stand in <div class="panels">.
 */
#pragma once

#include <stdio.h>

#include "tools/inspect/inspection.h"

/* ---- of a table (inspect_plots_table.c) ---- */

void plot_ranks(FILE *f,
                const struct inspection *x); /* stored coordinates and their mean width, by layer and head */
void plot_budgets(FILE *f, const struct inspection *x); /* bits per number, by layer and head */
void plot_widths(FILE *f, const struct inspection *x);  /* coordinates of each width, by layer */
void plot_levels(FILE *f, const struct inspection *x);
void plot_bytes(FILE *f, const struct inspection *x);

/* ---- of statistics (inspect_plots.c) ---- */

void plot_spectra(FILE *f, const struct inspection *x, const double *spectra); /* one small chart per layer */
void plot_alpha(FILE *f, const struct inspection *x);
void plot_kurtosis_heads(FILE *f, const struct inspection *x);
void plot_kurtosis(FILE *f, const struct inspection *x, enum shape_stage before, enum shape_stage after);
void plot_qq(FILE *f, const struct inspection *x);
void plot_curves(FILE *f, const struct inspection *x);
void plot_distortion(FILE *f, const struct inspection *x);
