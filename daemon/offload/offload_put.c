/*
 * One page on its way to a tier. If a tier of the host may have it, it is asked first. A thread compares the
 * page with its checksum and seals it, then the tier takes it. The page is pinned while the thread reads it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/tier/keyring.h"
#include "daemon/tier/seal.h"

struct offload_put {
    struct work_item work; /* first member */
    struct tier_request request;
    struct offload_put *next, *prev; /* in offload_tier.puts */
    struct offload_tier *tier;
    struct account *account; /* has a reference */
    struct keyring *keyring; /* likewise */
    struct page_handle slot; /* that the page was in; pinned while the thread reads it */
    uint64_t generation;
    const uint8_t *page; /* [page_bytes] in the slot */
    size_t page_bytes;
    uint32_t payload_crc32c;
    uint8_t *buffer; /* of the tier */
    bool is_sealed, is_damaged;
    bool is_flushed; /* by an operator: the tier may not keep the page */
};

static struct offload_put *offload_put_of(struct tier_request *r)
{
    return (struct offload_put *) ((char *) r - offsetof(struct offload_put, request));
}

static void offload_put_free(struct offload_put *p)
{
    struct offload_tier *t = p->tier;

    t->n_puts--;
    if (p->prev)
        p->prev->next = p->next;
    else
        t->puts = p->next;
    if (p->next)
        p->next->prev = p->prev;
    (void) account_unref(p->account);
    (void) keyring_unref(p->keyring);
    free(p);
}

/* Whether the page is still in memory. */
static bool offload_put_find_again(const struct offload_put *p, struct page_handle *ret)
{
    return store_find_again(p->tier->offload->store, p->slot.number, p->generation, ret);
}

/* ---- the end, at a tier of the host ---- */

/* When refused pages are tried again. */
static uint64_t offload_put_forgiven_ms(struct offload *o)
{
    if (o->forgive_at_ms == 0)
        o->forgive_at_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_REFUSED_MS;
    return o->forgive_at_ms;
}

/* The tier works, but has no room for the page, or the page may not leave memory. */
static bool offload_put_was_refused(const struct offload_put *p, int result)
{
    return p->is_damaged || result == -EBUSY || result == -EDQUOT || result == -ENOSPC || result == -EFBIG;
}

/* All pages of a group have one size and one tenant, so what holds for one mostly holds for them all. */
static void offload_put_postpone(struct offload *o, const struct page_handle *h, int result)
{
    struct group *g = h->group;

    if (result == -EBUSY) {
        g->offload_after_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_BUSY_MS;
        offload_pass_demand(o);
    } else if (result == -EDQUOT || result == -EFBIG) {
        g->offload_after_ms = offload_put_forgiven_ms(o);
    } else { /* damaged, or its key has no place in the index */
        h->slot->is_refused = 1;
        (void) offload_put_forgiven_ms(o);
    }
}

static void offload_put_conclude_host(struct offload_put *p, int result)
{
    struct offload *o = p->tier->offload;
    struct page_handle h;
    bool is_here = offload_put_find_again(p, &h), is_refused = offload_put_was_refused(p, result);

    if (result == 0 && is_here) /* the tenant's first page makes its filter */
        offload_announce_filter(o, h.group->tenant);
    if (result == 0 || result == -EEXIST)
        return;

    if (is_here) {
        h.slot->is_on_disk = 0;
        if (is_refused)
            offload_put_postpone(o, &h, result);
        else
            offload_pass_demand(o);
    }
    if (!is_refused && result != -EAGAIN)
        p->tier->pause_until_ms = ev_now_ms(o->rooms.ev) + OFFLOAD_PAUSE_MS;
}

/* ---- the end, at a shared tier ---- */

void offload_put_note_shared(struct offload_tier *t, uint64_t page_bytes, int result)
{
    struct offload_shared_counts *n = &t->shared->counts;

    if (result == 0) {
        n->n_written++;
        n->written_bytes += page_bytes;
    } else if (result == -EEXIST) {
        n->n_present++;
    } else {
        n->n_not_written++;
        t->shared->n_failed += result != -ENOSPC; /* a full tier would not take it later, either */
        if (!t->ops->is_partial || !t->ops->is_partial(t->self, result))
            t->pause_until_ms = ev_now_ms(t->offload->rooms.ev) + OFFLOAD_PAUSE_MS;
    }
}

/* ---- the end ---- */

/*
 * @result: of the PUT, or why it was not sent; -EEXIST: the tier has the page; -EAGAIN: it is tried again
 * soon.
 */
static void offload_put_conclude(struct offload_put *p, int result)
{
    if (p->tier->shared)
        offload_put_note_shared(p->tier, p->page_bytes, result);
    else
        offload_put_conclude_host(p, result);
    offload_put_free(p);
}

static void offload_put_on_done(struct tier_request *r)
{
    struct offload_put *p = offload_put_of(r);
    struct offload_tier *t = p->tier;

    if (p->is_flushed && !t->offload->stopping) { /* a removal may have overtaken it */
        const struct offload_subject subject = {.account = p->account, .group = r->group, .key = r->key};

        (void) offload_forget(t, &subject, TIER_REMOVE, NULL, NULL);
    }
    offload_put_conclude(p, r->result);
    t->pump(t);
}

/* ---- the thread ---- */

/*
 * A page for a shared tier is sealed in memory of this process and copied then: who can write to the buffer
 * while the tag is computed could have another ciphertext authenticated.
 */
static void offload_put_seal(struct offload_put *p)
{
    const struct seal_subject subject = {p->account->name, &p->request.key};
    _cleanup_(freep) uint8_t *own = p->tier->shared ? malloc(seal_bytes(p->page_bytes)) : NULL;

    if (p->tier->shared && !own)
        return;

    seal_page(p->keyring, &subject, p->page, p->page_bytes, own ? own : p->buffer);
    if (own)
        memcpy(p->buffer, own, seal_bytes(p->page_bytes));
    p->is_sealed = true;
}

static bool offload_put_work(struct work_item *work)
{
    struct offload_put *p = (struct offload_put *) work;

    p->is_damaged =
        crc32c(p->page + PAGE_HEADER_BYTES, p->page_bytes - PAGE_HEADER_BYTES) != p->payload_crc32c;
    if (!p->is_damaged)
        offload_put_seal(p);
    return false;
}

/* Return: 0; -EAGAIN: it is not needed now; -EIO: the page is not sealed; errno of submit(). */
static int offload_put_submit(struct offload_put *p)
{
    const struct offload_tier *t = p->tier;

    if (p->is_flushed)
        return -EAGAIN;
    if (p->work.expired || !p->is_sealed || t->offload->stopping)
        return -EIO;

    p->request.kind = TIER_PUT;
    p->request.data = p->buffer;
    p->request.deadline_ms = work_clock_ms() + OFFLOAD_PUT_MS;
    p->request.done = offload_put_on_done;
    return t->ops->submit(t->self, &p->account->tier_shares[t->number], &p->request);
}

/* A pass for the tier of the host passed over the page while it was pinned. */
static void offload_put_demand_host(struct offload *o)
{
    if (!o->host)
        return;
    offload_pass_demand(o);
    offload_start_timer(o);
}

static void offload_put_on_sealed(struct work_item *work)
{
    struct offload_put *p = (struct offload_put *) work;
    struct store *st = p->tier->offload->store;
    struct page_handle h;
    int r;

    store_unpin(st, &p->slot);
    if (p->is_damaged && offload_put_find_again(p, &h))
        store_page_checked(st, &h, false);
    else if (p->tier->shared && offload_put_find_again(p, &h) && !h.slot->is_on_disk)
        offload_put_demand_host(p->tier->offload);
    r = offload_put_submit(p);
    if (r == 0)
        return;

    p->tier->ops->give_back(p->tier->self, p->buffer);
    offload_put_conclude(p, r);
}

/* ---- begin ---- */

static void offload_put_fill(struct offload_put *p, struct offload_tier *t, const struct page_handle *h)
{
    const struct group *g = h->group;
    struct offload *o = t->offload;

    *p = (struct offload_put){
        .work = {.run = offload_put_work,
                 .done = offload_put_on_sealed,
                 .deadline_ms = work_clock_ms() + OFFLOAD_PUT_MS},
        .request = {.key = h->slot->key, .quota_bytes = o->rooms.config->disk_quota_bytes},
        .tier = t,
        .account = account_ref(g->tenant->account),
        .keyring = keyring_ref(o->keyring),
        .slot = *h,
        .generation = h->slot->generation,
        .page = pool_slot_data(&o->store->pool, h),
        .page_bytes = g->page_bytes,
        .payload_crc32c = h->slot->payload_crc32c,
    };
    offload_group_id(g, &p->request.group);
    if (t->shared)
        t->ops->make_name(t->self, &p->request.group, &p->request.key, p->request.name);
    t->n_puts++;
    p->next = t->puts;
    if (p->next)
        p->next->prev = p;
    t->puts = p;
}

/* The slot still has the page. Return: 0; -EAGAIN: no buffer or thread is free. */
static int offload_put_start(struct offload_put *p)
{
    struct offload_tier *t = p->tier;
    int r;

    p->buffer = t->ops->take(t->self, p->page_bytes);
    if (!p->buffer)
        return -EAGAIN;

    store_pin(&p->slot);
    r = work_submit(t->offload->rooms.work, &t->offload->seals, &p->work);
    if (r < 0) {
        store_unpin(t->offload->store, &p->slot);
        t->ops->give_back(t->self, p->buffer);
    }
    return r;
}

/* The tier has the page, or a thread seals it now, unless it left memory meanwhile. */
static void offload_put_on_asked(struct tier_request *r)
{
    struct offload_put *p = offload_put_of(r);
    struct offload_tier *t = p->tier;
    struct page_handle h;
    int err = r->result;

    if (err == -ENOENT && !t->offload->stopping && !p->is_flushed && offload_put_find_again(p, &h) &&
        !h.slot->pinned && !pool_extent_is_closed(h.span->extent))
        err = offload_put_start(p);
    else if (err == -ENOENT)
        err = -EAGAIN;
    else
        err = err == 0 ? -EEXIST : err;
    if (err == 0)
        return;

    offload_put_conclude(p, err);
    if (err != -EAGAIN) /* else the timer goes on: asking again at once would not end */
        t->pump(t);
}

/* A filter may be wrong, and sealing in vain costs a millisecond per megabyte: the tier is asked. */
static int offload_put_ask(struct offload_put *p)
{
    const struct offload_tier *t = p->tier;

    p->request.kind = TIER_ASK;
    p->request.deadline_ms = work_clock_ms() + OFFLOAD_PUT_MS;
    p->request.done = offload_put_on_asked;
    return t->ops->submit(t->self, &p->account->tier_shares[t->number], &p->request);
}

int offload_put_begin(struct offload_tier *t, const struct page_handle *h)
{
    struct offload_put *p;
    int r;

    if (!t->ops->fits(t->self, h->group->page_bytes)) {
        h->group->offload_after_ms = offload_put_forgiven_ms(t->offload);
        return -EFBIG;
    }

    p = malloc(sizeof(*p));
    if (!p)
        return -ENOMEM;

    offload_put_fill(p, t, h);
    r = !t->shared && offload_has(t->offload, h->group->tenant, &h->slot->key) ? offload_put_ask(p)
                                                                               : offload_put_start(p);
    if (r < 0) {
        offload_put_free(p);
        return r;
    }

    if (!t->shared) {
        h->slot->is_on_disk = 1; /* unless the PUT fails */
        offload_start_timer(t->offload);
    }
    return 0;
}

/* ---- flushed pages ---- */

uint32_t offload_put_flush(struct offload_tier *t, const struct offload_subject *s)
{
    uint32_t n = 0;

    for (struct offload_put *p = t->puts; p; p = p->next)
        if (strcmp(p->account->name, s->account->name) == 0 &&
            memcmp(&p->request.key, &s->key, sizeof(s->key)) == 0) {
            p->is_flushed = true;
            n++;
        }
    return n;
}
