/*
 * A prefix shared by two processes of an engine with a cache of its own: one publishes a prompt, the other
 * finds it and reads it into its blocks instead of computing it. Both need kvcobrad with an active table.
 *
 *     cc -o shared shared.c $(pkg-config --cflags --libs kvcobra)
 *     ./shared publish MODEL_DIGEST [SOCKET]
 *     ./shared find MODEL_DIGEST [SOCKET]
 *
 * `kvcobra model-id` prints the digest of a model, `kvcobra model list` those that the daemon has tables for.
 * An engine has the model's own keys and values, keys after RoPE, in place of shared_vectors().
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcobra.h>

enum { PROMPT = 512, PIECE = 256, BLOCK = 16, BLOCKS = PROMPT / BLOCK };

struct shared {
    kvc_client *client;
    kvc_model *model;
    kvc_seq *seq;
    kvc_geometry geometry;
    size_t row; /* numbers of a token: KV heads x head_dim */
    uint32_t tokens[PROMPT];
    float *k, *v; /* [PIECE, row], and [BLOCKS, BLOCK, row] of a layer's side in the engine's cache */
    float *cache; /* [n_layers, 2, BLOCKS, BLOCK, row] */
};

static int shared_failed(const struct shared *x, const char *what)
{
    fprintf(stderr, "shared: %s: %s\n", what, x->client ? kvc_last_error(x->client) : strerror(errno));
    return EXIT_FAILURE;
}

/* The vectors of tokens first .. first + n - 1, @seed: layer and side. */
static void shared_vectors(float *to, unsigned seed, size_t first, size_t n, size_t row)
{
    for (size_t i = 0; i < n * row; i++) {
        uint64_t x = (first * row + i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;

        x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
        to[i] = (float) (x >> 40) / 4194304 - 2; /* -2 .. 2 */
    }
}

static int shared_open(struct shared *x, const uint8_t *digest, const char *socket)
{
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry.struct_bytes = sizeof(id.geometry)};
    /* this engine has keys after RoPE, and an exact cache of its own for the newest tokens */
    kvc_seq_options o = {
        .struct_bytes = sizeof(o),
        .salt = "adapter 7",
        .salt_bytes = 9,
        .keys = KVC_KEYS_AFTER_ROPE,
        .pairs = KVC_PAIRS_HALF_SPLIT,
        .flags = KVC_SEQ_PUBLISH_ALL,
    };
    double freq[KVC_ROPE_FREQ_MAX];

    if (kvc_client_new(&x->client) < 0)
        return shared_failed(x, "kvc_client_new");
    if (kvc_client_connect(x->client, socket) < 0) /* an engine would go on without sharing */
        return shared_failed(x, "connecting to kvcobrad");

    /* an engine knows its geometry; the call then checks that the table has the same */
    memcpy(id.model_digest, digest, KVC_DIGEST_BYTES);
    if (kvc_client_get_geometry(x->client, digest, &id.geometry, freq) < 0 ||
        kvc_model_open(x->client, &id, &x->model) < 0)
        return shared_failed(x, "opening the model");
    if (kvc_seq_new_with(x->model, &o, &x->seq) < 0)
        return shared_failed(x, "kvc_seq_new_with");

    x->geometry = id.geometry;
    x->row = (size_t) id.geometry.n_kv_heads * id.geometry.head_dim;
    for (uint32_t i = 0; i < PROMPT; i++)
        x->tokens[i] = 7 * i; /* of the tokeniser */
    x->k = malloc(PIECE * x->row * sizeof(*x->k));
    x->v = malloc(PIECE * x->row * sizeof(*x->v));
    x->cache = calloc((size_t) id.geometry.n_layers * 2 * PROMPT * x->row, sizeof(*x->cache));
    return x->k && x->v && x->cache ? EXIT_SUCCESS : shared_failed(x, "malloc");
}

/* ---- the first process ---- */

static int shared_publish(struct shared *x)
{
    size_t published = 0;

    for (size_t first = 0; first < PROMPT; first += PIECE) {
        for (uint32_t layer = 0; layer < x->geometry.n_layers; layer++) {
            shared_vectors(x->k, 2 * layer, first, PIECE, x->row);
            shared_vectors(x->v, 2 * layer + 1, first, PIECE, x->row);
            if (kvc_seq_append(x->seq, layer, KVC_F32, x->k, x->v, PIECE) < 0)
                return shared_failed(x, "kvc_seq_append");
        }
        /* after a failure the sequence stays usable and private: full pool, quota, daemon gone */
        if (kvc_seq_commit(x->seq, x->tokens, first + PIECE, &published) < 0)
            return shared_failed(x, "kvc_seq_commit");
    }
    printf("published %zu of %d tokens\n", published, PROMPT);
    return EXIT_SUCCESS;
}

/* ---- the second process ---- */

/* Reads the first @n tokens into the engine's blocks; block i of the text is at blocks[i]. */
static int shared_load(struct shared *x, size_t n, const int64_t *blocks)
{
    void **bases = calloc(2 * (size_t) x->geometry.n_layers, sizeof(*bases));
    kvc_blocks to = {
        .struct_bytes = sizeof(to),
        .bases = bases,
        .block_tokens = BLOCK,
        .blocks = blocks,
        .dtype = KVC_F32,
    };
    int r;

    if (!bases)
        return -ENOMEM;
    for (size_t i = 0; i < 2 * (size_t) x->geometry.n_layers; i++)
        bases[i] = x->cache + i * PROMPT * x->row;
    r = kvc_seq_read_blocks(x->seq, 0, n, &to);
    free(bases);
    return r;
}

/* Squared error of what was loaded, relative to the squares of the vectors that a model would compute. */
static double shared_error(struct shared *x, size_t n, const int64_t *blocks)
{
    double error = 0, all = 0;

    for (uint32_t i = 0; i < 2 * x->geometry.n_layers; i++) /* layer and side */
        for (size_t first = 0; first < n; first += BLOCK) {
            const float *block = x->cache + (i * BLOCKS + (size_t) blocks[first / BLOCK]) * BLOCK * x->row;

            shared_vectors(x->k, i, first, BLOCK, x->row);
            for (size_t j = 0; j < BLOCK * x->row; j++) {
                error += (x->k[j] - block[j]) * (x->k[j] - block[j]);
                all += x->k[j] * x->k[j];
            }
        }
    return error / all;
}

static int shared_find(struct shared *x)
{
    int64_t blocks[BLOCKS];
    size_t n = 0;

    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = BLOCKS - 1 - i; /* where the engine has room */
    if (kvc_seq_match(x->seq, x->tokens, PROMPT, &n) < 0)
        return shared_failed(x, "kvc_seq_match");
    printf("found %zu of %d tokens\n", n, PROMPT);
    if (n == 0)
        return EXIT_SUCCESS; /* the engine computes the whole prompt */
    if (shared_load(x, n, blocks) < 0)
        return shared_failed(x, "kvc_seq_read_blocks");
    printf("their error is %.4f; the engine computes the other %zu\n", shared_error(x, n, blocks),
           PROMPT - n);
    return EXIT_SUCCESS;
}

/* ---- command line ---- */

static int shared_read_digest(const char *hex, uint8_t ret[KVC_DIGEST_BYTES])
{
    unsigned byte;

    if (strlen(hex) != 2 * KVC_DIGEST_BYTES || strspn(hex, "0123456789abcdef") != 2 * KVC_DIGEST_BYTES)
        return -EINVAL;
    for (int i = 0; i < KVC_DIGEST_BYTES && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        ret[i] = (uint8_t) byte;
    return 0;
}

int main(int argc, char **argv)
{
    struct shared x = {.client = NULL};
    uint8_t digest[KVC_DIGEST_BYTES];
    int code;

    if (argc < 3 || argc > 4 || (strcmp(argv[1], "publish") != 0 && strcmp(argv[1], "find") != 0) ||
        shared_read_digest(argv[2], digest) < 0) {
        fprintf(stderr, "usage: shared publish|find MODEL_DIGEST [SOCKET]\n");
        return 2;
    }

    code = shared_open(&x, digest, argc == 4 ? argv[3] : NULL);
    if (code == EXIT_SUCCESS)
        code = strcmp(argv[1], "publish") == 0 ? shared_publish(&x) : shared_find(&x);
    kvc_client_free(x.client); /* frees the sequence and the model too; releases the pages */
    free(x.k);
    free(x.v);
    free(x.cache);
    return code;
}
