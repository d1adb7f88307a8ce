/*
 * table_parse() on arbitrary bytes. Every input is tried as it is and once more with its length and digest made right,
 * since nothing that fails the digest gets any further.
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* Uses everything that an accepted table promises to be safe to use. */
static void walk(const struct table *t)
{
    uint8_t codes[2][TABLE_RANK_MAX];
    const uint8_t *const p[2] = { codes[0], codes[1] };
    double x[2][GEOMETRY_DIM_MAX], magnitude[2][GEOMETRY_DIM_MAX], sum = 0;

    for (uint32_t i = 0; i < t->geometry.n_layers * t->geometry.n_kv_heads; i++) {
        uint32_t layer = i / t->geometry.n_kv_heads, head = i % t->geometry.n_kv_heads;

        for (unsigned side = 0; side < 2; side++) {
            const struct codec *c = table_codec(t, layer, head, (enum side) side);

            check(c->r == 8 * c->n_half && c->n_half <= TABLE_HALF_TILES_MAX && c->r_in >= c->r);
            for (unsigned j = 0; j < c->r; j++) {
                unsigned b = c->bits[j / 8];

                codes[side][j] = b ? levels_quantise(&t->levels[side][b], b, c->enc[(size_t) j * t->geometry.d]) : 0;
                check(codes[side][j] >> b == 0);
            }
        }
        table_decode_head(t, layer, head, p, x, magnitude);
        sum += x[0][0] + x[1][t->geometry.d - 1];
    }
    check(sum == sum); /* finite matrices: no NaN */
    check(strlen(t->provenance) < TABLE_PROVENANCE_MAX);
    check(t->bpd_code >= 0 && t->bpd_code <= 16); /* 8 bits, and padding of 33 dimensions and the like */
}

static void try(const uint8_t *data, size_t size)
{
    struct table *t = NULL;
    struct errmsg e = { "" };
    int r = table_parse(data, size, &t, &e);

    if (r < 0) {
        check(t == NULL && e.text[0] != '\0');
        return;
    }
    check(t != NULL && t->n_bytes == size && memcmp(t->bytes, data, size) == 0);
    walk(t);
    (void) table_unref(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;
    uint64_t n_bytes = size;

    try(data, size);
    if (size < sizeof(struct table_header) + DIGEST_BYTES)
        return 0;
    sealed = malloc(size);
    check(sealed != NULL);
    memcpy(sealed, data, size);
    memcpy(sealed + offsetof(struct table_header, n_bytes), &n_bytes, sizeof(n_bytes));
    (void) crypto_hash_sha256(sealed + size - DIGEST_BYTES, sealed, size - DIGEST_BYTES);
    try(sealed, size);
    return 0;
}
