/* Trials of tables on live traffic: shadow, canary, the fit that clients reported, moments. */
#include "client/operator/trial_api.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "base/options.h"
#include "client/operator/operator_call.h"

#define MOMENTS_BYTES_MAX ((uint64_t) 8 << 30)

/* ---- shadow, canary ---- */

int kvc_table_shadow(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t ppm, uint64_t revision,
                     uint64_t *ret_revision)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ShadowTable shadow = KVCOBRA__SHADOW_TABLE__INIT;
    int r;

    r = operator_enter(c, digest != NULL, "kvc_table_shadow: digest is NULL");
    if (r < 0)
        return r;

    shadow.digest = operator_bytes(digest);
    shadow.ppm = ppm;
    shadow.revision = revision;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_SHADOW_TABLE, &shadow.base, -1, &reply);
    if (r < 0)
        return r;

    return operator_end_change(c, reply.message->shadow_table->outcome, reply.message->shadow_table->revision,
                               ret_revision);
}

int kvc_table_canary(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t share,
                     const char *const *tenants, size_t n_tenants, uint64_t revision, uint64_t *ret_revision)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__CanaryTable canary = KVCOBRA__CANARY_TABLE__INIT;
    int r;

    r = operator_enter(c, digest != NULL, "kvc_table_canary: digest is NULL");
    if (r < 0)
        return r;

    r = operator_check_tenants(c, tenants, n_tenants);
    if (r < 0)
        return r;

    canary.digest = operator_bytes(digest);
    canary.share = share;
    canary.tenants = (char **) tenants; /* packing only reads */
    canary.n_tenants = n_tenants;
    canary.revision = revision;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_CANARY_TABLE, &canary.base, -1, &reply);
    if (r < 0)
        return r;

    return operator_end_change(c, reply.message->canary_table->outcome, reply.message->canary_table->revision,
                               ret_revision);
}

/* ---- fit ---- */

static double trial_api_number(double x)
{
    return isfinite(x) ? x : 0;
}

void trial_api_read_fit(const Kvcobra__Fit *from, kvc_fit *ret)
{
    *ret = (kvc_fit){.struct_bytes = sizeof(*ret)};
    if (!from)
        return;

    *ret = (kvc_fit){
        .struct_bytes = sizeof(*ret),
        .reports = from->reports,
        .tokens = from->tokens,
        .error = {trial_api_number(from->error_k), trial_api_number(from->error_v)},
        .coded = {from->coded_k, from->coded_v},
        .saturated = {from->saturated_k, from->saturated_v},
        .shadow_tokens = from->shadow_tokens,
        .active_error = {trial_api_number(from->active_error_k), trial_api_number(from->active_error_v)},
        .shadow_error = {trial_api_number(from->shadow_error_k), trial_api_number(from->shadow_error_v)},
    };
}

static int trial_api_read_layers(kvc_client *c, const Kvcobra__GetFitReply *got, struct options_list *layers)
{
    if (got->n_live != got->n_shadow)
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: fit of %zu and of %zu layers",
                    got->n_live, got->n_shadow);
    if (options_list_reserve(layers, got->n_live) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu layers", got->n_live);

    for (size_t i = 0; i < got->n_live; i++) {
        const kvc_layer_fit layer = {
            .error = {trial_api_number(got->live[i]->error_k), trial_api_number(got->live[i]->error_v)},
            .active_error = {trial_api_number(got->shadow[i]->error_k),
                             trial_api_number(got->shadow[i]->error_v)},
            .shadow_error = {trial_api_number(got->shadow[i]->shadow_k),
                             trial_api_number(got->shadow[i]->shadow_v)},
        };

        options_list_add(layers, &layer, sizeof(layer));
    }

    return 0;
}

int kvc_table_get_fit(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], kvc_fit *ret_fit,
                      size_t item_bytes, kvc_layer_fit **ret_layers, size_t *ret_n)
{
    _cleanup_(options_list_deinit) struct options_list layers = {.item_bytes = item_bytes};
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__GetFit get = KVCOBRA__GET_FIT__INIT;
    kvc_fit fit;
    int r;

    r = operator_enter(c, digest && ret_fit && ret_layers && ret_n, "kvc_table_get_fit: an argument is NULL");
    if (r < 0)
        return r;

    r = options_check(item_bytes, sizeof(**ret_layers), "kvc_layer_fit", &c->error);
    if (r < 0)
        return r;

    get.digest = operator_bytes(digest);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_GET_FIT, &get.base, -1, &reply);
    if (r < 0)
        return r;

    r = trial_api_read_layers(c, reply.message->get_fit, &layers);
    if (r < 0)
        return r;

    trial_api_read_fit(reply.message->get_fit->fit, &fit);
    r = options_write(ret_fit, &fit, sizeof(fit), sizeof(fit), "kvc_fit", &c->error);
    if (r < 0)
        return r;

    *ret_n = layers.n;
    *ret_layers = take_ptr(layers.items);
    return 0;
}

/* ---- moments ---- */

int kvc_moments_fetch(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES], const char *const *tenants,
                      size_t n_tenants, void **ret_bytes, size_t *ret_n_bytes, uint64_t *ret_tokens)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    _cleanup_(freep) void *image = NULL;
    Kvcobra__FetchMoments fetch = KVCOBRA__FETCH_MOMENTS__INIT;
    const Kvcobra__FetchMomentsReply *got;
    int r;

    r = operator_enter(c, model_digest && ret_bytes && ret_n_bytes, "kvc_moments_fetch: an argument is NULL");
    if (r < 0)
        return r;

    r = operator_check_tenants(c, tenants, n_tenants);
    if (r < 0)
        return r;

    fetch.model_digest = operator_bytes(model_digest);
    fetch.tenants = (char **) tenants; /* packing only reads */
    fetch.n_tenants = n_tenants;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_FETCH_MOMENTS, &fetch.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->fetch_moments;
    r = operator_read_image(c, &reply, got->bytes, MOMENTS_BYTES_MAX, &image);
    if (r < 0)
        return r;

    if (!moments_recognise(image, (size_t) got->bytes))
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: not a moments file");

    *ret_bytes = take_ptr(image);
    *ret_n_bytes = (size_t) got->bytes;
    if (ret_tokens)
        *ret_tokens = got->tokens;
    return 0;
}
