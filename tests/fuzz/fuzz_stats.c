/*
 * stats_parse() on arbitrary bytes, unchanged and with length and digest corrected.
 * Accepted statistics are stored again (the same bytes) and solved: numbers that no text produces must
 * give a table or an error with a sentence.
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve.h"
#include "alloc/stats_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static void solve(const struct stats *s)
{
    static const enum method methods[] = {METHOD_BANDS, METHOD_PAPER_KL};

    for (size_t i = 0; i < 2; i++) {
        _cleanup_(freep) void *bytes = NULL;
        struct solve_report report;
        struct solve_options o;
        struct errmsg e = {""};
        size_t n;
        int r;

        solve_options_for(&o, methods[i], 2);
        o.v_from = stats_samples(s) >= 4u * stats_get_options(s)->geometry.d ? PREDICT_HEAD : PREDICT_NONE;
        o.decoder = o.v_from == PREDICT_HEAD ? DECODER_LEAST_SQUARES : DECODER_INVERSE;
        r = solve_table(s, &o, &bytes, &n, &report, &e);
        check(r == 0 || e.text[0] != '\0');
    }
}

static void try(const uint8_t *data, size_t size)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    uint8_t digest[DIGEST_BYTES];
    struct errmsg e = {""};
    int r = stats_parse(data, size, &s, &e);

    if (r < 0) {
        check(s == NULL && e.text[0] != '\0');
        return;
    }
    check(stats_digest(s, digest, &e) == 0);
    check(memcmp(digest, data + size - DIGEST_BYTES, DIGEST_BYTES) == 0);
    solve(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;
    uint64_t n_bytes = size;

    try(data, size);
    if (size < sizeof(struct stats_header) + DIGEST_BYTES)
        return 0;
    sealed = malloc(size);
    check(sealed != NULL);
    memcpy(sealed, data, size);
    memcpy(sealed + offsetof(struct stats_header, file_bytes), &n_bytes, sizeof(n_bytes));
    (void) crypto_hash_sha256(sealed + size - DIGEST_BYTES, sealed, size - DIGEST_BYTES);
    try(sealed, size);
    return 0;
}
