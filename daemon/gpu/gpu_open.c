/* See gpu_open.h. */
#include "daemon/gpu/gpu_open.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/gpu/mover.h"
#include "daemon/loop/log.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"

enum {
    OPEN_MS = 60000, /* the driver's first context on a machine with eight GPUs takes more than ten seconds */
    PASSING_MS = 4000, /* clients get EAGAIN instead of ENODEV during pauses up to this length */
};

__attribute__((format(printf, 2, 3))) static void gpu_open_unavailable(struct device *d, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(d->why.text, sizeof(d->why.text), fmt, ap);
    va_end(ap);
    d->pause_ms = d->pause_ms == 0 ? GPU_PAUSE_MS_MIN : d->pause_ms * 2;
    if (d->pause_ms > GPU_PAUSE_MS_MAX)
        d->pause_ms = GPU_PAUSE_MS_MAX;
    d->retry_ms = ev_now_ms(d->gpus->ev) + d->pause_ms;
    d->state = DEVICE_UNAVAILABLE;
    d->is_passing = false;
    log_event(LOG_ERR, "gpu-unavailable", "device=%s uuid=%s message=\"%s\"", d->name,
              d->uuid[0] ? d->uuid : GPU_UUID_FIRST, d->why.text);
}

/*
 * Called when the mover ended. A new mover may open the device, so clients get EAGAIN. After several movers
 * in a row they get ENODEV.
 */
static void gpu_open_mover_ended(struct device *d, const char *why)
{
    bool is_passing = d->pause_ms <= PASSING_MS;

    gpu_open_unavailable(d, "%.300s", why);
    d->is_passing = is_passing;
}

/* Whether the configured sizes fit the device; if not, the device becomes UNAVAILABLE. */
static bool gpu_open_fits(struct device *d, const Kvcobra__MoverOpened *m)
{
    if (m->granularity == 0 || d->extent_bytes % m->granularity != 0)
        gpu_open_unavailable(d,
                             "extents of %" PRIu64 " bytes are not a multiple of %" PRIu64
                             " bytes, the unit in which %.60s shares memory: change --gpu-extent-bytes",
                             d->extent_bytes, m->granularity, m->name);
    else if (d->store.pool.pool_bytes > m->bytes)
        gpu_open_unavailable(d,
                             "a pool of %" PRIu64 " bytes does not fit the %" PRIu64
                             " bytes of %.60s: lower --gpu-pool-bytes",
                             d->store.pool.pool_bytes, m->bytes, m->name);
    else
        return true;
    return false;
}

static void gpu_open_begin(struct device *d);

static const char *gpu_open_listing(const Kvcobra__MoverOpened *m)
{
    if (m->is_shared)
        return "behind-mps";
    return m->lists_processes ? "listed" : "unlisted";
}

static void gpu_open_on_opened(void *ctx, struct mover_reply *reply)
{
    struct device *d = ctx;
    const Kvcobra__MoverOpened *m;

    if (reply->err == -ECANCELED)
        return;
    if (reply->err == -ECONNRESET) {
        gpu_open_mover_ended(d, reply->message);
        return;
    }

    if (reply->err < 0) {
        gpu_open_unavailable(d, "%.300s", reply->message);
        return;
    }

    m = reply->body->open;
    if (!gpu_open_fits(d, m))
        return;
    if (d->uuid[0] == '\0' && gpu_uuid_read(m->uuid, d->uuid) == 0) {
        /* from now on, "first" is this GPU, for every later mover */
        persist_write_places(d->gpus->persist);
        gpu_open_begin(d);
        return;
    }

    if (!gpu_uuid_equal(d->uuid, m->uuid)) {
        gpu_open_unavailable(d, "kvcobra-mover opened %.60s instead of %s", m->uuid, d->uuid);
        return;
    }

    (void) snprintf(d->product, sizeof(d->product), "%s", m->name);
    d->lists_processes = m->lists_processes;
    d->is_shared = m->is_shared;
    d->state = DEVICE_READY;
    d->pause_ms = 0;
    log_event(LOG_NOTICE, "gpu-ready",
              "device=%s uuid=%s product=\"%s\" bytes=%" PRIu64 " compute=%" PRIu32 " driver=%" PRIu32
              " processes=%s",
              d->name, d->uuid, d->product, m->bytes, m->compute, m->driver_version, gpu_open_listing(m));
}

static void gpu_open_begin(struct device *d)
{
    Kvcobra__MoverOpen open = KVCOBRA__MOVER_OPEN__INIT;
    Kvcobra__MoverRequest request = KVCOBRA__MOVER_REQUEST__INIT;
    int r;

    open.device = d->number;
    open.uuid = d->uuid;
    open.bytes = d->extent_bytes;
    request.body_case = KVCOBRA__MOVER_REQUEST__BODY_OPEN;
    request.open = &open;
    d->state = DEVICE_OPENING;
    r = mover_ask(d->gpus->mover, &request, NULL, 0, OPEN_MS, gpu_open_on_opened, d);
    if (r == -EAGAIN)
        gpu_open_mover_ended(d, "kvcobra-mover ended or could not be started, and will be started again");
    else if (r < 0)
        gpu_open_unavailable(d, "cannot start %s, which uses the GPU driver: %s", d->gpus->config->mover_path,
                             strerror(-r));
}

void gpu_open_all(struct gpus *gpus)
{
    for (uint32_t i = 1; i < gpus->devices->n; i++)
        gpu_open_begin(&gpus->devices->list[i]);
}

int gpu_open_check(struct device *d, struct errmsg *e)
{
    if (d->state == DEVICE_UNAVAILABLE && ev_now_ms(d->gpus->ev) >= d->retry_ms)
        gpu_open_begin(d);
    if (d->state == DEVICE_OPENING)
        return fail(e, -EAGAIN, "%s is being opened: retry later", d->name);
    if (d->state == DEVICE_UNAVAILABLE)
        return fail(e, d->is_passing ? -EAGAIN : -ENODEV, "%s is not available: %.340s", d->name,
                    d->why.text);
    return 0;
}
