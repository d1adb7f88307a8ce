/* See supervisor.h. Without libsystemd there is no supervisor. */
#include "daemon/loop/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/log.h"
#include "daemon/loop/notify.h"

/*
 * How long a session lives before its pidfd is stored: one that comes and goes costs the supervisor nothing.
 */
enum {
    STORE_SOON_MS = 1000,
    SEND_TRIES = 3, /* the kernel may lack memory or descriptors for a moment */
};

#ifdef HAVE_SYSTEMD

static int supervisor_send(const char *state, int fd)
{
    int r = -1;

    for (int i = 0; i < SEND_TRIES && r < 0; i++)
        r = sd_pid_notify_with_fds(0, 0, state, &fd, fd >= 0);
    return r;
}

static int supervisor_send_barrier(uint64_t timeout_us)
{
    int r = -1;

    for (int i = 0; i < SEND_TRIES && r < 0 && r != -ETIMEDOUT; i++)
        r = sd_notify_barrier(0, timeout_us);
    return r;
}

/* "LISTEN_FDS=0", as an entry point of a container may say: libsystemd takes it for an error. */
static bool supervisor_passed_none(void)
{
    const char *text = getenv("LISTEN_FDS");
    char *end;

    return text && *text && strtoul(text, &end, 10) == 0 && *end == '\0';
}

static int supervisor_take_passed(struct supervisor *s, struct errmsg *e)
{
    char **names = NULL;
    int n = supervisor_passed_none() ? 0 : sd_listen_fds_with_names(1, &names);

    if (n < 0)
        return fail(e, n, "cannot read which descriptors the supervisor passed: %s", strerror(-n));
    if (n == 0)
        return 0;

    s->fds = calloc((size_t) n, sizeof(*s->fds));
    for (int i = 0; i < n; i++) {
        if (s->fds)
            s->fds[s->n_fds++] = (struct supervisor_fd){.name = names[i], .fd = SD_LISTEN_FDS_START + i};
        else
            free(names[i]);
    }

    free(names);
    return s->fds ? 0
                  : fail(e, -ENOMEM, "out of memory for the %d descriptors that the supervisor passed", n);
}

int supervisor_init(struct supervisor *s, enum supervisor_keep keep, struct errmsg *e)
{
    static const struct notify_send send = {supervisor_send, supervisor_send_barrier};
    const char *stored = getenv("FDSTORE"); /* systemd 254: how many descriptors may be stored */
    bool supervised = getenv("NOTIFY_SOCKET") != NULL;
    int r;

    *s = (struct supervisor){.keeps = false};
    r = supervisor_take_passed(s, e);
    if (r < 0)
        return r;

    s->store_max = stored ? strtoul(stored, NULL, 10) : 0;
    s->keeps = supervised && (keep == KEEP_YES || (keep == KEEP_AUTO && s->store_max > 0));
    if (keep == KEEP_YES && !supervised)
        log_event(
            LOG_WARNING, "not-persisted",
            "message=\"keep-pool is yes, but no supervisor started kvcobrad: the pool is lost at exit\"");
    return supervised ? notify_new(&send, &s->notify, e) : 0;
}

unsigned supervisor_watchdog_ms(void)
{
    uint64_t us;

    return sd_watchdog_enabled(0, &us) > 0 ? (unsigned) (us / 1000) : 0;
}

#else

int supervisor_init(struct supervisor *s, enum supervisor_keep keep, struct errmsg *e)
{
    (void) keep; /* config_check() refuses KEEP_YES in this build */
    (void) e;
    *s = (struct supervisor){.keeps = false};
    return 0;
}

unsigned supervisor_watchdog_ms(void)
{
    return 0;
}

#endif

static bool supervisor_stores(const struct supervisor *s)
{
    return s->keeps && !s->frozen && s->notify;
}

void supervisor_store(struct supervisor *s, const char *name, int fd)
{
    if (supervisor_stores(s))
        notify_store(s->notify, name, fd, 0);
}

/*
 * The store gets an open file description of its own, under a shared lock that ends with its last descriptor.
 * So the lock is there as long as the store has it.
 */
static int supervisor_prove(struct supervisor *s, const char *name, int fd)
{
    _cleanup_(closep) int own = -1;
    char path[32];

    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0 || flock(own, LOCK_SH | LOCK_NB) < 0)
        return -errno;

    supervisor_store(s, name, own);
    return 0;
}

int supervisor_store_provably(struct supervisor *s, const char *name, int fd)
{
    int r = -EAGAIN;

    if (!supervisor_stores(s))
        return 0;
    for (int i = 0; i < SEND_TRIES && r < 0; i++) /* a failure costs the extent at the next start */
        r = supervisor_prove(s, name, fd);
    return r;
}

bool supervisor_has(const struct supervisor *s, int fd)
{
    if (!supervisor_stores(s) || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return true;

    (void) flock(fd, LOCK_UN);
    return false;
}

void supervisor_store_soon(struct supervisor *s, const char *name, int fd)
{
    if (supervisor_stores(s))
        notify_store(s->notify, name, fd, STORE_SOON_MS);
}

void supervisor_remove(struct supervisor *s, const char *name)
{
    if (supervisor_stores(s))
        notify_remove(s->notify, name);
}

void supervisor_barrier(struct supervisor *s)
{
    if (supervisor_stores(s))
        (void) notify_barrier(s->notify); /* a failure is recorded */
}

int supervisor_store_and_wait(struct supervisor *s, const struct supervisor_fd *fds, size_t n)
{
    const struct supervisor_fd *last = &fds[n - 1];
    int r;

    if (!supervisor_stores(s))
        return 0;

    for (size_t i = 0; i < n - 1; i++)
        supervisor_store(s, fds[i].name, fds[i].fd);
    r = supervisor_store_provably(s, last->name,
                                  last->fd); /* sent last: the store has all if it has this one */
    if (r == 0)
        r = notify_barrier(s->notify);
    return r == 0 && !supervisor_has(s, last->fd) ? -ENOSPC : r;
}

bool supervisor_has_failed(const struct supervisor *s)
{
    return s->failed || (s->notify && notify_has_failed(s->notify));
}

void supervisor_freeze(struct supervisor *s)
{
    s->frozen = true;
    if (s->notify && notify_flush(s->notify) < 0)
        log_event(LOG_WARNING, "supervisor-silent",
                  "message=\"the supervisor does not read messages: the next start opens processes anew\"");
}

void supervisor_notify(struct supervisor *s, const char *state)
{
    if (s->notify)
        notify_state(s->notify, state);
}

void supervisor_deinit(struct supervisor *s)
{
    s->notify = notify_free(s->notify);
    for (size_t i = 0; i < s->n_fds; i++) {
        free(s->fds[i].name);
        closep(&s->fds[i].fd);
    }
    free(s->fds);
    *s = (struct supervisor){.keeps = false};
}

int supervisor_take(struct supervisor *s, const char *name)
{
    for (size_t i = 0; i < s->n_fds; i++)
        if (s->fds[i].fd >= 0 && strcmp(s->fds[i].name, name) == 0)
            return take_fd(&s->fds[i].fd);
    return -1;
}
