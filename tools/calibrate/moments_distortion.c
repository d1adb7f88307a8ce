/* Distortion of a table on drawn vectors; see moments_distortion.h. */
#include "tools/calibrate/moments_distortion.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/moments/moments.h"
#include "alloc/solve/metric.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/moments_draw.h"
#include "tools/command/client_model.h"

struct moments_measure {
    const struct moments *m;
    const struct stats *s;
    const struct solve_options *o;
    struct geometry g;
    size_t n;                        /* tokens that are measured */
    double *root, *matrix, *scratch; /* [2d, 2d] each; @matrix: covariance, then a metric */
    float *vectors[2]; /* by side: [n + 128, heads, d] of one layer; the newest 128 stay exact */
    float *decoded;    /* [n, heads, d] */
};

/* ---- drawing ---- */

static void moments_distortion_covariance(const struct moments *m, uint32_t layer, uint32_t head,
                                          size_t width, double *ret)
{
    const double *scatter = moments_scatter(m, layer, head);
    double n = (double) moments_count(m, layer, head);

    for (size_t i = 0; i < width; i++)
        for (size_t j = 0; j <= i; j++)
            ret[i * width + j] = ret[j * width + i] = scatter[i * (i + 1) / 2 + j] / n;
}

/* x = mean + S^(1/2) z with z from N(0, I), [k ; v] of one head, into the rows of both sides. */
static int moments_distortion_draw_head(struct moments_measure *h, uint32_t layer, uint32_t head)
{
    size_t d = h->g.d, width = 2 * d;
    const double *mean = moments_mean(h->m, layer, head);
    uint64_t state = (uint64_t) layer << 32 | head;
    double trace, x[2 * GEOMETRY_DIM_MAX], z[2 * GEOMETRY_DIM_MAX];
    int r;

    moments_distortion_covariance(h->m, layer, head, width, h->matrix);
    trace = linalg_trace(width, h->matrix);
    /* a root needs a positive definite matrix; 10^-9 of the mean variance changes nothing visible */
    for (size_t i = 0; i < width; i++)
        h->matrix[i * width + i] += 1e-9 * trace / (double) width + 1e-30;
    r = linalg_roots(width, h->matrix, h->root, h->scratch);
    if (r < 0)
        return r;

    for (size_t t = 0; t < h->n + 128; t++) {
        for (size_t i = 0; i < width; i++)
            z[i] = moments_draw_normal(&state);
        linalg_product(width, 1, width, h->root, z, x);
        for (size_t i = 0; i < width; i++)
            h->vectors[i / d][(t * h->g.n_kv_heads + head) * d + i % d] = (float) (mean[i] + x[i]);
    }

    return 0;
}

static int moments_distortion_draw_layer(struct moments_measure *h, uint32_t layer)
{
    int r = 0;

    if (moments_get_options(h->m)->joint)
        return moments_draw_joint(h->m, layer, h->n + 128, h->vectors);

    for (uint32_t head = 0; head < h->g.n_kv_heads && r == 0; head++)
        r = moments_distortion_draw_head(h, layer, head);
    return r;
}

/* ---- measurement ---- */

/* Sum of e'Me over the tokens of one head and side. */
static double moments_distortion_weigh(const struct moments_measure *h, uint32_t head, unsigned side,
                                       const double *metric)
{
    size_t d = h->g.d, stride = (size_t) h->g.n_kv_heads * d;
    double sum = 0;

    for (size_t t = 64; t < h->n; t++) { /* the first chunk has the exact sinks */
        const float *x = h->vectors[side] + t * stride + head * d, *y = h->decoded + t * stride + head * d;
        double e[GEOMETRY_DIM_MAX], me[GEOMETRY_DIM_MAX];

        for (size_t i = 0; i < d; i++)
            e[i] = (double) x[i] - y[i];
        linalg_product(d, 1, d, metric, e, me);
        for (size_t i = 0; i < d; i++)
            sum += e[i] * me[i];
    }

    return sum;
}

static int moments_distortion_measure_layer(struct moments_measure *h, kvc_seq *seq, uint32_t layer,
                                            double ret_distortion[2], const kvc_client *c, struct errmsg *e)
{
    size_t d = h->g.d;

    for (unsigned side = 0; side < 2; side++) {
        double weight = h->o->depth_weights ? metric_depth_weight(h->s, layer, (enum side) side) : 1;

        if (kvc_seq_read(seq, layer, (enum kvc_side) side, 0, h->n, h->decoded) < 0)
            return fail(e, -EINVAL, "%s", kvc_last_error(c));

        for (uint32_t head = 0; head < h->g.n_kv_heads; head++) {
            int r;

            moments_distortion_covariance(h->m, layer, head, 2 * d, h->root);
            for (size_t i = 0; i < d; i++) /* the block of this side */
                memcpy(h->scratch + i * d, h->root + (side * d + i) * 2 * d + side * d, d * sizeof(double));
            r = metric_matrix(h->s, h->o->metric, metric_power(h->o->metric, h->o->temper), layer, head,
                              (enum side) side, h->scratch, h->matrix);
            if (r < 0)
                return fail(e, r, "layer %u, head %u: these statistics do not give the metric", layer, head);

            ret_distortion[side] +=
                weight * moments_distortion_weigh(h, head, side, h->matrix) / (double) (h->n - 64);
        }
    }

    return 0;
}

/* Pass 0 draws and appends all layers, pass 1 draws them again and compares with the decoded vectors: all
 * draws together do not fit into memory. */
static int moments_distortion_measure(struct moments_measure *h, kvc_client *c, kvc_seq *seq,
                                      double ret_distortion[2], struct errmsg *e)
{
    size_t n = h->n + 128;
    uint32_t *tokens = calloc(n, sizeof(*tokens));
    int r = tokens ? 0 : fail(e, -ENOMEM, "out of memory for drawn vectors");

    for (unsigned pass = 0; pass < 2 && r == 0; pass++) {
        for (uint32_t layer = 0; layer < h->g.n_layers && r == 0; layer++) {
            r = moments_distortion_draw_layer(h, layer);
            if (r < 0)
                (void) fail(e, r,
                            r == -ENOMEM ? "out of memory for drawing vectors of layer %u"
                                         : "layer %u: the covariance has no root",
                            layer);
            if (r == 0 && pass == 0 &&
                kvc_seq_append(seq, layer, KVC_F32, h->vectors[0], h->vectors[1], n) < 0)
                r = fail(e, -EINVAL, "%s", kvc_last_error(c));
            if (r == 0 && pass == 1)
                r = moments_distortion_measure_layer(h, seq, layer, ret_distortion, c, e);
        }

        if (r == 0 && pass == 0 && kvc_seq_commit(seq, tokens, n, NULL) < 0)
            r = fail(e, -EINVAL, "%s", kvc_last_error(c));
    }

    free(tokens);
    return r;
}

/* An embedded model of the table through the public API. */
static int moments_distortion_open_table(const struct moments_options *o, const void *bytes, size_t n_bytes,
                                         kvc_client *c, kvc_seq **ret, struct errmsg *e)
{
    const struct geometry *g = &o->geometry;
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry =
            {
                .struct_bytes = sizeof(kvc_geometry),
                .n_layers = g->n_layers,
                .n_heads = g->n_heads,
                .n_kv_heads = g->n_kv_heads,
                .head_dim = g->d,
                .n_rot = g->n_rot,
                .attn_scale = g->attn_scale,
                .rope_freq = g->freq,
            },
    };
    kvc_model *m;

    memcpy(id.model_digest, o->model_digest, KVC_DIGEST_BYTES);
    if (kvc_model_open_table(c, &id, bytes, n_bytes, &m) < 0 || kvc_seq_new(m, NULL, 0, ret) < 0)
        return fail(e, -EINVAL, "%s", kvc_last_error(c));

    return 0;
}

static void moments_distortion_deinit(struct moments_measure *h)
{
    free(h->root);
    free(h->matrix);
    free(h->scratch);
    free(h->vectors[0]);
    free(h->vectors[1]);
    free(h->decoded);
}

int moments_distortion(const struct moments *m, const struct stats *s, const struct solve_options *o,
                       const void *table_bytes, size_t n_bytes, size_t n_tokens, double ret_distortion[2],
                       struct errmsg *e)
{
    const struct moments_options *mo = moments_get_options(m);
    size_t matrix = 4 * (size_t) mo->geometry.d * mo->geometry.d * sizeof(double), row;
    _cleanup_(moments_distortion_deinit) struct moments_measure h = {
        .m = m, .s = s, .o = o, .g = mo->geometry, .n = (n_tokens + 127) / 64 * 64};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    double distortion[2] = {0, 0};
    kvc_seq *seq = NULL;
    int r = table_parse(table_bytes, n_bytes, &t, e);

    if (r < 0)
        return r;
    if (t->v_from == PREDICT_LAYER && mo->geometry.n_kv_heads > 1 && !mo->joint)
        return fail(
            e, -EOPNOTSUPP,
            "the table predicts values from the keys of all heads of a layer, and these moments have no "
            "covariance between heads: clients report it if it takes at most half of arena-bytes, and "
            "kvcobrad keeps it within moments-bytes; here it takes %zu MiB",
            (moments_bytes(&mo->geometry, true) >> 20) + 1);

    row = (size_t) h.g.n_kv_heads * h.g.d * sizeof(float);
    h.root = malloc(matrix);
    h.matrix = malloc(matrix);
    h.scratch = malloc(matrix);
    h.vectors[0] = malloc((h.n + 128) * row);
    h.vectors[1] = malloc((h.n + 128) * row);
    h.decoded = malloc(h.n * row);
    if (!h.root || !h.matrix || !h.scratch || !h.vectors[0] || !h.vectors[1] || !h.decoded ||
        kvc_client_new(&c) < 0)
        return fail(e, -ENOMEM, "out of memory for drawn vectors");

    r = moments_distortion_open_table(mo, table_bytes, n_bytes, c, &seq, e);
    if (r < 0)
        return r;

    r = moments_distortion_measure(&h, c, seq, distortion, e);
    if (r < 0)
        return r;

    memcpy(ret_distortion, distortion, sizeof(distortion));
    return 0;
}
