/* See table_expected.h. */
#include "alloc/table/table_expected.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

enum { PROVENANCE_BYTES_MAX = 65536 }; /* solvers write less, and the daemon's loop parses it */

/* Two numbers 0 .. @most; @ret stays if one of them is not there. */
static bool table_expected_pair(const json_t *expected, const char *key_k, const char *key_v, double most,
                                double ret[static 2])
{
    const json_t *k = json_object_get(expected, key_k), *v = json_object_get(expected, key_v);
    double x[2] = {json_number_value(k), json_number_value(v)};

    if (!json_is_number(k) || !json_is_number(v) || !(x[0] >= 0 && x[0] <= most && x[1] >= 0 && x[1] <= most))
        return false;

    memcpy(ret, x, sizeof(x));
    return true;
}

int table_expected_read(const char *provenance, struct table_expected *ret)
{
    json_t *root = strlen(provenance) <= PROVENANCE_BYTES_MAX ? json_loads(provenance, 0, NULL) : NULL;
    const json_t *expected = json_object_get(root, "expected");
    struct table_expected x = {.saturated = {-1, -1}};
    bool good;

    if (table_expected_pair(expected, "unseen_error_k", "unseen_error_v", TABLE_ERROR_MAX, x.error)) {
        good = true;
        (void) table_expected_pair(expected, "unseen_saturated_k", "unseen_saturated_v", 1, x.saturated);
    } else {
        good = table_expected_pair(expected, "error_k", "error_v", TABLE_ERROR_MAX, x.error);
        if (good)
            (void) table_expected_pair(expected, "saturated_k", "saturated_v", 1, x.saturated);
    }

    json_decref(root);
    *ret = x;
    return good ? 0 : -ENODATA;
}
