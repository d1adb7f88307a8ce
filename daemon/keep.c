/* The pool over a restart: storing and opening; see keep.h. What is found is put together by restore.c. */
#include "daemon/keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/log.h"
#include "daemon/server.h"

#define PREFIX "kvc-"

const char *keep_name(char ret[static KEEP_NAME_BYTES], const char *what, uint64_t number)
{
    (void) snprintf(ret, KEEP_NAME_BYTES, PREFIX "%s-%" PRIu64, what, number);
    return ret;
}

/* ---- extents come and go ---------------------------------------------------------------------------------------- */

void keep_write_list(struct server *s)
{
    const struct pool *p = &s->store.pool;
    _cleanup_(freep) uint64_t *ids = malloc((p->n_extents + 1) * sizeof(*ids));

    if (!ids) { /* the old list still stands: an extent that it lacks is lost at the next start, no hold is broken */
        s->supervisor.failed = true;
        log_event(LOG_ERR, "not-stored", "what=journal message=\"out of memory\"");
        return;
    }
    for (uint32_t i = 0; i < p->n_extents; i++)
        ids[i] = p->extents[i]->id;
    journal_write(&s->journal, ids, p->n_extents, p->next_extent);
}

static void on_added(void *ctx, const struct pool_extent *x, int owner_fd)
{
    struct server *s = ctx;
    char name[KEEP_NAME_BYTES];

    supervisor_store(&s->supervisor, keep_name(name, "pages", x->id), owner_fd);
    supervisor_store(&s->supervisor, keep_name(name, "slots", x->id), x->records.fd);
    supervisor_barrier(&s->supervisor);
    keep_write_list(s);
}

static void on_removed(void *ctx, uint64_t id)
{
    struct server *s = ctx;
    char name[KEEP_NAME_BYTES];

    keep_write_list(s);
    supervisor_remove(&s->supervisor, keep_name(name, "pages", id));
    supervisor_remove(&s->supervisor, keep_name(name, "slots", id));
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

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

static int open_new(struct server *s, struct errmsg *e)
{
    const struct config *c = s->config;
    char name[KEEP_NAME_BYTES];
    int r;

    keep_drop_unknown(s);
    r = journal_new(&s->journal, c->pool_bytes, c->extent_bytes, c->span_bytes, e);
    if (r < 0)
        return r;
    supervisor_store(&s->supervisor, keep_name(name, "journal", 0), s->journal.fd);
    supervisor_barrier(&s->supervisor);
    return 0;
}

static int open_journal(struct server *s, struct errmsg *e)
{
    const struct config *c = s->config;
    _cleanup_(closep) int fd = -1;
    char name[KEEP_NAME_BYTES];
    struct errmsg why;

    if (s->supervisor.keeps)
        fd = supervisor_take(&s->supervisor, keep_name(name, "journal", 0));
    if (fd < 0)
        return open_new(s, e);
    if (journal_adopt(&s->journal, fd, c->extent_bytes, c->span_bytes, &why) < 0) {
        log_event(LOG_CRIT, "pool-lost", "message=\"%s\": starting with an empty pool", why.text);
        supervisor_remove(&s->supervisor, name);
        return open_new(s, e);
    }
    if (c->pool_bytes > s->journal.head->pool_bytes)
        s->journal.head->pool_bytes = c->pool_bytes;
    else if (c->pool_bytes < s->journal.head->pool_bytes)
        log_event(LOG_NOTICE, "pool-stays-large", "bytes=%" PRIu64 " configured=%" PRIu64 " message=\"a kept pool does not "
                  "shrink: stop and start to make it smaller\"", s->journal.head->pool_bytes, c->pool_bytes);
    return 0;
}

int keep_open(struct server *s, struct errmsg *e)
{
    const struct config *c = s->config;
    struct pool *p = &s->store.pool;
    int r = open_journal(s, e);

    if (r == 0)
        r = pool_init(p, s->journal.head->pool_bytes, c->extent_bytes, c->span_bytes, e);
    if (r < 0)
        return r;
    p->generation = s->journal.head->generation;
    p->generation_record = &s->journal.head->generation;
    p->next_extent = journal_read(&s->journal)->next_extent;
    s->pool_keeper = (struct pool_keeper) { on_added, on_removed, s };
    p->keeper = &s->pool_keeper;
    return 0;
}

int keep_freeze(struct server *s)
{
    int r = journal_freeze(&s->journal);

    for (uint32_t i = 0; r == 0 && i < s->store.pool.n_extents; i++)
        r = slot_records_freeze(&s->store.pool.extents[i]->records);
    s->supervisor.frozen = true;
    s->store.pool.keeper = NULL;
    return r;
}
