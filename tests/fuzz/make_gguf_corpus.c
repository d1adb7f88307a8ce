/* Writes corpus/gguf: run once when the tiny model changes. `make_gguf_corpus DIRECTORY` */
#include <stdio.h>

#include "tests/lib/tiny_gguf.h"

static int write_one(const char *dir, const char *name, const struct tiny_gguf_options *o)
{
    struct tiny_gguf *t = tiny_gguf_new(o);
    char path[4096];
    int r = 1;

    if (snprintf(path, sizeof(path), "%s/%s", dir, name) < (int) sizeof(path))
        r = tiny_gguf_write(t, path) < 0;
    if (r)
        fprintf(stderr, "make_gguf_corpus: cannot write %s\n", name);
    (void) tiny_gguf_free(t);
    return r;
}

int main(int argc, char **argv)
{
    const struct tiny_gguf_options llama = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .n_ff = 32, .type = 3, .rope_freqs = true};
    const struct tiny_gguf_options qwen2 = {.architecture = "qwen2",
                                            .n_layers = 1,
                                            .n_heads = 2,
                                            .n_kv_heads = 1,
                                            .n_embd = 32,
                                            .n_ff = 32,
                                            .type = 8,
                                            .rope_scaling = "yarn",
                                            .pre = "qwen2"};
    const struct tiny_gguf_options qwen3 = {.architecture = "qwen3",
                                            .n_layers = 1,
                                            .n_heads = 1,
                                            .n_kv_heads = 1,
                                            .n_ff = 32,
                                            .type = 3,
                                            .untied = true,
                                            .pre = "llama-bpe",
                                            .rope_scaling = "linear"};

    if (argc != 2) {
        fprintf(stderr, "usage: make_gguf_corpus DIRECTORY\n");
        return 2;
    }
    return write_one(argv[1], "llama-q4_1", &llama) || write_one(argv[1], "qwen2-q8_0", &qwen2) ||
           write_one(argv[1], "qwen3-q4_1", &qwen3);
}
