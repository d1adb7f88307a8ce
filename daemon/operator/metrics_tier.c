/* Metric families of the disk tier and the cluster tier; see metrics_collect.h. */
#include "daemon/operator/metrics_collect.h"

#include <stddef.h>

#include "daemon/offload/offload.h"
#include "daemon/operator/metrics_table.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/requests/state.h"

static void metrics_tier_state(enum tier_state now, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_DISK_STATE);
    for (int i = TIER_OPENING; i <= TIER_OFF; i++) {
        const struct metric_label labels[] = {{"state", tier_state_names[i]}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_DISK_STATE, labels, now == (enum tier_state) i);
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

static void metrics_tier_disk(const struct offload_status *o, struct metrics_text *t)
{
    metrics_tier_state(o->disk.state, t);
    metrics_table_one(t, METRIC_DISK_PAGES, o->disk.n_pages);
    metrics_table_one(t, METRIC_DISK_BYTES, o->disk.physical_bytes);
    metrics_table_one(t, METRIC_DISK_FETCHING, o->n_fetching);
    metrics_table_one(t, METRIC_DISK_WRITTEN, o->disk.n_written);
    metrics_table_one(t, METRIC_DISK_WRITTEN_BYTES, o->disk.written_bytes);
    metrics_table_one(t, METRIC_DISK_READ, o->disk.n_read);
    metrics_table_one(t, METRIC_DISK_READ_BYTES, o->disk.read_bytes);
    metrics_table_one(t, METRIC_DISK_MISSED, o->disk.n_missed);
    metrics_table_one(t, METRIC_DISK_SKIPPED, o->n_skipped);
    metrics_table_one(t, METRIC_DISK_REFUSED, o->disk.n_refused);
    metrics_tier_failed(&o->disk, t);
    metrics_table_one(t, METRIC_DISK_UNOPENED, o->n_unopened);
    metrics_table_one(t, METRIC_DISK_LATE, o->n_late);
    metrics_table_one(t, METRIC_DISK_DISCARDED, o->disk.n_discarded);
    metrics_table_one(t, METRIC_DISK_LOST, o->n_lost);
}

static void metrics_tier_cluster_state(enum cluster_link_state now, struct metrics_text *t)
{
    metrics_table_family(t, METRIC_CLUSTER_STATE);
    for (int i = CLUSTER_LINK_ABSENT; i <= CLUSTER_LINK_REFUSED; i++) {
        const struct metric_label labels[] = {{"state", cluster_link_state_names[i]}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_CLUSTER_STATE, labels, now == (enum cluster_link_state) i);
    }
}

static void metrics_tier_cluster(const struct offload_status *o, struct metrics_text *t)
{
    metrics_tier_cluster_state(o->cluster.state, t);
    metrics_table_one(t, METRIC_CLUSTER_NODES, o->cluster.counters[CLUSTER_COUNTER_NODES]);
    metrics_table_one(t, METRIC_CLUSTER_NODES_READY, o->cluster.counters[CLUSTER_COUNTER_NODES_READY]);
    metrics_table_one(t, METRIC_CLUSTER_WAITING, o->n_to_publish);
    metrics_table_one(t, METRIC_CLUSTER_ASKED, o->shared.n_asked);
    metrics_table_one(t, METRIC_CLUSTER_FOUND, o->shared.n_found);
    metrics_table_one(t, METRIC_CLUSTER_READ, o->shared.n_read);
    metrics_table_one(t, METRIC_CLUSTER_READ_BYTES, o->shared.read_bytes);
    metrics_table_one(t, METRIC_CLUSTER_MISSED, o->shared.n_missed);
    metrics_table_one(t, METRIC_CLUSTER_SKIPPED, o->n_skipped_shared);
    metrics_table_one(t, METRIC_CLUSTER_UNOPENED, o->n_unopened_shared);
    metrics_table_one(t, METRIC_CLUSTER_READ_LATE, o->n_late_shared);
    metrics_table_one(t, METRIC_CLUSTER_WRITTEN, o->shared.n_written);
    metrics_table_one(t, METRIC_CLUSTER_WRITTEN_BYTES, o->shared.written_bytes);
    metrics_table_one(t, METRIC_CLUSTER_FAILED, o->shared.n_not_written);
    metrics_table_one(t, METRIC_CLUSTER_DROPPED, o->shared.n_dropped);
    metrics_table_one(t, METRIC_CLUSTER_LATE, o->cluster.n_late);
    metrics_table_one(t, METRIC_CLUSTER_REFRESHED, o->shared.n_refreshed);
    metrics_table_one(t, METRIC_CLUSTER_REFILLED, o->shared.n_refilled);
}

void metrics_tier_collect(const struct server *s, struct metrics_text *t)
{
    struct offload_status o;

    if (!s->offload)
        return;

    offload_status(s->offload, &o);
    if (o.has_disk)
        metrics_tier_disk(&o, t);
    if (o.has_cluster)
        metrics_tier_cluster(&o, t);
}
