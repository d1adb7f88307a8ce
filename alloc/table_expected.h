/* The errors that a table's provenance records. The daemon and clients compare live errors with them. */
#pragma once

#define TABLE_ERROR_MAX 16.0 /* a decoder that returns the mean has 1 */

/**
 * table_expected_errors() - |x - decoded|^2 / |x - mean|^2 by side, mean over layers
 * @provenance: JSON of a table from anywhere, so nothing in it is trusted
 *
 * Those expected of text that the table was not fitted to, since live text is such text; of the table's own
 * text, if it had one source.
 *
 * Return: 0; -ENODATA: there are none, or impossible ones.
 */
int table_expected_errors(const char *provenance, double ret[static 2]);
