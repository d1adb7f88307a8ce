/*
 * Pages that clients committed, on their way to the cluster: a bounded queue in the order of their commits,
 * so parents first. A thread compares a page with its checksum and seals it, then it is sent.
 * kvcobra-cluster limits the rate. What the queue has no room for is not written.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_cluster.h"
#include "daemon/store/account.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/tier/keyring.h"
#include "daemon/tier/seal.h"

struct offload_put {
    struct work_item work; /* first member */
    struct cluster_call call;
    struct offload_put *next, *prev; /* in offload_cluster.puts */
    struct offload *offload;
    struct account *account; /* has a reference */
    struct keyring *keyring; /* likewise */
    struct chunk_key key;
    struct page_handle slot; /* that the page was in; pinned while a thread reads it */
    uint64_t generation;
    const uint8_t *page; /* [page_bytes] in the slot */
    size_t page_bytes;
    uint32_t payload_crc32c;
    uint8_t name[CLUSTER_NAME_BYTES];
    uint8_t *range;
    bool is_sealed, is_damaged;
    bool is_flushed; /* by an operator: it is not sent */
};

static void offload_put_free(struct offload_put *p)
{
    struct offload_cluster *c = p->offload->cluster;

    c->n_puts--;
    if (p->prev)
        p->prev->next = p->next;
    else
        c->puts = p->next;
    if (p->next)
        p->next->prev = p->prev;
    (void) account_unref(p->account);
    (void) keyring_unref(p->keyring);
    free(p);
}

/* ---- the queue ---- */

static uint32_t offload_publish_key_start(const struct slot *slot)
{
    uint32_t start;

    memcpy(&start, slot->key.bytes, sizeof(start)); /* a hash */
    return start;
}

static void offload_publish_append(struct offload_cluster *c, struct offload_published page)
{
    if (c->n_queued == OFFLOAD_PUBLISH_MAX) { /* children of what waits: parents are worth more */
        c->counts.n_dropped++;
        return;
    }
    c->queue[(c->first + c->n_queued++) % OFFLOAD_PUBLISH_MAX] = page;
}

static struct offload_published offload_publish_take(struct offload_cluster *c)
{
    struct offload_published page = c->queue[c->first];

    c->first = (c->first + 1) % OFFLOAD_PUBLISH_MAX;
    c->n_queued--;
    return page;
}

/* The page that was taken last is the first one again; its place still has it. */
static void offload_publish_put_back(struct offload_cluster *c)
{
    c->first = (c->first + OFFLOAD_PUBLISH_MAX - 1) % OFFLOAD_PUBLISH_MAX;
    c->n_queued++;
}

void offload_note_published(struct offload *o, const struct page_handle *h)
{
    if (!o || o->stopping || !offload_is_shared(o, h->group->tenant))
        return;

    offload_publish_append(
        o->cluster,
        (struct offload_published){h->number, offload_publish_key_start(h->slot), h->slot->generation});
    offload_publish_pump(o);
}

/* ---- the end ---- */

/* A slot without a node, or one node that is down among others that answer, keeps no other page waiting. */
static bool offload_put_stops_all(const struct offload_cluster *c, int result)
{
    struct cluster_link_status status;

    if (result != -EHOSTUNREACH && result != -EHOSTDOWN)
        return true;
    cluster_link_status(c->link, &status);
    return status.counters[CLUSTER_COUNTER_NODES_READY] == 0;
}

/* @result: of PUT, or why it was not sent. */
static void offload_put_conclude(struct offload_put *p, int result)
{
    struct offload_cluster *c = p->offload->cluster;

    if (result == 0) {
        c->counts.n_written++;
        c->counts.written_bytes += p->page_bytes;
    } else if (result == -EEXIST) {
        c->counts.n_present++;
    } else {
        c->counts.n_not_written++;
        if (offload_put_stops_all(c, result))
            c->pause_until_ms = ev_now_ms(p->offload->rooms.ev) + OFFLOAD_PAUSE_MS;
    }
    offload_put_free(p);
}

static void offload_put_on_done(struct cluster_call *call)
{
    struct offload_put *p = (struct offload_put *) ((char *) call - offsetof(struct offload_put, call));
    struct offload *o = p->offload;

    offload_put_conclude(p, call->result);
    offload_publish_pump(o);
}

/* ---- the thread ---- */

/*
 * The page is sealed in memory of this process and copied then: who can write to the range while the tag is
 * computed could have another ciphertext authenticated.
 */
static bool offload_put_seal(struct work_item *work)
{
    struct offload_put *p = (struct offload_put *) work;
    const struct seal_subject subject = {p->account->name, &p->key};
    _cleanup_(freep) uint8_t *sealed = malloc(seal_bytes(p->page_bytes));

    p->is_damaged =
        crc32c(p->page + PAGE_HEADER_BYTES, p->page_bytes - PAGE_HEADER_BYTES) != p->payload_crc32c;
    if (p->is_damaged || !sealed)
        return false;

    seal_page(p->keyring, &subject, p->page, p->page_bytes, sealed);
    memcpy(p->range, sealed, seal_bytes(p->page_bytes));
    p->is_sealed = true;
    return false;
}

static int offload_put_submit(struct offload_put *p)
{
    struct offload *o = p->offload;

    if (!p->is_sealed || p->is_flushed || p->work.expired || o->stopping)
        return -EIO;

    p->call = (struct cluster_call){
        .kind = CLUSTER_PUT,
        .timeout_ms = OFFLOAD_PUT_MS,
        .ttl_ms = o->rooms.config->cluster_ttl_s * 1000,
        .bytes = seal_bytes(p->page_bytes),
        .data = p->range,
        .n_names = 1,
        .names = p->name,
        .done = offload_put_on_done,
    };
    return cluster_link_submit(o->cluster->link, &p->call);
}

static void offload_put_on_sealed(struct work_item *work)
{
    struct offload_put *p = (struct offload_put *) work;
    struct offload *o = p->offload;
    struct page_handle h;
    int r;

    store_unpin(o->store, &p->slot);
    if (p->is_damaged && store_find_again(o->store, p->slot.number, p->generation, &h))
        store_page_checked(o->store, &h, false);
    r = offload_put_submit(p);
    if (r == 0)
        return;

    cluster_link_give_back(o->cluster->link, p->range);
    offload_put_conclude(p, r);
}

/* ---- begin ---- */

static void offload_put_fill(struct offload_put *p, struct offload *o, const struct page_handle *h)
{
    const struct group *g = h->group;
    struct tier_group id;

    *p = (struct offload_put){
        .work = {.run = offload_put_seal,
                 .done = offload_put_on_sealed,
                 .deadline_ms = work_clock_ms() + OFFLOAD_WRITE_MS},
        .offload = o,
        .account = account_ref(g->tenant->account),
        .keyring = keyring_ref(o->keyring),
        .key = h->slot->key,
        .slot = *h,
        .generation = h->slot->generation,
        .page = pool_slot_data(&o->store->pool, h),
        .page_bytes = g->page_bytes,
        .payload_crc32c = h->slot->payload_crc32c,
    };
    offload_group_id(g, &id);
    offload_cluster_name(o->cluster, &id, &p->key, p->name);
    o->cluster->n_puts++;
    p->next = o->cluster->puts;
    if (p->next)
        p->next->prev = p;
    o->cluster->puts = p;
}

/* Return: 0; -EAGAIN: no memory or thread is free; -ENOMEM. */
static int offload_put_begin(struct offload *o, const struct page_handle *h)
{
    uint8_t *range = cluster_link_take(o->cluster->link, seal_bytes(h->group->page_bytes));
    struct offload_put *p = range ? malloc(sizeof(*p)) : NULL;
    int r;

    if (!p) {
        if (range)
            cluster_link_give_back(o->cluster->link, range);
        return range ? -ENOMEM : -EAGAIN;
    }

    offload_put_fill(p, o, h);
    p->range = range;
    store_pin(&p->slot);
    r = work_submit(o->rooms.work, &o->seals, &p->work);
    if (r < 0) {
        store_unpin(o->store, &p->slot);
        cluster_link_give_back(o->cluster->link, range);
        offload_put_free(p);
    }
    return r;
}

/* Begins to write the first page of the queue. Return: as above; -EBUSY: the disk tier reads the page now. */
static int offload_publish_first(struct offload *o)
{
    struct offload_cluster *c = o->cluster;
    struct offload_published page = offload_publish_take(c);
    struct page_handle h;
    int r;

    if (!store_find_again(o->store, page.slot, page.generation, &h) ||
        offload_publish_key_start(h.slot) != page.key_start || pool_extent_is_closed(h.span->extent) ||
        !cluster_link_fits(c->link, seal_bytes(h.group->page_bytes))) {
        c->counts.n_dropped++; /* it left memory, or leaves it, or was flushed */
        return 0;
    }
    if (h.slot->pinned) {
        offload_publish_append(c, page);
        return -EBUSY;
    }

    r = offload_put_begin(o, &h);
    if (r < 0)
        offload_publish_put_back(c);
    return r;
}

void offload_publish_pump(struct offload *o)
{
    struct offload_cluster *c = o->cluster;
    int r = 0;

    if (!cluster_link_is_ready(c->link) || ev_now_ms(o->rooms.ev) < c->pause_until_ms)
        return;

    for (uint32_t n = c->n_queued; n > 0 && c->n_puts < OFFLOAD_PUTS_MAX && (r == 0 || r == -EBUSY); n--)
        r = offload_publish_first(o);
}

/* ---- flushed pages ---- */

uint32_t offload_publish_flush(struct offload *o, const uint8_t name[static CLUSTER_NAME_BYTES])
{
    uint32_t n = 0;

    for (struct offload_put *p = o->cluster->puts; p; p = p->next)
        if (memcmp(p->name, name, sizeof(p->name)) == 0) {
            p->is_flushed = true;
            n++;
        }
    return n;
}
