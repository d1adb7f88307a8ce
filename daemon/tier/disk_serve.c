/* See disk_thread.h. */
#include "daemon/tier/disk_thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/work.h"
#include "daemon/tier/disk_open.h"
#include "daemon/tier/disk_queue.h"
#include "daemon/tier/disk_state.h"
#include "daemon/tier/seal.h"

static void disk_serve_start(struct disk *d, struct disk_transfer *t, const struct disk_place *p)
{
    t->place = *p;
    t->op = (struct disk_op){
        .is_write = t->kind == TIER_PUT, .data = t->data, .bytes = p->slot_bytes, .offset = p->offset};
    t->started_ms = work_clock_ms();
    t->is_running = true;
    d->n_running++;
    d->n_writing += t->op.is_write;
    disk_io_begin(&d->io, &t->op);
}

/* ---- writes ---- */

/*
 * Makes the disk have one segment more. A full file system leaves the tier with the segments that it has,
 * if it has any: the status has the sentence. Return: 0; errno.
 */
static int disk_serve_grow(struct disk *d, struct errmsg *e)
{
    struct errmsg why = {""};
    int r = disk_folder_grow(&d->folder, &why);

    if (r == 0)
        disk_map_grown(&d->map);
    else if (r == -ENOSPC && d->map.n_segments > 0)
        disk_map_limit(&d->map);
    else
        return fail(e, r, "%s", why.text);

    (void) pthread_mutex_lock(&d->lock);
    memcpy(d->status.sentence, r < 0 ? why.text : d->folder.note.text, sizeof(d->status.sentence));
    d->status.physical_bytes = disk_folder_physical_bytes(&d->folder);
    (void) pthread_mutex_unlock(&d->lock);
    return 0;
}

static int disk_serve_write(struct disk *d, struct disk_transfer *t, struct errmsg *e)
{
    size_t sealed_bytes = seal_bytes(t->group.page_bytes);
    struct disk_segment_head h;
    struct disk_place p;
    bool began;
    int r;

    while ((r = disk_map_claim(&d->map, &t->group, &t->key, t->quota_bytes, &p, &began)) == DISK_MAP_GROW) {
        r = disk_serve_grow(d, e);
        if (r < 0) {
            disk_queue_end(d, t, -EIO);
            return r;
        }
    }
    if (r < 0) {
        disk_queue_end(d, t, r);
        return 0;
    }

    /* The head ends the records of the segment's earlier life before any of its slots is written again. */
    if (began) {
        disk_map_head(&d->map, p.segment, &h);
        r = disk_folder_write_head(&d->folder, &h, e);
        if (r < 0) {
            disk_map_abandon(&d->map, &p);
            disk_queue_end(d, t, -EIO);
            return r;
        }
    }

    memset(t->data + sealed_bytes, 0, p.slot_bytes - sealed_bytes);
    disk_serve_start(d, t, &p);
    return 0;
}

/* Clears the heads of segments that have ended. Return: 0; errno of the write. */
static int disk_serve_clear_ended(struct disk *d, struct errmsg *e)
{
    int r = 0;

    for (uint32_t segment = 0; r == 0 && disk_map_take_ended(&d->map, &segment);)
        r = disk_folder_clear_head(&d->folder, segment, e);
    return r;
}

/* The page is on the disk, in full or not. */
static int disk_serve_written(struct disk *d, struct disk_transfer *t, struct errmsg *e)
{
    const struct disk_place *p = &t->place;
    struct disk_record record = {.key = t->key, .generation = p->generation, .slot = p->slot};
    int r = 0;

    if (t->op.result < 0) {
        disk_map_abandon(&d->map, p);
    } else if (disk_map_publish(&d->map, p)) {
        r = disk_folder_write_record(&d->folder, p->segment, &record, e);
        disk_open_note_key(d, t->group.tenant, &t->key);
    }
    return r < 0 ? r : disk_serve_clear_ended(d, e);
}

/* ---- reads ---- */

static int disk_serve_read(struct disk *d, struct disk_transfer *t)
{
    struct disk_place p;

    if (!disk_map_find(&d->map, &t->group, &t->key, &p)) {
        disk_queue_end(d, t, -ENOENT);
        return 0;
    }
    if (p.slot_bytes > disk_buffers_bytes(&d->buffers) / 2) { /* an earlier start had larger buffers */
        disk_queue_end(d, t, -EFBIG);
        return 0;
    }

    t->data = disk_buffers_take(&d->buffers, p.slot_bytes, false);
    if (!t->data)
        return -EAGAIN;

    disk_serve_start(d, t, &p);
    return 0;
}

/*
 * Removes a page. If the write fails, the next start finds the page again, and it does not open again.
 */
static void disk_serve_remove(struct disk *d, const struct disk_transfer *t, const struct disk_place *p)
{
    if (!disk_map_drop(&d->map, p))
        return;
    disk_filters_removed(&d->filters, t->group.tenant, 1);
    disk_removed_note(&d->removed, t->group.tenant, &t->key);
    (void) disk_folder_clear_record(&d->folder, p->segment, p->slot, NULL);
}

static void disk_serve_forget(struct disk *d, struct disk_transfer *t)
{
    struct disk_place p;
    bool found = disk_map_find(&d->map, &t->group, &t->key, &p);

    if (found)
        disk_serve_remove(d, t, &p);
    disk_queue_end(d, t, found ? 0 : -ENOENT);
}

static void disk_serve_ask(struct disk *d, struct disk_transfer *t)
{
    disk_queue_end(d, t, disk_map_has(&d->map, &t->group, &t->key) ? 0 : -ENOENT);
}

static void disk_serve_ask_others(struct disk *d, struct disk_transfer *t)
{
    disk_map_find_others(&d->map, t->group.tenant, &t->family);
    disk_queue_end(d, t, t->family.has_other ? 0 : -ENOENT);
}

static void disk_serve_list(struct disk *d, struct disk_transfer *t)
{
    _cleanup_(freep) struct tier_list *list = malloc(sizeof(*list));
    bool any = list && disk_map_list(&d->map, t->list_from, list);

    int result = list ? -ENOENT : -ENOMEM;

    if (any) {
        t->list = take_ptr(list);
        result = 0;
    }
    disk_queue_end(d, t, result);
}

static int disk_serve_drop(struct disk *d, struct disk_transfer *t, struct errmsg *e)
{
    uint32_t n = disk_map_end(&d->map, t->drops_any_tenant ? NULL : t->group.tenant,
                              t->drops_any_table ? NULL : t->group.table_digest);
    int r = disk_serve_clear_ended(d, e);

    if (r < 0)
        disk_queue_end(d, t, -EIO);
    else
        disk_queue_end(d, t, n > 0 ? 0 : -ENOENT);
    return r;
}

int disk_serve_begin(struct disk *d, struct disk_transfer *t, struct errmsg *e)
{
    switch (t->kind) {
    case TIER_PUT:
        return disk_serve_write(d, t, e);
    case TIER_GET:
        return disk_serve_read(d, t);
    case TIER_FORGET:
    case TIER_REMOVE:
        disk_serve_forget(d, t);
        return 0;
    case TIER_ASK:
        disk_serve_ask(d, t);
        return 0;
    case TIER_ASK_OTHERS:
        disk_serve_ask_others(d, t);
        return 0;
    case TIER_LIST:
        disk_serve_list(d, t);
        return 0;
    default:
        return disk_serve_drop(d, t, e);
    }
}

/* The result of an operation for its request. */
static int disk_serve_result(const struct disk *d, const struct disk_transfer *t)
{
    if (t->op.result < 0)
        return -EIO;
    if (t->kind == TIER_GET && !disk_map_is_current(&d->map, &t->place))
        return -ENOENT; /* its segment was discarded meanwhile */
    return 0;
}

int disk_serve_conclude(struct disk *d, struct disk_transfer *t, struct errmsg *e)
{
    int err = t->op.result, result = disk_serve_result(d, t), r = 0;

    t->is_running = false;
    d->n_running--;
    d->n_writing -= t->op.is_write;
    if (t->kind == TIER_PUT)
        r = disk_serve_written(d, t, e);
    else if (err < 0 && err != -ECANCELED) /* so that it does not fail again after a resume */
        disk_serve_remove(d, t, &t->place);

    disk_queue_end(d, t, r < 0 ? -EIO : result);
    if (err < 0 && err != -ECANCELED)
        return fail(e, err, "cannot %s pages in %s: %s", t->op.is_write ? "write" : "read", d->path,
                    strerror(-err));
    return r;
}
