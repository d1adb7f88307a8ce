/* See persist.h. */
#include "daemon/store/persist.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/damage.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/store/device.h"
#include "daemon/store/pool_mark.h"

#define PREFIX "kvc-"

const char *persist_name(char ret[static PERSIST_NAME_BYTES], const char *what, uint64_t number)
{
    (void) snprintf(ret, PERSIST_NAME_BYTES, PREFIX "%s-%" PRIu64, what, number);
    return ret;
}

/* ---- changes of extents ---- */

void persist_write_list(struct persist *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->devices->n; i++) {
        const struct pool *pool = &p->devices->list[i].store.pool;

        for (uint32_t k = 0; k < pool->n_extents; k++)
            if (n < p->n_list_max)
                p->list[n++] = pool->extents[k]->id;
    }

    journal_write(&p->journal, p->list, n, p->devices->serials.next_extent);
}

/* The name of the extent's memory in the supervisor's store. */
static const char *persist_memory_name(char ret[static PERSIST_NAME_BYTES], uint64_t id, bool on_gpu)
{
    return persist_name(ret, on_gpu ? "gpu" : "pages", id);
}

/* Descriptors in the supervisor's store with full pools and as many client processes as connections. */
static uint64_t persist_count_descriptors(const struct persist *p)
{
    uint64_t n = 1 + (uint64_t) p->devices->config->connections_max;

    for (uint32_t i = 0; i < p->devices->n; i++)
        n += 2 * (uint64_t) p->devices->list[i].store.pool.n_extents_max;
    return n;
}

static void persist_check_limit(const struct persist *p)
{
    const struct supervisor *s = p->supervisor;
    uint64_t wanted = persist_count_descriptors(p);

    if (s->keeps && s->store_max > 0 && s->store_max < wanted)
        log_event(LOG_WARNING, "small-descriptor-store",
                  "limit=%lu wanted=%" PRIu64
                  " message=\"a part of the full pools would be lost at a restart: set "
                  "FileDescriptorStoreMax=%" PRIu64 " in the unit, make extents larger or pools smaller\"",
                  s->store_max, wanted, wanted);
}

/* The extent is used all the same: the pool is as large as configured. */
static void persist_note_full_store(struct persist *p, const char *name)
{
    p->supervisor->failed = true;
    if (p->n_not_stored++ == 0)
        log_event(
            LOG_ERR, "not-stored",
            "what=extent name=%s message=\"the descriptor store of systemd is full, so a part of the pool "
            "is lost at the next start: set FileDescriptorStoreMax=%" PRIu64
            " in the unit, make extents larger or the pool smaller\"",
            name, persist_count_descriptors(p));
}

static int persist_on_store(void *ctx, uint64_t id, bool on_gpu, int memory_fd, int records_fd)
{
    struct persist *p = ctx;
    char memory[PERSIST_NAME_BYTES], records[PERSIST_NAME_BYTES];
    const struct supervisor_fd fds[] = {
        {(char *) persist_memory_name(memory, id, on_gpu), memory_fd},
        {(char *) persist_name(records, "slots", id), records_fd},
    };

    return supervisor_store_and_wait(p->supervisor, fds, 2);
}

static void persist_on_not_stored(void *ctx, uint64_t id, int err)
{
    struct persist *p = ctx;
    char name[PERSIST_NAME_BYTES];

    if (err == -ENOSPC) {
        persist_note_full_store(p, persist_name(name, "pages", id));
        return;
    }

    p->supervisor->failed = true;
    log_event(LOG_ERR, "not-stored",
              "what=extent name=%s message=\"%s\", its pages are lost at the next start",
              persist_name(name, "pages", id), strerror(-err));
}

static void persist_on_added(void *ctx, const struct pool_extent *x)
{
    (void) x;
    persist_write_list(ctx); /* also writes the next extent's number */
}

static void persist_on_removed(void *ctx, const struct pool_extent *x)
{
    struct persist *p = ctx;
    char name[PERSIST_NAME_BYTES];

    persist_write_list(p);
    supervisor_remove(p->supervisor, persist_memory_name(name, x->id, x->gpu_fd >= 0));
    supervisor_remove(p->supervisor, persist_name(name, "slots", x->id));
}

/* ---- opening ---- */

void persist_drop_unknown(struct persist *p)
{
    for (size_t i = 0; i < p->supervisor->n_fds; i++) {
        struct supervisor_fd *f = &p->supervisor->fds[i];

        if (f->fd < 0 || strncmp(f->name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        (void) close(take_fd(&f->fd));
        supervisor_remove(p->supervisor, f->name);
    }
}

static int persist_open_new(struct persist *p, struct errmsg *e)
{
    char name[PERSIST_NAME_BYTES];
    int r;

    persist_drop_unknown(p);
    r = journal_new(&p->journal, e);
    if (r < 0)
        return r;

    supervisor_store(p->supervisor, persist_name(name, "journal", 0), p->journal.fd);
    supervisor_barrier(p->supervisor);
    return 0;
}

static int persist_open_journal(struct persist *p, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    char name[PERSIST_NAME_BYTES];
    int r;

    if (p->supervisor->keeps)
        fd = supervisor_take(p->supervisor, persist_name(name, "journal", 0));
    if (fd < 0 && p->supervisor->keeps && pool_mark_exists(p->devices->config->state_dir))
        log_event(
            LOG_WARNING, "pool-lost",
            "message=\"the descriptor store of systemd does not have the earlier pool: systemctl stop, a "
            "reboot and too many starts in a short time empty the store, systemctl restart keeps "
            "it\": starting with an empty pool");
    if (fd < 0)
        return persist_open_new(p, e);

    r = journal_adopt(&p->journal, fd, e);
    if (r < 0 && !damage_is_cause(r))
        return r;
    if (r < 0) {
        log_event(LOG_CRIT, "pool-lost", "message=\"%s\": starting with an empty pool", e->text);
        supervisor_remove(p->supervisor, name);
        return persist_open_new(p, e);
    }

    if (p->journal.adopted_version != JOURNAL_VERSION)
        log_event(LOG_NOTICE, "journal-upgraded", "from=%" PRIu32 " to=%d message=\"pages are kept\"",
                  p->journal.adopted_version, JOURNAL_VERSION);
    if (p->journal.n_damaged_names > 0)
        log_event(LOG_CRIT, "names-damaged", "names=%" PRIu32 " message=\"pages of these tenants are lost\"",
                  p->journal.n_damaged_names);
    return 0;
}

/* Whether the stored pool of @d has the configured sizes. If not, restore.c does not adopt its extents. */
static bool persist_has_same_sizes(const struct device *d, const struct journal_place *kept)
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

/* For "first": the GPU whose pages are stored, if the journal has one. */
static uint32_t persist_find_place(const struct persist *p, const struct device *d)
{
    const struct journal_place *places = p->journal.head->places;

    if (d->number == 0 || d->uuid[0] != '\0')
        return journal_place_find(&p->journal, d->uuid);

    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (places[i].pool_bytes != 0 && places[i].uuid[0] != '\0')
            return i;
    return PLACE_NONE;
}

static int persist_take_nothing(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    (void) ctx;
    (void) ret;
    return fail(e, -EAGAIN, "memory of the GPU is being created: retry later");
}

static const struct pool_source no_source = {persist_take_nothing, NULL};

static int persist_open_pool(struct persist *p, struct device *d, struct errmsg *e)
{
    uint32_t place = persist_find_place(p, d);
    struct journal_place *kept = place == PLACE_NONE ? NULL : &p->journal.head->places[place];
    uint64_t bytes = d->pool_bytes;
    int r;

    d->store.place = kept && persist_has_same_sizes(d, kept) ? place : PLACE_NONE;
    if (d->store.place != PLACE_NONE)
        memcpy(d->uuid, kept->uuid, sizeof(d->uuid));
    if (d->store.place != PLACE_NONE && kept->pool_bytes > bytes) {
        bytes = kept->pool_bytes;
        log_event(LOG_NOTICE, "pool-stays-large",
                  "device=%s bytes=%" PRIu64 " configured=%" PRIu64
                  " message=\"a stored pool does not shrink: stop and start kvcobrad to make it smaller\"",
                  d->name, bytes, d->pool_bytes);
    }

    r = pool_init(&d->store.pool, &p->devices->serials, bytes, d->extent_bytes, d->unit_bytes, e);
    if (r < 0)
        return r;

    d->store.pool.on_gpu = device_is_gpu(d);
    if (device_is_gpu(d))
        d->store.pool.source = &no_source;
    d->store.pool.keeper = &p->keeper;
    return 0;
}

int persist_open(struct persist *p, struct supervisor *supervisor, struct devices *devices, struct errmsg *e)
{
    uint64_t n_extents = 0;
    int r;

    p->supervisor = supervisor;
    p->devices = devices;
    r = persist_open_journal(p, e);
    p->keeper = (struct pool_keeper){
        .store = persist_on_store,
        .not_stored = persist_on_not_stored,
        .added = persist_on_added,
        .removed = persist_on_removed,
        .ctx = p,
    };
    for (uint32_t i = 0; r == 0 && i < p->devices->n; i++) {
        r = persist_open_pool(p, &p->devices->list[i], e);
        n_extents += p->devices->list[i].store.pool.n_extents_max;
    }
    if (r < 0)
        return r;
    if (n_extents > JOURNAL_EXTENTS_MAX)
        return fail(e, -EINVAL,
                    "the pools of all devices have %" PRIu64
                    " extents, the maximum is %u: make extents larger",
                    n_extents, JOURNAL_EXTENTS_MAX);

    p->n_list_max = (uint32_t) n_extents;
    p->list = malloc((p->n_list_max + 1) * sizeof(*p->list));
    if (!p->list)
        return fail(e, -ENOMEM, "out of memory for the list of extents");

    persist_check_limit(p);
    p->devices->serials = (struct pool_serials){
        .next_extent = journal_read(&p->journal)->next_extent,
        .generation = p->journal.head->generation,
        .generation_record = &p->journal.head->generation,
    };
    return 0;
}

void persist_deinit(struct persist *p)
{
    journal_deinit(&p->journal);
    free(p->list);
    p->list = NULL;
}

/* Removes places of devices that are not configured first: the journal has only as many places as devices. */
void persist_write_places(struct persist *p)
{
    struct journal_place *places = p->journal.head->places;

    for (uint32_t i = 0; i < JOURNAL_PLACES_MAX; i++)
        if (places[i].pool_bytes != 0 && !devices_find_place(p->devices, i))
            journal_place_remove(&p->journal, i);
    for (uint32_t i = 0; i < p->devices->n; i++) {
        struct device *d = &p->devices->list[i];

        if (d->store.place == PLACE_NONE && (i == 0 || d->uuid[0] != '\0'))
            d->store.place = journal_place_add(&p->journal, d->uuid, d->store.pool.pool_bytes,
                                               d->extent_bytes, d->unit_bytes);
        if (d->store.place != PLACE_NONE)
            places[d->store.place].pool_bytes = d->store.pool.pool_bytes; /* it may have grown */
    }
}

const uint8_t *persist_pool_id(const struct persist *p, const struct device *d)
{
    return p->journal.head->places[d->store.place].pool_id;
}

int persist_freeze(struct persist *p)
{
    int r = journal_freeze(&p->journal);
    uint64_t n_pages = 0;

    for (const struct tenant *t = NULL; (t = devices_next_tenant(p->devices, t));)
        n_pages += t->n_pages;
    for (uint32_t i = 0; i < p->devices->n; i++) {
        struct pool *pool = &p->devices->list[i].store.pool;

        for (uint32_t k = 0; r == 0 && k < pool->n_extents; k++)
            r = slot_records_freeze(&pool->extents[k]->records);
        pool->keeper = NULL;
        pool->is_frozen = true;
    }
    if (n_pages == 0)
        pool_mark_set(p->devices->config->state_dir, false);
    supervisor_freeze(p->supervisor);
    return r;
}
