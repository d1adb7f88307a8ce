/* See disk_queue.h. */
#include "daemon/tier/disk_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd_io.h"
#include "daemon/tier/disk_state.h"
#include "daemon/tier/seal.h"

/* Called with the lock held. */
static int disk_queue_enter(struct disk *d, struct tier_share *s)
{
    int r;

    if (d->status.state == TIER_OFF || d->stopping)
        return -ENODEV;
    if (s->n_requests >= d->options.n_requests_max - d->n_requests)
        return -EAGAIN;

    r = fair_join(&d->waiting, &s->waiting);
    if (r < 0)
        return r;

    r = fair_join(&d->writes, &s->writes);
    if (r < 0) {
        (void) fair_leave(&d->waiting, &s->waiting);
        return r;
    }

    r = fair_join(&d->ended, &s->ended);
    if (r < 0) {
        (void) fair_leave(&d->waiting, &s->waiting);
        (void) fair_leave(&d->writes, &s->writes);
        return r;
    }

    s->n_requests++;
    d->n_requests++;
    return 0;
}

/* Called with the lock held. */
static void disk_queue_leave(struct disk *d, struct tier_share *s)
{
    d->n_requests--;
    s->n_requests--;
    (void) fair_leave(&d->waiting, &s->waiting);
    (void) fair_leave(&d->writes, &s->writes);
    (void) fair_leave(&d->ended, &s->ended);
}

int disk_queue_put(struct disk *d, struct tier_share *s, struct tier_request *r)
{
    int err;

    assert(r->done && (r->kind != TIER_PUT || r->data));
    r->share = s;
    r->result = 0;
    r->item.in = NULL;
    (void) pthread_mutex_lock(&d->lock);
    err = disk_queue_enter(d, s);
    if (err == 0) {
        d->status.n_waiting++;
        if (r->kind == TIER_PUT)
            fair_put(&d->writes, &s->writes, &r->item);
        else
            fair_put(&d->waiting, &s->waiting, &r->item);
    }
    (void) pthread_mutex_unlock(&d->lock);
    return err;
}

/* Called with the lock held. */
static void disk_queue_count(struct disk_status *s, const struct tier_request *r)
{
    uint64_t bytes = r->group.page_bytes;

    if (r->result == 0) {
        s->n_written += r->kind == TIER_PUT;
        s->written_bytes += r->kind == TIER_PUT ? bytes : 0;
        s->n_read += r->kind == TIER_GET;
        s->read_bytes += r->kind == TIER_GET ? bytes : 0;
        s->n_forgotten += r->kind == TIER_FORGET;
    } else if (r->result == -ETIMEDOUT) {
        s->n_timeouts++;
    } else if (r->result == -ENOENT) {
        s->n_missed += r->kind == TIER_GET;
    } else if (r->result == -EIO || r->result == -ENODEV) {
        s->n_failed++;
    } else if (r->result != -EEXIST) {
        s->n_refused++;
    }
}

/* Called with the lock held. */
static void disk_queue_finish(struct disk *d, struct tier_request *r, uint8_t *data, int result)
{
    const uint64_t one = 1;

    r->data = data;
    r->value_bytes = seal_bytes(r->group.page_bytes);
    r->result = result;
    disk_queue_count(&d->status, r);
    if (fair_is_empty(&d->ended))
        (void) fd_write_all(d->ended_fd, &one, sizeof(one)); /* a full counter is readable, too */
    fair_put(&d->ended, &r->share->ended, &r->item);
}

/* Shares take turns by number of requests: done() may free the share, so its time cannot be added. */
struct tier_request *disk_queue_take_ended(struct disk *d)
{
    struct tier_request *r;
    uint64_t count;

    (void) pthread_mutex_lock(&d->lock);
    r = (struct tier_request *) fair_take(&d->ended);
    if (r) {
        fair_charge(&d->ended, &r->share->ended, 1);
        disk_queue_leave(d, r->share);
    }
    if (fair_is_empty(&d->ended))
        (void) !read(d->ended_fd, &count, sizeof(count)); /* no longer readable */
    (void) pthread_mutex_unlock(&d->lock);
    return r;
}

/* Called with the lock held. Return: whether requests were ended. */
static bool disk_queue_expire_waiting(struct disk *d, struct fair_queue *q, uint64_t until_ms, int result)
{
    struct tier_request *late = NULL, *next;
    bool any;

    for (uint32_t k = 0; k < q->n; k++) {
        for (struct fair_item *i = q->heap[k]->first; i; i = i->next) {
            struct tier_request *r = (struct tier_request *) i;

            if (r->deadline_ms > until_ms)
                continue;
            r->next = late;
            late = r;
        }
    }

    any = late != NULL;
    for (; late; late = next) {
        next = late->next;
        fair_remove(q, &late->item);
        d->status.n_waiting--;
        if (late->kind == TIER_PUT)
            disk_buffers_give_back(&d->buffers, late->data);
        disk_queue_finish(d, late, NULL, result);
    }

    return any;
}

bool disk_queue_expire(struct disk *d, uint64_t until_ms, int result)
{
    bool any;

    (void) pthread_mutex_lock(&d->lock);
    any = disk_queue_expire_waiting(d, &d->waiting, until_ms, result);
    any |= disk_queue_expire_waiting(d, &d->writes, until_ms, result);
    for (uint32_t i = 0; i < d->options.depth; i++) {
        struct disk_transfer *t = &d->transfers[i];

        if (!t->request || t->request->deadline_ms > until_ms)
            continue;
        disk_queue_finish(d, t->request, NULL, result);
        t->request = NULL;
        any = true;
    }
    (void) pthread_mutex_unlock(&d->lock);
    return any;
}

/* ---- transfers ---- */

static struct disk_transfer *disk_queue_find_free(struct disk *d)
{
    struct disk_transfer *t = d->transfers;

    assert(d->n_transfers < d->options.depth);
    while (t->is_used)
        t++;
    return t;
}

struct disk_transfer *disk_queue_take(struct disk *d, bool writes)
{
    struct disk_transfer *t = disk_queue_find_free(d);
    struct fair_queue *q = writes ? &d->writes : &d->waiting;
    struct tier_request *r;

    (void) pthread_mutex_lock(&d->lock);
    r = (struct tier_request *) fair_take(q);
    if (r) {
        fair_charge(q, writes ? &r->share->writes : &r->share->waiting, r->group.page_bytes);
        d->status.n_waiting--;
        *t = (struct disk_transfer){.request = r,
                                    .kind = r->kind,
                                    .group = r->group,
                                    .key = r->key,
                                    .family = r->family,
                                    .list_from = r->list_from,
                                    .quota_bytes = r->quota_bytes,
                                    .drops_any_tenant = r->drops_any_tenant,
                                    .drops_any_table = r->drops_any_table,
                                    .data = writes ? r->data : NULL,
                                    .is_used = true};
        d->n_transfers++;
    }
    (void) pthread_mutex_unlock(&d->lock);
    return r ? t : NULL;
}

void disk_queue_end(struct disk *d, struct disk_transfer *t, int result)
{
    (void) pthread_mutex_lock(&d->lock);
    if (t->request)
        t->request->list = take_ptr(t->list);
    if (t->request && t->kind == TIER_GET && result == 0) {
        disk_queue_finish(d, t->request, t->data, 0);
    } else {
        if (t->data) /* first: the loop may take a buffer as soon as it hears of the end */
            disk_buffers_give_back(&d->buffers, t->data);
        if (t->request)
            disk_queue_finish(d, t->request, NULL, result);
    }
    t->request = NULL;
    (void) pthread_mutex_unlock(&d->lock);
    free(t->list); /* of a request that has ended */
    t->list = NULL;
    t->data = NULL;
    t->is_used = false;
    d->n_transfers--;
}
