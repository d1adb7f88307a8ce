/*
 * Pages that only the tier of the host has, and that a shared tier lost: a pass over all that the host's has,
 * a part at a time. The shared tier is asked for each part, and gets copies of what it does not have, as they
 * are: both keep the same sealed bytes, so nothing is opened. It follows the pass over the pool, whose pages
 * were used last.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/store.h"
#include "daemon/tier/seal.h"

enum { LOOK_MS = 2000, COPIES_MAX = 8 };

struct offload_copy {
    struct tier_request request; /* first member: GET of the host's tier, then PUT */
    struct offload_copy *next, *prev;
    struct offload_tier *tier; /* the shared one */
    struct account *account;   /* has a reference */
    uint8_t *buffer;           /* of the shared tier; NULL: it has it */
    bool is_flushed;           /* by an operator: the shared tier may not keep the page */
};

static struct offload_copies *offload_copies_of(struct offload_tier *t)
{
    return &t->shared->copies;
}

static void offload_copies_end(struct offload_copies *c)
{
    free(c->list);
    c->list = NULL;
    c->runs = c->repeats = false;
}

/* ---- one page ---- */

static void offload_copy_free(struct offload_copy *x)
{
    struct offload_copies *c = offload_copies_of(x->tier);

    if (x->buffer)
        x->tier->ops->give_back(x->tier->self, x->buffer);
    if (x->prev)
        x->prev->next = x->next;
    else
        c->first = x->next;
    if (x->next)
        x->next->prev = x->prev;
    c->n--;
    (void) account_unref(x->account);
    free(x);
}

static void offload_copy_on_written(struct tier_request *r)
{
    struct offload_copy *x = (struct offload_copy *) r;
    struct offload_tier *t = x->tier;

    if (x->is_flushed && !t->offload->stopping) { /* a removal may have overtaken it */
        const struct offload_subject subject = {.account = x->account, .group = r->group, .key = r->key};

        (void) offload_forget(t, &subject, TIER_REMOVE, NULL, NULL);
    }
    offload_put_note_shared(t, r->group.page_bytes, r->result);
    t->shared->counts.n_refilled += r->result == 0;
    if (r->result == -ENOSPC) /* the shared tier has what it has room for */
        offload_copies_end(offload_copies_of(t));
    offload_copy_free(x);
    offload_copies_go_on(t);
}

/* Return: whether the page is on its way to the shared tier. */
static bool offload_copy_write(struct offload_copy *x)
{
    struct offload_tier *t = x->tier;
    uint8_t *buffer = x->buffer;

    x->request.kind = TIER_PUT;
    x->request.data = buffer;
    x->request.deadline_ms = work_clock_ms() + OFFLOAD_PUT_MS;
    x->request.done = offload_copy_on_written;
    if (t->ops->submit(t->self, &x->account->tier_shares[t->number], &x->request) < 0)
        return false;

    x->buffer = NULL;
    return true;
}

static void offload_copy_on_read(struct tier_request *r)
{
    struct offload_copy *x = (struct offload_copy *) r;
    struct offload_tier *t = x->tier, *host = t->offload->host;
    bool is_good = r->result == 0 && r->value_bytes == seal_bytes(r->group.page_bytes) && !x->is_flushed;

    if (is_good)
        memcpy(x->buffer, r->data, r->value_bytes);
    if (r->result == 0)
        host->ops->give_back(host->self, r->data);
    if (is_good && !t->offload->stopping && offload_copy_write(x))
        return;

    offload_copy_free(x);
    offload_copies_go_on(t);
}

/* The page's tenant. NULL: no client since the start, or the shared tier takes none of its pages. */
static struct tenant *offload_copy_tenant(const struct offload_tier *t, const struct tier_group *g)
{
    struct tenant *x = t->offload->store->tenants;

    while (x && strcmp(x->account->name, g->tenant) != 0)
        x = x->next;
    return x && offload_admits(t, x) && t->ops->fits(t->self, g->page_bytes) ? x : NULL;
}

/* Return: 0: the page is on its way, or is not copied; -EAGAIN: no buffer is free, or a queue is full. */
static int offload_copy_begin(struct offload_tier *t, const struct tier_group *g, const struct chunk_key *key,
                              const uint8_t name[static TIER_NAME_BYTES])
{
    struct offload_copies *c = offload_copies_of(t);
    struct offload_tier *host = t->offload->host;
    const struct tenant *tenant = offload_copy_tenant(t, g);
    struct offload_copy *x;

    if (!tenant || offload_is_forgetting(host, g, key) || offload_is_forgetting(t, g, key))
        return 0;
    x = calloc(1, sizeof(*x));
    if (!x)
        return -EAGAIN;

    x->request.kind = TIER_GET;
    x->request.group = *g;
    x->request.key = *key;
    x->request.deadline_ms = work_clock_ms() + OFFLOAD_READ_MS;
    x->request.done = offload_copy_on_read;
    memcpy(x->request.name, name, sizeof(x->request.name));
    x->tier = t;
    x->account = account_ref(tenant->account);
    x->buffer = t->ops->take(t->self, g->page_bytes);
    x->next = c->first;
    if (x->next)
        x->next->prev = x;
    c->first = x;
    c->n++;
    if (x->buffer && host->ops->submit(host->self, &x->account->tier_shares[host->number], &x->request) == 0)
        return 0;

    offload_copy_free(x);
    return -EAGAIN;
}

/* ---- the pass ---- */

static void offload_copies_on_looked(struct tier_look *look)
{
    struct offload_copies *c =
        (struct offload_copies *) ((char *) look - offsetof(struct offload_copies, look));
    struct offload_tier *t = c->tier;

    c->is_asking = false;
    c->has_looked = look->result == 0;
    if (look->result < 0) { /* a name without an answer is not known to be missing */
        t->shared->refill.repeats = true;
        offload_copies_end(c);
    }
    offload_copies_go_on(t);
}

static void offload_copies_on_listed(struct tier_request *r)
{
    struct offload_copies *c =
        (struct offload_copies *) ((char *) r - offsetof(struct offload_copies, request));

    bool repeats = c->repeats && r->result == -ENOENT;

    c->is_asking = false;
    c->list = r->list;
    c->has_looked = false;
    c->at = 0;
    if (r->result < 0) /* -ENOENT: that was all */
        offload_copies_end(c);
    c->repeats |= repeats;
    offload_copies_go_on(c->tier);
}

/* The next part of what the tier of the host has. */
static void offload_copies_ask(struct offload_tier *t)
{
    struct offload_copies *c = offload_copies_of(t);
    struct offload_tier *host = t->offload->host;

    c->request = (struct tier_request){.kind = TIER_LIST,
                                       .list_from = c->from,
                                       .deadline_ms = work_clock_ms() + OFFLOAD_READ_MS,
                                       .done = offload_copies_on_listed};
    c->is_asking = host->ops->submit(host->self, &c->share, &c->request) == 0; /* else at the next tick */
}

static void offload_copies_look(struct offload_tier *t)
{
    struct offload_copies *c = offload_copies_of(t);

    for (uint32_t i = 0; i < c->list->n; i++)
        t->ops->make_name(t->self, &c->list->group, &c->list->keys[i], c->names[i]);
    c->look = (struct tier_look){.timeout_ms = LOOK_MS,
                                 .n = c->list->n,
                                 .names = c->names,
                                 .found = c->found,
                                 .done = offload_copies_on_looked};
    c->is_asking = t->ops->look(t->self, &c->look) == 0; /* else at the next tick */
}

/* Copies of the present part, as many as may be on their way. Return: whether all have begun. */
static bool offload_copies_begin_some(struct offload_tier *t)
{
    struct offload_copies *c = offload_copies_of(t);
    int r = 0;

    while (c->at < c->list->n && c->n < COPIES_MAX && r == 0) {
        if (!c->found[c->at])
            r = offload_copy_begin(t, &c->list->group, &c->list->keys[c->at], c->names[c->at]);
        c->at += r == 0;
    }
    return c->at == c->list->n;
}

static bool offload_copies_may_run(const struct offload_tier *t)
{
    const struct offload *o = t->offload;
    const struct offload_refill *f = &t->shared->refill;

    return !o->stopping && o->host && o->state == TIER_READY && t->ops->is_ready(t->self) &&
           ev_now_ms(o->rooms.ev) >= t->pause_until_ms && !f->runs && !f->is_sent && f->look.n == 0 &&
           t->shared->n_queued == 0;
}

void offload_copies_start(struct offload_tier *t)
{
    struct offload_copies *c = offload_copies_of(t);

    c->tier = t;
    c->repeats = t->offload->host != NULL; /* a pass that runs comes to its end before */
}

static void offload_copies_begin(struct offload_copies *c)
{
    offload_copies_end(c);
    c->from = 0;
    c->runs = true;
}

void offload_copies_go_on(struct offload_tier *t)
{
    struct offload_copies *c = offload_copies_of(t);

    if ((!c->runs && !c->repeats) || c->is_asking || !offload_copies_may_run(t))
        return;

    if (!c->runs)
        offload_copies_begin(c);
    if (c->list && c->has_looked && offload_copies_begin_some(t)) {
        c->from = c->list->next;
        free(c->list);
        c->list = NULL;
    }
    if (!c->list)
        offload_copies_ask(t);
    else if (!c->has_looked)
        offload_copies_look(t);
}

/* ---- flushed pages, and the end ---- */

uint32_t offload_copies_flush(struct offload_tier *t, const struct offload_subject *s)
{
    uint32_t n = 0;

    for (struct offload_copy *x = t->shared ? t->shared->copies.first : NULL; x; x = x->next)
        if (strcmp(x->account->name, s->account->name) == 0 &&
            memcmp(&x->request.key, &s->key, sizeof(s->key)) == 0) {
            x->is_flushed = true;
            n++;
        }
    return n;
}

void offload_copies_deinit(struct offload_copies *c)
{
    free(c->list);
    c->list = NULL;
}
