/*
 * From activations to a table, without the kvcobra command. A small made-up transformer computes windows of
 * text. The program adds what every layer computes to statistics, writes them to a file, solves a table of 3
 * bits per number, opens it in this process, and prints the error and the bits of new text.
 *
 *     cc -o calibrate calibrate.c $(pkg-config --cflags --libs kvcobra kvcobra-alloc) -lm
 *     ./calibrate made-up.stats
 *
 * A program with a real model has its activations in place of calibrate_model_run(): queries and keys, before
 * or after RoPE, values, and the residual stream after attention: alloc/BRING-YOUR-OWN-MODEL.md.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcobra-alloc.h>
#include <kvcobra.h>

enum { LAYERS = 3, HEADS = 4, KV_HEADS = 2, DIM = 32, EMBD = HEADS * DIM, KV = KV_HEADS * DIM };
enum { WINDOW = 256, WINDOWS = 8, WORDS = 50 };

/* A transformer without feed-forward blocks. Its words are vectors, its weights random. */
struct calibrate_model {
    float words[WORDS][EMBD];
    float wq[LAYERS][EMBD * EMBD], wk[LAYERS][KV * EMBD], wv[LAYERS][KV * EMBD], wo[LAYERS][EMBD * EMBD];
    double freq[DIM / 2];
};

/* What one layer computes for a window. Queries and keys are before RoPE. */
struct calibrate_layer {
    float q[WINDOW * EMBD], k[WINDOW * KV], v[WINDOW * KV], residual[WINDOW * EMBD];
};

static void calibrate_fill(float *x, size_t n, unsigned seed, float size)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;

        r = (r ^ r >> 31) * 0x7fb5d329728ea185u;
        x[i] = size * ((float) (r >> 40) / 8388608 - 1); /* 24 bits over 2^23 */
    }
}

static void calibrate_model_init(struct calibrate_model *m)
{
    calibrate_fill(m->words[0], WORDS * EMBD, 1, 1);
    for (unsigned i = 0; i < LAYERS; i++) {
        calibrate_fill(m->wq[i], EMBD * EMBD, 10 * i + 2, 0.2f);
        calibrate_fill(m->wk[i], KV * EMBD, 10 * i + 3, 0.2f);
        calibrate_fill(m->wv[i], KV * EMBD, 10 * i + 4, 0.2f);
        calibrate_fill(m->wo[i], EMBD * EMBD, 10 * i + 5, 0.1f);
    }
    for (unsigned i = 0; i < DIM / 2; i++)
        m->freq[i] = pow(10000, -2.0 * i / DIM);
}

static kvc_geometry calibrate_geometry(const struct calibrate_model *m)
{
    kvc_geometry g = {.struct_bytes = sizeof(g),
                      .n_layers = LAYERS,
                      .n_heads = HEADS,
                      .n_kv_heads = KV_HEADS,
                      .head_dim = DIM,
                      .n_rot = DIM,
                      .attn_scale = 1 / sqrt(DIM),
                      .rope_freq = m->freq};

    return g;
}

/* y [n, rows] := x [n, EMBD] times the transpose of w [rows, EMBD] */
static void calibrate_multiply(const float *x, const float *w, size_t rows, float *y)
{
    for (size_t t = 0; t < WINDOW; t++)
        for (size_t i = 0; i < rows; i++) {
            float sum = 0;

            for (size_t j = 0; j < EMBD; j++)
                sum += x[t * EMBD + j] * w[i * EMBD + j];
            y[t * rows + i] = sum;
        }
}

/* <R(m) q, R(n) k> = <R(m - n) q, k> */
static double calibrate_score(const struct calibrate_model *m, const float *q, const float *k,
                              size_t distance)
{
    double sum = 0;

    for (size_t i = 0; i < DIM / 2; i++) {
        double c = cos((double) distance * m->freq[i]), s = sin((double) distance * m->freq[i]);
        double lo = q[i], hi = q[i + DIM / 2];

        sum += (lo * c - hi * s) * k[i] + (hi * c + lo * s) * k[i + DIM / 2];
    }
    return sum / sqrt(DIM);
}

/* out [DIM] := causal attention of head @h at position @t */
static void calibrate_attend(const struct calibrate_model *m, const struct calibrate_layer *x, size_t h,
                             size_t t, float *out)
{
    size_t kv = h / (HEADS / KV_HEADS) * DIM;
    double sum = 0;

    memset(out, 0, DIM * sizeof(*out));
    for (size_t n = 0; n <= t; n++) {
        double p = exp(calibrate_score(m, x->q + t * EMBD + h * DIM, x->k + n * KV + kv, t - n));

        sum += p;
        for (size_t i = 0; i < DIM; i++)
            out[i] += (float) p * x->v[n * KV + kv + i];
    }
    for (size_t i = 0; i < DIM; i++)
        out[i] /= (float) sum;
}

/* Computes window number @window of an endless text. */
static void calibrate_model_run(const struct calibrate_model *m, unsigned window,
                                struct calibrate_layer *layers)
{
    static float hidden[WINDOW * EMBD], out[WINDOW * EMBD], added[WINDOW * EMBD];

    for (size_t t = 0; t < WINDOW; t++)
        memcpy(hidden + t * EMBD, m->words[(t * t + 7 * t + 13 * window) % WORDS], sizeof(m->words[0]));
    for (size_t l = 0; l < LAYERS; l++) {
        struct calibrate_layer *x = &layers[l];

        calibrate_multiply(hidden, m->wq[l], EMBD, x->q);
        calibrate_multiply(hidden, m->wk[l], KV, x->k);
        calibrate_multiply(hidden, m->wv[l], KV, x->v);
        for (size_t t = 0; t < WINDOW; t++)
            for (size_t h = 0; h < HEADS; h++)
                calibrate_attend(m, x, h, t, out + t * EMBD + h * DIM);
        calibrate_multiply(out, m->wo[l], EMBD, added);
        for (size_t i = 0; i < WINDOW * EMBD; i++)
            hidden[i] += added[i];
        memcpy(x->residual, hidden, sizeof(hidden));
    }
}

/* Statistics of the first windows, in the file @path, and a table of them. */
static int calibrate_solve(kvc_alloc *a, const struct calibrate_model *m, struct calibrate_layer *layers,
                           const char *path, void **ret_table, size_t *ret_bytes)
{
    kvc_stats_options so = {.struct_bytes = sizeof(so),
                            .geometry = calibrate_geometry(m),
                            .model_digest = {1},
                            .model_name = "made up",
                            .n_sink = 4,
                            .metrics = KVC_WITH_OUTPUT};
    kvc_solve_options o = {.struct_bytes = sizeof(o), .bpd = 3};
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    kvc_stats *s;
    int r = kvc_stats_new(a, &so, &s);

    for (uint32_t l = 0; l < LAYERS && r == 0; l++) {
        kvc_stats_projection p = {
            .struct_bytes = sizeof(p), .layer = l, .dtype = KVC_F32, .wo = m->wo[l], .n_embd = EMBD};

        r = kvc_stats_set_output_projection(s, &p);
    }
    for (unsigned w = 0; w < WINDOWS && r == 0; w++) {
        calibrate_model_run(m, w, layers);
        for (uint32_t l = 0; l < LAYERS && r == 0; l++) {
            const struct calibrate_layer *y = &layers[l];
            kvc_stats_layer x = {.struct_bytes = sizeof(x),
                                 .document = w,
                                 .layer = l,
                                 .n = WINDOW,
                                 .dtype = KVC_F32,
                                 .keys = KVC_KEYS_BEFORE_ROPE,
                                 .q = y->q,
                                 .k = y->k,
                                 .v = y->v,
                                 .residual = y->residual,
                                 .n_embd = EMBD};

            r = kvc_stats_add_layer(s, &x);
        }
    }
    if (r == 0)
        r = kvc_stats_save(s, path); /* `kvcobra solve` and `kvcobra inspect` read this file too */
    if (r == 0)
        r = kvc_solve(s, &o, ret_table, ret_bytes, &report);
    if (r == 0)
        printf("table of %zu bytes: %.3f bits per number, distortion %.4g, expected error of keys %.4f, of "
               "values "
               "%.4f\n",
               *ret_bytes, report.bpd_code, report.distortion, report.error_k, report.error_v);
    return r;
}

/* Appends a window that was not calibrated on, reads it back, and prints errors and bits. */
static int calibrate_use(kvc_client *c, const struct calibrate_model *m, struct calibrate_layer *layers,
                         const void *table, size_t n_bytes)
{
    static float decoded[WINDOW * KV];
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry = calibrate_geometry(m), .model_digest = {1}};
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_model *model;
    kvc_seq *s;
    double error[2] = {0}, all[2] = {0};
    int r = kvc_model_open_table(c, &id, table, n_bytes, &model);

    if (r == 0)
        r = kvc_seq_new(model, NULL, 0, &s);
    calibrate_model_run(m, WINDOWS, layers);
    for (size_t t = 0; t < WINDOW && r == 0; t += KVC_CHUNK_TOKENS) /* an append packs chunks before it */
        for (uint32_t l = 0; l < LAYERS && r == 0; l++)
            r = kvc_seq_append(s, l, KVC_F32, layers[l].k + t * KV, layers[l].v + t * KV, KVC_CHUNK_TOKENS);
    for (uint32_t l = 0; l < LAYERS && r == 0; l++)
        for (int side = KVC_K; side <= KVC_V && r == 0; side++) {
            const float *x = side == KVC_K ? layers[l].k : layers[l].v;

            r = kvc_seq_read(s, l, (enum kvc_side) side, 0, WINDOW, decoded);
            for (size_t i = 0; i < WINDOW * KV; i++) {
                error[side] += (x[i] - decoded[i]) * (x[i] - decoded[i]);
                all[side] += x[i] * x[i];
            }
        }
    if (r == 0)
        r = kvc_seq_get_usage(s, &u);
    if (r == 0)
        printf("%d new tokens: error of keys %.4f, of values %.4f; %.3f true bits per number: sinks and the "
               "newest tokens are exact\n",
               WINDOW, error[0] / all[0], error[1] / all[1],
               8.0 *
                   (double) (u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes + u.tail_bytes) /
                   (double) u.numbers);
    return r;
}

int main(int argc, char **argv)
{
    struct calibrate_model *m = calloc(1, sizeof(*m));
    struct calibrate_layer *layers = calloc(LAYERS, sizeof(*layers));
    kvc_alloc *a = NULL;
    kvc_client *c = NULL;
    void *table = NULL;
    size_t n_bytes;
    int status = EXIT_FAILURE;

    if (argc != 2) {
        fprintf(stderr, "usage: calibrate STATISTICS\n");
        status = 2;
    } else if (!m || !layers || kvc_alloc_new(&a) < 0 || kvc_client_new(&c) < 0) {
        fprintf(stderr, "calibrate: out of memory\n");
    } else {
        calibrate_model_init(m);
        if (calibrate_solve(a, m, layers, argv[1], &table, &n_bytes) < 0)
            fprintf(stderr, "calibrate: %s\n", kvc_alloc_error(a));
        else if (calibrate_use(c, m, layers, table, n_bytes) < 0)
            fprintf(stderr, "calibrate: %s\n", kvc_last_error(c));
        else
            status = EXIT_SUCCESS;
    }

    free(table);
    kvc_client_free(c);
    kvc_alloc_free(a);
    free(layers);
    free(m);
    return status;
}
