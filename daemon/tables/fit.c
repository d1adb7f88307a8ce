/* See fit.h. */
#include "daemon/tables/fit.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_expected.h"
#include "base/errmsg.h"

struct fit *fit_new(uint32_t n_layers)
{
    struct fit *f = calloc(1, sizeof(*f) + n_layers * sizeof(f->layers[0]));

    if (f)
        f->n_layers = n_layers;
    return f;
}

struct fit *fit_free(struct fit *f)
{
    free(f);
    return NULL;
}

static bool fit_is_sum(double x)
{
    return isfinite(x) && x >= 0;
}

int fit_check(const Kvcobra__Report *r, uint32_t n_layers, struct errmsg *e)
{
    if (r->tokens > FIT_TOKENS_MAX)
        return fail(e, -EINVAL, "a report of %" PRIu64 " tokens, at most %d", r->tokens, FIT_TOKENS_MAX);
    if (r->coded_k > FIT_COORDS_MAX || r->coded_v > FIT_COORDS_MAX || r->saturated_k > r->coded_k ||
        r->saturated_v > r->coded_v)
        return fail(e, -EINVAL, "a report of more saturated than coded coordinates, or of impossibly many");
    if (r->n_layers != 0 && (r->n_layers != n_layers || r->tokens == 0))
        return fail(e, -EINVAL,
                    "a report of %zu layers and %" PRIu64 " tokens: the table has %" PRIu32 " layers",
                    r->n_layers, r->tokens, n_layers);

    for (size_t i = 0; i < r->n_layers; i++) {
        const Kvcobra__LayerSums *l = r->layers[i];

        if (!fit_is_sum(l->signal_k) || !fit_is_sum(l->error_k) || !fit_is_sum(l->shadow_k) ||
            !fit_is_sum(l->signal_v) || !fit_is_sum(l->error_v) || !fit_is_sum(l->shadow_v))
            return fail(e, -EINVAL, "a report with a sum of layer %zu that is negative or not finite", i);
    }

    return 0;
}

static double fit_ratio(double error, double signal)
{
    double x = signal > 0 ? error / signal : 0;

    return x < TABLE_ERROR_MAX ? x : TABLE_ERROR_MAX;
}

void fit_add(struct fit *f, struct fit *shadow, const Kvcobra__Report *r)
{
    double tokens = (double) r->tokens;

    f->reports++;
    f->coded[0] += r->coded_k;
    f->coded[1] += r->coded_v;
    f->saturated[0] += r->saturated_k;
    f->saturated[1] += r->saturated_v;
    if (r->n_layers == 0)
        return;

    f->tokens += r->tokens;
    if (shadow) {
        shadow->reports++;
        shadow->shadow_tokens += r->tokens;
    }

    for (size_t i = 0; i < r->n_layers; i++) {
        const Kvcobra__LayerSums *l = r->layers[i];
        double k = tokens * fit_ratio(l->error_k, l->signal_k),
               v = tokens * fit_ratio(l->error_v, l->signal_v);

        f->layers[i].live[0] += k;
        f->layers[i].live[1] += v;
        if (!shadow)
            continue;

        shadow->layers[i].active[0] += k;
        shadow->layers[i].active[1] += v;
        shadow->layers[i].shadow[0] += tokens * fit_ratio(l->shadow_k, l->signal_k);
        shadow->layers[i].shadow[1] += tokens * fit_ratio(l->shadow_v, l->signal_v);
    }
}

void fit_forget_shadow(struct fit *f)
{
    if (!f)
        return;

    f->shadow_tokens = 0;
    for (uint32_t i = 0; i < f->n_layers; i++)
        for (unsigned side = 0; side < 2; side++)
            f->layers[i].active[side] = f->layers[i].shadow[side] = 0;
}

void fit_fill(const struct fit *f, Kvcobra__Fit *ret)
{
    double live[2] = {0}, active[2] = {0}, shadow[2] = {0};

    kvcobra__fit__init(ret);
    if (!f)
        return;

    for (uint32_t i = 0; i < f->n_layers; i++)
        for (unsigned side = 0; side < 2; side++) {
            live[side] += f->layers[i].live[side] / f->n_layers;
            active[side] += f->layers[i].active[side] / f->n_layers;
            shadow[side] += f->layers[i].shadow[side] / f->n_layers;
        }
    ret->reports = f->reports;
    ret->coded_k = f->coded[0];
    ret->coded_v = f->coded[1];
    ret->saturated_k = f->saturated[0];
    ret->saturated_v = f->saturated[1];
    ret->tokens = f->tokens;
    if (f->tokens > 0) {
        ret->error_k = live[0] / (double) f->tokens;
        ret->error_v = live[1] / (double) f->tokens;
    }

    ret->shadow_tokens = f->shadow_tokens;
    if (f->shadow_tokens > 0) {
        ret->active_error_k = active[0] / (double) f->shadow_tokens;
        ret->active_error_v = active[1] / (double) f->shadow_tokens;
        ret->shadow_error_k = shadow[0] / (double) f->shadow_tokens;
        ret->shadow_error_v = shadow[1] / (double) f->shadow_tokens;
    }
}

void fit_fill_layer(const struct fit *f, uint32_t layer, Kvcobra__LayerSums *ret_live,
                    Kvcobra__LayerSums *ret_shadow)
{
    const struct fit_layer *l = &f->layers[layer];
    double tokens = f->tokens > 0 ? (double) f->tokens : 1,
           both = f->shadow_tokens > 0 ? (double) f->shadow_tokens : 1;

    kvcobra__layer_sums__init(ret_live);
    kvcobra__layer_sums__init(ret_shadow);
    ret_live->signal_k = ret_live->signal_v = f->tokens > 0;
    ret_live->error_k = l->live[0] / tokens;
    ret_live->error_v = l->live[1] / tokens;
    ret_shadow->signal_k = ret_shadow->signal_v = f->shadow_tokens > 0;
    ret_shadow->error_k = l->active[0] / both;
    ret_shadow->error_v = l->active[1] / both;
    ret_shadow->shadow_k = l->shadow[0] / both;
    ret_shadow->shadow_v = l->shadow[1] / both;
}
