/*
 * Writes the small random model of the command's tests: tiny_model PATH [SEED [ARCHITECTURE]]. Each seed
 * makes another model; architectures are those of tests/lib/tiny_gguf.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/tiny_gguf.h"

int main(int argc, char **argv)
{
    struct tiny_gguf_options o = {0};
    struct tiny_gguf *t;
    int r;

    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: tiny_model PATH [SEED [ARCHITECTURE]]\n");
        return 2;
    }
    o.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    o.architecture = argc > 3 ? argv[3] : NULL;
    t = tiny_gguf_new(&o);
    r = tiny_gguf_write(t, argv[1]);
    tiny_gguf_free(t);
    if (r < 0)
        fprintf(stderr, "tiny_model: cannot write %s: %s\n", argv[1], strerror(-r));
    return r < 0;
}
