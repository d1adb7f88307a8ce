/*
 * One page on its way to the disk. If the filter has it, the disk is asked first. A thread compares it with
 * its checksum and seals it into a buffer, then the disk writes the buffer. The page is pinned while the
 * thread reads it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/tier/disk_buffers.h"
#include "daemon/tier/keyring.h"
#include "daemon/tier/seal.h"

struct offload_write {
    struct work_item work; /* first member */
    struct tier_request request;
    struct offload_write *next, *prev; /* in offload.writes */
    struct offload *offload;
    struct account *account; /* has a reference */
    struct keyring *keyring; /* likewise */
    struct page_handle slot; /* that the page was in; pinned while the thread reads it */
    uint64_t generation;
    const uint8_t *page; /* [page_bytes] in the slot */
    size_t page_bytes;
    uint32_t payload_crc32c;
    uint8_t *buffer;
    bool is_damaged; /* in memory */
    bool is_flushed; /* by an operator: the disk may not keep the page */
};

static struct offload_write *offload_write_of(struct tier_request *r)
{
    return (struct offload_write *) ((char *) r - offsetof(struct offload_write, request));
}

static void offload_write_free(struct offload_write *w)
{
    struct offload *o = w->offload;

    o->n_writes--;
    if (w->prev)
        w->prev->next = w->next;
    else
        o->writes = w->next;
    if (w->next)
        w->next->prev = w->prev;
    (void) account_unref(w->account);
    (void) keyring_unref(w->keyring);
    free(w);
}

/* Whether the page is still in memory. */
static bool offload_write_find_again(const struct offload_write *w, struct page_handle *ret)
{
    return store_find_again(w->offload->store, w->slot.number, w->generation, ret);
}

/* ---- the disk ---- */

/* When refused pages are tried again. */
static uint64_t offload_write_forgiven_ms(struct offload *o)
{
    if (o->forgive_at_ms == 0)
        o->forgive_at_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_REFUSED_MS;
    return o->forgive_at_ms;
}

/* The disk works, but has no room for the page, or the page may not leave memory. */
static bool offload_write_was_refused(const struct offload_write *w, int result)
{
    return w->is_damaged || result == -EBUSY || result == -EDQUOT || result == -ENOSPC || result == -EFBIG;
}

/* All pages of a group have one size and one tenant, so what holds for one mostly holds for them all. */
static void offload_write_postpone(struct offload *o, const struct page_handle *h, int result)
{
    struct group *g = h->group;

    if (result == -EBUSY) {
        g->offload_after_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_BUSY_MS;
        offload_pass_demand(o);
    } else if (result == -EDQUOT || result == -EFBIG) {
        g->offload_after_ms = offload_write_forgiven_ms(o);
    } else { /* damaged, or its key has no place in the index */
        h->slot->is_refused = 1;
        (void) offload_write_forgiven_ms(o);
    }
}

/* @result: of the write; -EEXIST: the disk has the page; -EAGAIN: it is tried again soon. */
static void offload_write_conclude(struct offload_write *w, int result)
{
    struct offload *o = w->offload;
    struct page_handle h;
    bool is_here = offload_write_find_again(w, &h), is_refused = offload_write_was_refused(w, result);

    if (result == 0 && is_here) /* the tenant's first page makes its filter */
        offload_announce_filter(o, h.group->tenant);
    if (result == 0 || result == -EEXIST)
        return;

    if (is_here) {
        h.slot->is_on_disk = 0;
        if (is_refused)
            offload_write_postpone(o, &h, result);
        else
            offload_pass_demand(o);
    }
    if (!is_refused && result != -EAGAIN)
        o->pause_until_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_PAUSE_MS;
}

static void offload_write_on_written(struct tier_request *r)
{
    struct offload_write *w = offload_write_of(r);
    struct offload *o = w->offload;

    offload_write_conclude(w, r->result);
    if (w->is_flushed && !o->stopping) {
        const struct offload_subject subject = {
            .account = w->account, .group = w->request.group, .key = w->request.key};

        (void) offload_forget(o, &subject, TIER_REMOVE, NULL, NULL);
    }
    offload_write_free(w);
    offload_pump(o);
}

/* ---- the thread ---- */

static bool offload_write_seal(struct work_item *work)
{
    struct offload_write *w = (struct offload_write *) work;
    const struct seal_subject subject = {w->account->name, &w->request.key};

    w->is_damaged =
        crc32c(w->page + PAGE_HEADER_BYTES, w->page_bytes - PAGE_HEADER_BYTES) != w->payload_crc32c;
    if (!w->is_damaged)
        seal_page(w->keyring, &subject, w->page, w->page_bytes, w->buffer);
    return false;
}

/* Return: 0; -EAGAIN: it is not needed now; -EIO: the page is not sealed; errno of disk_submit(). */
static int offload_write_submit(struct offload_write *w)
{
    struct offload *o = w->offload;

    if (w->is_flushed)
        return -EAGAIN;
    if (w->work.expired || w->is_damaged || o->stopping)
        return -EIO;

    w->request.data = w->buffer;
    w->request.deadline_ms = work_clock_ms() + OFFLOAD_WRITE_MS;
    w->request.done = offload_write_on_written;
    return disk_submit(o->disk, &w->account->disk_share, &w->request);
}

static void offload_write_on_sealed(struct work_item *work)
{
    struct offload_write *w = (struct offload_write *) work;
    struct offload *o = w->offload;
    struct page_handle h;
    int r;

    store_unpin(o->store, &w->slot);
    if (w->is_damaged && offload_write_find_again(w, &h))
        store_page_checked(o->store, &h, false);
    r = offload_write_submit(w);
    if (r == 0)
        return;

    disk_buffer_give_back(o->disk, w->buffer);
    offload_write_conclude(w, r);
    offload_write_free(w);
}

/* ---- begin ---- */

static void offload_write_fill(struct offload_write *w, struct offload *o, const struct page_handle *h)
{
    const struct group *g = h->group;

    w->work.run = offload_write_seal;
    w->work.done = offload_write_on_sealed;
    w->work.deadline_ms = work_clock_ms() + OFFLOAD_WRITE_MS;
    w->offload = o;
    w->account = account_ref(g->tenant->account);
    w->keyring = keyring_ref(o->keyring);
    w->slot = *h;
    w->generation = h->slot->generation;
    w->page = pool_slot_data(&o->store->pool, h);
    w->page_bytes = g->page_bytes;
    w->payload_crc32c = h->slot->payload_crc32c;
    w->request.key = h->slot->key;
    w->request.quota_bytes = o->rooms.config->disk_quota_bytes;
    offload_group_id(g, &w->request.group);
    o->n_writes++;
    w->next = o->writes;
    if (w->next)
        w->next->prev = w;
    o->writes = w;
}

/* The slot still has the page. Return: 0; -EAGAIN: no buffer or thread is free. */
static int offload_write_start(struct offload_write *w)
{
    struct offload *o = w->offload;
    int r;

    w->request.kind = TIER_PUT;
    w->buffer = disk_buffer_take(o->disk, w->page_bytes);
    if (!w->buffer)
        return -EAGAIN;

    store_pin(&w->slot);
    r = work_submit(o->rooms.work, &o->seals, &w->work);
    if (r < 0) {
        store_unpin(o->store, &w->slot);
        disk_buffer_give_back(o->disk, w->buffer);
    }
    return r;
}

/* The disk has the page, or a thread seals it now, unless it left memory meanwhile. */
static void offload_write_on_asked(struct tier_request *r)
{
    struct offload_write *w = offload_write_of(r);
    struct offload *o = w->offload;
    struct page_handle h;
    int err = r->result;

    if (err == -ENOENT && !o->stopping && !w->is_flushed && offload_write_find_again(w, &h) &&
        !h.slot->pinned && !pool_extent_is_closed(h.span->extent))
        err = offload_write_start(w);
    else if (err == -ENOENT)
        err = -EAGAIN;
    else
        err = err == 0 ? -EEXIST : err;
    if (err == 0)
        return;

    offload_write_conclude(w, err);
    offload_write_free(w);
    if (err != -EAGAIN) /* else the timer goes on: asking again at once would not end */
        offload_pump(o);
}

/* A filter may be wrong, and sealing in vain costs a millisecond per megabyte: the disk is asked. */
static int offload_write_ask(struct offload_write *w)
{
    w->request.kind = TIER_ASK;
    w->request.deadline_ms = work_clock_ms() + OFFLOAD_WRITE_MS;
    w->request.done = offload_write_on_asked;
    return disk_submit(w->offload->disk, &w->account->disk_share, &w->request);
}

int offload_write_begin(struct offload *o, const struct page_handle *h)
{
    struct offload_write *w;
    int r;

    if (seal_bytes(h->group->page_bytes) + DISK_BUFFER_UNIT_BYTES > o->rooms.config->disk_buffer_bytes / 2) {
        h->group->offload_after_ms = offload_write_forgiven_ms(o);
        return -EFBIG;
    }

    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;

    offload_write_fill(w, o, h);
    r = offload_has(o, h->group->tenant, &h->slot->key) ? offload_write_ask(w) : offload_write_start(w);
    if (r < 0) {
        offload_write_free(w);
        return r;
    }

    h->slot->is_on_disk = 1; /* unless the write fails */
    offload_start_timer(o);
    return 0;
}

/* ---- flushed pages ---- */

uint32_t offload_write_flush(struct offload *o, const struct offload_subject *s)
{
    uint32_t n = 0;

    for (struct offload_write *w = o->writes; w; w = w->next)
        if (strcmp(w->account->name, s->account->name) == 0 &&
            memcmp(&w->request.key, &s->key, sizeof(s->key)) == 0) {
            w->is_flushed = true;
            n++;
        }
    return n;
}
