/* Metric families of hits and capacity; see metrics_collect.h. */
#include "daemon/operator/metrics_collect.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/operator/metrics_table.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/operator/status.h"
#include "daemon/requests/state.h"
#include "daemon/store/advice.h"
#include "daemon/store/device.h"

enum { ROWS_MAX = DEVICES_MAX > ADVICE_TENANTS_MAX ? DEVICES_MAX : ADVICE_TENANTS_MAX };

struct metrics_advice {
    const char *label; /* "device", "tenant" */
    size_t n;
    const char *names[ROWS_MAX];
    Kvcobra__Advice rows[ROWS_MAX];
};

static double metrics_advice_share(uint64_t part, uint64_t all)
{
    return all > 0 ? (double) part / (double) all : 0;
}

/* @key, @value: the second label. */
static void metrics_advice_sample(struct metrics_text *t, enum metric_id id, const struct metrics_advice *m,
                                  size_t row, const char *key, const char *value, double share)
{
    const struct metric_label labels[] = {{m->label, m->names[row]}, {key, value}, {NULL, NULL}};

    metrics_sample_real(t, metrics_table[id].name, labels, share);
}

static void metrics_advice_found(struct metrics_text *t, enum metric_id id, const struct metrics_advice *m)
{
    metrics_table_family(t, id);
    for (size_t i = 0; i < m->n; i++) {
        const Kvcobra__Advice *a = &m->rows[i];

        metrics_advice_sample(t, id, m, i, "window", "hour",
                              metrics_advice_share(a->hour_found, a->hour_lookups));
        metrics_advice_sample(t, id, m, i, "window", "day",
                              metrics_advice_share(a->day_found, a->day_lookups));
    }
}

static void metrics_advice_ceiling(struct metrics_text *t, enum metric_id id, const struct metrics_advice *m)
{
    metrics_table_family(t, id);
    for (size_t i = 0; i < m->n; i++) {
        const Kvcobra__Advice *a = &m->rows[i];

        metrics_advice_sample(t, id, m, i, "window", "hour",
                              metrics_advice_share(a->hour_lookups - a->hour_distinct, a->hour_lookups));
        metrics_advice_sample(t, id, m, i, "window", "day",
                              metrics_advice_share(a->day_lookups - a->day_distinct, a->day_lookups));
    }
}

static void metrics_advice_estimated(struct metrics_text *t, enum metric_id id,
                                     const struct metrics_advice *m)
{
    metrics_table_family(t, id);
    for (size_t i = 0; i < m->n; i++) {
        const Kvcobra__Advice *a = &m->rows[i];
        const struct {
            const char *capacity;
            uint64_t hits;
        } points[] = {
            {"0.5x", a->hits_pool_half},  {"1x", a->hits_pool_same}, {"2x", a->hits_pool_2x},
            {"4x", a->hits_pool_4x},      {"8x", a->hits_pool_8x},   {"16bit", a->hits_bits_16},
            {"4.5bit", a->hits_bits_4_5}, {"3bit", a->hits_bits_3},  {"2bit", a->hits_bits_2},
        };

        for (size_t k = 0; k < sizeof(points) / sizeof(points[0]); k++)
            metrics_advice_sample(t, id, m, i, "capacity", points[k].capacity,
                                  metrics_advice_share(points[k].hits, a->lookups));
    }
}

static void metrics_advice_add(const struct server *s, struct metrics_advice *m, const char *name,
                               struct advice *a, uint64_t capacity_bytes)
{
    if (m->n == ROWS_MAX || !status_fill_advice(s, a, capacity_bytes, &m->rows[m->n]))
        return;
    m->names[m->n++] = name;
}

void metrics_advice_collect(const struct server *s, struct metrics_text *t)
{
    _cleanup_(freep) struct metrics_advice *m = calloc(2, sizeof(*m));
    struct metrics_advice *devices = m, *tenants;

    if (!m) {
        t->failed = true;
        return;
    }

    tenants = m + 1;
    devices->label = "device";
    tenants->label = "tenant";
    for (uint32_t i = 0; i < s->devices->n; i++) {
        const struct device *d = &s->devices->list[i];

        metrics_advice_add(s, devices, d->name, d->advice, d->store.pool.pool_bytes);
    }
    for (const struct tenant *x = NULL; (x = devices_next_tenant(s->devices, x));)
        metrics_advice_add(s, tenants, x->name, x->advice, device_tenant_capacity(x));

    metrics_advice_found(t, METRIC_DEVICE_HIT_RATIO, devices);
    metrics_advice_ceiling(t, METRIC_DEVICE_HIT_CEILING, devices);
    metrics_advice_estimated(t, METRIC_DEVICE_ESTIMATED_HITS, devices);
    metrics_advice_found(t, METRIC_TENANT_HIT_RATIO, tenants);
    metrics_advice_ceiling(t, METRIC_TENANT_HIT_CEILING, tenants);
    metrics_advice_estimated(t, METRIC_TENANT_ESTIMATED_HITS, tenants);
}
