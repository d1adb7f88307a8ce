/*
 * The rotary frequencies of a model, scaling applied.
 *
 * Plane i of n_rot/2 rotates by theta_i = base^(-2i/n_rot) radians per position. Scaling changes theta_i:
 *
 *     linear   theta_i / factor
 *     YaRN     theta_i for planes with many rotations within the original context, theta_i / factor for
 *              planes with few, a ramp between; scores grow by (attn_factor (1 + 0.1 ln factor))^2
 *     Llama 3  theta_i / rope_freqs.weight[i]; the converter of the file computed these factors
 *
 * YaRN: Peng et al., equations 17 to 23, with the ramp's ends rounded outwards as in its reference code.
 */
#include "tools/engine/network.h"

#include "base/errmsg.h"
#include "tools/engine/gguf.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN };

struct rope_scaling {
    enum scaling kind;
    double factor;
    uint32_t original_context;
    double extrapolation, attn_factor, beta_fast, beta_slow; /* YaRN */
};

static int network_rope_read_scaling_kind(const struct network *m, const struct gguf *g,
                                          enum scaling *ret_kind, struct errmsg *e)
{
    static const char *const names[] = {"none", "linear", "yarn"};
    char key[NETWORK_KEY_BYTES];
    const char *name;
    size_t bytes;
    int r;

    if (!gguf_has(g, network_key(m, "rope.scaling.type", key))) {
        /* older files have only the factor, of linear scaling */
        *ret_kind = gguf_has(g, network_key(m, "rope.scale_linear", key)) ||
                            gguf_has(g, network_key(m, "rope.scaling.factor", key))
                        ? SCALING_LINEAR
                        : SCALING_NONE;
        return 0;
    }

    r = gguf_get_string(g, network_key(m, "rope.scaling.type", key), &name, &bytes, e);
    if (r < 0)
        return r;

    for (unsigned i = 0; i < 3; i++) {
        if (strlen(names[i]) == bytes && memcmp(names[i], name, bytes) == 0) {
            *ret_kind = (enum scaling) i;
            return 0;
        }
    }

    return fail(e, -EOPNOTSUPP, "%s: RoPE scaling of kind \"%.*s\"; supported are none, linear and yarn",
                gguf_label(g), bytes < 40 ? (int) bytes : 40, name);
}

static int network_rope_read_yarn(const struct network *m, const struct gguf *g, struct rope_scaling *s,
                                  struct errmsg *e)
{
    char key[NETWORK_KEY_BYTES];
    double multiplier = 0.0;
    int r;

    r = gguf_get_u32_or(g, network_key(m, "rope.scaling.original_context_length", key), m->n_context,
                        &s->original_context, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.yarn_log_multiplier", key), 0.0, &multiplier, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.attn_factor", key), 1.0, &s->attn_factor, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.yarn_attn_factor", key), s->attn_factor,
                        &s->attn_factor, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.yarn_ext_factor", key), 1.0, &s->extrapolation, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.yarn_beta_fast", key), 32.0, &s->beta_fast, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.yarn_beta_slow", key), 1.0, &s->beta_slow, e);
    if (r < 0)
        return r;
    if (multiplier != 0.0)
        return fail(e, -EOPNOTSUPP, "%s: sets rope.scaling.yarn_log_multiplier, which is not supported",
                    gguf_label(g));
    if (s->original_context == 0 || !(s->attn_factor > 0.0) || !(s->beta_slow > 0.0) ||
        !(s->beta_fast >= s->beta_slow) || !(s->extrapolation >= 0.0 && s->extrapolation <= 1.0))
        return fail(e, -EBADMSG, "%s: its YaRN parameters contradict each other", gguf_label(g));

    return 0;
}

static int network_rope_read_scaling(const struct network *m, const struct gguf *g, struct rope_scaling *s,
                                     struct errmsg *e)
{
    char key[NETWORK_KEY_BYTES];
    double old = 1.0;
    int r;

    r = network_rope_read_scaling_kind(m, g, &s->kind, e);
    if (r < 0)
        return r;

    s->factor = 1.0;
    if (s->kind == SCALING_NONE)
        return 0;

    r = gguf_get_f64_or(g, network_key(m, "rope.scale_linear", key), 1.0, &old, e);
    if (r < 0)
        return r;

    r = gguf_get_f64_or(g, network_key(m, "rope.scaling.factor", key), old, &s->factor, e);
    if (r < 0)
        return r;
    if (s->factor == 0.0) /* some converters write 0 for "none" */
        s->factor = 1.0;
    if (!(s->factor >= 1e-3 && s->factor <= 1e6))
        return fail(e, -EBADMSG, "%s: %s is %g, which is no valid factor", gguf_label(g), key, s->factor);

    return s->kind == SCALING_YARN ? network_rope_read_yarn(m, g, s, e) : 0;
}

/* The plane with @rotations rotations within the original context, as a real number. */
static double network_rope_plane_of(const struct rope_scaling *s, uint32_t n_rot, double base,
                                    double rotations)
{
    return n_rot * log(s->original_context / (rotations * 2.0 * M_PI)) / (2.0 * log(base));
}

static void network_rope_apply_scaling(struct network *m, const struct rope_scaling *s, double base)
{
    struct geometry *geo = &m->geometry;
    uint32_t n = geo->n_rot / 2;
    double first = 0.0, last = 0.0, magnitude;

    if (s->kind != SCALING_YARN) {
        for (uint32_t i = 0; i < n; i++)
            geo->freq[i] /= s->factor;
        return;
    }

    first = fmax(0.0, floor(network_rope_plane_of(s, geo->n_rot, base, s->beta_fast)));
    last = fmin(geo->n_rot - 1.0, ceil(network_rope_plane_of(s, geo->n_rot, base, s->beta_slow)));
    for (uint32_t i = 0; i < n; i++) {
        double ramp = fmin(1.0, fmax(0.0, (i - first) / fmax(0.001, last - first)));
        double keep = (1.0 - ramp) * s->extrapolation;

        geo->freq[i] = geo->freq[i] * keep + geo->freq[i] / s->factor * (1.0 - keep);
    }

    magnitude = s->attn_factor;
    if (s->extrapolation != 0.0)
        magnitude *= 1.0 + 0.1 * log(s->factor);
    /* The magnitude is for rotated dimensions only. It is part of the scale of all dimensions, so the query's
     * other dimensions are divided by it. */
    geo->attn_scale *= magnitude * magnitude;
    m->q_unrotated_scale = (float) (1.0 / (magnitude * magnitude));
}

static int network_rope_apply_factors(struct network *m, const struct gguf *g, struct errmsg *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, "rope_freqs.weight");
    uint32_t n = m->geometry.n_rot / 2;
    float factors[GEOMETRY_PLANES_MAX];

    if (!t)
        return 0;
    if (t->type != QUANT_F32 || t->n_dims != 1 || t->dims[0] != n)
        return fail(e, -EBADMSG, "%s: tensor \"rope_freqs.weight\" is not a list of %u F32 numbers",
                    gguf_label(g), n);

    memcpy(factors, t->data, n * sizeof(*factors));
    for (uint32_t i = 0; i < n; i++) {
        if (!(factors[i] >= 1e-6f && factors[i] <= 1e6f))
            return fail(e, -EBADMSG, "%s: factor %u of tensor \"rope_freqs.weight\" is not valid",
                        gguf_label(g), i);

        m->geometry.freq[i] /= (double) factors[i];
    }

    return 0;
}

int network_read_rope(struct network *m, const struct gguf *g, struct errmsg *e)
{
    struct geometry *geo = &m->geometry;
    struct rope_scaling s = {.kind = SCALING_NONE};
    char key[NETWORK_KEY_BYTES];
    double base;
    int r;

    m->q_unrotated_scale = 1.0f;
    r = gguf_get_f64_or(g, network_key(m, "rope.freq_base", key), 10000.0, &base, e);
    if (r < 0)
        return r;
    if (!(base > 1.0 && base < 1e15))
        return fail(e, -EBADMSG, "%s: %s is %g, which is no valid base", gguf_label(g), key, base);

    r = gguf_get_u32_or(g, network_key(m, "rope.dimension_count", key), geo->d, &geo->n_rot, e);
    if (r < 0)
        return r;
    if (geo->n_rot > geo->d || geo->n_rot % 2 != 0)
        return fail(e, -EBADMSG, "%s: %s is %u, not even or above the head dimension %u", gguf_label(g), key,
                    geo->n_rot, geo->d);

    r = network_rope_read_scaling(m, g, &s, e);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < geo->n_rot / 2; i++)
        geo->freq[i] = pow(base, -2.0 * i / geo->n_rot);
    r = network_rope_apply_factors(m, g, e);
    if (r < 0)
        return r;

    network_rope_apply_scaling(m, &s, base);
    return geometry_validate(geo, e);
}
