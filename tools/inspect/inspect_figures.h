/*
 * The figures of an inspection, one function each: they draw into the page's stream and know nothing of the
 * page. Where two panels belong together they stand in <div class="panels">.
 */
#pragma once

#include <stdio.h>

#include "tools/inspect/inspection.h"

/* ---- of a table (inspect_figures_table.c) ---- */

void figure_ranks(
    FILE *f, const struct inspection *x); /* stored coordinates and their mean width, by layer and head */
void figure_budgets(FILE *f, const struct inspection *x); /* bits per number, by layer and head */
void figure_widths(FILE *f, const struct inspection *x);  /* coordinates of each width, by layer */
void figure_levels(FILE *f, const struct inspection *x);
void figure_bytes(FILE *f, const struct inspection *x);

/* ---- of statistics (inspect_figures.c) ---- */

void figure_spectra(FILE *f, const struct inspection *x,
                    const double *spectra); /* one small chart per layer */
void figure_alpha(FILE *f, const struct inspection *x);
void figure_kurtosis_heads(FILE *f, const struct inspection *x);
void figure_kurtosis(FILE *f, const struct inspection *x, enum shape_stage before, enum shape_stage after);
void figure_qq(FILE *f, const struct inspection *x);
void figure_curves(FILE *f, const struct inspection *x);
void figure_harm(FILE *f, const struct inspection *x);
