/* The moments file; alloc/README.md draws its bytes. The header determines every offset;
 * nothing is stored twice. See moments.h. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments_format.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian, and so is memory here");

/* Offsets of the sections. No overflow: geometry_validate() bounds every factor. */
struct layout {
    size_t freq, count, mean, scatter, joint, end, digest, file_bytes;
};

static struct layout moments_file_lay_out(const struct geometry *g, bool joint)
{
    size_t heads = (size_t) g->n_layers * g->n_kv_heads;
    struct layout l = {.freq = sizeof(struct moments_header)};

    l.count = l.freq + g->n_rot / 2 * sizeof(double);
    l.mean = l.count + heads * sizeof(uint64_t);
    l.scatter = l.mean + heads * 2 * g->d * sizeof(double);
    l.joint = l.scatter + heads * moments_triangle(g) * sizeof(double);
    l.end = l.joint + (joint ? g->n_layers * moments_joint_numbers(g) * sizeof(double) : 0);
    l.digest = (l.end + MOMENTS_ALIGN - 1) & ~(size_t) (MOMENTS_ALIGN - 1);
    l.file_bytes = l.digest + DIGEST_BYTES;
    return l;
}

size_t moments_bytes(const struct geometry *g, bool joint)
{
    return moments_file_lay_out(g, joint && g->n_kv_heads > 1).file_bytes;
}

void moments_write(const struct moments *m, void *dst)
{
    const struct geometry *g = &m->o.geometry;
    struct layout l = moments_file_lay_out(g, m->o.joint);
    uint8_t *to = dst;
    struct moments_header h = {
        .magic = MOMENTS_MAGIC,
        .version = m->o.joint ? MOMENTS_VERSION_JOINT : MOMENTS_VERSION,
        .file_bytes = l.file_bytes,
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .d = g->d,
        .n_rot = g->n_rot,
        .key_order = MOMENTS_KEY_ORDER_HALF_SPLIT,
        .attn_scale = g->attn_scale,
        .n_sink = m->o.n_sink,
    };

    memcpy(h.model_digest, m->o.model_digest, DIGEST_BYTES);
    geometry_digest(g, h.geometry_digest);
    memcpy(h.model_name, m->o.model_name, strlen(m->o.model_name) + 1);
    memcpy(to, &h, sizeof(h));
    memcpy(to + l.freq, g->freq, l.count - l.freq);
    memcpy(to + l.count, m->count, l.mean - l.count);
    memcpy(to + l.mean, m->mean, l.scatter - l.mean);
    memcpy(to + l.scatter, m->scatter, l.joint - l.scatter);
    if (m->o.joint)
        memcpy(to + l.joint, m->joint, l.end - l.joint);
    memset(to + l.end, 0, l.digest - l.end);
    (void) crypto_hash_sha256(to + l.digest, to, l.digest);
}

int moments_digest(const struct moments *m, uint8_t ret_digest[static DIGEST_BYTES])
{
    size_t n = moments_bytes(&m->o.geometry, m->o.joint);
    _cleanup_(freep) uint8_t *image = malloc(n);

    if (!image)
        return -ENOMEM;

    moments_write(m, image);
    memcpy(ret_digest, image + n - DIGEST_BYTES, DIGEST_BYTES);
    return 0;
}

int moments_save(const struct moments *m, const char *path, struct errmsg *e)
{
    size_t n = moments_bytes(&m->o.geometry, m->o.joint);
    _cleanup_(freep) void *image = malloc(n);

    if (!image)
        return fail(e, -ENOMEM, "out of memory: the moments file takes %zu MiB", n >> 20);

    moments_write(m, image);
    return atomic_file_write(path, image, n, e);
}

/* ---- reading ---- */

bool moments_recognise(const void *bytes, size_t n_bytes)
{
    return n_bytes >= strlen(MOMENTS_MAGIC) && memcmp(bytes, MOMENTS_MAGIC, strlen(MOMENTS_MAGIC)) == 0;
}

static int moments_file_check_header(const struct moments_header *h, size_t n_bytes, struct errmsg *e)
{
    size_t name = strnlen(h->model_name, sizeof(h->model_name));

    if (h->version != MOMENTS_VERSION && h->version != MOMENTS_VERSION_JOINT)
        return fail(e, -EBADMSG, "the moments file has version %u; this program reads versions %u and %u",
                    h->version, MOMENTS_VERSION, MOMENTS_VERSION_JOINT);
    if (h->key_order != MOMENTS_KEY_ORDER_HALF_SPLIT)
        return fail(e, -EBADMSG, "moments of keys in order %u; only half-split (%u) is known", h->key_order,
                    MOMENTS_KEY_ORDER_HALF_SPLIT);
    if (h->zero != 0 || h->zero2 != 0)
        return fail(e, -EBADMSG, "the moments file has bytes other than zero in reserved fields");

    for (size_t i = name; i < sizeof(h->model_name); i++)
        if (h->model_name[i] != '\0')
            return fail(e, -EBADMSG, "the moments file has bytes after the model's name");
    if (name == sizeof(h->model_name))
        return fail(e, -EBADMSG, "the model name in the moments file is not terminated");
    if (h->file_bytes != n_bytes)
        return fail(e, -EBADMSG,
                    "the moments file has %zu bytes, its header says %llu: it is truncated or has more",
                    n_bytes, (unsigned long long) h->file_bytes);

    return 0;
}

static int moments_file_read_options(const struct moments_header *h, const uint8_t *bytes, size_t n_bytes,
                                     struct moments_options *ret, struct errmsg *e)
{
    struct moments_options o = {
        .geometry = {.n_layers = h->n_layers,
                     .n_heads = h->n_heads,
                     .n_kv_heads = h->n_kv_heads,
                     .d = h->d,
                     .n_rot = h->n_rot,
                     .attn_scale = h->attn_scale},
        .n_sink = h->n_sink,
        .joint = h->version == MOMENTS_VERSION_JOINT,
    };
    int r;

    if (h->n_rot > GEOMETRY_DIM_MAX || h->n_rot / 2 * sizeof(double) > n_bytes - sizeof(*h))
        return fail(e, -EBADMSG, "the moments file has an impossible geometry");

    r = geometry_complete(&o.geometry, bytes + sizeof(*h), h->geometry_digest, "moments file", e);
    if (r != 0)
        return r;

    memcpy(o.model_digest, h->model_digest, DIGEST_BYTES);
    memcpy(o.model_name, h->model_name, sizeof(o.model_name));
    if (o.n_sink > TABLE_SINKS_MAX)
        return fail(e, -EBADMSG, "the moments file has %u sinks; at most %u are possible", o.n_sink,
                    TABLE_SINKS_MAX);
    if (o.joint && o.geometry.n_kv_heads == 1)
        return fail(e, -EBADMSG, "the moments file is joint, but its model has one KV head");
    if (moments_bytes(&o.geometry, o.joint) != n_bytes)
        return fail(e, -EBADMSG, "the moments file has %zu bytes, but its geometry needs %zu", n_bytes,
                    moments_bytes(&o.geometry, o.joint));

    *ret = o;
    return 0;
}

/*
 * Whether tokens can have these moments of one (layer, head): the Cauchy-Schwarz inequality, with leeway for
 * the rounding of long sums. Numbers of tokens are binary32, so a mean is at most FLT_MAX and a variance at
 * most FLT_MAX^2. Within these bounds no sum of MOMENTS_COUNT_MAX tokens overflows in moments_merge().
 */
static bool moments_file_possible(uint64_t count, size_t width, const double *mean, const double *scatter)
{
    double deviation[2 * GEOMETRY_DIM_MAX];

    if (count > MOMENTS_COUNT_MAX)
        return false;

    for (size_t i = 0; i < width; i++) {
        const double *row = scatter + i * (i + 1) / 2;

        if (!isfinite(mean[i]) || !isfinite(row[i]) || row[i] < 0 || (count == 0 && mean[i] != 0) ||
            (count <= 1 && row[i] != 0))
            return false;
        if (fabs(mean[i]) > (double) FLT_MAX * (1 + 1e-6) ||
            row[i] > (double) count * (double) FLT_MAX * (double) FLT_MAX * (1 + 1e-6))
            return false;

        deviation[i] = sqrt(row[i]);
        for (size_t j = 0; j < i; j++)
            if (!(fabs(row[j]) <= deviation[i] * deviation[j] * (1 + 1e-6) + DBL_MIN))
                return false;
    }

    return true;
}

static int moments_file_read_sums(struct moments *m, const uint8_t *bytes, struct errmsg *e)
{
    const struct geometry *g = &m->o.geometry;
    struct layout l = moments_file_lay_out(g, m->o.joint);
    size_t width = 2 * (size_t) g->d;

    memcpy(m->count, bytes + l.count, l.mean - l.count);
    memcpy(m->mean, bytes + l.mean, l.scatter - l.mean);
    memcpy(m->scatter, bytes + l.scatter, l.joint - l.scatter);
    if (m->o.joint)
        memcpy(m->joint, bytes + l.joint, l.end - l.joint);
    for (size_t i = l.end; i < l.digest; i++)
        if (bytes[i] != 0)
            return fail(e, -EBADMSG, "the moments file has bytes after its last section");
    for (size_t h = 0; h < (size_t) g->n_layers * g->n_kv_heads; h++)
        if (!moments_file_possible(m->count[h], width, m->mean + h * width,
                                   m->scatter + h * moments_triangle(g)))
            return fail(e, -EBADMSG, "moments file: no tokens have the moments of layer %zu, head %zu",
                        h / g->n_kv_heads, h % g->n_kv_heads);
    for (uint32_t layer = 0; m->o.joint && layer < g->n_layers; layer++) {
        int r = moments_joint_check(m, layer, e);

        if (r < 0)
            return r;
    }

    return 0;
}

int moments_parse(const void *bytes, size_t n_bytes, struct moments **ret_moments, struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *m = NULL;
    struct moments_options o;
    struct moments_header h;
    uint8_t digest[DIGEST_BYTES];
    int r;

    if (!moments_recognise(bytes, n_bytes))
        return fail(e, -EBADMSG, "not a moments file but %s", file_kind_of(bytes, n_bytes));
    if (n_bytes < sizeof(h) + DIGEST_BYTES || n_bytes > MOMENTS_FILE_BYTES_MAX)
        return fail(e, -EBADMSG, "not a moments file: no such file has %zu bytes", n_bytes);

    memcpy(&h, bytes, sizeof(h));
    r = moments_file_check_header(&h, n_bytes, e);
    if (r < 0)
        return r;

    (void) crypto_hash_sha256(digest, bytes, n_bytes - DIGEST_BYTES);
    if (memcmp(digest, (const uint8_t *) bytes + n_bytes - DIGEST_BYTES, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "the moments file is damaged: its SHA-256 does not match");

    r = moments_file_read_options(&h, bytes, n_bytes, &o, e);
    if (r < 0)
        return r;

    r = moments_new(&o, &m, e);
    if (r < 0)
        return r;

    r = moments_file_read_sums(m, bytes, e);
    if (r < 0)
        return r;

    *ret_moments = take_ptr(m);
    return 0;
}
