/* Metric families of the disk tier; see metrics_tier.h. */
#include "daemon/operator/metrics_tier.h"

#include <stddef.h>

#include "daemon/offload/offload.h"
#include "daemon/operator/metrics_table.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/requests/state.h"

static void metrics_tier_state(enum disk_state now, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_DISK_STATE);
    for (int i = DISK_OPENING; i <= DISK_OFF; i++) {
        const struct metric_label labels[] = {{"state", disk_state_names[i]}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_DISK_STATE, labels, now == (enum disk_state) i);
    }
}

static void metrics_tier_failed(const struct disk_status *d, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_DISK_FAILED);
    metrics_table_sample(t, METRIC_DISK_FAILED,
                         (const struct metric_label[]){{"reason", "error"}, {NULL, NULL}}, d->n_failed);
    metrics_table_sample(t, METRIC_DISK_FAILED,
                         (const struct metric_label[]){{"reason", "timeout"}, {NULL, NULL}}, d->n_timeouts);
}

void metrics_tier_collect(const struct server *s, struct metrics_text *t)
{
    struct offload_status o;

    if (!s->offload)
        return;

    offload_status(s->offload, &o);
    metrics_tier_state(o.disk.state, t);
    metrics_table_one(t, METRIC_DISK_PAGES, o.disk.n_pages);
    metrics_table_one(t, METRIC_DISK_BYTES, o.disk.physical_bytes);
    metrics_table_one(t, METRIC_DISK_FETCHING, o.n_fetching);
    metrics_table_one(t, METRIC_DISK_WRITTEN, o.disk.n_written);
    metrics_table_one(t, METRIC_DISK_READ, o.disk.n_read);
    metrics_table_one(t, METRIC_DISK_MISSED, o.disk.n_missed);
    metrics_table_one(t, METRIC_DISK_REFUSED, o.disk.n_refused);
    metrics_tier_failed(&o.disk, t);
    metrics_table_one(t, METRIC_DISK_UNOPENED, o.n_unopened);
    metrics_table_one(t, METRIC_DISK_DISCARDED, o.disk.n_discarded);
    metrics_table_one(t, METRIC_DISK_LOST, o.n_lost);
}
