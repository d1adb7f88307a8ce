/* Writes corpus/stats and corpus/moments: run once when a format changes. `make_stats_corpus DIRECTORY` */
#include <math.h>
#include <stdio.h>

#include "alloc/moments/moments.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

enum { TOKENS = 40, D = 32 };

/* Fills @x with numbers that vary in tokens and dimensions. */
static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = sinf((float) (i * i % 1013)) + 0.1f * (float) (i % D);
}

static int write_one(const char *dir, const char *name, bool attention, bool output)
{
    struct geometry g = {
        .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d = D, .n_rot = D, .attn_scale = 0.17};
    _cleanup_(stats_freep) struct stats *s = NULL;
    const struct stats_source source = {
        .digest = {1}, .bytes = 99, .tokens = TOKENS, .windows = 1, .window = TOKENS};
    float residual[TOKENS], q[TOKENS * 2 * D], k[TOKENS * D], v[TOKENS * D], wo[8 * 2 * D];
    struct stats_options o;
    struct errmsg e = {""};
    char path[4096];

    for (int i = 0; i < D / 2; i++)
        g.freq[i] = pow(100, -2.0 * i / D);
    stats_options_default(&o, &g);
    o.n_samples = 24;
    o.want_attention = attention;
    o.want_output = output;
    for (int i = 0; i < TOKENS; i++)
        residual[i] = 0.5f + 0.01f * (float) i;
    fill(q, TOKENS * 2 * D);
    fill(k, TOKENS * D);
    fill(v, TOKENS * D);
    fill(wo, 8 * 2 * D);
    if (stats_new(&o, &s, &e) < 0 || stats_set_output_projection(s, 0, wo, 8, &e) < 0 ||
        stats_add_layer(s, 0, 0, 0, TOKENS, q, k, v, residual, &e) < 0 ||
        (output && (stats_begin_source(s, SOURCE_LINES, source.digest, &e) < 0 ||
                    stats_add_layer(s, 1, 0, 0, TOKENS, q, k, v, residual, &e) < 0)) ||
        stats_add_source(s, &source, &e) < 0 || stats_set_depth(s, 0, SIDE_K, 0.5, 0.25) < 0 ||
        snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int) sizeof(path) ||
        stats_save(s, path, &e) < 0) {
        fprintf(stderr, "make_stats_corpus: %s %s\n", name, e.text);
        return 1;
    }
    return 0;
}

static int write_moments(const char *dir)
{
    struct moments_options o = {
        .geometry = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = D, .n_rot = 0, .attn_scale = 0.17},
    };
    _cleanup_(moments_freep) struct moments *m = NULL;
    float k[4 * TOKENS * D], v[4 * TOKENS * D];
    struct errmsg e = {""};
    char path[4096];

    fill(k, 4 * TOKENS * D);
    fill(v, 4 * TOKENS * D);
    if (moments_new(&o, &m, &e) < 0 || moments_add(m, 0, 0, 1, 4 * TOKENS, k, v, &e) < 0 ||
        snprintf(path, sizeof(path), "%s/../moments/one-head", dir) >= (int) sizeof(path) ||
        moments_save(m, path, &e) < 0) {
        fprintf(stderr, "make_stats_corpus: %s\n", e.text);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_stats_corpus DIRECTORY\n");
        return 2;
    }
    return write_one(argv[1], "attention", true, false) || write_one(argv[1], "output", true, true) ||
           write_one(argv[1], "moments-and-samples", false, false) || write_moments(argv[1]);
}
