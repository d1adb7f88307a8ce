/*
 * Writes a random table file for the tests of the Python package, and prints the digest of its model:
 * write_table PATH SEED BPD[:STATE_BITS] MODEL LAYERS HEADS KV_HEADS HEAD_DIM ATTN_SCALE ROPE_FREQUENCY...
 * STATE_BITS: of trellises; without them the levels are scalar. MODEL: its digest, in hexadecimal, of tables
 * with scalar levels; -: that of random tables.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "tests/lib/random_table.h"

enum { FIRST_FREQUENCY = 10 };

static uint32_t number(const char *text)
{
    return (uint32_t) strtoul(text, NULL, 10);
}

/* False: @text is no digest. */
static bool digest_of(const char *text, uint8_t ret[static DIGEST_BYTES])
{
    for (size_t i = 0; i < DIGEST_BYTES; i++)
        if (sscanf(text + 2 * i, "%2hhx", &ret[i]) !=
            1) /* NOLINT(cert-err34-c): two digits do not overflow */
            return false;
    return strlen(text) == 2 * DIGEST_BYTES;
}

int main(int argc, char **argv)
{
    uint8_t model[DIGEST_BYTES];
    _cleanup_(freep) void *bytes = NULL;
    struct geometry g;
    unsigned state_bits;
    size_t n_bytes;
    double bpd;
    char *end;
    int r;

    if (argc < FIRST_FREQUENCY) {
        fprintf(stderr, "usage: write_table PATH SEED BPD[:STATE_BITS] MODEL LAYERS HEADS KV_HEADS HEAD_DIM "
                        "ATTN_SCALE ROPE_FREQUENCY...\n");
        return 2;
    }
    memcpy(model, random_table_model_digest, sizeof(model));
    if (strcmp(argv[4], "-") != 0 && !digest_of(argv[4], model)) {
        fprintf(stderr, "write_table: %s is not %d hexadecimal digits\n", argv[4], 2 * DIGEST_BYTES);
        return 2;
    }
    g = random_table_geometry(number(argv[5]), number(argv[6]), number(argv[7]), number(argv[8]));
    g.attn_scale = strtod(argv[9], NULL);
    g.n_rot = 2 * (uint32_t) (argc - FIRST_FREQUENCY);
    if (g.n_rot > g.d) {
        fprintf(stderr, "write_table: more frequencies than half of HEAD_DIM\n");
        return 2;
    }
    for (uint32_t i = 0; i < g.n_rot / 2; i++)
        g.freq[i] = strtod(argv[FIRST_FREQUENCY + i], NULL);
    bpd = strtod(argv[3], &end);
    state_bits = *end == ':' ? number(end + 1) : 0;
    if (state_bits > 0 && strcmp(argv[4], "-") != 0) {
        fprintf(stderr, "write_table: trellises are for the model of random tables only\n");
        return 2;
    }
    r = state_bits > 0
            ? random_table_bytes_trellis(&g, number(argv[2]), bpd, PREDICT_HEAD, state_bits, &bytes, &n_bytes)
            : random_table_bytes_of(&g, model, number(argv[2]), bpd, &bytes, &n_bytes);
    if (r == 0)
        r = atomic_file_write(argv[1], bytes, n_bytes, NULL);
    if (r < 0) {
        fprintf(stderr, "write_table: cannot write %s: %s\n", argv[1], strerror(-r));
        return 1;
    }
    for (size_t i = 0; i < DIGEST_BYTES; i++)
        printf("%02x", model[i]);
    printf("\n");
    return 0;
}
