/* The pool over a restart: storing and opening; see keep.h. What is found is put together by restore.c. */
#include "daemon/store/persist.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/log.h"
#include "daemon/server.h"

#define PREFIX "kvc-"

const char *keep_name(char ret[static KEEP_NAME_BYTES], const char *what, uint64_t number)
{
    (void) snprintf(ret, KEEP_NAME_BYTES, PREFIX "%s-%" PRIu64, what, number);
    return ret;
}

/* ---- extents come and go ---- */

void keep_write_list(struct server *s)
{
    _cleanup_(freep) uint64_t *ids = NULL;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->devices.n; i++)
        n += s->devices.list[i].store.pool.n_extents;
    ids = malloc((n + 1) * sizeof(*ids));

    if (!ids) { /* the old list still stands: an extent that it lacks is lost at the next start, no hold is
                   broken */
        s->supervisor.failed = true;
        log_event(LOG_ERR, "not-stored", "what=journal message=\"out of memory\"");
        return;
    }
    n = 0;
    for (uint32_t i = 0; i < s->devices.n; i++) {
        const struct pool *p = &s->devices.list[i].store.pool;

        for (uint32_t k = 0; k < p->n_extents; k++)
            if (!p->extents[k]->lent) /* its lender's to end, whoever runs then */
                ids[n++] = p->extents[k]->id;
    }
    journal_write(&s->journal, ids, n, s->devices.serials.next_extent);
}

/* What the extent's memory is called in the store. */
static const char *persist_memory_name(char ret[static KEEP_NAME_BYTES], const struct pool_extent *x)
{
    return keep_name(ret, x->gpu_fd >= 0 ? "gpu" : "pages", x->id);
}

static void persist_on_added(void *ctx, const struct pool_extent *x, int owner_fd)
{
    struct server *s = ctx;
    char name[KEEP_NAME_BYTES];

    if (!x->lent) {
        supervisor_store(&s->supervisor, persist_memory_name(name, x), owner_fd);
        supervisor_store(&s->supervisor, keep_name(name, "slots", x->id), x->records.fd);
        supervisor_barrier(&s->supervisor);
    }
    keep_write_list(s); /* also the next extent's number */
}

static void persist_on_removed(void *ctx, const struct pool_extent *x)
{
    struct server *s = ctx;
    char name[KEEP_NAME_BYTES];

    if (x->lent)
        return;
    keep_write_list(s);
    supervisor_remove(&s->supervisor, persist_memory_name(name, x));
    supervisor_remove(&s->supervisor, keep_name(name, "slots", x->id));
}

/* ---- opening ---- */

void keep_drop_unknown(struct server *s)
{
    for (size_t i = 0; i < s->supervisor.n_fds; i++) {
        struct supervisor_fd *f = &s->supervisor.fds[i];

        if (f->fd < 0 || strncmp(f->name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        (void) close(take_fd(&f->fd));
        supervisor_remove(&s->supervisor, f->name);
    }
}

static int persist_open_new(struct server *s, struct errmsg *e)
{
    char name[KEEP_NAME_BYTES];
    int r;

    keep_drop_unknown(s);
    r = journal_new(&s->journal, e);
    if (r < 0)
        return r;
    supervisor_store(&s->supervisor, keep_name(name, "journal", 0), s->journal.fd);
    supervisor_barrier(&s->supervisor);
    return 0;
}

static int persist_open_journal(struct server *s, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    char name[KEEP_NAME_BYTES];
    struct errmsg why;

    if (s->supervisor.keeps)
        fd = supervisor_take(&s->supervisor, keep_name(name, "journal", 0));
    if (fd < 0)
        return persist_open_new(s, e);
    if (journal_adopt(&s->journal, fd, &why) < 0) {
        log_event(LOG_CRIT, "pool-lost", "message=\"%s\": starting with an empty pool", why.text);
        supervisor_remove(&s->supervisor, name);
        return persist_open_new(s, e);
    }
    return 0;
}

/* Whether what is kept of @d fits its configuration. If not it is of no use: restore.c leaves it. */
static bool persist_is_cut_alike(const struct device *d, const struct journal_place *kept)
{
    if (kept->extent_bytes == d->extent_bytes && kept->unit_bytes == d->unit_bytes &&
        kept->pool_bytes / kept->unit_bytes <= POOL_SPANS_MAX)
        return true;
    log_event(LOG_CRIT, "pool-lost",
              "device=%s message=\"the stored pool has extents of %" PRIu64 " and spans of %" PRIu64
              " bytes, the configuration says %" PRIu64 " and %" PRIu64 "\": starting with an empty pool",
              d->name, kept->extent_bytes, kept->unit_bytes, d->extent_bytes, d->unit_bytes);
    return false;
}

/* "first" means the GPU of which pages are kept, if there is one. */
static uint32_t persist_find_place(const struct server *s, const struct device *d)
{
    const struct journal_place *places = s->journal.head->places;

    if (d->number == 0 || d->uuid[0] != '\0')
        return journal_place_find(&s->journal, d->uuid);
    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (places[i].pool_bytes != 0 && places[i].uuid[0] != '\0')
            return i;
    return PLACE_NONE;
}

static int persist_take_nothing(void *ctx, int *ret_fd, struct errmsg *e)
{
    (void) ctx;
    (void) ret_fd;
    return fail(e, -EAGAIN, "memory of the GPU is being made: come again");
}

static const struct pool_source no_source = {persist_take_nothing, NULL};

static int persist_open_pool(struct server *s, struct device *d, struct errmsg *e)
{
    uint32_t place = persist_find_place(s, d);
    struct journal_place *kept = place == PLACE_NONE ? NULL : &s->journal.head->places[place];
    uint64_t bytes = d->pool_bytes;
    int r;

    d->place = kept && persist_is_cut_alike(d, kept) ? place : PLACE_NONE;
    if (d->place != PLACE_NONE)
        memcpy(d->uuid, kept->uuid, sizeof(d->uuid));
    if (d->place != PLACE_NONE && kept->pool_bytes > bytes) {
        bytes = kept->pool_bytes;
        log_event(LOG_NOTICE, "pool-stays-large",
                  "device=%s bytes=%" PRIu64 " configured=%" PRIu64 " message=\"a kept pool "
                  "does not shrink: stop and start to make it smaller\"",
                  d->name, bytes, d->pool_bytes);
    }
    r = pool_init(&d->store.pool, &s->devices.serials, bytes, d->extent_bytes, d->unit_bytes, e);
    if (r == 0 && d->number > 0)
        d->store.pool.source = &no_source;
    if (r == 0)
        d->store.pool.keeper = &s->pool_keeper;
    return r;
}

int keep_open(struct server *s, struct errmsg *e)
{
    uint64_t n_extents = 0;
    int r = persist_open_journal(s, e);

    s->pool_keeper = (struct pool_keeper){persist_on_added, persist_on_removed, s};
    for (uint32_t i = 0; r == 0 && i < s->devices.n; i++) {
        r = persist_open_pool(s, &s->devices.list[i], e);
        n_extents += s->devices.list[i].store.pool.n_extents_max;
    }
    if (r < 0)
        return r;
    if (n_extents > JOURNAL_EXTENTS_MAX)
        return fail(e, -EINVAL,
                    "the pools of all devices have %" PRIu64 " extents, the most is %u: make extents larger",
                    n_extents, JOURNAL_EXTENTS_MAX);
    s->devices.serials = (struct pool_serials){
        .next_extent = journal_read(&s->journal)->next_extent,
        .generation = s->journal.head->generation,
        .generation_record = &s->journal.head->generation,
    };
    return 0;
}

/* Devices that are not here any more leave first: there are as many places as devices. */
void keep_write_places(struct server *s)
{
    struct journal_place *places = s->journal.head->places;

    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (places[i].pool_bytes != 0 && !devices_find_place(&s->devices, i))
            journal_place_remove(&s->journal, i);
    for (uint32_t i = 0; i < s->devices.n; i++) {
        struct device *d = &s->devices.list[i];

        if (d->place == PLACE_NONE && (i == 0 || d->uuid[0] != '\0'))
            d->place = journal_place_add(&s->journal, d->uuid, d->store.pool.pool_bytes, d->extent_bytes,
                                         d->unit_bytes);
        if (d->place != PLACE_NONE)
            places[d->place].pool_bytes = d->store.pool.pool_bytes; /* it may have grown */
    }
}

const uint8_t *keep_pool_id(const struct server *s, const struct device *d)
{
    return s->journal.head->places[d->place].pool_id;
}

int keep_freeze(struct server *s)
{
    int r = journal_freeze(&s->journal);

    for (uint32_t i = 0; i < s->devices.n; i++) {
        struct pool *p = &s->devices.list[i].store.pool;

        for (uint32_t k = 0; r == 0 && k < p->n_extents; k++)
            r = slot_records_freeze(&p->extents[k]->records);
        p->keeper = NULL;
    }
    s->supervisor.frozen = true;
    return r;
}
