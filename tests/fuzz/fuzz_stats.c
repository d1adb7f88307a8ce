/*
 * stats_parse() on arbitrary bytes, unchanged and with length and digests corrected.
 * Accepted statistics are stored again (the same bytes) and solved: numbers that no text produces must
 * give a table or an error with a sentence.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/fuzz/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        seal_check(r == 0 || e.text[0] != '\0');
    }
}

static void try(const uint8_t *data, size_t size)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    uint8_t digest[DIGEST_BYTES];
    struct errmsg e = {""};
    int r = stats_parse(data, size, &s, &e);

    if (r < 0) {
        seal_check(s == NULL && e.text[0] != '\0');
        return;
    }
    seal_check(stats_digest(s, digest, &e) == 0);
    seal_check(memcmp(digest, data + size - DIGEST_BYTES, DIGEST_BYTES) == 0);
    if (seal_is_solved(data, size))
        solve(s);
}

/* The input as a file whose checksums are right. */
static uint8_t *seal(const uint8_t *data, size_t size)
{
    uint8_t *sealed = seal_copy(data, size, offsetof(struct stats_header, file_bytes));
    struct stats_header h;

    memcpy(&h, sealed, sizeof(h));
    seal_geometry(sealed, size, SEAL_GEOMETRY_OF(h), h.sections[SECTION_FREQ].offset,
                  offsetof(struct stats_header, geometry_digest));
    seal_finish(sealed, size);
    return sealed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;

    if (size >= sizeof(struct stats_header) + DIGEST_BYTES)
        sealed = seal(data, size);
    if (!sealed || memcmp(sealed, data, size) != 0)
        try(data, size);
    if (sealed)
        try(sealed, size);
    return 0;
}
