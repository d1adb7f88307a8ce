/* Trying tables on live traffic: shadow, canary, reported fit and moments, as an operator asks for them;
 * opting in. */
#include "client/operator/trial_api.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/model/model.h"
#include "client/connection/options.h"

enum { PPM = 1000000, TENANTS_MAX = 64 };

#define MOMENTS_BYTES_MAX ((uint64_t) 8 << 30)

int kvc_model_report(kvc_model *m, const kvc_report_options *o)
{
    kvc_report_options options;
    struct kvc_client *c;
    int r;

    if (!m)
        return -EINVAL;
    c = m->client;
    r = client_enter(c);
    if (r == 0)
        r = options_read(&options, sizeof(options), o, sizeof(options), "kvc_report_options", &c->error);
    if (r < 0)
        return r;
    if (c->gpu)
        return fail(&c->error, -EOPNOTSUPP,
                    "what a table does to vectors is measured on the CPU: use a client without a GPU");
    if (!m->remote.opened)
        return fail(&c->error, -EOPNOTSUPP, "this model is embedded: there is no daemon to tell");
    if (options.share_ppm > PPM || options.moments > 1)
        return fail(&c->error, -EINVAL,
                    "kvc_report_options: share_ppm %u is above 1000000, or moments %u is not 0 or 1",
                    options.share_ppm, options.moments);
    m->watch.report_ppm = options.share_ppm;
    m->watch.wants_moments = options.share_ppm > 0 && options.moments;
    if (!m->watch.wants_moments) {
        m->watch.moments = moments_free(m->watch.moments);
        m->watch.moments_tokens = 0;
    }
    if (options.share_ppm > 0 && watch_prepare(m) < 0) {
        m->watch.report_ppm = 0;
        m->watch.wants_moments = false;
        return fail(&c->error, -ENOMEM, "out of memory for measuring");
    }
    return 0;
}

/* ---- operator ---- */

/* 0 or 1, as the public calls return it; refusals came as the reply's errno. */
static int trial_api_outcome(kvc_client *c, Kvcobra__Outcome got, uint64_t revision, uint64_t *ret_revision)
{
    if (got != KVCOBRA__OUTCOME__OUTCOME_APPLIED && got != KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return fail(&c->error, -EPROTO, "kvcobrad's answer makes no sense: outcome %d", (int) got);
    if (ret_revision)
        *ret_revision = revision;
    return got == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
}

int kvc_table_shadow(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t ppm, uint64_t revision,
                     uint64_t *ret_revision)
{
    Kvcobra__ShadowTable body = KVCOBRA__SHADOW_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest)
        return fail(&c->error, -EINVAL, "kvc_table_shadow: digest is NULL");
    body.digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) digest};
    body.ppm = ppm;
    body.revision = revision;
    request.body_case = KVCOBRA__REQUEST__BODY_SHADOW_TABLE;
    request.shadow_table = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_SHADOW_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = trial_api_outcome(c, reply.message->shadow_table->outcome, reply.message->shadow_table->revision,
                          ret_revision);
    reply_free(&reply);
    return r;
}

static int trial_api_check_tenants(kvc_client *c, const char *const *tenants, size_t n)
{
    if (n > TENANTS_MAX || (n > 0 && !tenants))
        return fail(&c->error, -EINVAL, "%zu tenants, at most %d, or their names are NULL", n, TENANTS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!tenants[i])
            return fail(&c->error, -EINVAL, "the name of tenant %zu is NULL", i);
    return 0;
}

int kvc_table_canary(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t share,
                     const char *const *tenants, size_t n_tenants, uint64_t revision, uint64_t *ret_revision)
{
    Kvcobra__CanaryTable body = KVCOBRA__CANARY_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r == 0)
        r = trial_api_check_tenants(c, tenants, n_tenants);
    if (r < 0)
        return r;
    if (!digest)
        return fail(&c->error, -EINVAL, "kvc_table_canary: digest is NULL");
    body.digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) digest};
    body.share = share;
    body.tenants = (char **) tenants; /* packing only reads */
    body.n_tenants = n_tenants;
    body.revision = revision;
    request.body_case = KVCOBRA__REQUEST__BODY_CANARY_TABLE;
    request.canary_table = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_CANARY_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = trial_api_outcome(c, reply.message->canary_table->outcome, reply.message->canary_table->revision,
                          ret_revision);
    reply_free(&reply);
    return r;
}

static double trial_api_number(double x)
{
    return isfinite(x) ? x : 0;
}

void fit_read(const Kvcobra__Fit *from, kvc_fit *ret)
{
    *ret = (kvc_fit){0};
    if (!from)
        return;
    *ret = (kvc_fit){
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

static int trial_api_read_layers(kvc_client *c, const Kvcobra__GetFitReply *got, kvc_layer_fit **ret)
{
    kvc_layer_fit *layers;

    if (got->n_live != got->n_shadow)
        return fail(&c->error, -EPROTO, "kvcobrad's answer to GET_FIT makes no sense");
    layers = calloc(got->n_live + 1, sizeof(*layers));
    if (!layers)
        return fail(&c->error, -ENOMEM, "out of memory for %zu layers", got->n_live);
    for (size_t i = 0; i < got->n_live; i++) {
        layers[i] = (kvc_layer_fit){
            .error = {trial_api_number(got->live[i]->error_k), trial_api_number(got->live[i]->error_v)},
            .active_error = {trial_api_number(got->shadow[i]->error_k),
                             trial_api_number(got->shadow[i]->error_v)},
            .shadow_error = {trial_api_number(got->shadow[i]->shadow_k),
                             trial_api_number(got->shadow[i]->shadow_v)},
        };
    }
    *ret = layers;
    return 0;
}

int kvc_table_get_fit(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], kvc_fit *ret_fit,
                      kvc_layer_fit **ret_layers, size_t *ret_n)
{
    Kvcobra__GetFit body = KVCOBRA__GET_FIT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    kvc_layer_fit *layers = NULL;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest || !ret_fit || !ret_layers || !ret_n)
        return fail(&c->error, -EINVAL, "kvc_table_get_fit: an argument is NULL");
    body.digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) digest};
    request.body_case = KVCOBRA__REQUEST__BODY_GET_FIT;
    request.get_fit = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_GET_FIT, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = trial_api_read_layers(c, reply.message->get_fit, &layers);
    if (r == 0) {
        fit_read(reply.message->get_fit->fit, ret_fit);
        *ret_layers = layers;
        *ret_n = reply.message->get_fit->n_live;
    }
    reply_free(&reply);
    return r;
}

/* ---- bytes that come in a descriptor ---- */

static int trial_api_read_image(kvc_client *c, int fd, uint64_t bytes, uint64_t bytes_max, void **ret)
{
    _cleanup_(freep) char *image = NULL;

    if (fd < 0 || bytes == 0 || bytes > bytes_max)
        return fail(&c->error, -EPROTO, "kvcobrad sent %" PRIu64 " bytes, or no descriptor of them", bytes);
    image = malloc((size_t) bytes);
    if (!image)
        return fail(&c->error, -ENOMEM, "out of memory for %" PRIu64 " bytes", bytes);
    for (size_t have = 0; have < bytes;) {
        ssize_t n = pread(fd, image + have, (size_t) bytes - have, (off_t) have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(&c->error, n < 0 ? -errno : -EPROTO, "cannot read what kvcobrad sent");
        have += (size_t) n;
    }
    *ret = take_ptr(image);
    return 0;
}

int kvc_table_fetch(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], void **ret_bytes,
                    size_t *ret_n_bytes)
{
    Kvcobra__FetchTable body = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    _cleanup_(closep) int fd = -1;
    struct reply reply;
    uint64_t bytes;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest || !ret_bytes || !ret_n_bytes)
        return fail(&c->error, -EINVAL, "kvc_table_fetch: an argument is NULL");
    body.digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) digest};
    request.body_case = KVCOBRA__REQUEST__BODY_FETCH_TABLE;
    request.fetch_table = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_FETCH_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    bytes = reply.message->fetch_table->bytes;
    fd = reply_take_fd(&reply, 0);
    reply_free(&reply);
    r = trial_api_read_image(c, fd, bytes, TABLE_FILE_BYTES_MAX, ret_bytes);
    if (r == 0)
        *ret_n_bytes = (size_t) bytes;
    return r;
}

int kvc_moments_fetch(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES], const char *const *tenants,
                      size_t n_tenants, void **ret_bytes, size_t *ret_n_bytes, uint64_t *ret_tokens)
{
    Kvcobra__FetchMoments body = KVCOBRA__FETCH_MOMENTS__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    _cleanup_(closep) int fd = -1;
    _cleanup_(freep) void *image = NULL;
    struct reply reply;
    uint64_t bytes, tokens;
    int r = client_enter_connected(c);

    if (r == 0)
        r = trial_api_check_tenants(c, tenants, n_tenants);
    if (r < 0)
        return r;
    if (!model_digest || !ret_bytes || !ret_n_bytes)
        return fail(&c->error, -EINVAL, "kvc_moments_fetch: an argument is NULL");
    body.model_digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) model_digest};
    body.tenants = (char **) tenants; /* packing only reads */
    body.n_tenants = n_tenants;
    request.body_case = KVCOBRA__REQUEST__BODY_FETCH_MOMENTS;
    request.fetch_moments = &body;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_FETCH_MOMENTS, &reply,
                           &c->error);
    if (r < 0)
        return r;
    bytes = reply.message->fetch_moments->bytes;
    tokens = reply.message->fetch_moments->tokens;
    fd = reply_take_fd(&reply, 0);
    reply_free(&reply);
    r = trial_api_read_image(c, fd, bytes, MOMENTS_BYTES_MAX, &image);
    if (r < 0)
        return r;
    if (!moments_recognise(image, (size_t) bytes))
        return fail(&c->error, -EPROTO, "what kvcobrad sent are no moments");
    *ret_bytes = take_ptr(image);
    *ret_n_bytes = (size_t) bytes;
    if (ret_tokens)
        *ret_tokens = tokens;
    return 0;
}
