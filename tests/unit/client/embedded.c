/* See embedded.h. */
#include "tests/unit/client/embedded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/codec.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

kvc_model_id embedded_id(const struct embedded *m)
{
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry =
            {
                .struct_bytes = sizeof(kvc_geometry),
                .n_layers = m->g.n_layers,
                .n_heads = m->g.n_heads,
                .n_kv_heads = m->g.n_kv_heads,
                .head_dim = m->g.d,
                .n_rot = m->g.n_rot,
                .attn_scale = m->g.attn_scale,
                .rope_freq = m->g.freq,
            },
        .first_kv_head = m->first_head,
        .n_kv_heads_here = m->n_heads == m->g.n_kv_heads ? 0 : m->n_heads,
    };

    memcpy(id.model_digest, random_table_model_digest, sizeof(id.model_digest));
    return id;
}

struct embedded embedded_new(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d, double bpd,
                             uint32_t first_head, uint32_t n_heads_here)
{
    return embedded_new_predicting(n_layers, n_heads, n_kv_heads, d, bpd, first_head, n_heads_here,
                                   PREDICT_HEAD);
}

struct embedded embedded_new_predicting(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                        double bpd, uint32_t first_head, uint32_t n_heads_here,
                                        enum prediction v_from)
{
    return embedded_new_rotating(n_layers, n_heads, n_kv_heads, d, d, bpd, first_head, n_heads_here, v_from);
}

struct embedded embedded_new_rotating(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                      uint32_t n_rot, double bpd, uint32_t first_head, uint32_t n_heads_here,
                                      enum prediction v_from)
{
    struct embedded m = {.g = random_table_geometry(n_layers, n_heads, n_kv_heads, d),
                         .first_head = first_head,
                         .n_heads = n_heads_here ? n_heads_here : n_kv_heads};
    kvc_model_id id;
    int r;

    m.g.n_rot = n_rot;
    id = embedded_id(&m);
    r = random_table_bytes(&m.g, 1, bpd, v_from, &m.bytes, &m.n_bytes);

    assert(r == 0);
    r = kvc_client_new(&m.client);
    assert(r == 0);
    r = kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &m.model);
    if (r < 0)
        printf("    open: %s\n", kvc_last_error(m.client));
    assert(r == 0);
    return m;
}

void embedded_free(struct embedded *m)
{
    m->client = kvc_client_free(m->client);
    free(m->bytes);
}

void embedded_round_trip(const struct embedded *m, const struct table *t, uint32_t layer, const float *k,
                         const float *v, float *ret_k, float *ret_v)
{
    float *scratch = malloc(codec_scratch_floats() * sizeof(float));
    uint8_t *codes = malloc((m->n_heads + 1) * TABLE_RANK_MAX),
            *codes_v = codes + m->n_heads * TABLE_RANK_MAX;
    const uint8_t *keys[GEOMETRY_HEADS_MAX] = {NULL};
    struct encode_counts count = {0};
    size_t d = m->g.d;
    int r = 0;

    assert(scratch && codes);
    for (uint32_t h = 0; h < m->n_heads; h++) {
        struct head_view view = head_view(t, layer, m->first_head + h);

        r |= codec_encode_keys(view, k + h * d, d, 1, codes + h * TABLE_RANK_MAX, &count, scratch);
        keys[view.head] = codes + h * TABLE_RANK_MAX;
    }
    for (uint32_t h = 0; h < m->n_heads; h++) {
        struct head_view view = head_view(t, layer, m->first_head + h);

        r |= codec_encode_values(view, v + h * d, d, 1, keys, codes_v, &count, scratch);
        codec_decode_keys(view, keys[view.head], 1, ret_k + h * d, d, scratch);
        codec_decode_values(view, keys, codes_v, 1, ret_v + h * d, d, scratch);
    }
    assert(r == 0);
    free(scratch);
    free(codes);
}

/* A hash of the coordinates as a normal number (Irwin-Hall): it depends on nothing else. */
static float number(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t x =
        a * 0x9e3779b97f4a7c15u ^ b * 0xbf58476d1ce4e5b9u ^ c * 0x94d049bb133111ebu ^ d * 0xd6e8feb86659fd93u;
    double sum = 0;

    for (unsigned i = 0; i < 6; i++) {
        x ^= x >> 31;
        x *= 0x7fb5d329728ea185u;
        x ^= x >> 27;
        sum += (double) (x >> 11) * 0x1p-53;
    }
    return (float) ((sum - 3.0) * 1.4142135623730951);
}

static float *numbers(uint64_t kind, uint32_t text, uint32_t layer, size_t first, size_t n, size_t width)
{
    float *x = malloc(n * width * sizeof(*x) + 1);

    assert(x);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            x[t * width + i] = number(kind * 7919 + text, layer + 1, first + t + 1, i + 1);
    return x;
}

float *embedded_input(const struct embedded *m, uint32_t text, uint32_t layer, enum kvc_side side,
                      size_t first, size_t n)
{
    size_t width = (size_t) m->n_heads * m->g.d;
    float *x = numbers(1 + side, text, layer, first, n, width);

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            if (first + t < 2)
                x[t * width + i] *= 20; /* like the first tokens of real models */
    return x;
}

float *embedded_queries(const struct embedded *m, uint32_t text, uint32_t layer, size_t first, size_t n)
{
    return numbers(9, text, layer, first, n, (size_t) m->n_heads * geometry_group(&m->g) * m->g.d);
}

int embedded_append(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n)
{
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *k = embedded_input(m, text, layer, KVC_K, first, n),
              *v = embedded_input(m, text, layer, KVC_V, first, n);
        int r = kvc_seq_append(s, layer, KVC_F32, k, v, n);

        free(k);
        free(v);
        if (r < 0)
            return r;
    }
    return 0;
}

float *embedded_read(const struct embedded *m, kvc_seq *s, uint32_t layer, enum kvc_side side, size_t n)
{
    float *x = malloc(n * m->n_heads * m->g.d * sizeof(*x) + 1);
    int r = kvc_seq_read(s, layer, side, 0, n, x);

    assert(x && r == 0);
    return x;
}

static void rotate(const struct geometry *g, const float *x, size_t position, double *ret)
{
    uint32_t half = g->n_rot / 2;

    for (uint32_t i = 0; i < g->d; i++)
        ret[i] = x[i];
    for (uint32_t i = 0; i < half; i++) {
        double a = (double) position * g->freq[i], c = cos(a), s = sin(a);

        ret[i] = x[i] * c - x[i + half] * s;
        ret[i + half] = x[i] * s + x[i + half] * c;
    }
}

double *embedded_attention(const struct embedded *m, const float *k, const float *v, const float *q,
                           size_t first, size_t n)
{
    const struct geometry *g = &m->g;
    uint32_t group = geometry_group(g), n_q = m->n_heads * group, d = g->d;
    double *out = calloc(n * n_q * d, sizeof(*out)), *p = calloc(first + n, sizeof(*p));
    double rq[GEOMETRY_DIM_MAX], rk[GEOMETRY_DIM_MAX];

    assert(out && p);
    for (size_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < n_q; h++) {
            size_t m_pos = first + i;
            double max = -INFINITY, sum = 0, *o = out + (i * n_q + h) * d;

            rotate(g, q + (i * n_q + h) * d, m_pos, rq);
            for (size_t t = 0; t <= m_pos; t++) {
                double score = 0;

                rotate(g, k + (t * m->n_heads + h / group) * d, t, rk);
                for (uint32_t j = 0; j < d; j++)
                    score += rq[j] * rk[j];
                p[t] = score * g->attn_scale;
                max = p[t] > max ? p[t] : max;
            }
            for (size_t t = 0; t <= m_pos; t++)
                sum += p[t] = exp(p[t] - max);
            for (size_t t = 0; t <= m_pos; t++)
                for (uint32_t j = 0; j < d; j++)
                    o[j] += p[t] / sum * v[(t * m->n_heads + h / group) * d + j];
        }
    free(p);
    return out;
}

double embedded_nmse_max(const struct embedded *m)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    assert(kvc_model_get_info(m->model, &info) == 0);
    return strcmp(info.kernel, "reference") == 0 ? 0x1p-32 : 0x1p-12;
}

double nmse(const float *a, const double *b, size_t n)
{
    double e = 0, s = 0;

    for (size_t i = 0; i < n; i++) {
        e += (a[i] - b[i]) * (a[i] - b[i]);
        s += b[i] * b[i];
    }
    return e / s;
}
