/* The pools of an earlier process. See restore_pools() in session.h. */
#include "daemon/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/damage.h"
#include "base/errmsg.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/session/orphans.h"
#include "daemon/session/reservations.h"
#include "daemon/store/device.h"
#include "daemon/store/evict.h"
#include "daemon/store/persist.h"
#include "daemon/store/retire.h"
#include "daemon/store/span.h"
#include "daemon/store/tenant_index.h"
#include "daemon/tables/tables.h"
#include "gpu/device.h"

struct restore_counts {
    uint64_t n_pages, n_reserved, n_holds, n_orphaned, n_sessions, n_extents;
    uint64_t n_unplaced; /* pages for whose keys the index has no place */
    uint64_t n_left;     /* extents of devices that are not configured, or with other sizes */
};

/* ---- pages ---- */

/*
 * May free the span: the key of its last slot may belong to another page already, or find no place in an
 * index of another size than before.
 */
static void restore_slots(struct store *st, const struct span *span, struct restore_counts *n)
{
    uint32_t first = span->number << POOL_SLOT_BITS, n_slots = span->n_fresh_from;

    for (uint32_t i = 0; i < n_slots; i++) {
        struct page_handle h;
        int r;

        if (!pool_resolve(&st->pool, first | i, &h) || h.slot->state != SLOT_COMMITTED)
            continue;

        r = store_adopt(st, &h, NULL);
        n->n_pages += r == 0;
        n->n_unplaced += r == -ENOSPC;
    }
}

/* Called when all extents are open, so that each index is created once, with its final size. */
static int restore_pages(struct store *st, struct restore_counts *n, struct errmsg *e)
{
    int r;

    for (struct tenant *t = st->tenants; t; t = t->next) {
        uint64_t n_pages = 0;

        for (const struct group *g = t->groups; g; g = g->next)
            n_pages += g->n_used;
        r = tenant_index_reserve(t, n_pages, e);
        if (r < 0)
            return r;
    }

    for (uint32_t i = 0; i < st->pool.n_spans_max; i++) {
        const struct span *span = st->pool.spans[i];

        if (span)
            restore_slots(st, span, n);
    }
    return 0;
}

static int restore_span(struct sessions *ss, struct pool_extent *x, uint32_t unit, struct errmsg *e)
{
    const struct span_head *h = slot_records_span(&x->records, unit);
    struct pool *p = &store_of(x->tenant)->pool;
    struct shard shard = {h->first_head, h->n_heads};
    struct space *space;
    struct group *g;
    struct span *span;
    int r;

    if (h->page_class > 1 || h->slot_bytes < SLOT_ALIGN || h->slot_bytes % SLOT_ALIGN != 0 ||
        h->slot_bytes > p->extent_bytes || h->page_bytes > h->slot_bytes ||
        h->page_bytes <= PAGE_HEADER_BYTES)
        return fail(e, -EBADMSG, "the head of the span at unit %" PRIu32 " is invalid", unit);

    r = tables_adopt_space(ss->tables, h->table_digest, shard, h->page_class, h->slot_bytes, h->page_bytes,
                           &space, e);
    if (r == 0)
        r = tenant_group(x->tenant, space, h->page_class, &g);
    if (r == 0)
        r = span_adopt(p, x, g, unit, &span);
    if (r == -ENOENT) /* no slot of the span is in use */
        return 0;
    if (r < 0)
        return fail(e, r, "the span at unit %" PRIu32 " cannot be restored: %s", unit, strerror(-r));

    return 0;
}

/* The device of an extent, by the head of its records. Return: 0; -ENXIO: it is not configured; -EBADMSG. */
static int restore_read_head(struct sessions *ss, int fd, uint64_t id, struct extent_head *ret,
                             struct device **ret_device, struct errmsg *e)
{
    struct device *d;
    int r = slot_records_peek(fd, ret, e);

    if (r < 0)
        return r;

    d = devices_find_place(ss->devices, ret->place);
    if (!d)
        return fail(e, -ENXIO, "its device is not configured");
    if (ret->extent != id || ret->extent_bytes != d->extent_bytes || ret->unit_bytes != d->unit_bytes ||
        ret->n_units != d->extent_bytes / d->unit_bytes)
        return fail(e, -EBADMSG, "its slot records are of another extent");

    *ret_device = d;
    return 0;
}

/* The supervisor's descriptors of one extent. */
struct restore_fds {
    int pages, gpu, slots;
};

static void restore_fds_close(const struct restore_fds *f)
{
    closep(&f->pages);
    closep(&f->gpu);
    closep(&f->slots);
}

static struct restore_fds restore_take_fds(struct sessions *ss, uint64_t id)
{
    struct supervisor *s = ss->persist->supervisor;
    char name[PERSIST_NAME_BYTES];

    return (struct restore_fds){
        .pages = supervisor_take(s, persist_name(name, "pages", id)),
        .gpu = supervisor_take(s, persist_name(name, "gpu", id)),
        .slots = supervisor_take(s, persist_name(name, "slots", id)),
    };
}

/* @uid, @number: of the record of a session or an extent. */
static int restore_tenant(struct sessions *ss, struct device *d, uint32_t uid, uint32_t number,
                          struct tenant **ret, struct errmsg *e)
{
    struct account *a;
    int r = accounts_get_recorded(&ss->devices->accounts, uid, number, &a, e);

    if (r < 0)
        return r;

    r = devices_tenant(ss->devices, d, a, ret, e);
    (void) account_unref(a);
    return r;
}

static int restore_open_extent(struct sessions *ss, uint64_t id, struct pool_extent **ret, struct errmsg *e)
{
    _cleanup_(restore_fds_close) struct restore_fds fds = restore_take_fds(ss, id);
    _cleanup_(extent_freep) struct extent *memory = NULL;
    _cleanup_(slot_records_deinit) struct slot_records records = {.fd = -1};
    struct extent_head head;
    struct tenant *tenant;
    struct device *d = NULL;
    int r;

    if (fds.slots < 0)
        return fail(e, -ENOENT, "the supervisor does not have it");

    r = restore_read_head(ss, fds.slots, id, &head, &d, e);
    if (r < 0)
        return r;
    if ((device_is_gpu(d) ? fds.gpu : fds.pages) < 0)
        return fail(e, -ENOENT, "the supervisor does not have its memory");

    if (!device_is_gpu(d)) { /* memory of a GPU is never mapped here */
        r = extent_adopt(take_fd(&fds.pages), d->extent_bytes, EXTENT_READ, &memory, e);
        if (r < 0)
            return r;
    }

    r = slot_records_adopt(&records, take_fd(&fds.slots), head.n_units, d->unit_bytes, e);
    if (r < 0)
        return r;

    r = restore_tenant(ss, d, head.uid, head.account, &tenant, e);
    if (r < 0)
        return r;

    r = pool_extent_adopt(&d->store.pool, tenant, id, memory, memory ? -1 : fds.gpu, &records, ret, e);
    if (r < 0)
        return r;

    records = (struct slot_records){.fd = -1}; /* the extent owns records and memory now */
    if (!memory)
        (void) take_fd(&fds.gpu);
    (void) take_ptr(memory);
    return 0;
}

static int restore_extent(struct sessions *ss, uint64_t id, struct restore_counts *n, struct errmsg *ret_e)
{
    char name[PERSIST_NAME_BYTES];
    struct pool_extent *x = NULL;
    struct errmsg e = {""};
    int r = restore_open_extent(ss, id, &x, &e);

    for (uint32_t unit = 0; r == 0 && unit < x->n_units; unit++)
        if (x->span_of_unit[unit] == UINT32_MAX && slot_records_span(&x->records, unit)->in_use)
            r = restore_span(ss, x, unit, &e);
    if (r == 0) {
        n->n_extents++;
        return 0;
    }
    if (!damage_is_cause(r))
        return fail(ret_e, r,
                    "cannot restore extent %" PRIu64 " of the stored pool: %.200s: start kvcobrad again", id,
                    e.text[0] ? e.text : strerror(-r));
    if (r == -ENXIO)
        n->n_left++;
    else /* spans before the bad one stay, the rest is free, unless the extent could not be opened at all */
        log_event(LOG_CRIT, "extent-damaged", "extent=%" PRIu64 " message=\"%s\": pages are lost", id,
                  e.text);
    if (x && x->gpu_fd >= 0) /* reservations that cannot be read may be anywhere in the rest */
        pool_extent_retire(&store_of(x->tenant)->pool, x);
    if (!x) {
        supervisor_remove(ss->persist->supervisor, persist_name(name, "pages", id));
        supervisor_remove(ss->persist->supervisor, persist_name(name, "gpu", id));
        supervisor_remove(ss->persist->supervisor, persist_name(name, "slots", id));
    }
    return 0;
}

/* ---- sessions and holds ---- */

/*
 * A stored pidfd names the process for which it was opened. If it is missing, the recorded pid is opened: at
 * worst the daemon waits for the exit of another process. Return: the descriptor; -ESRCH: the process is
 * gone; another errno: unknown.
 */
static int restore_pidfd_of(struct sessions *ss, const struct session_record *record)
{
    char name[PERSIST_NAME_BYTES];
    int fd = supervisor_take(ss->persist->supervisor, persist_name(name, "pid", record->serial));

    if (fd >= 0)
        return fd;

    fd = (int) syscall(SYS_pidfd_open, (pid_t) record->pid, 0);
    if (fd < 0)
        return -errno;

    log_event(LOG_NOTICE, "pidfd-reopened", "pid=%" PRIu32 " message=\"its descriptor was not in the store\"",
              record->pid);
    supervisor_store(ss->persist->supervisor, name, fd);
    return fd;
}

/* persist_drop_unknown() drops the stored pidfd, which was not taken. */
static void restore_drop_session(struct sessions *ss, uint32_t number, const char *why)
{
    log_event(LOG_INFO, "session-gone", "session=%" PRIu64 " pid=%" PRIu32 " message=\"%s\"",
              ss->persist->journal.sessions[number].serial, ss->persist->journal.sessions[number].pid, why);
    journal_session_remove(&ss->persist->journal, number);
}

static void restore_session(struct sessions *ss, uint32_t number, struct restore_counts *n)
{
    const struct session_record *record = &ss->persist->journal.sessions[number];
    struct device *d = devices_find_place(ss->devices, record->place);
    struct session *x = NULL;
    struct errmsg e = {""};
    struct tenant *t;
    /* pages are lost with a damaged name */
    bool has_account = record->account == 0 || journal_name(&ss->persist->journal, record->account);
    int pidfd = d && has_account ? restore_pidfd_of(ss, record) : -ENXIO, r = 0;

    if (!has_account) {
        restore_drop_session(ss, number, "the name of its tenant is damaged");
        return;
    }
    if (pidfd == -ENXIO || (pidfd == -ESRCH && !device_is_gpu(d))) {
        restore_drop_session(ss, number, d ? "its process is gone" : "its device is not configured");
        return;
    }

    /* -ESRCH on a GPU: the holds are orphaned until the first tick */
    if (pidfd < 0)
        r = fail(&e, pidfd, "its process cannot be watched: %s", strerror(-pidfd));
    if (r == 0)
        r = restore_tenant(ss, d, record->uid, record->account, &t, &e);
    if (r == 0)
        r = session_restore(ss, number, record, t, pidfd, &x, &e);
    if (r == 0)
        n->n_sessions++;
    else
        orphans_begin(ss, number, pidfd < 0 ? -1 : pidfd, e.text);
}

/*
 * Whether a cell is plausible: the process of its session lives, and its page belongs
 * to that process's tenant.
 */
static bool restore_is_hold(struct sessions *ss, const struct hold_cell *c, struct page_handle *ret_page)
{
    uint32_t number = hold_session(c);
    const struct session_record *record = &ss->persist->journal.sessions[number];
    const struct store *st = number < ss->n_max ? orphans_store(ss, number) : NULL;

    if (!st || !pool_resolve(&st->pool, c->slot, ret_page) || ret_page->slot->state != SLOT_COMMITTED)
        return false;
    if (!ss->list[number] && !orphans_is_watched(ss, number))
        return false;
    return account_is_recorded(ret_page->group->tenant->account, record->uid, record->account);
}

static void restore_hold(struct sessions *ss, uint32_t cell, struct restore_counts *n)
{
    const struct hold_cell *c = &ss->persist->journal.holds[cell];
    uint32_t number = hold_session(c);
    struct page_handle page;
    struct session *x;

    if (!restore_is_hold(ss, c, &page)) { /* the page's extent was lost, so its memory is not used again */
        journal_hold_remove(&ss->persist->journal, cell);
        return;
    }

    x = ss->list[number];
    if (!x || lease_restore(&x->leases, c->lease, hold_item(c), cell) < 0) {
        orphans_add_hold(ss, number);
        n->n_orphaned++;
    }

    page.slot->holds++;
    n->n_holds++;
}

/* The session of the slot is unknown. Its process may still write there, so the extent gets no new page. */
static void restore_retire_slot(struct store *st, const struct page_handle *h)
{
    retire_extent(st, h->span->extent);
    store_discard(st, h);
}

/* A slot on a GPU that was RESERVED: by a restored session, or by a process that orphans.h watches. */
static void restore_reservation(struct sessions *ss, struct store *st, const struct page_handle *h,
                                struct restore_counts *n)
{
    const struct tenant *t = h->group->tenant;
    uint32_t owner = h->slot->session;
    struct session *x = owner < ss->n_max ? ss->list[owner] : NULL;

    store_adopt_reserved(h);
    n->n_reserved++;
    if (owner == SLOT_WITHOUT_SESSION) /* a job was filling it */
        gpu_pool_delay_reuse(t->device->gpu);
    else if (x && x->tenant == t)
        reservations_add(x, h);
    else if (x || owner >= ss->n_max || !orphans_is_watched(ss, owner) || orphans_store(ss, owner) != st)
        restore_retire_slot(st, h);
}

static void restore_reservations(struct sessions *ss, struct store *st, struct restore_counts *n)
{
    for (uint32_t i = 0; i < st->pool.n_spans_max; i++) {
        uint32_t n_slots = st->pool.spans[i] ? st->pool.spans[i]->n_fresh_from : 0;

        for (uint32_t k = 0; k < n_slots; k++) {
            struct page_handle h;

            /* the span may be freed with its last slot */
            if (pool_resolve(&st->pool, i << POOL_SLOT_BITS | k, &h) && h.slot->state == SLOT_RESERVED)
                restore_reservation(ss, st, &h, n);
        }
    }
}

static void restore_finish_slot(void *ctx, const struct page_handle *h)
{
    if (h->slot->state == SLOT_COMMITTED)
        store_adopt_holds(ctx, h);
}

/* Sessions without pages have nothing to resume. */
static void restore_end_idle_sessions(struct sessions *ss)
{
    for (uint32_t i = 0; i < ss->n_max; i++)
        if (ss->list[i] && !session_has_anything(ss->list[i]))
            (void) session_free(ss->list[i]);
}

/* Not the loop's clock, which has one value during a pass of the loop. */
static uint64_t restore_clock_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

static void restore_set_keeper(struct sessions *ss, const struct pool_keeper *keeper)
{
    for (uint32_t i = 0; i < ss->devices->n; i++)
        ss->devices->list[i].store.pool.keeper = keeper;
}

static void restore_log_losses(const struct restore_counts *n)
{
    if (n->n_unplaced > 0)
        log_event(LOG_CRIT, "pages-lost",
                  "pages=%" PRIu64 " message=\"their indexes have no place for them\"", n->n_unplaced);
    if (n->n_orphaned > 0)
        log_event(LOG_CRIT, "holds-orphaned",
                  "holds=%" PRIu64 " message=\"their sessions could not be restored: "
                  "they end with the processes\"",
                  n->n_orphaned);
    if (n->n_left > 0)
        log_event(LOG_CRIT, "device-left",
                  "extents=%" PRIu64 " message=\"their devices are not configured, "
                  "or extents or spans have other sizes: their pages are lost\"",
                  n->n_left);
}

static int restore_extents(struct sessions *ss, struct restore_counts *n, struct errmsg *e)
{
    const struct journal_copy *list = journal_read(&ss->persist->journal);
    int r = 0;

    restore_set_keeper(ss, NULL); /* the extents are stored already */
    for (uint32_t i = 0; r == 0 && i < list->n_extents; i++)
        r = restore_extent(ss, list->extents[i], n, e);
    for (uint32_t i = 0; r == 0 && i < ss->devices->n; i++)
        r = restore_pages(&ss->devices->list[i].store, n, e);
    restore_set_keeper(ss, &ss->persist->keeper);
    ss->persist->journal.head->generation = ss->devices->serials.generation;
    return r;
}

static void restore_sessions(struct sessions *ss, struct restore_counts *n)
{
    const struct journal *j = &ss->persist->journal;
    uint64_t n_cells = j->head->n_holds;

    for (uint32_t i = 0; i < j->head->n_sessions; i++)
        if (j->sessions[i].serial != 0)
            restore_session(ss, i, n);
    for (uint32_t i = 0; i < n_cells; i++)
        if (j->holds[i].slot != SLOT_NONE)
            restore_hold(ss, i, n);
}

int restore_pools(struct sessions *ss, struct errmsg *e)
{
    uint64_t began_us = restore_clock_us();
    struct restore_counts n = {0};
    int r;

    if (ss->persist->journal.head->n_starts == 1) {
        persist_write_places(ss->persist);
        return 0;
    }

    ss->devices->is_restoring = true;
    r = restore_extents(ss, &n, e);
    if (r < 0) /* nothing was given up: sessions and cells of the journal come later */
        return r;

    restore_sessions(ss, &n);
    ss->devices->is_restoring = false;
    restore_log_losses(&n);

    for (struct tenant *t = NULL; (t = devices_next_tenant(ss->devices, t));)
        for (struct group *g = t->groups; g; g = g->next)
            span_visit_slots(g, restore_finish_slot, store_of(t));
    for (struct tenant *t = NULL; (t = devices_next_tenant(ss->devices, t));)
        (void) evict_for_quota(store_of(t), t, 0); /* its index may be larger than before */
    for (uint32_t i = 0; i < ss->devices->n; i++)
        restore_reservations(ss, &ss->devices->list[i].store, &n);
    restore_end_idle_sessions(ss);
    accounts_drop_names(&ss->devices->accounts);

    tables_adopt_done(ss->tables, ev_now_ms(ss->ev));
    persist_drop_unknown(ss->persist);
    persist_write_list(ss->persist);
    persist_write_places(ss->persist);
    log_event(LOG_NOTICE, "restored",
              "extents=%" PRIu64 " pages=%" PRIu64 " reserved=%" PRIu64 " sessions=%" PRIu64 " holds=%" PRIu64
              " generation=%" PRIu64 " start=%" PRIu64 " us=%" PRIu64,
              n.n_extents, n.n_pages, n.n_reserved, n.n_sessions, n.n_holds, ss->devices->serials.generation,
              ss->persist->journal.head->n_starts, restore_clock_us() - began_us);
    return 0;
}
