/* What a table's provenance expects of vectors that it codes. The daemon and clients compare live vectors
 * with it. */
#pragma once

#define TABLE_ERROR_MAX 16.0 /* a decoder that returns the mean has 1 */

struct table_expected {  /* by side */
    double error[2];     /* |x - decoded|^2 / |x - mean|^2, mean over layers; 0: unknown */
    double saturated[2]; /* share of the coordinates beyond levels_saturation_limits(); -1: unknown */
};

/**
 * table_expected_read() - what the provenance of a table expects
 * @provenance: JSON of a table from anywhere, so nothing in it is trusted
 *
 * Of text that the table was not fitted to, since live text is such text; of the table's own text, if it had
 * one source. Tables of earlier versions and refitted ones do not know the saturated share.
 *
 * Return: 0; -ENODATA: there are no errors, or impossible ones; then both are unknown.
 */
int table_expected_read(const char *provenance, struct table_expected *ret);
