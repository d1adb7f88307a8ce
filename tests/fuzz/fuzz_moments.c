/*
 * moments_parse() on arbitrary bytes, unchanged and with length and digests corrected. Accepted moments are
 * stored again (the same bytes), merged and solved: numbers that no text produces must give a table or an
 * error with a sentence.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/moments/moments_format.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/fuzz/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void solve(const struct moments *m)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_report report;
    struct solve_options o;
    struct errmsg e = {""};
    size_t n;
    int r = stats_from_moments(m, NULL, &s, &e);

    solve_options_default(&o, 2);
    o.metric = METRIC_MSE;
    o.curve = CURVE_GAUSSIAN;
    o.decoder = DECODER_INVERSE;
    o.fit_levels = false;
    if (r == 0)
        r = solve_table(s, &o, &bytes, &n, &report, &e);
    seal_check(r == 0 || e.text[0] != '\0');
}

static void try(const uint8_t *data, size_t size)
{
    _cleanup_(moments_freep) struct moments *m = NULL, *other = NULL;
    _cleanup_(freep) uint8_t *again = malloc(size);
    struct errmsg e = {""};
    int r = moments_parse(data, size, &m, &e);

    if (r < 0) {
        seal_check(m == NULL && e.text[0] != '\0');
        return;
    }
    moments_write(m, again);
    seal_check(memcmp(again, data, size) == 0);
    seal_check(moments_parse(data, size, &other, &e) == 0);
    r = moments_merge(m, other, &e);
    seal_check(r == 0 || e.text[0] != '\0');
    if (seal_is_solved(data, size))
        solve(m);
}

/* The input as a file whose checksums are right. */
static uint8_t *seal(const uint8_t *data, size_t size)
{
    uint8_t *sealed = seal_copy(data, size, offsetof(struct moments_header, file_bytes));
    struct moments_header h;

    memcpy(&h, sealed, sizeof(h));
    seal_geometry(sealed, size, SEAL_GEOMETRY_OF(h), sizeof(h),
                  offsetof(struct moments_header, geometry_digest));
    seal_finish(sealed, size);
    return sealed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;

    if (size >= sizeof(struct moments_header) + DIGEST_BYTES)
        sealed = seal(data, size);
    if (!sealed || memcmp(sealed, data, size) != 0)
        try(data, size);
    if (sealed)
        try(sealed, size);
    return 0;
}
