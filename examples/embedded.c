/*
 * A compressed key-value cache inside one process, without a daemon: opens a table file, appends keys and
 * values of a text, attends with each new token, reads decoded vectors back, and prints the error and the
 * stored bits.
 *
 *     cc -o embedded embedded.c $(pkg-config --cflags --libs kvcobra)
 *     ./embedded model-3.table
 *
 * `kvcobra calibrate` and `kvcobra solve` make a table for a model. An engine has the model's own keys,
 * values and queries in place of embedded_vectors(); the table suits those, so random numbers have a larger
 * error.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcobra.h>

enum { PROMPT = 2000, GENERATED = 48, TOKENS = PROMPT + GENERATED };

/* Every call that fails leaves a sentence in its client. */
static int embedded_failed(const char *what, const kvc_client *c)
{
    fprintf(stderr, "embedded: %s: %s\n", what, c ? kvc_last_error(c) : strerror(errno));
    return EXIT_FAILURE;
}

/* [n, row] numbers between -2 and 2 that depend on @seed: tokens first .. first + n - 1 of one text. */
static void embedded_vectors(float *to, unsigned seed, size_t first, size_t n, size_t row)
{
    for (size_t i = 0; i < n * row; i++) {
        uint64_t x = (first * row + i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;

        x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
        to[i] = (float) (x >> 40) / 4194304 - 2; /* 24 bits over 2^22 */
    }
}

static void *embedded_read_file(const char *path, size_t *ret_bytes)
{
    FILE *f = fopen(path, "rb");
    void *bytes = NULL;
    long size;

    if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t) size);
        if (bytes && fread(bytes, 1, (size_t) size, f) != (size_t) size) {
            free(bytes);
            bytes = NULL;
        }
        *ret_bytes = (size_t) size;
    }
    if (f)
        (void) fclose(f);
    return bytes;
}

/* Appends @n tokens to all layers; the last one attends, as a decode step of a model does. */
static int embedded_step(kvc_seq *s, const kvc_geometry *g, size_t n, float *k, float *v, float *q,
                         float *out)
{
    size_t row = (size_t) g->n_kv_heads * g->head_dim, first = kvc_seq_length(s);
    int r = 0;

    for (uint32_t layer = 0; layer < g->n_layers && r == 0; layer++) {
        embedded_vectors(k, 2 * layer, first, n, row);
        embedded_vectors(v, 2 * layer + 1, first, n, row);
        embedded_vectors(q, 1000 + layer, first, 1, (size_t) g->n_heads * g->head_dim);
        r = kvc_seq_append(s, layer, KVC_F32, k, v, n);
        if (r == 0)
            r = kvc_seq_attend(s, layer, q, 1, out);
    }
    return r;
}

/* Squared error of all decoded vectors of one side, relative to the squares of the vectors. */
static int embedded_measure(kvc_seq *s, const kvc_geometry *g, enum kvc_side side, float *x, float *decoded,
                            double *ret_error)
{
    size_t row = (size_t) g->n_kv_heads * g->head_dim;
    double error = 0, all = 0;

    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        int r = kvc_seq_read(s, layer, side, 0, TOKENS, decoded);

        if (r < 0)
            return r;

        embedded_vectors(x, 2 * layer + (side == KVC_V), 0, TOKENS, row);
        for (size_t i = 0; i < TOKENS * row; i++) {
            error += (x[i] - decoded[i]) * (x[i] - decoded[i]);
            all += x[i] * x[i];
        }
    }
    *ret_error = error / all;
    return 0;
}

static int embedded_run(kvc_client *c, kvc_seq *s, const kvc_geometry *g, float *k, float *v, float *q)
{
    kvc_usage u = {.struct_bytes = sizeof(u)};
    double error[2], bytes;
    int r = embedded_step(s, g, PROMPT, k, v, q, q + (size_t) g->n_heads * g->head_dim);

    for (size_t i = 0; i < GENERATED && r == 0; i++)
        r = embedded_step(s, g, 1, k, v, q, q + (size_t) g->n_heads * g->head_dim);
    if (r < 0)
        return embedded_failed("a step of the text", c);

    if (embedded_measure(s, g, KVC_K, k, v, &error[KVC_K]) < 0 ||
        embedded_measure(s, g, KVC_V, k, v, &error[KVC_V]) < 0 || kvc_seq_get_usage(s, &u) < 0)
        return embedded_failed("reading the sequence", c);

    bytes = (double) (u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes + u.tail_bytes);
    printf("%d tokens, %.0f numbers\n", TOKENS, (double) u.numbers);
    printf("error of keys %.4f, of values %.4f (exact tokens included)\n", error[KVC_K], error[KVC_V]);
    printf("true bits per number: %.3f (codes %.3f, padding and headers %.3f, exact tokens %.3f)\n",
           8 * bytes / (double) u.numbers, 8 * (double) u.code_bytes / (double) u.numbers,
           8 * (double) (u.padding_bytes + u.header_bytes) / (double) u.numbers,
           8 * (double) (u.sink_bytes + u.tail_bytes) / (double) u.numbers);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry.struct_bytes = sizeof(id.geometry)};
    double freq[KVC_ROPE_FREQ_MAX];
    kvc_client *c = NULL;
    kvc_model *m = NULL;
    kvc_seq *s = NULL;
    float *k, *v, *q;
    void *table;
    size_t n_bytes = 0, row;
    int code;

    if (argc != 2) {
        fprintf(stderr, "usage: embedded TABLE\n");
        return 2;
    }

    table = embedded_read_file(argv[1], &n_bytes);
    if (!table)
        return embedded_failed(argv[1], NULL);
    if (kvc_client_new(&c) < 0)
        return embedded_failed("kvc_client_new", NULL);
    if (kvc_table_geometry(c, table, n_bytes, id.model_digest, &id.geometry, freq) < 0 ||
        kvc_model_open_table(c, &id, table, n_bytes, &m) < 0)
        code = embedded_failed(argv[1], c);
    else if (kvc_seq_new(m, NULL, 0, &s) < 0)
        code = embedded_failed("kvc_seq_new", c);
    else {
        row = (size_t) id.geometry.n_kv_heads * id.geometry.head_dim;
        k = malloc(TOKENS * row * sizeof(*k));
        v = malloc(TOKENS * row * sizeof(*v));
        q = malloc(2 * (size_t) id.geometry.n_heads * id.geometry.head_dim * sizeof(*q)); /* and its output */
        code = k && v && q ? embedded_run(c, s, &id.geometry, k, v, q) : embedded_failed("malloc", NULL);
        free(k);
        free(v);
        free(q);
    }
    kvc_client_free(c); /* frees the sequence and the model too */
    free(table);
    return code;
}
