/*
 * Checks of a geometry, comparison, and its digest; see geometry.h. Readers of tables and statistics call
 * geometry_validate() before they allocate anything whose size depends on these numbers.
 */
#include "alloc/table/geometry.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <string.h>

#include "base/errmsg.h"

static int geometry_check_range(const char *name, uint32_t v, uint32_t min, uint32_t max, struct errmsg *e)
{
    if (v < min || v > max)
        return fail(e, -EINVAL, "geometry: %s is %u, must be %u to %u", name, v, min, max);

    return 0;
}

static int geometry_check_rope(const struct geometry *g, struct errmsg *e)
{
    if (g->n_rot > g->d || g->n_rot % 2 != 0)
        return fail(e, -EINVAL,
                    "geometry: %u rotary dimensions, must be even and at most the head dimension %u",
                    g->n_rot, g->d);

    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        /* signbit: -0.0 equals 0.0 but has another digest */
        if (!isfinite(g->freq[i]) || signbit(g->freq[i]))
            return fail(e, -EINVAL, "geometry: frequency %u is %g, must be finite and not negative", i,
                        g->freq[i]);
    return 0;
}

int geometry_validate(const struct geometry *g, struct errmsg *e)
{
    int r;

    if ((r = geometry_check_range("layers", g->n_layers, 1, GEOMETRY_LAYERS_MAX, e)) < 0 ||
        (r = geometry_check_range("query heads", g->n_heads, 1, GEOMETRY_HEADS_MAX, e)) < 0 ||
        (r = geometry_check_range("KV heads", g->n_kv_heads, 1, g->n_heads, e)) < 0 ||
        (r = geometry_check_range("head dimension", g->d, GEOMETRY_DIM_MIN, GEOMETRY_DIM_MAX, e)) < 0)
        return r;
    if (g->n_heads % g->n_kv_heads != 0)
        return fail(e, -EINVAL, "geometry: %u KV heads do not divide %u query heads", g->n_kv_heads,
                    g->n_heads);
    if (g->d % 2 != 0)
        return fail(e, -EINVAL, "geometry: head dimension %u is odd", g->d);
    if (!isfinite(g->attn_scale) || g->attn_scale <= 0)
        return fail(e, -EINVAL, "geometry: attention scale is %g, must be finite and positive",
                    g->attn_scale);

    return geometry_check_rope(g, e);
}

int geometry_from_caller(const struct geometry *shape, const double *freq, struct geometry *ret,
                         struct errmsg *e)
{
    struct geometry g = *shape;
    int r;

    if (g.n_rot / 2 > GEOMETRY_PLANES_MAX)
        return fail(e, -EINVAL, "n_rot is %u, at most %u", g.n_rot, 2 * GEOMETRY_PLANES_MAX);
    if (g.n_rot > 0 && !freq)
        return fail(e, -EINVAL, "rope_freq is NULL, but %u dimensions are rotated", g.n_rot);
    if (g.n_rot > 0)
        memcpy(g.freq, freq, g.n_rot / 2 * sizeof(*g.freq));

    r = geometry_validate(&g, e);
    if (r < 0)
        return r;

    *ret = g;
    return 0;
}

/* ---- comparison ---- */

/* An angle that is off by 2^-8 radians changes a plane's part of a score by 2^-8 of its size at most, which
 * is less than the error of codes of 4 bits. */
static const double geometry_angle_max = 0x1p-8;

/* 2^-24 for the rounding to binary32, and as much for the division and the root before it, many times. */
static const double geometry_scale_error_max = 1e-6;

static int geometry_check_equal(const char *name, uint32_t model, uint32_t table, struct errmsg *e)
{
    if (model != table)
        return fail(e, -EINVAL, "geometry: %s is %u in the model and %u in the table", name, model, table);

    return 0;
}

static int geometry_check_frequency(uint32_t plane, double model, double table, uint32_t n_positions,
                                    struct errmsg *e)
{
    double difference = fabs(model - table);

    if (difference == 0 || (n_positions > 0 && difference * n_positions < geometry_angle_max))
        return 0;
    if (n_positions == 0)
        return fail(e, -EINVAL,
                    "geometry: the RoPE frequency of plane %u is %.17g in the model and %.17g in the table; "
                    "they must be equal",
                    plane, model, table);

    return fail(e, -EINVAL,
                "geometry: the RoPE frequency of plane %u is %.17g in the model and %.17g in the table: from "
                "position %.0f on their angles differ by 2^-8 radians or more, and n_positions is %u; the "
                "RoPE settings of the model and of the table must be the same",
                plane, model, table, ceil(geometry_angle_max / difference), n_positions);
}

int geometry_check_same(const struct geometry *model, const struct geometry *table, uint32_t n_positions,
                        struct errmsg *e)
{
    double scale_error = n_positions > 0 ? geometry_scale_error_max * table->attn_scale : 0;
    int r;

    if ((r = geometry_check_equal("the number of layers", model->n_layers, table->n_layers, e)) < 0 ||
        (r = geometry_check_equal("the number of query heads", model->n_heads, table->n_heads, e)) < 0 ||
        (r = geometry_check_equal("the number of KV heads", model->n_kv_heads, table->n_kv_heads, e)) < 0 ||
        (r = geometry_check_equal("the head dimension", model->d, table->d, e)) < 0 ||
        (r = geometry_check_equal("the number of rotated dimensions", model->n_rot, table->n_rot, e)) < 0)
        return r;
    if (fabs(model->attn_scale - table->attn_scale) > scale_error)
        return fail(e, -EINVAL, "geometry: the attention scale is %.17g in the model and %.17g in the table",
                    model->attn_scale, table->attn_scale);

    for (uint32_t i = 0; r == 0 && i < model->n_rot / 2; i++)
        r = geometry_check_frequency(i, model->freq[i], table->freq[i], n_positions, e);
    return r;
}

/* ---- digest ---- */

static uint8_t *geometry_put_u32(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        *p++ = (uint8_t) (v >> 8 * i);
    return p;
}

static uint8_t *geometry_put_f64(uint8_t *p, double v)
{
    uint64_t u;

    memcpy(&u, &v, sizeof(u));
    for (unsigned i = 0; i < 8; i++)
        *p++ = (uint8_t) (u >> 8 * i);
    return p;
}

void geometry_digest(const struct geometry *g, uint8_t ret_digest[static DIGEST_BYTES])
{
    static const char name[8] = {'K', 'V', 'C', 'G', 'E', 'O', 'M', '1'};
    uint8_t buf[sizeof(name) + 5 * 4 + 8 + 8 * GEOMETRY_PLANES_MAX], *p = buf;

    memcpy(p, name, sizeof(name));
    p += sizeof(name);
    p = geometry_put_u32(p, g->n_layers);
    p = geometry_put_u32(p, g->n_heads);
    p = geometry_put_u32(p, g->n_kv_heads);
    p = geometry_put_u32(p, g->d);
    p = geometry_put_u32(p, g->n_rot);
    p = geometry_put_f64(p, g->attn_scale);
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        p = geometry_put_f64(p, g->freq[i]);
    (void) crypto_hash_sha256(ret_digest, buf, (size_t) (p - buf));
}

int geometry_complete(struct geometry *g, const void *freq, const uint8_t *digest, const char *file,
                      struct errmsg *e)
{
    uint8_t computed[DIGEST_BYTES];
    struct errmsg why = {""};

    memcpy(g->freq, freq, g->n_rot / 2 * sizeof(double));
    if (geometry_validate(g, &why) < 0)
        return fail(e, -EBADMSG, "the %s has an impossible geometry: %.300s", file, why.text);

    geometry_digest(g, computed);
    if (memcmp(computed, digest, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "the geometry of the %s does not match its digest", file);

    return 0;
}
