/*
 * The supervisor of daemon_rig.h: the functions of daemon/loop/supervisor.h with a store in this process.
 */
#include "tests/fuzz/daemon_rig.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/supervisor.h"

enum { STORED_MAX = 256 };

static struct rig_stored in_store[STORED_MAX];
static size_t n_in_store;

int supervisor_init(struct supervisor *s, enum supervisor_keep keep, struct errmsg *e)
{
    (void) e;
    *s = (struct supervisor){.keeps = keep == KEEP_YES};
    if (!s->keeps || n_in_store == 0)
        return 0;
    s->fds = calloc(n_in_store, sizeof(*s->fds));
    rig_check(s->fds != NULL);
    for (; s->n_fds < n_in_store; s->n_fds++) {
        s->fds[s->n_fds].name = strdup(in_store[s->n_fds].name);
        s->fds[s->n_fds].fd = fcntl(in_store[s->n_fds].fd, F_DUPFD_CLOEXEC, 3);
    }
    return 0;
}

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

void supervisor_store(struct supervisor *s, const char *name, int fd)
{
    if (s->keeps && !s->frozen)
        rig_store(name, fd);
}

int supervisor_store_provably(struct supervisor *s, const char *name, int fd)
{
    supervisor_store(s, name, fd);
    return 0;
}

bool supervisor_has(const struct supervisor *s, int fd)
{
    (void) s;
    (void) fd;
    return true; /* this store has room for everything */
}

void rig_store(const char *name, int fd)
{
    rig_check(n_in_store < STORED_MAX && strlen(name) < sizeof(in_store[0].name));
    memcpy(in_store[n_in_store].name, name, strlen(name) + 1);
    in_store[n_in_store++].fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

void supervisor_remove(struct supervisor *s, const char *name)
{
    if (!s->keeps || s->frozen)
        return;
    for (size_t i = n_in_store; i-- > 0;) {
        if (strcmp(in_store[i].name, name) != 0)
            continue;
        (void) close(in_store[i].fd);
        in_store[i] = in_store[--n_in_store];
    }
}

void supervisor_barrier(struct supervisor *s)
{
    (void) s;
}

bool supervisor_has_failed(const struct supervisor *s)
{
    return s->failed;
}

int supervisor_store_and_wait(struct supervisor *s, const struct supervisor_fd *fds, size_t n)
{
    for (size_t i = 0; s->keeps && i < n; i++)
        rig_store(fds[i].name, fds[i].fd);
    return 0;
}

void supervisor_freeze(struct supervisor *s)
{
    s->frozen = true;
}

void supervisor_store_soon(struct supervisor *s, const char *name, int fd)
{
    supervisor_store(s, name, fd);
}

void supervisor_notify(struct supervisor *s, const char *state)
{
    (void) s;
    (void) state;
}

unsigned supervisor_watchdog_ms(void)
{
    return 0;
}

const struct rig_stored *rig_stored(size_t *ret_n)
{
    *ret_n = n_in_store;
    return in_store;
}

void rig_forget(void)
{
    while (n_in_store > 0)
        (void) close(in_store[--n_in_store].fd);
}
