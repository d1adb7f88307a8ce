/*
 * The beginning and the end of an inspection's page: title, what the table costs and gives, and at the end
 * its options and provenance. Names and provenance come from files that may be hostile; all of them go
 * through html_text().
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "tools/inspect/inspection.h"

void summary_title(FILE *f, const struct inspection *x); /* plain text */
void summary_header(FILE *f, const struct inspection *x);

/* Quality, memory and distortion (inspect_cost.c). @document: inspect_document() of the inspection. */
void cost_section(FILE *f, const struct inspection *x, const json_t *document);

/* The distortion of all heads: with equal budgets, and of the table. False: it is not known. */
bool cost_distortion(const struct inspection *x, double *ret_equal, double *ret_solved);

void summary_tiles(FILE *f, const struct inspection *x); /* options and geometry */
void summary_facts(FILE *f, const struct inspection *x); /* files, digests and provenance */

/* One entry of a list of class "tiles". @title, @value: HTML of this program. */
__attribute__((format(printf, 4, 5))) void summary_tile(FILE *f, const char *title, const char *value,
                                                        const char *fmt, ...);
