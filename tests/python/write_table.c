/*
 * Writes a random table file for the tests of the Python package, and prints the digest of its model:
 * write_table PATH SEED BPD[:STATE_BITS] LAYERS HEADS KV_HEADS HEAD_DIM ATTN_SCALE ROPE_FREQUENCY...
 * STATE_BITS: of trellises; without them the levels are scalar.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "tests/lib/random_table.h"

enum { FIRST_FREQUENCY = 9 };

static uint32_t number(const char *text)
{
    return (uint32_t) strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
    _cleanup_(freep) void *bytes = NULL;
    struct geometry g;
    unsigned state_bits;
    size_t n_bytes;
    double bpd;
    char *end;
    int r;

    if (argc < FIRST_FREQUENCY) {
        fprintf(stderr, "usage: write_table PATH SEED BPD[:STATE_BITS] LAYERS HEADS KV_HEADS HEAD_DIM "
                        "ATTN_SCALE ROPE_FREQUENCY...\n");
        return 2;
    }
    g = random_table_geometry(number(argv[4]), number(argv[5]), number(argv[6]), number(argv[7]));
    g.attn_scale = strtod(argv[8], NULL);
    g.n_rot = 2 * (uint32_t) (argc - FIRST_FREQUENCY);
    if (g.n_rot > g.d) {
        fprintf(stderr, "write_table: more frequencies than half of HEAD_DIM\n");
        return 2;
    }
    for (uint32_t i = 0; i < g.n_rot / 2; i++)
        g.freq[i] = strtod(argv[FIRST_FREQUENCY + i], NULL);
    bpd = strtod(argv[3], &end);
    state_bits = *end == ':' ? number(end + 1) : 0;
    r = random_table_bytes_trellis(&g, number(argv[2]), bpd, PREDICT_HEAD, state_bits, &bytes, &n_bytes);
    if (r == 0)
        r = atomic_file_write(argv[1], bytes, n_bytes, NULL);
    if (r < 0) {
        fprintf(stderr, "write_table: cannot write %s: %s\n", argv[1], strerror(-r));
        return 1;
    }
    for (size_t i = 0; i < DIGEST_BYTES; i++)
        printf("%02x", random_table_model_digest[i]);
    printf("\n");
    return 0;
}
