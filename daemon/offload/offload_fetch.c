/*
 * One page on its way from a tier: a slot is reserved, the tier reads, a thread opens the page into the slot,
 * and the page is published. What the tier of the host promised and does not give, as its filter may, or
 * gives damaged, is asked of a shared tier. A page that was read waits in its buffer until a thread has a
 * place for it: the buffers are few, so the tier reads no faster than threads open. All fetches stand in a
 * list; those on their way also in a tree by tenant and key, so that a key is fetched once.
 */
#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/metrics.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/page_check.h"
#include "daemon/store/reserve.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tier/keyring.h"
#include "daemon/tier/seal.h"

struct offload_fetch {
    struct work_item work; /* first member */
    struct tier_request request;
    struct offload_tier *tier;
    struct offload_fetch *next, *prev; /* in offload.fetches */
    struct offload_fetch *next_read;   /* in offload.first_read */
    struct offload *offload;
    struct tenant *tenant;   /* stays: the slot is charged to it */
    struct group *group;     /* of the slot, as long as it is COPYING */
    struct account *account; /* has a reference */
    struct keyring *keyring; /* likewise, once the page was read */
    struct chunk_key key;
    struct page_expectation expected;
    struct offload_waiter *waiters;
    struct page_handle slot; /* COPYING; then held, if is_here */
    uint8_t *to;             /* the page in the slot */
    size_t page_bytes;
    uint32_t payload_crc32c;
    int opened; /* 0; errno of seal_open() or page_check() */
    bool is_here, is_protected;
    bool is_unasked;  /* of the shared tier, which was not asked before: it may not have the page */
    bool was_removed; /* the tier lost the page after it read it */
    bool is_flushed;  /* by an operator: the page is not published */
    uint64_t protected_until_ms; /* is_here */
    struct errmsg why;
};

static struct offload_fetch *offload_fetch_of(struct tier_request *r)
{
    return (struct offload_fetch *) ((char *) r - offsetof(struct offload_fetch, request));
}

/* Order of the tree. */
static int offload_fetch_compare(const void *a, const void *b)
{
    const struct offload_fetch *x = a, *y = b;

    if (x->tenant != y->tenant)
        return (uintptr_t) x->tenant < (uintptr_t) y->tenant ? -1 : 1;
    return memcmp(&x->key, &y->key, sizeof(x->key));
}

static void offload_fetch_free(struct offload_fetch *f)
{
    struct offload *o = f->offload;

    if (f->prev)
        f->prev->next = f->next;
    else
        o->fetches = f->next;
    if (f->next)
        f->next->prev = f->prev;
    o->n_fetches--;
    o->n_protected -= f->is_protected;
    (void) account_unref(f->account);
    (void) keyring_unref(f->keyring);
    free(f);
}

/* ---- waits ---- */

static void offload_waiter_join(struct offload_waiter *w, struct offload_fetch *f)
{
    w->fetch = f;
    w->prev = NULL;
    w->next = f->waiters;
    if (w->next)
        w->next->prev = w;
    f->waiters = w;
}

void offload_waiter_leave(struct offload_waiter *w)
{
    struct offload_fetch *f = w->fetch;

    if (!f)
        return;

    if (w->prev)
        w->prev->next = w->next;
    else
        f->waiters = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->fetch = NULL;
}

static void offload_waiter_end(struct offload_waiter *w, const struct page_handle *page)
{
    offload_waiter_leave(w);
    w->ended(w, page);
}

/* ---- the end ---- */

/*
 * The fetch leaves the tree, and all waits for it end. A callback may begin another fetch of the key. Return:
 * whether a request waited.
 */
static bool offload_fetch_tell(struct offload_fetch *f, const struct page_handle *page)
{
    bool any = f->waiters != NULL;

    (void) tdelete(f, &f->offload->fetch_tree, offload_fetch_compare);
    while (f->waiters)
        offload_waiter_end(f->waiters, page);
    return any;
}

static void offload_fetch_fail(struct offload_fetch *f)
{
    offload_rate_end(&f->tier->rate, 0, metrics_now_ns());
    store_discard(f->offload->store, &f->slot);
    (void) offload_fetch_tell(f, &PAGE_NONE);
    offload_fetch_free(f);
}

/* The page is in memory, with a hold of this fetch. */
static void offload_fetch_arrive(struct offload_fetch *f, const struct page_handle *page)
{
    struct offload *o = f->offload;

    offload_rate_end(&f->tier->rate, f->page_bytes, metrics_now_ns());
    f->slot = *page;
    f->is_here = true;
    f->protected_until_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_PROTECT_MS;
    if (!offload_fetch_tell(f, &f->slot) && !o->stopping && o->n_protected < OFFLOAD_PROTECTED_MAX) {
        f->is_protected = true; /* no request waits: the page stays for a moment */
        o->n_protected++;
        return;
    }

    store_unhold(o->store, &f->slot);
    offload_fetch_free(f);
}

/* Publishes the page, unless a client did that meanwhile. */
static void offload_fetch_publish(struct offload_fetch *f)
{
    struct store *st = f->offload->store;
    struct page_handle present;

    if (store_find(st, f->tenant, &f->key, &present)) {
        store_discard(st, &f->slot);
        store_hold(st, &present);
        offload_fetch_arrive(f, &present);
        return;
    }

    if (store_publish(st, &f->slot, &f->key, f->payload_crc32c, &f->why) < 0) {
        offload_fetch_fail(f);
        return;
    }

    f->slot.slot->is_on_disk = !f->tier->shared && !f->was_removed;
    for (unsigned i = 0; i < f->offload->n_tiers; i++)
        if (f->offload->tiers[i].shared && &f->offload->tiers[i] != f->tier)
            offload_refill_note(&f->offload->tiers[i], &f->slot);
    if (f->tier->shared) {
        offload_look_note(f->tier, true);
        if (f->tier->ops->touch)
            offload_refresh_note(f->tier, f->request.name);
    }
    offload_fetch_arrive(f, &f->slot);
}

/* ---- pages that do not open ---- */

/*
 * The tier does not find the page again: the next write of it is a good one. If that cannot be told, the page
 * does not open again.
 */
static void offload_fetch_forget(struct offload_fetch *f)
{
    const struct offload_subject subject = {.account = f->account, .group = f->request.group, .key = f->key};
    struct offload_tier *t = f->tier;

    if (log_is_due(++t->n_unopened))
        log_event(LOG_WARNING, "page-not-opened",
                  "tenant=%s tier=%s unopened=%" PRIu64 " message=\"%s\", a miss", f->tenant->name,
                  t->ops->name, t->n_unopened, f->why.text);
    if (t->shared)
        offload_look_note(t, false);
    (void) offload_forget(t, &subject, TIER_FORGET, NULL, NULL);
}

/* ---- the thread ---- */

static int offload_fetch_unseal(struct offload_fetch *f)
{
    const struct seal_subject subject = {f->account->name, &f->key};
    size_t bytes = seal_bytes(f->page_bytes);

    if (f->request.value_bytes != bytes)
        return fail(&f->why, -EBADMSG, "a value of %" PRIu64 " bytes instead of %zu", f->request.value_bytes,
                    bytes);
    if (f->tier->shared) /* its process may write to the value while it is opened */
        return seal_open_shared(f->keyring, &subject, f->request.data, bytes, f->to, f->page_bytes, &f->why);
    return seal_open(f->keyring, &subject, f->request.data, bytes, f->to, f->page_bytes, &f->why);
}

static bool offload_fetch_open(struct work_item *work)
{
    struct offload_fetch *f = (struct offload_fetch *) work;

    f->opened = offload_fetch_unseal(f);
    if (f->opened == 0)
        f->opened = page_check(f->to, &f->expected, &f->payload_crc32c, &f->why);
    return false;
}

/* The bytes that the tier read. */
static void offload_fetch_give_back(struct offload_fetch *f)
{
    f->tier->ops->give_back(f->tier->self, f->request.data);
}

static bool offload_fetch_submit(struct offload_fetch *f);

static struct offload_tier *offload_fetch_shared(const struct offload_fetch *f)
{
    struct offload *o = f->offload;

    for (unsigned i = 0; i < o->n_tiers; i++)
        if (offload_shared_looks(&o->tiers[i], f->account->name) &&
            o->tiers[i].ops->fits(o->tiers[i].self, f->page_bytes))
            return &o->tiers[i];
    return NULL;
}

/* Begins anew at a shared tier, after the host's had no good page. Return: whether it runs; else it fails. */
static bool offload_fetch_try_shared(struct offload_fetch *f)
{
    struct offload_tier *t = f->tier->shared || f->offload->stopping ? NULL : offload_fetch_shared(f);

    if (!t || f->is_flushed)
        return false;

    offload_rate_end(&f->tier->rate, 0, metrics_now_ns());
    f->keyring = keyring_unref(f->keyring);
    f->work = (struct work_item){.run = NULL};
    f->opened = 0;
    f->tier = t;
    f->is_unasked = true;
    f->was_removed = false;
    offload_rate_begin(&t->rate, metrics_now_ns());
    return offload_fetch_submit(f);
}

/* The thread is done with the page, or had no time for it. */
static void offload_fetch_conclude(struct offload_fetch *f)
{
    struct offload *o = f->offload;

    offload_fetch_give_back(f);
    f->tier->n_late += f->work.expired && !o->stopping;
    if (f->work.expired || f->is_flushed || o->stopping) {
        offload_fetch_fail(f);
        return;
    }
    if (f->opened < 0) {
        offload_fetch_forget(f);
        if (!offload_fetch_try_shared(f))
            offload_fetch_fail(f);
        return;
    }
    offload_fetch_publish(f);
}

static void offload_fetch_on_opened(struct work_item *work)
{
    struct offload_fetch *f = (struct offload_fetch *) work;
    struct offload *o = f->offload;

    offload_fetch_conclude(f);  /* frees @f, or it is here */
    offload_fetch_open_read(o); /* its place is free */
}

/* ---- the tier ---- */

/* Takes the first page that waits for a thread out of its queue, or the one behind @before. */
static struct offload_fetch *offload_fetch_take_read(struct offload *o, struct offload_fetch *before)
{
    struct offload_fetch **at = before ? &before->next_read : &o->first_read, *f = *at;

    *at = f->next_read;
    if (!f->next_read)
        o->last_read = before;
    return f;
}

void offload_fetch_open_read(struct offload *o)
{
    struct offload_fetch *before = NULL, *f;

    while ((f = before ? before->next_read : o->first_read)) {
        bool is_late = work_clock_ms() >= f->work.deadline_ms;
        int r = o->stopping || f->is_flushed || is_late
                    ? -ETIMEDOUT
                    : work_submit(o->rooms.work, &f->account->work_share, &f->work);

        if (r == -EAGAIN) { /* its tenant has as many items as it may: others go on */
            before = f;
            continue;
        }

        (void) offload_fetch_take_read(o, before);
        if (r == 0)
            continue;

        f->tier->n_late += is_late;
        offload_fetch_give_back(f);
        offload_fetch_fail(f);
        before = NULL; /* who waited for the page may have begun or ended others */
    }
}

/* The tier has read the page, or not. */
static void offload_fetch_continue(struct offload_fetch *f, int result)
{
    struct offload *o = f->offload;

    if (result < 0) {
        if (result != -ENOENT || !offload_fetch_try_shared(f))
            offload_fetch_fail(f);
        return;
    }

    f->keyring = keyring_ref(o->keyring);
    f->work.run = offload_fetch_open;
    f->work.done = offload_fetch_on_opened;
    f->work.deadline_ms = work_clock_ms() + OFFLOAD_READ_MS;
    if (o->last_read)
        o->last_read->next_read = f;
    else
        o->first_read = f;
    o->last_read = f;
    offload_fetch_open_read(o);
}

/* -EFBIG and -EBADMSG: the value is no page. */
static void offload_fetch_note_got(struct offload_fetch *f)
{
    struct offload_shared_counts *n = &f->tier->shared->counts;
    int result = f->request.result;

    n->n_asked += f->is_unasked;
    n->n_found += f->is_unasked && result == 0;
    if (result == 0) {
        n->n_read++;
        n->read_bytes += f->request.value_bytes;
    } else if (result == -EFBIG || result == -EBADMSG) {
        errmsg_set(&f->why, "the %s has a value that is no page: %s", f->tier->ops->name, strerror(-result));
        offload_fetch_forget(f);
    } else if (!f->is_unasked) {
        n->n_missed++;
        offload_look_note(f->tier, false);
    }
}

static void offload_fetch_on_got(struct tier_request *r)
{
    struct offload_fetch *f = offload_fetch_of(r);

    if (f->tier->shared)
        offload_fetch_note_got(f);
    offload_fetch_continue(f, r->result);
}

void offload_fetch_note_removed(struct offload *o, struct tenant *t, const struct chunk_key *key)
{
    struct offload_fetch **node, probe;

    if (!o->fetch_tree)
        return;

    probe.tenant = t;
    probe.key = *key;
    node = tfind(&probe, &o->fetch_tree, offload_fetch_compare);
    if (node)
        (*node)->was_removed = true;
}

/* ---- flushed pages ---- */

void offload_fetch_flush(struct offload *o, const struct tenant *t, const struct chunk_key *key)
{
    struct offload_fetch wanted = {.tenant = (struct tenant *) t, .key = *key};
    struct offload_fetch **node = tfind(&wanted, &o->fetch_tree, offload_fetch_compare);

    if (node)
        (*node)->is_flushed = true;
}

/* ---- begin ---- */

static void offload_fetch_fill(struct offload_fetch *f, struct offload *o, struct group *g)
{
    f->offload = o;
    f->account = account_ref(g->tenant->account);
    f->page_bytes = g->page_bytes;
    f->expected = (struct page_expectation){
        .layout = &g->space->layout,
        .model_digest = g->space->table->model_digest,
        .key = &f->key,
        .page_class = g->page_class,
    };
    offload_group_id(g, &f->request.group);
}

/* Asks the tier for the page. False: it takes no request. */
static bool offload_fetch_submit(struct offload_fetch *f)
{
    const struct offload_tier *t = f->tier;

    f->request.kind = TIER_GET;
    f->request.key = f->key;
    f->request.deadline_ms = work_clock_ms() + OFFLOAD_READ_MS;
    f->request.done = offload_fetch_on_got;
    if (t->shared) {
        t->ops->make_name(t->self, &f->request.group, &f->key, f->request.name);
        if (offload_is_forgetting(t, &f->request.group, &f->key))
            return false;
    }
    return t->ops->submit(t->self, &f->account->tier_shares[t->number], &f->request) == 0;
}

/* Reserves the slot and begins to read. *@f is in the tree, but not in the list. */
static int offload_fetch_begin(struct offload_fetch *f, struct offload *o, struct group *g, struct errmsg *e)
{
    int r = reserve_slot(o->store, g, SLOT_WITHOUT_SESSION, &f->slot, e);

    if (r < 0)
        return r;

    store_claim(&f->slot);
    f->slot.slot->key = f->key;
    f->to = pool_slot_data(&o->store->pool, &f->slot);
    offload_fetch_fill(f, o, g);
    if (!offload_fetch_submit(f)) {
        store_discard(o->store, &f->slot);
        (void) account_unref(f->account);
        return fail(e, -EAGAIN, "the %s tier takes no more requests of tenant %s now", f->tier->ops->name,
                    g->tenant->name);
    }

    offload_rate_begin(&f->tier->rate, metrics_now_ns());
    f->next = o->fetches;
    if (f->next)
        f->next->prev = f;
    o->fetches = f;
    o->n_fetches++;
    offload_start_timer(o);
    return 0;
}

int offload_fetch(struct offload *o, struct group *g, const struct chunk_key *key, struct offload_tier *found,
                  struct offload_waiter *w, struct errmsg *e)
{
    struct offload_tier *tier = offload_has(o, g->tenant, key) ? o->host : found;
    _cleanup_(freep) struct offload_fetch *f = NULL;
    struct offload_fetch **node;
    int r = 0;

    if (o->stopping || !tier)
        return -ENODATA;

    f = calloc(1, sizeof(*f));
    if (!f)
        return fail(e, -ENOMEM, "out of memory for a fetch");

    f->tenant = g->tenant;
    f->group = g;
    f->tier = tier;
    f->key = *key;
    node = tsearch(f, &o->fetch_tree, offload_fetch_compare);
    if (!node)
        return fail(e, -ENOMEM, "out of memory for a fetch");

    if (*node == f) {
        r = offload_fetch_begin(f, o, g, e);
        if (r < 0) {
            (void) tdelete(f, &o->fetch_tree, offload_fetch_compare);
            return r;
        }
        node = NULL;
    } else if ((*node)->group != g) {
        return fail(e, -EBUSY, "a page of another kind with the same key is being fetched");
    }

    if (w)
        offload_waiter_join(w, node ? *node : f);
    if (!node)
        (void) take_ptr(f);
    return 0;
}

/* ---- time ---- */

/* Ends the waits whose deadline passed. */
static void offload_fetch_expire_waiters(struct offload_fetch *f, uint64_t now_ms)
{
    for (struct offload_waiter *w = f->waiters; w;) {
        if (w->deadline_ms > now_ms) {
            w = w->next;
            continue;
        }
        offload_waiter_end(w, &PAGE_NONE);
        w = f->waiters; /* the callback may have ended others */
    }
}

void offload_fetch_expire(struct offload *o, uint64_t now_ms)
{
    offload_fetch_open_read(o);
    for (struct offload_fetch *f = o->fetches, *next; f; f = next) {
        next = f->next;
        if (!f->is_here) {
            offload_fetch_expire_waiters(f, now_ms);
            next = f->next;
        } else if (f->protected_until_ms <= now_ms) {
            store_unhold(o->store, &f->slot);
            offload_fetch_free(f);
        }
    }
}
