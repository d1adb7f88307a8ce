/* See supervisor.h. Without libsystemd there is no supervisor. */
#include "daemon/loop/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/cleanup.h"
#include "daemon/loop/log.h"

#ifdef HAVE_SYSTEMD

enum { BARRIER_TIMEOUT_US = 5000000 };

static void supervisor_take_passed(struct supervisor *s)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    if (n <= 0)
        return;

    s->fds = calloc((size_t) n, sizeof(*s->fds));
    for (int i = 0; i < n; i++) {
        if (s->fds)
            s->fds[s->n_fds++] = (struct supervisor_fd){.name = names[i], .fd = SD_LISTEN_FDS_START + i};
        else
            free(names[i]);
    }

    free(names);
}

void supervisor_init(struct supervisor *s, enum supervisor_keep keep)
{
    const char *stored = getenv("FDSTORE"); /* systemd 254: how many descriptors may be stored */
    bool supervised = getenv("NOTIFY_SOCKET") != NULL;

    *s = (struct supervisor){.keeps = false};
    supervisor_take_passed(s);
    s->keeps = supervised && (keep == KEEP_YES || (keep == KEEP_AUTO && stored && atoi(stored) > 0));
    if (keep == KEEP_YES && !supervised)
        log_event(
            LOG_WARNING, "not-persisted",
            "message=\"keep-pool is yes, but no supervisor started kvcobrad: the pool is lost at exit\"");
}

static void supervisor_note_failure(struct supervisor *s, const char *what, const char *name, int r)
{
    s->failed = true;
    log_event(LOG_ERR, "not-stored",
              "what=%s name=%s message=\"%s\", its part of the pool is lost at the next start", what, name,
              strerror(-r));
}

void supervisor_store(struct supervisor *s, const char *name, int fd)
{
    char state[128];
    int r;

    if (!s->keeps || s->frozen)
        return;

    /* FDPOLL=0: systemd must not drop the pidfd of a process that exits while the daemon is down */
    (void) snprintf(state, sizeof(state), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
    r = sd_pid_notify_with_fds(0, 0, state, &fd, 1);
    if (r <= 0)
        supervisor_note_failure(s, "store", name, r < 0 ? r : -ENOTCONN);
}

void supervisor_remove(struct supervisor *s, const char *name)
{
    char state[128];

    if (!s->keeps || s->frozen)
        return;

    (void) snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", name);
    /* a descriptor that stays by mistake is not in the journal: the next start removes it */
    (void) sd_notify(0, state);
}

void supervisor_barrier(struct supervisor *s)
{
    int r;

    if (!s->keeps || s->frozen)
        return;

    r = sd_notify_barrier(0, BARRIER_TIMEOUT_US);
    if (r <= 0)
        supervisor_note_failure(s, "barrier", "-", r < 0 ? r : -ENOTCONN);
}

void supervisor_notify(const char *state)
{
    (void) sd_notify(0, state);
}

unsigned supervisor_watchdog_ms(void)
{
    uint64_t us;

    return sd_watchdog_enabled(0, &us) > 0 ? (unsigned) (us / 1000) : 0;
}

#else

void supervisor_init(struct supervisor *s, enum supervisor_keep keep)
{
    (void) keep; /* config_check() refuses KEEP_YES in this build */
    *s = (struct supervisor){.keeps = false};
}

void supervisor_store(struct supervisor *s, const char *name, int fd)
{
    (void) s;
    (void) name;
    (void) fd;
}

void supervisor_remove(struct supervisor *s, const char *name)
{
    (void) s;
    (void) name;
}

void supervisor_barrier(struct supervisor *s)
{
    (void) s;
}

void supervisor_notify(const char *state)
{
    (void) state;
}

unsigned supervisor_watchdog_ms(void)
{
    return 0;
}

#endif

void supervisor_deinit(struct supervisor *s)
{
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
