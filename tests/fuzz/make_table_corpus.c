/* Writes corpus/table: run once when the format changes. `make_table_corpus DIRECTORY` */
#include <stdio.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"

static int write_one(const char *dir, const char *name, const struct geometry *g, double bpd,
                     enum prediction v_from)
{
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg e = {""};
    char path[4096];
    size_t n;

    if (random_table_bytes(g, 1, bpd, v_from, &bytes, &n) < 0 ||
        snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int) sizeof(path) ||
        atomic_file_write(path, bytes, n, &e) < 0) {
        fprintf(stderr, "make_table_corpus: %s %s\n", name, e.text);
        return 1;
    }
    return 0;
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
           write_one(argv[1], "rank-0", &plain, 0, PREDICT_NONE);
}
