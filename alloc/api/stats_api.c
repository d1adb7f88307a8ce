/* Statistics in the public header: creating, merging, files, description. stats_api_add.c adds windows. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/moments/moments.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_moments.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/options.h"

#define FILE_BYTES_MAX ((size_t) 64 << 30)

/* Checks and copies a geometry of the caller. Return: 0; -EINVAL with a sentence. */
static int stats_api_read_geometry(const kvc_geometry *from, struct geometry *ret, struct errmsg *e)
{
    struct geometry g;

    if (from->struct_bytes != sizeof(*from))
        return fail(e, -EINVAL, "geometry.struct_bytes is %zu, not sizeof(kvc_geometry)", from->struct_bytes);

    g = (struct geometry){
        .n_layers = from->n_layers,
        .n_heads = from->n_heads,
        .n_kv_heads = from->n_kv_heads,
        .d = from->head_dim,
        .n_rot = from->n_rot,
        .attn_scale = from->attn_scale,
    };

    return geometry_from_caller(&g, from->rope_freq, ret, e);
}

int alloc_api_adopt_stats(kvc_alloc *a, struct stats *sums, kvc_stats **ret_stats)
{
    kvc_stats *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(&a->error, -ENOMEM, "out of memory for statistics");

    *s = (kvc_stats){.alloc = a, .next = a->stats, .sums = sums};
    a->stats = s;
    *ret_stats = s;
    return 0;
}

kvc_stats *kvc_stats_free(kvc_stats *s)
{
    if (!s)
        return NULL;

    for (kvc_stats **at = &s->alloc->stats; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    (void) stats_free(s->sums);
    stats_input_deinit(&s->input);
    free(s);
    return NULL;
}

/* ---- options ---- */

static int stats_api_read_options(const kvc_stats_options *from, struct stats_options *ret, struct errmsg *e)
{
    kvc_stats_options o;
    struct geometry g;
    int r = options_read(&o, sizeof(o), from, sizeof(o), "kvc_stats_options", e);

    if (r < 0)
        return r;

    r = stats_api_read_geometry(&o.geometry, &g, e);
    if (r < 0)
        return r;
    if (o.metrics & ~(KVC_WITH_OUTPUT | KVC_WITH_ATTENTION))
        return fail(e, -EINVAL, "metrics is 0x%x: KVC_WITH_OUTPUT and KVC_WITH_ATTENTION are possible",
                    o.metrics);
    if (o.model_name && strlen(o.model_name) >= sizeof(ret->model_name))
        return fail(e, -EINVAL, "model_name has %zu bytes, at most %zu are possible", strlen(o.model_name),
                    sizeof(ret->model_name) - 1);

    stats_options_default(ret, &g);
    memcpy(ret->model_digest, o.model_digest, sizeof(ret->model_digest));
    if (o.model_name)
        (void) snprintf(ret->model_name, sizeof(ret->model_name), "%s", o.model_name);
    ret->n_sink = o.n_sink;
    if (o.n_samples)
        ret->n_samples = o.n_samples;
    if (o.key_stride)
        ret->key_stride = o.key_stride;
    ret->want_attention = o.metrics & KVC_WITH_ATTENTION;
    ret->want_output = o.metrics & KVC_WITH_OUTPUT;
    ret->seed = o.seed;
    return stats_options_check(ret, e);
}

int kvc_stats_get_estimate(kvc_alloc *a, const kvc_stats_options *o, size_t window,
                           kvc_stats_estimate *ret_estimate)
{
    kvc_stats_estimate estimate = {.struct_bytes = sizeof(estimate)};
    struct stats_options options;
    int r;

    if (!a)
        return -EINVAL;
    alloc_api_enter(a);
    if (!o || !ret_estimate)
        return fail(&a->error, -EINVAL, "kvc_stats_get_estimate: o or ret_estimate is NULL");
    if (window == 0 || window > KVC_WINDOW_TOKENS_MAX)
        return fail(&a->error, -EINVAL, "a window of %zu tokens is not in 1..%d", window,
                    KVC_WINDOW_TOKENS_MAX);

    r = stats_api_read_options(o, &options, &a->error);
    if (r < 0)
        return r;

    estimate.stats_bytes = stats_bytes(&options);
    estimate.gradients_bytes = stats_fisher_bytes(&options);
    estimate.window_bytes = stats_window_bytes(&options, window);
    estimate.n_samples = options.n_samples;
    return options_write(ret_estimate, &estimate, sizeof(estimate), sizeof(estimate), "kvc_stats_estimate",
                         &a->error);
}

int kvc_stats_new(kvc_alloc *a, const kvc_stats_options *o, kvc_stats **ret_stats)
{
    _cleanup_(stats_freep) struct stats *sums = NULL;
    struct stats_options options;
    int r;

    if (!a)
        return -EINVAL;
    alloc_api_enter(a);
    if (!o || !ret_stats)
        return fail(&a->error, -EINVAL, "kvc_stats_new: o or ret_stats is NULL");

    r = stats_api_read_options(o, &options, &a->error);
    if (r == 0)
        r = stats_new(&options, &sums, &a->error);
    if (r == 0)
        r = alloc_api_adopt_stats(a, sums, ret_stats);
    if (r < 0)
        return r;

    sums = NULL; /* the handle owns them */
    return 0;
}

/* ---- merging and files ---- */

int kvc_stats_merge(kvc_stats *s, const kvc_stats *other)
{
    struct errmsg *e;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!other)
        return fail(e, -EINVAL, "kvc_stats_merge: other is NULL");

    return stats_merge(s->sums, other->sums, e);
}

int kvc_stats_save(kvc_stats *s, const char *path)
{
    struct errmsg *e;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!path)
        return fail(e, -EINVAL, "kvc_stats_save: path is NULL");

    return stats_save(s->sums, path, e);
}

/* Statistics or moments from the bytes of a file. */
static int stats_api_parse(const void *bytes, size_t n, const kvc_stats *metric_from, struct stats **ret,
                           struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *moments = NULL;
    int r;

    if (!moments_recognise(bytes, n)) {
        if (metric_from)
            return fail(e, -EINVAL,
                        "this file holds statistics, which have metrics of their own: those of another "
                        "file are for moments");
        return stats_parse(bytes, n, ret, e);
    }

    r = moments_parse(bytes, n, &moments, e);
    if (r < 0)
        return r;

    return stats_from_moments(moments, metric_from ? metric_from->sums : NULL, ret, e);
}

int kvc_stats_load(kvc_alloc *a, const char *path, const kvc_stats *metric_from, kvc_stats **ret_stats)
{
    _cleanup_(stats_freep) struct stats *sums = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg why = {""};
    size_t n;
    int r;

    if (!a)
        return -EINVAL;
    alloc_api_enter(a);
    if (!path || !ret_stats)
        return fail(&a->error, -EINVAL, "kvc_stats_load: path or ret_stats is NULL");

    r = atomic_file_read(path, FILE_BYTES_MAX, &bytes, &n, &a->error);
    if (r < 0)
        return r;

    r = stats_api_parse(bytes, n, metric_from, &sums, &why);
    if (r < 0)
        return fail(&a->error, r, "%.120s: %.240s", path, why.text);

    r = alloc_api_adopt_stats(a, sums, ret_stats);
    if (r < 0)
        return r;

    sums = NULL; /* the handle owns them */
    return 0;
}

/* ---- description ---- */

static uint32_t stats_api_metrics(const struct stats_options *o)
{
    uint32_t metrics = 0;

    if (o->want_output)
        metrics |= KVC_WITH_OUTPUT;
    if (o->want_attention)
        metrics |= KVC_WITH_ATTENTION;
    return metrics;
}

int kvc_stats_get_info(kvc_stats *s, kvc_stats_info *ret_info)
{
    const struct stats_options *o;
    const struct stats_source *sources;
    kvc_stats_info info;
    struct errmsg *e;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!ret_info)
        return fail(e, -EINVAL, "kvc_stats_get_info: ret_info is NULL");

    o = stats_get_options(s->sums);
    info = (kvc_stats_info){
        .struct_bytes = sizeof(info),
        .tokens = stats_tokens(s->sums),
        .samples = stats_samples(s->sums),
        .sources = stats_sources(s->sums, &sources),
        .file_bytes = stats_is_moments(s->sums) ? 0 : stats_file_bytes(s->sums),
        .metrics = stats_api_metrics(o),
        .gradients = stats_has_fisher(s->sums),
        .moments = stats_is_moments(s->sums),
        .depth = stats_has_depth(s->sums),
        .n_sink = o->n_sink,
        .n_samples = o->n_samples,
        .key_stride = o->key_stride,
        .n_layers = o->geometry.n_layers,
        .n_heads = o->geometry.n_heads,
        .n_kv_heads = o->geometry.n_kv_heads,
        .head_dim = o->geometry.d,
        .seed = o->seed,
        .model_name = o->model_name,
        .kl_per_distortion = stats_kl_per_distortion(s->sums),
    };
    memcpy(info.model_digest, o->model_digest, sizeof(info.model_digest));
    return options_write(ret_info, &info, sizeof(info), sizeof(info), "kvc_stats_info", e);
}

_Static_assert(KVC_SOURCE_TEXT == (int) SOURCE_TEXT && KVC_SOURCE_LINES == (int) SOURCE_LINES &&
                   KVC_SOURCE_MODEL == (int) SOURCE_MODEL,
               "the same numbers");

int kvc_stats_get_source(kvc_stats *s, size_t i, kvc_stats_source *ret_source)
{
    const struct stats_source *sources;
    kvc_stats_source source;
    struct errmsg *e;
    size_t n;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    n = stats_sources(s->sums, &sources);
    if (!ret_source || i >= n)
        return fail(e, -EINVAL, "kvc_stats_get_source: ret_source is NULL, or text %zu of %zu was asked for",
                    i, n);

    source = (kvc_stats_source){
        .struct_bytes = sizeof(source),
        .bytes = sources[i].bytes,
        .tokens = sources[i].tokens,
        .windows = sources[i].windows,
        .window = sources[i].window,
        .kind = sources[i].kind,
    };
    memcpy(source.digest, sources[i].digest, sizeof(source.digest));
    return options_write(ret_source, &source, sizeof(source), sizeof(source), "kvc_stats_source", e);
}

int kvc_stats_set_kl_per_distortion(kvc_stats *s, double x)
{
    return s ? stats_set_kl_per_distortion(s->sums, x, alloc_api_enter(s->alloc)) : -EINVAL;
}

int kvc_stats_add_source(kvc_stats *s, const kvc_stats_source *x)
{
    struct stats_source source;
    kvc_stats_source from;
    struct errmsg *e;
    int r;

    if (!s)
        return -EINVAL;

    e = alloc_api_enter(s->alloc);
    if (!x)
        return fail(e, -EINVAL, "kvc_stats_add_source: x is NULL");

    r = options_read(&from, sizeof(from), x, sizeof(from), "kvc_stats_source", e);
    if (r < 0)
        return r;

    source = (struct stats_source){
        .bytes = from.bytes,
        .tokens = from.tokens,
        .windows = from.windows,
        .window = from.window,
        .kind = from.kind,
    };
    memcpy(source.digest, from.digest, sizeof(source.digest));
    return stats_add_source(s->sums, &source, e);
}
