/*
 * moments_parse() on arbitrary bytes, unchanged and with length and digest corrected. Accepted moments are
 * stored again (the same bytes), merged and solved: numbers that no text produces must give a table or an
 * error with a sentence.
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments.h"
#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/stats_moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

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
    check(r == 0 || e.text[0] != '\0');
}

static void try(const uint8_t *data, size_t size)
{
    _cleanup_(moments_freep) struct moments *m = NULL, *other = NULL;
    _cleanup_(freep) uint8_t *again = malloc(size);
    struct errmsg e = {""};
    int r = moments_parse(data, size, &m, &e);

    if (r < 0) {
        check(m == NULL && e.text[0] != '\0');
        return;
    }
    moments_write(m, again);
    check(memcmp(again, data, size) == 0);
    check(moments_parse(data, size, &other, &e) == 0);
    r = moments_merge(m, other, &e);
    check(r == 0 || e.text[0] != '\0');
    solve(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;
    uint64_t bytes = size;

    try(data, size);
    if (size < 256 + DIGEST_BYTES)
        return 0;
    sealed = malloc(size);
    check(sealed != NULL);
    memcpy(sealed, data, size);
    memcpy(sealed + 16, &bytes, sizeof(bytes));
    (void) crypto_hash_sha256(sealed + size - DIGEST_BYTES, sealed, size - DIGEST_BYTES);
    try(sealed, size);
    return 0;
}
