/* Writes corpus/table: run once when the format changes. `make_table_corpus DIRECTORY` */
#include <stdio.h>

#include "alloc/table/table_exact.h"
#include "alloc/table/table_half.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"

static int write_bytes(const char *dir, const char *name, const void *bytes, size_t n)
{
    struct errmsg e = {""};
    char path[4096];

    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int) sizeof(path) ||
        atomic_file_write(path, bytes, n, &e) < 0) {
        fprintf(stderr, "make_table_corpus: %s %s\n", name, e.text);
        return 1;
    }
    return 0;
}

static int write_one(const char *dir, const char *name, const struct geometry *g, double bpd,
                     enum prediction v_from)
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n;

    return random_table_bytes(g, 1, bpd, v_from, &bytes, &n) < 0 || write_bytes(dir, name, bytes, n);
}

/* Trellises, and matrices of binary16. */
static int write_format_3(const char *dir, const struct geometry *g)
{
    _cleanup_(freep) void *bytes = NULL, *half = NULL;
    size_t n;

    if (random_table_bytes_trellis(g, 1, 3, PREDICT_HEAD, 6, &bytes, &n) < 0 ||
        write_bytes(dir, "trellis-3bpd", bytes, n) != 0 || table_half_convert(bytes, n, &half, &n, NULL) < 0)
        return 1;

    return write_bytes(dir, "trellis-binary16-3bpd", half, n);
}

static int write_exact(const char *dir, const struct geometry *g)
{
    const struct exact_form form = {.type = EXACT_BF16, .after_rope = 1};
    _cleanup_(freep) void *bytes = NULL;
    size_t n;

    return table_exact_build(g, random_table_model_digest, &form, &bytes, &n, NULL) < 0 ||
           write_bytes(dir, "exact-bf16", bytes, n);
}

int main(int argc, char **argv)
{
    struct geometry plain = random_table_geometry(1, 1, 1, 32), gqa = random_table_geometry(1, 2, 1, 36),
                    heads = random_table_geometry(1, 2, 2, 32);

    if (argc != 2) {
        fprintf(stderr, "usage: make_table_corpus DIRECTORY\n");
        return 2;
    }
    return write_one(argv[1], "plain-2bpd", &plain, 2, PREDICT_NONE) ||
           write_one(argv[1], "v-from-head-3bpd", &gqa, 3, PREDICT_HEAD) ||
           write_one(argv[1], "v-from-layer-1bpd", &heads, 1, PREDICT_LAYER) ||
           write_one(argv[1], "rank-0", &plain, 0, PREDICT_NONE) || write_format_3(argv[1], &gqa) ||
           write_exact(argv[1], &gqa);
}
