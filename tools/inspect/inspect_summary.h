/*
 * The summary of an inspection's page: title, the most important numbers as tiles, and the provenance. Names
 * and provenance come from files that may be hostile; all of them go through html_text().
 */
#pragma once

#include <stdio.h>

#include "tools/inspect/inspection.h"

void summary_title(FILE *f, const struct inspection *x); /* plain text */
void summary_header(FILE *f, const struct inspection *x);
void summary_tiles(FILE *f, const struct inspection *x);
void summary_facts(FILE *f, const struct inspection *x);
