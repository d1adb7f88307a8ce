/* The row of the disk tier. */
#include <errno.h>
#include <inttypes.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/offload/offload_state.h"
#include "daemon/tier/keyring.h"

enum {
    CHECK_MS = 1000,
    STALL_MS = 30000,
    RETRY_MS = 1000,
    REQUESTS_MAX = 1024,
    DEPTH = 32, /* operations at the disk: a fast one needs that many */
};

static void offload_disk_log(const struct offload *o)
{
    const char *folder = o->rooms.config->disk_dir;
    struct disk_status s;

    disk_status(o->disk->self, &s);
    if (s.state == TIER_READY && s.emptied[0])
        log_event(LOG_NOTICE, "disk-tier-emptied", "folder=%s message=\"%s\"", folder, s.emptied);
    if (s.state == TIER_READY && s.sentence[0])
        log_event(LOG_WARNING, "disk-tier-note", "folder=%s message=\"%s\"", folder, s.sentence);
    if (s.state == TIER_READY && s.engine_why[0])
        log_event(LOG_NOTICE, "disk-tier-ready",
                  "folder=%s pages=%" PRIu64 " engine=%s message=\"%s, which only costs time\"", folder,
                  s.n_pages, s.engine, s.engine_why);
    else if (s.state == TIER_READY)
        log_event(LOG_NOTICE, "disk-tier-ready", "folder=%s pages=%" PRIu64 " engine=%s", folder, s.n_pages,
                  s.engine);
    else if (s.state == TIER_OFF)
        log_event(LOG_ERR, "disk-tier-off",
                  "folder=%s message=\"%s\", pages stay in memory only until kvcobrad or \'kvcobra tier "
                  "resume\' opens the folder again",
                  folder, s.sentence);
}

static void offload_disk_on_changed(void *ctx)
{
    struct offload *o = ctx;

    if (offload_note_state(o))
        offload_disk_log(o);
}

int offload_disk_start(struct offload_tier *t, struct errmsg *e)
{
    struct offload *o = t->offload;
    const struct config *c = o->rooms.config;
    const struct disk_options options = {
        .folder = {.path = c->disk_dir, .fleet = keyring_fleet(o->keyring), .bytes = c->disk_bytes},
        .buffer_bytes = c->disk_buffer_bytes,
        .depth = DEPTH,
        .n_requests_max = REQUESTS_MAX,
        .n_filters_max = c->tenants_max,
        .check_ms = CHECK_MS,
        .stall_ms = STALL_MS,
        .retry_ms = RETRY_MS,
        .engines = o->rooms.engines,
        .changed = offload_disk_on_changed,
        .ctx = o,
    };
    struct disk *d;
    int r = disk_new(o->rooms.ev, &options, &d, e);

    if (r == 0)
        t->self = d;
    return r;
}

void offload_disk_status(const struct offload *o, struct offload_status *ret)
{
    const struct offload_tier *t = o->disk;

    if (!t)
        return;

    ret->has_disk = true;
    disk_status(t->self, &ret->disk);
    ret->n_writing = t->n_puts;
    ret->n_unopened = t->n_unopened;
    ret->n_late = t->n_late;
    ret->n_skipped = t->n_skipped;
    ret->bytes_per_s = (uint64_t) offload_rate_now(&t->rate, metrics_now_ns());
}
