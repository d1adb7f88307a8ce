/* The table of metrics; see metrics_table.h. */
#include "daemon/operator/metrics_table.h"

#include <string.h>

#include "daemon/operator/metrics_text.h"

const struct metrics_row metrics_table[METRICS_N] = {
#define METRIC(id, type, unit, labels, name, help) [METRIC_##id] = {name, #type, #unit, labels, help},
#include "daemon/operator/metrics.def"

#define STATUS_MOVER(how, field, type, unit, metric, json, column, help)                                     \
    [METRIC_MOVER_##field] = {metric, #type, #unit, "", help},
#define STATUS_TOTAL(how, field, type, unit, metric, json, column, help)                                     \
    [METRIC_TOTAL_##field] = {metric, #type, #unit, "", help},
#define STATUS_GPU(how, field, type, unit, metric, json, column, help)                                       \
    [METRIC_GPU_##field] = {metric, #type, #unit, "device", help},
#define STATUS_DEVICE(how, field, type, unit, metric, json, column, help)                                    \
    [METRIC_DEVICE_##field] = {metric, #type, #unit, "device", help},
#define STATUS_TENANT(how, field, type, unit, metric, json, column, help)                                    \
    [METRIC_TENANT_##field] = {metric, #type, #unit, "tenant", help},
#define STATUS_SPACE(how, field, type, unit, metric, json, column, help)                                     \
    [METRIC_SPACE_##field] = {metric, #type, #unit, "table", help},
#include "proto/status_fields.def"
};

/* ---- values of STATUS ---- */

#define ADD_number(value) *values += (value);
#define ADD_flag(value) *values += (value) ? 1 : 0;
#define ADD_text(value)
#define ADD_own(value)

void metrics_table_add_totals(const Kvcobra__StatusReply *m, uint64_t *values)
{
#define STATUS_MOVER(...)
#define STATUS_TOTAL(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

void metrics_table_add_mover(const Kvcobra__StatusReply *m, uint64_t *values)
{
#define STATUS_MOVER(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

void metrics_table_add_device(const Kvcobra__DeviceStatus *m, uint64_t *values)
{
#define STATUS_GPU(...)
#define STATUS_DEVICE(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

void metrics_table_add_gpu(const Kvcobra__DeviceStatus *m, uint64_t *values)
{
#define STATUS_GPU(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

void metrics_table_add_tenant(const Kvcobra__TenantStatus *m, uint64_t *values)
{
#define STATUS_TENANT(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

void metrics_table_add_space(const Kvcobra__SpaceStatus *m, uint64_t *values)
{
#define STATUS_SPACE(how, field, ...) ADD_##how(m->field) values++;
#include "proto/status_fields.def"
}

/* ---- writing ---- */

void metrics_table_family(struct metrics_text *t, enum metric_id id)
{
    metrics_family(t, metrics_table[id].name, metrics_table[id].type, metrics_table[id].help);
}

void metrics_table_sample(struct metrics_text *t, enum metric_id id, const struct metric_label *labels,
                          uint64_t value)
{
    const struct metrics_row *m = &metrics_table[id];

    if (strcmp(m->unit, "milliseconds") == 0)
        metrics_sample_real(t, m->name, labels, (double) value * 1e-3);
    else
        metrics_sample(t, m->name, labels, value);
}

void metrics_table_rows(struct metrics_text *t, unsigned first, unsigned end, const char *const *names,
                        const uint64_t *values, size_t n_rows)
{
    for (unsigned id = first; id < end; id++) {
        if (metrics_table[id].name[0] == '\0')
            continue;

        metrics_table_family(t, (enum metric_id) id);
        for (size_t i = 0; i < n_rows; i++) {
            const struct metric_label label[] = {{metrics_table[id].labels, names ? names[i] : NULL},
                                                 {NULL, NULL}};
            uint64_t value = values[i * (end - first) + id - first];

            if (!names)
                metrics_table_sample(t, (enum metric_id) id, NULL, value);
            else if (names[i])
                metrics_table_sample(t, (enum metric_id) id, label, value);
        }
    }
}

void metrics_table_one(struct metrics_text *t, enum metric_id id, uint64_t value)
{
    metrics_table_family(t, id);
    metrics_table_sample(t, id, NULL, value);
}
