/*
 * What `kvcobra inspect` makes of an inspection: text on a terminal, a JSON document, a page. cmd_inspect.c
 * decides which.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "tools/inspect/inspection.h"

/* Each prints to stdout. Return: an exit code of command.h. */
int inspect_table_text(const struct inspection *x);
int inspect_stats_text(const struct inspection *x);

/**
 * inspect_document() - every number of an inspection (inspect_json.c)
 *
 * Rows that the page shows as tables stand under the paths that the tables name in data-rows. A part that is
 * not there is named in "unavailable" with its reason. Numbers that are not finite are null.
 *
 * Return: the document, the caller's; NULL: out of memory.
 */
json_t *inspect_document(const struct inspection *x);

/**
 * inspect_page() - the same as one self-contained HTML page (inspect_page.c)
 * @document: of the same inspection: tables show its rows
 *
 * Errors of the stream are the caller's to look for.
 */
void inspect_page(FILE *f, const struct inspection *x, const json_t *document);
