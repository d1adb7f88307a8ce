/* Holds without a session; see ownerless.h. */
#include "daemon/session/orphans.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/store/persist.h"
#include "daemon/loop/log.h"
#include "daemon/server.h"

void ownerless_begin(struct server *s, uint32_t number, int pidfd, const char *why)
{
    const struct session_record *record = &s->journal.sessions[number];

    s->ownerless[number] = (struct ownerless){.alone = true, .pidfd = pidfd};
    s->n_alone++;
    log_event(LOG_CRIT, "session-not-restored",
              "session=%" PRIu32 " pid=%" PRIu32 " message=\"%s: what it holds stays held "
              "until %s\"",
              number, record->pid, why,
              pidfd >= 0 ? "the process exits" : "the process can be watched and exits");
}

void ownerless_add(struct server *s, uint32_t number)
{
    s->ownerless[number].n_holds++;
}

struct store *ownerless_store(struct server *s, uint32_t number)
{
    struct device *d = devices_find_place(&s->devices, s->journal.sessions[number].place);

    return d ? &d->store : NULL;
}

bool ownerless_is_alone(const struct server *s, uint32_t number)
{
    return s->ownerless[number].alone;
}

uint64_t ownerless_holds(const struct server *s, uint32_t number)
{
    return s->ownerless[number].n_holds;
}

/* Cells of a number that no session knows: all that are left of it. Rare, so the whole list is walked. */
static void orphans_release_cells(struct server *s, uint32_t number)
{
    for (uint64_t cell = 0; cell < s->journal.head->n_holds; cell++) {
        const struct hold_cell *c = &s->journal.holds[cell];
        uint32_t slot = c->slot;

        if (slot == SLOT_NONE || hold_session(c) != number)
            continue;
        journal_hold_remove(&s->journal, (uint32_t) cell);
        store_unhold(ownerless_store(s, number), slot);
    }
}

void ownerless_end(struct server *s, uint32_t number)
{
    struct ownerless *o = &s->ownerless[number];
    struct store *st = ownerless_store(s, number);
    char name[KEEP_NAME_BYTES];

    if (o->alone && st && st->pool.source) /* the driver may still run what the process left */
        gpu_pool_retire_session(devices_find_place(&s->devices, s->journal.sessions[number].place)->gpu,
                                number, "a process without a session ended");
    if (o->n_holds > 0)
        orphans_release_cells(s, number);
    if (o->alone) {
        const struct session_record *record = &s->journal.sessions[number];

        if (st && st->pool.source)
            store_discard_reserved(st, number);

        log_event(LOG_NOTICE, "ownerless-gone", "session=%" PRIu32 " pid=%" PRIu32 " held=%" PRIu64, number,
                  record->pid, o->n_holds);
        (void) keep_name(name, "pid", record->serial);
        journal_session_remove(&s->journal, number);
        supervisor_remove(&s->supervisor, name);
        closep(&o->pidfd);
        s->n_alone--;
    }
    *o = (struct ownerless){.pidfd = -1};
}

static bool orphans_is_gone(struct ownerless *o, pid_t pid)
{
    struct pollfd p = {.events = POLLIN};

    if (o->pidfd < 0)
        o->pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
    if (o->pidfd < 0)
        return errno == ESRCH;
    p.fd = o->pidfd;
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

void ownerless_tick(struct server *s)
{
    for (uint32_t i = 0; s->n_alone > 0 && i < s->n_sessions_max; i++)
        if (s->ownerless[i].alone && orphans_is_gone(&s->ownerless[i], (pid_t) s->journal.sessions[i].pid))
            ownerless_end(s, i);
}
