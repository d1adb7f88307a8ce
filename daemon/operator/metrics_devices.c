/* Metrics of pools and GPUs: one sample per device and family. See metrics_collect.h. */
#include "daemon/operator/metrics_collect.h"

#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/gpu/mover.h"
#include "daemon/operator/metrics_table.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/operator/status.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"

enum {
    N_POOL_VALUES = METRIC_GPU_FIRST - METRIC_DEVICE_FIRST,
    N_GPU_VALUES = METRIC_TENANT_FIRST - METRIC_GPU_FIRST,
    N_MOVER_VALUES = METRIC_DEVICE_FIRST - METRIC_MOVER_FIRST,
};

/* ---- pools ---- */

static uint64_t metrics_devices_page_bytes(const struct store *st)
{
    uint64_t n = 0;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        n += t->page_bytes;
    return n;
}

static void metrics_devices_collect_page_bytes(const struct server *s, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_POOL_PAGE_BYTES);
    for (uint32_t i = 0; i < s->devices->n; i++) {
        const struct device *d = &s->devices->list[i];
        const struct metric_label label[] = {{"device", d->name}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_POOL_PAGE_BYTES, label, metrics_devices_page_bytes(&d->store));
    }
}

void metrics_devices_collect_pools(const struct server *s, struct metrics_text *t)
{
    uint64_t values[CONFIG_GPUS_MAX + 1][N_POOL_VALUES] = {{0}};
    const char *names[CONFIG_GPUS_MAX + 1];

    for (uint32_t i = 0; i < s->devices->n; i++) {
        Kvcobra__DeviceStatus status;

        status_fill_device(&s->devices->list[i], &status);
        metrics_table_add_device(&status, values[i]);
        names[i] = s->devices->list[i].name;
    }

    metrics_table_rows(t, METRIC_DEVICE_FIRST, METRIC_GPU_FIRST, names, values[0], s->devices->n);
    metrics_devices_collect_page_bytes(s, t);
}

/* ---- GPUs ---- */

static void metrics_devices_collect_states(const struct server *s, struct metrics_text *t)
{
    static const char *const states[] = {
        [DEVICE_READY] = "ready", [DEVICE_OPENING] = "opening", [DEVICE_UNAVAILABLE] = "unavailable"};

    metrics_table_family(t, METRIC_GPU_STATE);
    for (uint32_t i = 1; i < s->devices->n; i++) {
        const struct device *d = &s->devices->list[i];

        for (unsigned k = DEVICE_READY; k <= DEVICE_UNAVAILABLE; k++) {
            const struct metric_label labels[] = {
                {"device", d->name}, {"uuid", d->uuid}, {"state", states[k]}, {NULL, NULL}};

            metrics_table_sample(t, METRIC_GPU_STATE, labels, d->state == k);
        }
    }
}

static void metrics_devices_collect_extents(const struct server *s, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_GPU_EXTENTS_MADE);
    for (uint32_t i = 1; i < s->devices->n; i++) {
        const struct metric_label label[] = {{"device", s->devices->list[i].name}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_GPU_EXTENTS_MADE, label, s->devices->list[i].gpu->preallocated.n_made);
    }

    metrics_table_family(t, METRIC_GPU_EXTENTS_FAILED);
    for (uint32_t i = 1; i < s->devices->n; i++) {
        const struct metric_label label[] = {{"device", s->devices->list[i].name}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_GPU_EXTENTS_FAILED, label,
                             s->devices->list[i].gpu->preallocated.n_failed);
    }
}

static void metrics_devices_collect_status(const struct server *s, struct metrics_text *t)
{
    uint64_t values[CONFIG_GPUS_MAX + 1][N_GPU_VALUES] = {{0}};
    const char *names[CONFIG_GPUS_MAX + 1] = {NULL}; /* host memory has no sample */

    for (uint32_t i = 1; i < s->devices->n; i++) {
        Kvcobra__DeviceStatus status;

        status_fill_device(&s->devices->list[i], &status);
        metrics_table_add_gpu(&status, values[i]);
        names[i] = s->devices->list[i].name;
    }
    metrics_table_rows(t, METRIC_GPU_FIRST, METRIC_TENANT_FIRST, names, values[0], s->devices->n);
}

static void metrics_devices_collect_mover(const struct server *s, struct metrics_text *t)
{
    Kvcobra__StatusReply reply = KVCOBRA__STATUS_REPLY__INIT;
    uint64_t values[N_MOVER_VALUES] = {0};

    status_fill_mover(s, &reply);
    metrics_table_one(t, METRIC_MOVER_RUNNING, reply.mover_pid > 0);
    metrics_table_add_mover(&reply, values);
    metrics_table_rows(t, METRIC_MOVER_FIRST, METRIC_DEVICE_FIRST, NULL, values, 1);
}

void metrics_devices_collect_gpus(const struct server *s, struct metrics_text *t)
{
    if (!s->gpus->mover)
        return;

    metrics_devices_collect_mover(s, t);
    metrics_devices_collect_states(s, t);
    metrics_devices_collect_status(s, t);
    metrics_devices_collect_extents(s, t);
}
