/* Writes corpus/llama_state: run once when the format changes. `make_llama_corpus DIRECTORY` */
#include <stdio.h>
#include <stdlib.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/llama/llama_state.h"

static int write_one(const char *dir, const char *name, kvc_llama_layout layout, struct llama_shape shape)
{
    _cleanup_(freep) uint8_t *state = NULL;
    struct llama_state plan;
    struct errmsg e = {""};
    char path[4096];
    size_t bytes = 0;

    layout.struct_bytes = sizeof(layout);
    if (llama_state_plan(&layout, &shape, &plan, &bytes, &e) == 0)
        state = malloc(bytes);
    if (!state)
        goto failed;

    for (size_t i = 0; i < bytes; i++)
        state[i] = (uint8_t) i;
    llama_state_write_headers(&plan, &shape, state);
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) < (int) sizeof(path) &&
        atomic_file_write(path, state, bytes, &e) == 0)
        return 0;

failed:
    fprintf(stderr, "make_llama_corpus: %s %s\n", name, e.text);
    return 1;
}

/* The shapes are those of fuzz_llama_state.c. */
int main(int argc, char **argv)
{
    const struct llama_shape two_layers = {2, 1, 32}, two_heads = {1, 2, 64};
    const kvc_llama_layout f16 = {.n_tokens = 3, .n_streams = 1, .dtype = KVC_F16},
                           f32 = {.n_tokens = 1, .n_streams = 2, .dtype = KVC_F32},
                           bf16 = {.n_tokens = 2, .n_streams = 1, .dtype = KVC_BF16, .v_transposed = 1};

    if (argc != 2) {
        fprintf(stderr, "usage: make_llama_corpus DIRECTORY\n");
        return 2;
    }
    return write_one(argv[1], "f16", f16, two_layers) | write_one(argv[1], "f32-streams", f32, two_layers) |
           write_one(argv[1], "bf16-transposed", bf16, two_heads);
}
