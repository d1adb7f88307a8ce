/* Figures of devices; see metrics_devices.h. */
#include "daemon/operator/metrics_devices.h"

#include "daemon/gpu/gpu_pool.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/gpu/mover.h"
#include "daemon/requests/state.h"

static void metrics_devices_row(struct metrics_text *t, const char *name, const struct device *d,
                                uint64_t value)
{
    metrics_sample(t, name, (const struct metric_label[]){{"device", d->name}, {NULL, NULL}}, value);
}

static void metrics_devices_family(const struct server *s, struct metrics_text *t, const char *name,
                                   const char *help, uint64_t (*figure)(const struct store *st))
{
    metrics_family(t, name, "gauge", help);
    for (uint32_t i = 0; i < s->devices.n; i++)
        metrics_devices_row(t, name, &s->devices.list[i], figure(&s->devices.list[i].store));
}

/* ---- pools ---- */

static uint64_t metrics_devices_capacity_bytes(const struct store *st)
{
    return st->pool.pool_bytes;
}

static uint64_t metrics_devices_allocated_bytes(const struct store *st)
{
    return st->pool.n_extents * st->pool.extent_bytes;
}

static uint64_t metrics_devices_page_bytes(const struct store *st)
{
    uint64_t n = 0;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        n += t->page_bytes;
    return n;
}

static uint64_t metrics_devices_held_bytes(const struct store *st)
{
    uint64_t n = 0;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        n += t->held_bytes;
    return n;
}

static uint64_t metrics_devices_waste_bytes(const struct store *st)
{
    return pool_waste_bytes(&st->pool);
}

static uint64_t metrics_devices_n_pages(const struct store *st)
{
    uint64_t n = 0;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        n += t->n_pages;
    return n;
}

void metrics_collect_pools(const struct server *s, struct metrics_text *t)
{
    metrics_devices_family(s, t, "kvcobra_pool_capacity_bytes", "What the pool may take, configured.",
                           metrics_devices_capacity_bytes);
    metrics_devices_family(s, t, "kvcobra_pool_allocated_bytes", "Extents that are there now.",
                           metrics_devices_allocated_bytes);
    metrics_devices_family(s, t, "kvcobra_pool_page_bytes", "Slots in use.", metrics_devices_page_bytes);
    metrics_devices_family(s, t, "kvcobra_pool_held_bytes",
                           "Of them, held by a lease or reserved: cannot be evicted.",
                           metrics_devices_held_bytes);
    metrics_devices_family(s, t, "kvcobra_pool_waste_bytes", "Spans' ends and free slots of spans in use.",
                           metrics_devices_waste_bytes);
    metrics_devices_family(s, t, "kvcobra_pages", "Committed pages.", metrics_devices_n_pages);
}

/* ---- GPUs ---- */

static void metrics_devices_collect_states(const struct server *s, struct metrics_text *t)
{
    static const char *const states[] = {
        [DEVICE_READY] = "ready", [DEVICE_OPENING] = "opening", [DEVICE_UNAVAILABLE] = "unavailable"};

    metrics_family(t, "kvcobra_gpu_state", "gauge", "1 for the state that the GPU is in.");
    for (uint32_t i = 1; i < s->devices.n; i++)
        for (unsigned k = DEVICE_READY; k <= DEVICE_UNAVAILABLE; k++)
            metrics_sample(t, "kvcobra_gpu_state",
                           (const struct metric_label[]){{"device", s->devices.list[i].name},
                                                         {"uuid", s->devices.list[i].uuid},
                                                         {"state", states[k]},
                                                         {NULL, NULL}},
                           s->devices.list[i].state == k);
}

static uint64_t metrics_devices_spare_extents(const struct gpu_pool *g)
{
    return g->preallocated.n;
}

static uint64_t metrics_devices_extents_made(const struct gpu_pool *g)
{
    return g->preallocated.n_made;
}

static uint64_t metrics_devices_extents_failed(const struct gpu_pool *g)
{
    return g->preallocated.n_failed;
}

static uint64_t metrics_devices_retired_extents(const struct gpu_pool *g)
{
    struct gpu_pool_metrics figures;

    gpu_pool_metrics(g, &figures);
    return figures.retired_extents;
}

static uint64_t metrics_devices_lent_extents(const struct gpu_pool *g)
{
    return pool_external_extents(&g->device->store.pool);
}

static uint64_t metrics_devices_quarantined_slots(const struct gpu_pool *g)
{
    struct gpu_pool_metrics figures;

    gpu_pool_metrics(g, &figures);
    return figures.quarantined_slots;
}

static void metrics_devices_gpu_family(const struct server *s, struct metrics_text *t, const char *name,
                                       const char *kind, const char *help,
                                       uint64_t (*figure)(const struct gpu_pool *g))
{
    metrics_family(t, name, kind, help);
    for (uint32_t i = 1; i < s->devices.n; i++)
        metrics_devices_row(t, name, &s->devices.list[i], figure(s->devices.list[i].gpu));
}

void metrics_collect_gpus(const struct server *s, struct metrics_text *t)
{
    uint64_t restarts;
    pid_t pid;

    if (!s->gpus.mover)
        return;
    mover_get_info(s->gpus.mover, &pid, &restarts);
    metrics_one(t, "kvcobra_mover_running", "gauge", "1: kvcobra-mover runs.", pid > 0);
    metrics_one(t, "kvcobra_mover_restarts_total", "counter", "How often kvcobra-mover was started again.",
                restarts);
    metrics_devices_collect_states(s, t);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_spare_extents", "gauge", "Made ahead, of nobody.",
                               metrics_devices_spare_extents);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_extents_made_total", "counter",
                               "Extents that kvcobra-mover made.", metrics_devices_extents_made);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_extents_failed_total", "counter",
                               "Extents that could not be made.", metrics_devices_extents_failed);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_retired_extents", "gauge",
                               "That a dead process may still use: nothing new comes in.",
                               metrics_devices_retired_extents);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_lent_extents", "gauge", "Memory of clients.",
                               metrics_devices_lent_extents);
    metrics_devices_gpu_family(s, t, "kvcobra_gpu_quarantined_slots", "gauge",
                               "Of dead processes that the driver may still run.",
                               metrics_devices_quarantined_slots);
}
