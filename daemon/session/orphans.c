/* See orphans.h. */
#include "daemon/session/orphans.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"

void orphans_begin(struct sessions *ss, uint32_t number, int pidfd, const char *why)
{
    const struct session_record *record = &ss->persist->journal.sessions[number];

    ss->orphans[number] = (struct orphan){.is_watched = true, .pidfd = pidfd};
    ss->n_watched++;
    log_event(LOG_CRIT, "session-not-restored",
              "session=%" PRIu64 " pid=%" PRIu32 " message=\"%s: its pages stay held "
              "until %s\"",
              record->serial, record->pid, why,
              pidfd >= 0 ? "the process exits" : "the process can be watched and exits");
}

void orphans_add_hold(struct sessions *ss, uint32_t number)
{
    ss->orphans[number].n_holds++;
}

struct store *orphans_store(struct sessions *ss, uint32_t number)
{
    struct device *d = devices_find_place(ss->devices, ss->persist->journal.sessions[number].place);

    return d ? &d->store : NULL;
}

bool orphans_is_watched(const struct sessions *ss, uint32_t number)
{
    return ss->orphans[number].is_watched;
}

uint64_t orphans_holds(const struct sessions *ss, uint32_t number)
{
    return ss->orphans[number].n_holds;
}

/* Removes the remaining cells of a number without a session. This is rare, so the whole list is searched. */
static void orphans_release_cells(struct sessions *ss, uint32_t number)
{
    struct store *st = orphans_store(ss, number);

    for (uint64_t cell = 0; cell < ss->persist->journal.head->n_holds; cell++) {
        const struct hold_cell *c = &ss->persist->journal.holds[cell];
        struct page_handle h;

        if (c->slot == SLOT_NONE || hold_session(c) != number)
            continue;
        h = pool_handle(&st->pool, c->slot);
        journal_hold_remove(&ss->persist->journal, (uint32_t) cell);
        store_unhold(st, &h);
    }
}

void orphans_end(struct sessions *ss, uint32_t number)
{
    struct orphan *o = &ss->orphans[number];
    struct store *st = orphans_store(ss, number);
    char name[PERSIST_NAME_BYTES];

    if (o->is_watched && st && st->pool.on_gpu) /* kernels of the process may still run */
        gpu_pool_retire_session(
            devices_find_place(ss->devices, ss->persist->journal.sessions[number].place)->gpu, number,
            "a process without a session ended");
    if (o->n_holds > 0)
        orphans_release_cells(ss, number);
    if (o->is_watched) {
        const struct session_record *record = &ss->persist->journal.sessions[number];

        if (st && st->pool.on_gpu)
            store_discard_reserved(st, number);

        log_event(LOG_NOTICE, "orphan-gone", "session=%" PRIu64 " pid=%" PRIu32 " held=%" PRIu64,
                  record->serial, record->pid, o->n_holds);
        (void) persist_name(name, "pid", record->serial);
        journal_session_remove(&ss->persist->journal, number);
        supervisor_remove(ss->persist->supervisor, name);
        closep(&o->pidfd);
        ss->n_watched--;
    }

    *o = (struct orphan){.pidfd = -1};
}

static bool orphans_is_gone(struct orphan *o, pid_t pid)
{
    struct pollfd p = {.events = POLLIN};

    if (o->pidfd < 0)
        o->pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
    if (o->pidfd < 0)
        return errno == ESRCH;

    p.fd = o->pidfd;
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

void orphans_tick(struct sessions *ss)
{
    for (uint32_t i = 0; ss->n_watched > 0 && i < ss->n_max; i++)
        if (ss->orphans[i].is_watched &&
            orphans_is_gone(&ss->orphans[i], (pid_t) ss->persist->journal.sessions[i].pid))
            orphans_end(ss, i);
}
