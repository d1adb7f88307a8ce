/*
 * Putting the pool together from what an earlier process left: extents, the pages that their records call COMMITTED, the
 * index that finds them, the sessions, and what each of them holds. Records are checked before they are believed: what
 * does not add up costs the extent it stands in, never the start.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/keep.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/session.h"
#include "daemon/span.h"
#include "gpu/device.h"

struct restored {
    uint64_t n_pages, n_holds, n_ownerless, n_sessions, n_extents;
};

/* ---- pages ------------------------------------------------------------------------------------------------------ */

/* The span may be gone afterwards: its last slot may turn out to be a copy. */
static int restore_slots(struct server *s, const struct span *span, struct restored *n, struct errmsg *e)
{
    uint32_t first = span->number << POOL_SLOT_BITS, n_slots = span->n_fresh_from;

    for (uint32_t i = 0; i < n_slots; i++) {
        const struct slot *slot = pool_slot(&s->store.pool, first | i);
        int r;

        if (!slot || slot->state != SLOT_COMMITTED)
            continue;
        r = store_adopt(&s->store, first | i, e);
        if (r == 0)
            n->n_pages++;
        else if (r != -EEXIST)
            return r;
    }
    return 0;
}

/* All at once, when it is known how many there are: each index is built once, in its size. */
static void restore_pages(struct server *s, struct restored *n)
{
    struct errmsg e = { "" };

    for (struct tenant *t = s->store.tenants; t; t = t->next) {
        uint64_t n_pages = 0;

        for (const struct group *g = t->groups; g; g = g->next)
            n_pages += g->n_used;
        if (tenant_index_reserve(t, n_pages, &e) < 0) /* it grows as it can */
            log_event(LOG_WARNING, "index-small", "tenant=%s message=\"%s\"", t->name, e.text);
    }
    for (uint32_t i = 0; i < s->store.pool.n_spans_max; i++) {
        const struct span *span = s->store.pool.spans[i];

        if (span && restore_slots(s, span, n, &e) < 0)
            log_event(LOG_CRIT, "pages-lost", "span=%" PRIu32 " message=\"%s\"", i, e.text);
    }
}

static int restore_span(struct server *s, struct pool_extent *x, uint32_t unit, struct errmsg *e)
{
    const struct span_head *h = slot_records_span(&x->records, unit);
    struct shard shard = { h->first_head, h->n_heads };
    struct space *space;
    struct group *g;
    struct span *span;
    int r;

    if (h->page_class > 1 || h->slot_bytes < SLOT_ALIGN || h->slot_bytes % SLOT_ALIGN != 0 ||
        h->slot_bytes > s->store.pool.extent_bytes || h->page_bytes > h->slot_bytes ||
        h->page_bytes <= PAGE_HEADER_BYTES)
        return fail(e, -EBADMSG, "the head of the span at unit %" PRIu32 " cannot be right", unit);
    r = tables_adopt_space(&s->tables, h->table_digest, shard, h->page_class, h->slot_bytes, h->page_bytes, &space, e);
    if (r == 0)
        r = tenant_group(x->tenant, space, h->page_class, &g);
    if (r == 0)
        r = span_adopt(&s->store.pool, x, g, unit, &span);
    if (r == -ENOENT)
        return 0;
    return r < 0 ? fail(e, r, "the span at unit %" PRIu32 " cannot be taken over: %s", unit, strerror(-r)) : 0;
}

static int check_records(const struct server *s, const struct slot_records *records, uint64_t id, struct errmsg *e)
{
    const struct extent_head *h = slot_records_head(records);

    if (h->magic != RECORDS_MAGIC || h->version != RECORDS_VERSION || h->extent != id ||
        h->extent_bytes != s->config->extent_bytes || h->unit_bytes != s->config->span_bytes ||
        h->n_units != records->n_units)
        return fail(e, -EBADMSG, "its records are of another version or of another extent");
    return 0;
}

static int open_extent(struct server *s, uint64_t id, struct pool_extent **ret, struct errmsg *e)
{
    uint32_t n_units = (uint32_t) (s->config->extent_bytes / s->config->span_bytes);
    _cleanup_(extent_freep) struct extent *memory = NULL;
    struct slot_records records = { .fd = -1 };
    char name[KEEP_NAME_BYTES];
    struct tenant *tenant;
    int pages = supervisor_take(&s->supervisor, keep_name(name, "pages", id));
    int slots = supervisor_take(&s->supervisor, keep_name(name, "slots", id));
    int r = pages >= 0 && slots >= 0 ? 0 : fail(e, -ENOENT, "the supervisor does not have it");

    if (r == 0)
        r = extent_adopt(take_fd(&pages), s->config->extent_bytes, EXTENT_READ, &memory, e);
    if (r == 0)
        r = slot_records_adopt(&records, take_fd(&slots), n_units, s->config->span_bytes, e);
    closep(&pages);
    closep(&slots);
    if (r == 0)
        r = check_records(s, &records, id, e);
    if (r == 0)
        r = server_tenant(s, slot_records_head(&records)->uid, &tenant, e);
    if (r == 0)
        r = pool_extent_adopt(&s->store.pool, tenant, id, memory, &records, ret, e);
    if (r < 0) {
        slot_records_deinit(&records);
        return r;
    }
    (void) take_ptr(memory);
    return 0;
}

static void restore_extent(struct server *s, uint64_t id, struct restored *n)
{
    char name[KEEP_NAME_BYTES];
    struct pool_extent *x = NULL;
    struct errmsg e = { "" };
    int r = open_extent(s, id, &x, &e);

    for (uint32_t unit = 0; r == 0 && unit < x->n_units; unit++)
        if (x->span_of_unit[unit] == UINT32_MAX && slot_records_span(&x->records, unit)->in_use)
            r = restore_span(s, x, unit, &e);
    if (r == 0) {
        n->n_extents++;
        return;
    }
    /* Spans taken over before the bad one stay; the rest of the extent is free, unless it could not be opened at all. */
    log_event(LOG_CRIT, "extent-damaged", "extent=%" PRIu64 " message=\"%s\": pages are lost", id, e.text);
    if (!x) {
        supervisor_remove(&s->supervisor, keep_name(name, "pages", id));
        supervisor_remove(&s->supervisor, keep_name(name, "slots", id));
    }
}

/* ---- sessions and holds ----------------------------------------------------------------------------------------- */

/*
 * A stored pidfd means the process it was opened for. Without one, the number must do: at worst a stranger's exit is awaited.
 * Return: the descriptor; -ESRCH: the process is gone; another errno: that is not known.
 */
static int pidfd_of(struct server *s, const struct session_record *record)
{
    char name[KEEP_NAME_BYTES];
    int fd = supervisor_take(&s->supervisor, keep_name(name, "pid", record->serial));

    if (fd >= 0)
        return fd;
    fd = (int) syscall(SYS_pidfd_open, (pid_t) record->pid, 0);
    if (fd < 0)
        return -errno;
    log_event(LOG_NOTICE, "pidfd-reopened", "pid=%" PRIu32 " message=\"its descriptor was not in the store\"", record->pid);
    supervisor_store(&s->supervisor, name, fd);
    return fd;
}

static void restore_session(struct server *s, uint32_t number, struct restored *n)
{
    const struct session_record *record = &s->journal.sessions[number];
    struct session *x = NULL;
    struct errmsg e = { "" };
    struct tenant *t;
    int pidfd = pidfd_of(s, record), r = 0;

    if (pidfd == -ESRCH) {
        log_event(LOG_INFO, "session-gone", "session=%" PRIu32 " pid=%" PRIu32 " message=\"its process is gone\"", number,
                  record->pid);
        journal_session_remove(&s->journal, number);
        return;
    }
    if (pidfd < 0)
        r = fail(&e, pidfd, "its process cannot be watched: %s", strerror(-pidfd));
    if (r == 0)
        r = server_tenant(s, record->uid, &t, &e);
    if (r == 0)
        r = session_restore(s, number, record, t, pidfd, &x, &e);
    if (r == 0)
        n->n_sessions++;
    else
        ownerless_begin(s, number, pidfd < 0 ? -1 : pidfd, e.text);
}

/* Whether a cell can be right: its session's process lives, its page is one of that process's tenant. */
static bool is_hold(const struct server *s, const struct hold_cell *c)
{
    uint32_t number = hold_session(c);
    const struct slot *slot = pool_slot(&s->store.pool, c->slot);

    return number < s->n_sessions_max && (s->sessions[number] || ownerless_is_alone(s, number)) && slot &&
           slot->state == SLOT_COMMITTED &&
           pool_slot_span(&s->store.pool, c->slot)->group->tenant->uid == s->journal.sessions[number].uid;
}

static void restore_hold(struct server *s, uint32_t cell, struct restored *n)
{
    const struct hold_cell *c = &s->journal.holds[cell];
    uint32_t number = hold_session(c);
    struct session *x;

    if (!is_hold(s, c)) { /* its process is gone, or its extent was lost and is mapped by nobody new */
        journal_hold_remove(&s->journal, cell);
        return;
    }
    x = s->sessions[number];
    if (!x || leases_restore(&x->leases, c->lease, hold_item(c), cell) < 0) {
        ownerless_add(s, number);
        n->n_ownerless++;
    }
    pool_slot(&s->store.pool, c->slot)->holds++;
    n->n_holds++;
}

static void finish_slot(void *ctx, uint32_t number)
{
    store_adopt_holds(ctx, number);
}

/* Sessions that hold nothing have nothing to come back to. */
static void end_idle_sessions(struct server *s)
{
    for (uint32_t i = 0; i < s->n_sessions_max; i++)
        if (s->sessions[i] && s->sessions[i]->leases.n_held + ownerless_holds(s, i) == 0)
            (void) session_free(s->sessions[i]);
}

/* Not the loop's clock, which stands still between its turns. */
static uint64_t clock_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

void keep_restore(struct server *s)
{
    struct store *st = &s->store;
    const struct journal_copy *list = journal_read(&s->journal);
    uint64_t began_us = clock_us(), n_cells = s->journal.head->n_holds;
    struct restored n = { 0 };

    if (s->journal.head->n_starts == 1)
        return;
    st->pool.keeper = NULL; /* nothing is stored anew */
    for (uint32_t i = 0; i < list->n_extents; i++)
        restore_extent(s, list->extents[i], &n);
    restore_pages(s, &n);
    st->pool.keeper = &s->pool_keeper;
    s->journal.head->generation = st->pool.generation;
    for (uint32_t i = 0; i < s->journal.head->n_sessions; i++)
        if (s->journal.sessions[i].serial != 0)
            restore_session(s, i, &n);
    for (uint32_t i = 0; i < n_cells; i++)
        if (s->journal.holds[i].slot != SLOT_NONE)
            restore_hold(s, i, &n);
    if (n.n_ownerless > 0)
        log_event(LOG_CRIT, "holds-without-owner", "holds=%" PRIu64 " message=\"they could not be given back to their sessions "
                  "and end with the processes\"", n.n_ownerless);
    for (struct tenant *t = st->tenants; t; t = t->next)
        for (struct group *g = t->groups; g; g = g->next)
            group_visit(&st->pool, g, finish_slot, st);
    end_idle_sessions(s);
    tables_adopt_done(&s->tables, ev_now_ms(s->ev));
    keep_drop_unknown(s);
    keep_write_list(s);
    log_event(LOG_NOTICE, "restored", "extents=%" PRIu64 " pages=%" PRIu64 " sessions=%" PRIu64 " holds=%" PRIu64
              " generation=%" PRIu64 " start=%" PRIu64 " us=%" PRIu64, n.n_extents, n.n_pages, n.n_sessions, n.n_holds,
              st->pool.generation, s->journal.head->n_starts, clock_us() - began_us);
}
