/* The top of an inspection's page: what was looked at, in words and a few large numbers, and what it was made
 * from. */
#pragma once

#include <stdio.h>

#include "tools/inspect/inspection.h"

void summary_title(FILE *f, const struct inspection *x); /* plain text */
void summary_header(FILE *f, const struct inspection *x);
void summary_tiles(FILE *f, const struct inspection *x);
void summary_facts(FILE *f, const struct inspection *x);
