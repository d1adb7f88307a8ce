/*
 * The outputs of `kvcobra inspect`: text on a terminal, a JSON document, an HTML page. All of them read a
 * filled struct inspection; cmd_inspect.c selects them.
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
 * "unavailable" has the reason for each missing part. Numbers that are not finite are null.
 *
 * Return: the document, the caller's; NULL: out of memory.
 */
json_t *inspect_document(const struct inspection *x);

#define INSPECT_LAYERS_DRAWN 256 /* most layers whose spectra the page draws, one picture each */

/**
 * inspect_page() - write an inspection as one self-contained HTML page (inspect_page.c)
 * @document: inspect_document() of the same inspection
 *
 * The caller checks ferror(f). Return: 0; -ENOMEM.
 */
int inspect_page(FILE *f, const struct inspection *x, const json_t *document);
