/*
 * Writes a random table file for the tests of the Python package, and prints the digest of its model:
 * write_table PATH LAYERS HEADS KV_HEADS HEAD_DIM ROPE_BASE BPD SEED
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "tests/lib/random_table.h"

static uint32_t number(const char *text)
{
    return (uint32_t) strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
    _cleanup_(freep) void *bytes = NULL;
    struct geometry g;
    size_t n_bytes;
    int r;

    if (argc != 9) {
        fprintf(stderr, "usage: write_table PATH LAYERS HEADS KV_HEADS HEAD_DIM ROPE_BASE BPD SEED\n");
        return 2;
    }
    g = random_table_geometry(number(argv[2]), number(argv[3]), number(argv[4]), number(argv[5]));
    for (uint32_t i = 0; i < g.n_rot / 2; i++)
        g.freq[i] = pow(strtod(argv[6], NULL), -2.0 * i / g.n_rot);
    r = random_table_bytes(&g, number(argv[8]), strtod(argv[7], NULL), PREDICT_HEAD, &bytes, &n_bytes);
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
