/*
 * table_parse() on arbitrary bytes. Every input is tried unchanged and with its length and digest corrected,
 * since other checks come after that of the digest.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/fuzz/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Quantises the first column of the codec's encoder. */
static void quantise(const struct table *t, const struct codec *c, enum side side, uint8_t *ret)
{
    seal_check(c->r == 8 * c->n_half && c->n_half <= TABLE_HALF_TILES_MAX && c->r_in == c->r + c->n_pred);
    for (unsigned j = 0; j < c->r; j++) {
        unsigned b = c->bits[j / 8];

        if (t->levels[side][b].state_bits > 0)
            ret[j] = (uint8_t) (j % levels_count(&t->levels[side][b], b));
        else
            ret[j] = b ? levels_quantise(&t->levels[side][b], b, c->enc[(size_t) j * t->geometry.d]) : 0;
        seal_check(ret[j] < levels_count(&t->levels[side][b], b));
    }
}

/* Uses all parts of an accepted table. */
static void walk(const struct table *t)
{
    uint32_t n_kv = t->geometry.n_kv_heads;
    _cleanup_(freep) uint8_t *codes_k = malloc((size_t) n_kv * TABLE_RANK_MAX);
    uint8_t codes_v[TABLE_RANK_MAX];
    struct table_sums x[2], z[2];
    float vectors[2][GEOMETRY_DIM_MAX];
    const float *const p[2] = {vectors[0], vectors[1]};
    double sum = 0;

    seal_check(codes_k != NULL);
    for (uint32_t layer = 0; layer < t->geometry.n_layers; layer++) {
        uint8_t *at = codes_k;

        for (uint32_t head = 0; head < n_kv; head++) {
            quantise(t, table_codec(t, layer, head, SIDE_K), SIDE_K, at);
            at += table_codec(t, layer, head, SIDE_K)->r;
        }
        for (uint32_t head = 0; head < n_kv; head++) {
            quantise(t, table_codec(t, layer, head, SIDE_V), SIDE_V, codes_v);
            table_decode_head(t, layer, head, codes_k, codes_v, x);
            for (uint32_t i = 0; i < 2 * t->geometry.d; i++)
                vectors[i % 2][i / 2] = (float) fmax(fmin(x[i % 2].x[i / 2], 1e30), -1e30);
            table_encode_head(t, layer, head, codes_k, p, z);
            sum += x[0].x[0] + x[1].x[t->geometry.d - 1] + z[0].x[0] + z[1].x[0];
        }
    }
    seal_check(sum == sum); /* finite matrices: no NaN */
    seal_check(strlen(t->provenance) < TABLE_PROVENANCE_MAX);
    seal_check(t->bpd_code >= 0 && t->bpd_code <= 16); /* 8 bits, and padding of 33 dimensions and the like */
}

static void try(const uint8_t *data, size_t size)
{
    struct table *t = NULL;
    struct errmsg e = {""};
    int r = table_parse(data, size, &t, &e);

    if (r < 0) {
        seal_check(t == NULL && e.text[0] != '\0');
        return;
    }
    seal_check(t != NULL && t->n_bytes == size && memcmp(t->bytes, data, size) == 0);
    walk(t);
    (void) table_unref(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *sealed = NULL;

    if (size >= sizeof(struct table_header) + DIGEST_BYTES) {
        sealed = seal_copy(data, size, offsetof(struct table_header, n_bytes));
        seal_finish(sealed, size);
    }
    if (!sealed || memcmp(sealed, data, size) != 0)
        try(data, size);
    if (sealed)
        try(sealed, size);
    return 0;
}
