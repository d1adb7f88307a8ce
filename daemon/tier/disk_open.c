/* See disk_open.h. */
#include "daemon/tier/disk_open.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/tier/disk_state.h"

enum {
    FILTER_KEYS_MIN = 4096,   /* a filter has room for so many pages more than its tenant has */
    SEGMENTS_GROWTH_MAX = 16, /* how much smaller than chosen segments may be, after disk-bytes was raised */
};

/* ---- filters ---- */

static void disk_open_add_key(void *ctx, const struct chunk_key *key)
{
    disk_filter_add(ctx, key);
}

/* Without memory for a new filter the old one stays, with more wrong answers. Return: whether it is new. */
static bool disk_open_renew_filter(struct disk *d, const char *tenant)
{
    uint64_t n = disk_map_n_pages(&d->map, tenant);
    struct disk_filter *filter = NULL;

    if (disk_filter_new(tenant, 2 * n + FILTER_KEYS_MIN, &filter, NULL) < 0)
        return false;

    disk_map_for_each(&d->map, tenant, disk_open_add_key, filter);
    disk_filters_put(&d->filters, filter);
    return true;
}

void disk_open_make_filters(struct disk *d)
{
    char tenant[TIER_TENANT_BYTES];

    while (disk_filters_next(&d->filters, tenant)) {
        if (disk_map_n_pages(&d->map, tenant) == 0)
            disk_filters_drop(&d->filters, tenant);
        else if (!disk_open_renew_filter(d, tenant))
            return; /* the next pass tries again */
    }
}

void disk_open_note_key(struct disk *d, const char *tenant, const struct chunk_key *key)
{
    disk_filters_note_tenant(&d->filters, tenant);
    if (disk_filters_is_worn(&d->filters, tenant))
        (void) disk_open_renew_filter(d, tenant);
    disk_filters_add(&d->filters, tenant, key); /* again after a new filter: the same bits */
}

static void disk_open_on_discard(void *ctx, const struct disk_segment *s)
{
    const struct disk_owner *o = s->group->owner;
    struct disk *d = ctx;

    if (o->n_segments == 1)
        disk_filters_drop(&d->filters, o->name);
    else
        disk_filters_removed(&d->filters, o->name, s->n_present);
    disk_removed_note_segment(&d->removed, s);
    (void) pthread_mutex_lock(&d->lock);
    d->status.n_discarded += s->n_present;
    (void) pthread_mutex_unlock(&d->lock);
}

/* ---- records ---- */

struct disk_open_reading {
    struct disk_map *map;
    uint32_t segment;
};

static bool disk_open_on_segment(void *ctx, const struct disk_segment_head *h)
{
    struct disk_open_reading *x = ctx;

    x->segment = h->number;
    return disk_map_adopt_segment(x->map, h);
}

static void disk_open_on_record(void *ctx, const struct disk_record *r)
{
    struct disk_open_reading *x = ctx;

    disk_map_adopt_page(x->map, x->segment, r);
}

static int disk_open_read_map(struct disk *d, struct errmsg *e)
{
    const struct disk_folder *f = &d->folder;
    struct disk_open_reading x = {.map = &d->map};
    const struct disk_folder_reader reader = {
        .on_segment = disk_open_on_segment, .on_record = disk_open_on_record, .ctx = &x};
    int r = disk_map_init(&d->map, f->n_segments, f->n_segments_max, f->segment_bytes, f->align);

    if (r == 0)
        r = disk_folder_read(f, &reader, e);
    if (r == 0)
        r = disk_map_adopt_done(&d->map);
    if (r == -ENOMEM)
        return fail(e, r, "out of memory for the pages of the disk tier in %s", d->path);
    if (r < 0)
        return r;

    for (const struct disk_owner *o = d->map.owners; o; o = o->next)
        disk_filters_note_tenant(&d->filters, o->name);
    d->map.on_discard = disk_open_on_discard;
    d->map.ctx = d;
    return 0;
}

static int disk_open_engine(struct disk *d, struct errmsg *ret_why, struct errmsg *e)
{
    const struct disk_engine_options o = {.fd = d->folder.pages_fd,
                                          .wake_fd = d->wake_fd,
                                          .memory = d->buffers.memory,
                                          .memory_bytes = disk_buffers_bytes(&d->buffers),
                                          .depth = d->options.depth};

    return disk_io_init(&d->io, d->options.engines, &o, d->folder.align, ret_why, e);
}

/*
 * A folder keeps the size of its segments when disk-bytes changes. Much smaller ones than disk-bytes asks for
 * were not made by this program: each could be another tenant's, with an index in memory.
 */
static int disk_open_check_segments(const struct disk *d, struct errmsg *e)
{
    uint64_t chosen = d->options.folder.segment_bytes, found = d->folder.segment_bytes;

    if (found >= chosen / SEGMENTS_GROWTH_MAX && (found >= DISK_SEGMENT_BYTES_CHOSEN_MIN || found >= chosen))
        return 0;
    return fail(e, -EBADMSG,
                "segments of the disk tier in %s have %" PRIu64 " bytes, but kvcobrad makes them of %" PRIu64
                " for disk-bytes %" PRIu64 ": set disk-bytes to its earlier value, or remove the folder's "
                "files to begin anew",
                d->path, found, chosen, d->options.folder.bytes);
}

int disk_open(struct disk *d, struct errmsg *e)
{
    struct errmsg why = {""};
    int r = disk_folder_open(&d->options.folder, &d->folder, e);

    if (r == 0)
        r = disk_open_check_segments(d, e);
    if (r == 0)
        r = disk_open_read_map(d, e);
    if (r == 0)
        r = disk_open_engine(d, &why, e);
    if (r < 0) {
        disk_close(d);
        return r;
    }

    disk_filters_begin(&d->filters);
    disk_open_make_filters(d);
    (void) pthread_mutex_lock(&d->lock);
    d->status.engine = d->io.ops->name;
    memcpy(d->status.emptied, d->folder.emptied.text, sizeof(d->status.emptied));
    memcpy(d->status.engine_why, why.text, sizeof(d->status.engine_why));
    d->status.is_locked = d->io.is_locked;
    d->status.segment_bytes = d->folder.segment_bytes;
    d->status.physical_bytes = disk_folder_physical_bytes(&d->folder);
    d->status.n_openings++;
    (void) pthread_mutex_unlock(&d->lock);
    return 0;
}

void disk_close(struct disk *d)
{
    disk_io_deinit(&d->io);
    disk_filters_end(&d->filters);
    disk_map_deinit(&d->map);
    disk_folder_deinit(&d->folder);
}
