/*
 * The plots of an inspection, one function each, for inspect_page.c. Each writes an SVG chart and its legend
 * to the stream of the page. Panels that belong together are in one <div class="panels">.
 */
#pragma once

#include <stdio.h>

#include "tools/inspect/inspection.h"

/* ---- plots of a table (inspect_plots_table.c) ---- */

void plot_ranks(FILE *f,
                const struct inspection *x); /* stored coordinates and their mean width, by layer and head */
void plot_budgets(FILE *f, const struct inspection *x); /* bits per number, by layer and head */
void plot_widths(FILE *f, const struct inspection *x);  /* coordinates of each width, by layer */
void plot_levels(FILE *f, const struct inspection *x);
void plot_bytes(FILE *f, const struct inspection *x);

/* ---- plots of statistics (inspect_plots.c) ---- */

void plot_spectra(FILE *f, const struct inspection *x, const double *spectra); /* one small chart per layer */
void plot_alpha(FILE *f, const struct inspection *x);
void plot_kurtosis_heads(FILE *f, const struct inspection *x);
void plot_kurtosis(FILE *f, const struct inspection *x, enum shape_stage before, enum shape_stage after);
void plot_qq(FILE *f, const struct inspection *x);
void plot_curves(FILE *f, const struct inspection *x);
void plot_distortion(FILE *f, const struct inspection *x);
