/* Switching a model's measurements on and off, and their result: kvc_model_report(), kvc_model_get_fit().
 * watch.h measures and sends reports. */
#include <errno.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/table/table_expected.h"
#include "base/options.h"
#include "client/connection/client.h"
#include "client/model/model.h"
#include "gpu/device.h"

enum { MODEL_REPORT_PPM = 1000000 };

/* Moments travel through the arena, in one piece. */
static int model_report_check_room(const struct kvc_model *m, struct errmsg *e)
{
    const struct extent *arena = m->client->session.arena_extent;
    size_t bytes = moments_bytes(&m->geometry, false);

    if (!arena || bytes <= extent_bytes(arena))
        return 0;
    return fail(
        e, -ENOSPC,
        "moments of this model take %zu KiB, and arenas have %zu KiB: start kvcobrad with arena-bytes "
        "of at least %zuK",
        bytes >> 10, extent_bytes(arena) >> 10, (bytes >> 10) + 1);
}

static int model_report_check(const kvc_model *m, const kvc_report_options *o)
{
    struct errmsg *e = &m->client->error;

    if (m->client->gpu)
        return fail(e, -EOPNOTSUPP, "errors of a table are measured on the CPU: use a client without a GPU");
    if (!m->remote.opened && o->moments)
        return fail(e, -EOPNOTSUPP, "this model is embedded: there is no daemon to report moments to");
    if (o->share_ppm > MODEL_REPORT_PPM || o->moments > 1)
        return fail(e, -EINVAL,
                    "kvc_report_options: share_ppm %u is above 1000000, or moments %u is not 0 or 1",
                    o->share_ppm, o->moments);

    return o->share_ppm > 0 && o->moments ? model_report_check_room(m, e) : 0;
}

int kvc_model_report(kvc_model *m, const kvc_report_options *o)
{
    kvc_report_options options;
    struct kvc_client *c;
    int r;

    if (!m)
        return -EINVAL;

    c = m->client;
    r = client_enter(c);
    if (r < 0)
        return r;

    if (!o)
        return fail(&c->error, -EINVAL, "kvc_model_report: options are NULL");

    r = options_read(&options, sizeof(options), o, sizeof(options), "kvc_report_options", &c->error);
    if (r < 0)
        return r;

    r = model_report_check(m, &options);
    if (r < 0)
        return r;

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

int kvc_model_get_fit(kvc_model *m, kvc_model_fit *ret_fit)
{
    kvc_model_fit f = {.struct_bytes = sizeof(f)};
    struct table_expected expected;
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_fit)
        return fail(&m->client->error, -EINVAL, "kvc_model_get_fit: ret_fit is NULL");

    f.tokens = watch_fit(m, f.error);
    (void) table_expected_read(m->current->table->provenance, &expected);
    memcpy(f.expected_error, expected.error, sizeof(f.expected_error));
    memcpy(f.expected_saturated, expected.saturated, sizeof(f.expected_saturated));
    for (unsigned side = 0; side < 2; side++) {
        f.coded[side] = m->current->counts[side].coords;
        f.saturated[side] = m->current->counts[side].saturated;
    }

    return options_write(ret_fit, &f, sizeof(f), offsetof(kvc_model_fit, expected_saturated), "kvc_model_fit",
                         &m->client->error);
}
