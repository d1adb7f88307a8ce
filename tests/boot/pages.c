/*
 * A client for the tests under a real init: publishes prompts of made-up vectors, or finds them and writes
 * what their pages decode to, so that a test can compare the bytes before and after an event.
 *
 *     pages publish MODEL_DIGEST N_PROMPTS    prints how many tokens are published now
 *     pages read MODEL_DIGEST N_PROMPTS       decoded vectors to standard output, the number of tokens to
 *                                             standard error
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra.h"

enum { PROMPT = 1024, PIECE = 256 };

struct pages {
    kvc_client *client;
    kvc_model *model;
    kvc_geometry geometry;
    size_t row;              /* numbers of a token: KV heads x head_dim */
    uint32_t tokens[PROMPT]; /* of the present prompt */
    float *k, *v;            /* [PROMPT, row] */
};

static int pages_failed(const struct pages *x, const char *what)
{
    fprintf(stderr, "pages: %s: %s\n", what, x->client ? kvc_last_error(x->client) : strerror(errno));
    return EXIT_FAILURE;
}

/* The vectors of one side of one layer of one prompt, the same in every process. */
static void pages_fill(float *to, uint64_t seed, size_t first, size_t n, size_t row)
{
    for (size_t i = 0; i < n * row; i++) {
        uint64_t x = (first * row + i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;

        x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
        to[i] = (float) (x >> 40) / 4194304 - 2; /* -2 .. 2 */
    }
}

static int pages_open(struct pages *x, const uint8_t *digest)
{
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry.struct_bytes = sizeof(id.geometry)};
    double freq[KVC_ROPE_FREQ_MAX];

    if (kvc_client_new(&x->client) < 0)
        return pages_failed(x, "kvc_client_new");
    if (kvc_client_connect(x->client, NULL) < 0)
        return pages_failed(x, "connecting");

    memcpy(id.model_digest, digest, KVC_DIGEST_BYTES);
    if (kvc_client_get_geometry(x->client, digest, &id.geometry, freq) < 0 ||
        kvc_model_open(x->client, &id, &x->model) < 0)
        return pages_failed(x, "opening the model");

    x->geometry = id.geometry;
    x->row = (size_t) id.geometry.n_kv_heads * id.geometry.head_dim;
    x->k = malloc(PROMPT * x->row * sizeof(*x->k));
    x->v = malloc(PROMPT * x->row * sizeof(*x->v));
    return x->k && x->v ? EXIT_SUCCESS : pages_failed(x, "malloc");
}

static int pages_publish(struct pages *x, kvc_seq *seq, uint64_t prompt, size_t *n_tokens)
{
    size_t published = 0;

    for (size_t first = 0; first < PROMPT; first += PIECE) {
        for (uint32_t layer = 0; layer < x->geometry.n_layers; layer++) {
            pages_fill(x->k, prompt << 16 | 2 * layer, first, PIECE, x->row);
            pages_fill(x->v, prompt << 16 | 2 * layer | 1, first, PIECE, x->row);
            if (kvc_seq_append(seq, layer, KVC_F32, x->k, x->v, PIECE) < 0)
                return pages_failed(x, "kvc_seq_append");
        }
        if (kvc_seq_commit(seq, x->tokens, first + PIECE, &published) < 0)
            return pages_failed(x, "kvc_seq_commit");
    }

    *n_tokens += published;
    return EXIT_SUCCESS;
}

static int pages_read(struct pages *x, kvc_seq *seq, size_t *n_tokens)
{
    size_t n = 0;

    if (kvc_seq_match(seq, x->tokens, PROMPT, &n) < 0)
        return pages_failed(x, "kvc_seq_match");

    for (uint32_t layer = 0; n > 0 && layer < x->geometry.n_layers; layer++) {
        if (kvc_seq_read(seq, layer, KVC_K, 0, n, x->k) < 0 ||
            kvc_seq_read(seq, layer, KVC_V, 0, n, x->v) < 0)
            return pages_failed(x, "kvc_seq_read");
        if (fwrite(x->k, sizeof(*x->k), n * x->row, stdout) != n * x->row ||
            fwrite(x->v, sizeof(*x->v), n * x->row, stdout) != n * x->row)
            return pages_failed(x, "writing");
    }

    *n_tokens += n;
    return EXIT_SUCCESS;
}

static int pages_run(struct pages *x, bool publishes, uint64_t n_prompts)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_PUBLISH_ALL};
    size_t n_tokens = 0;

    for (uint64_t prompt = 0; prompt < n_prompts; prompt++) {
        kvc_seq *seq = NULL;
        int code;

        for (uint32_t i = 0; i < PROMPT; i++)
            x->tokens[i] = (uint32_t) prompt << 16 | i;
        if (kvc_seq_new_with(x->model, &o, &seq) < 0)
            return pages_failed(x, "kvc_seq_new_with");

        code = publishes ? pages_publish(x, seq, prompt, &n_tokens) : pages_read(x, seq, &n_tokens);
        kvc_seq_free(seq);
        if (code != EXIT_SUCCESS)
            return code;
    }

    fprintf(publishes ? stdout : stderr, "%s %zu tokens\n", publishes ? "published" : "found", n_tokens);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : pages_failed(x, "writing");
}

/* ---- command line ---- */

static bool pages_parse_digest(const char *hex, uint8_t ret[KVC_DIGEST_BYTES])
{
    unsigned byte;

    if (strlen(hex) != 2 * KVC_DIGEST_BYTES || strspn(hex, "0123456789abcdef") != 2 * KVC_DIGEST_BYTES)
        return false;
    for (int i = 0; i < KVC_DIGEST_BYTES && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        ret[i] = (uint8_t) byte;
    return true;
}

int main(int argc, char **argv)
{
    struct pages x = {.client = NULL};
    uint8_t digest[KVC_DIGEST_BYTES];
    char *end = NULL;
    uint64_t n_prompts = argc == 4 ? strtoull(argv[3], &end, 10) : 0;
    int code;

    if (argc != 4 || (strcmp(argv[1], "publish") != 0 && strcmp(argv[1], "read") != 0) ||
        !pages_parse_digest(argv[2], digest) || *end != '\0' || n_prompts == 0 || n_prompts > 65535) {
        fprintf(stderr, "usage: pages publish|read MODEL_DIGEST N_PROMPTS\n");
        return 2;
    }

    code = pages_open(&x, digest);
    if (code == EXIT_SUCCESS)
        code = pages_run(&x, strcmp(argv[1], "publish") == 0, n_prompts);
    kvc_client_free(x.client);
    free(x.k);
    free(x.v);
    return code;
}
