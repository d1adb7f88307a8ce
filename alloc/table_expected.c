/* See table_expected.h. */
#include "alloc/table_expected.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

enum { PROVENANCE_BYTES_MAX = 65536 }; /* solvers write less, and the daemon's loop parses it */

static bool table_expected_read(const json_t *expected, const char *key, double *ret)
{
    const json_t *x = json_object_get(expected, key);

    *ret = json_number_value(x);
    return json_is_number(x) && *ret >= 0 && *ret <= TABLE_ERROR_MAX;
}

int table_expected_errors(const char *provenance, double ret[static 2])
{
    json_t *root = strlen(provenance) <= PROVENANCE_BYTES_MAX ? json_loads(provenance, 0, NULL) : NULL;
    const json_t *expected = json_object_get(root, "expected");
    double k, v;
    bool good =
        (table_expected_read(expected, "unseen_error_k", &k) &&
         table_expected_read(expected, "unseen_error_v", &v)) ||
        (table_expected_read(expected, "error_k", &k) && table_expected_read(expected, "error_v", &v));

    json_decref(root);
    if (!good)
        return -ENODATA;

    ret[0] = k;
    ret[1] = v;
    return 0;
}
