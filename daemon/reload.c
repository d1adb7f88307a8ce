/* See reload.h. */
#include "daemon/reload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/worker_thread.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/requests/state.h"
#include "daemon/tier/keyring.h"

/* What the thread uses. Its own memory, since the thread may outlive everything else. */
struct reload_job {
    reload_read_fn read;
    char *key_file; /* NULL: none */
    struct config fresh;
    struct keyring *ring;
    struct errmsg error;
    int r;
    int done_fd; /* a copy of the eventfd */
};

struct reload {
    struct server *server;
    reload_read_fn read;
    reload_apply_fn *apply;
    int done_fd; /* eventfd */
    struct ev_source *done;
    pthread_t thread;
    struct reload_job *job; /* NULL: no thread runs */
    bool again;
};

static struct reload_job *reload_job_free(struct reload_job *j)
{
    if (!j)
        return NULL;

    config_deinit(&j->fresh);
    (void) keyring_unref(j->ring);
    closep(&j->done_fd);
    free(j->key_file);
    free(j);
    return NULL;
}

static void *reload_run(void *ctx)
{
    struct reload_job *j = ctx;

    j->r = j->read(&j->fresh, &j->error);
    if (j->r == 0 && j->key_file)
        j->r = keyring_read_named(j->key_file, &j->ring, &j->error);
    (void) eventfd_write(j->done_fd, 1);
    return NULL;
}

static int reload_start(struct reload *r)
{
    struct reload_job *j = calloc(1, sizeof(*j));
    const char *key_file = r->server->config->key_file;
    int k = 0;

    if (!j)
        return -ENOMEM;

    j->read = r->read;
    config_init(&j->fresh);
    j->done_fd = fcntl(r->done_fd, F_DUPFD_CLOEXEC, 3);
    if (j->done_fd < 0)
        k = -errno;
    j->key_file = key_file ? strdup(key_file) : NULL;
    if (k == 0 && key_file && !j->key_file)
        k = -ENOMEM;
    if (k == 0)
        k = worker_thread_start(&r->thread, NULL, reload_run, j);
    if (k < 0) {
        (void) reload_job_free(j);
        return k;
    }

    r->job = j;
    return 0;
}

static void reload_failed(struct reload *r, const char *why)
{
    log_event(LOG_ERR, "reload-failed", "message=\"%s\", keeping the present configuration", why);
    supervisor_notify(r->server->supervisor, "READY=1");
}

void reload_begin(struct reload *r)
{
    int k;

    if (r->job) {
        r->again = true;
        return;
    }

    supervisor_notify(r->server->supervisor, "RELOADING=1");
    k = reload_start(r);
    if (k < 0)
        reload_failed(r, strerror(-k));
}

static void reload_on_done(void *ctx)
{
    struct reload *r = ctx;
    struct reload_job *j = r->job;
    eventfd_t n;

    if (eventfd_read(r->done_fd, &n) < 0 || !j)
        return;

    (void) pthread_join(r->thread, NULL); /* it has nothing left to do */
    r->job = NULL;
    if (j->r == 0)
        j->r = r->apply(r->server, &j->fresh, j->ring, &j->error);
    if (j->r < 0)
        reload_failed(r, j->error.text);
    else
        supervisor_notify(r->server->supervisor, "READY=1");

    (void) reload_job_free(j);
    if (r->again) {
        r->again = false;
        reload_begin(r);
    }
}

int reload_new(struct server *s, reload_read_fn read, reload_apply_fn *apply, struct reload **ret,
               struct errmsg *e)
{
    struct reload *r = calloc(1, sizeof(*r));
    int k;

    if (!r)
        return fail(e, -ENOMEM, "out of memory at the start");

    *r = (struct reload){.server = s, .read = read, .apply = apply};
    r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    k = r->done_fd < 0 ? -errno : ev_watch(s->ev, r->done_fd, reload_on_done, r, &r->done);
    if (k < 0) {
        (void) reload_free(r);
        return fail(e, k, "cannot prepare for SIGHUP: %s", strerror(-k));
    }

    *ret = r;
    return 0;
}

struct reload *reload_free(struct reload *r)
{
    if (!r)
        return NULL;

    if (r->job && pthread_tryjoin_np(r->thread, NULL) == 0)
        r->job = reload_job_free(r->job);
    else if (r->job)
        (void) pthread_detach(r->thread);
    r->done = ev_source_free(r->done);
    closep(&r->done_fd);
    free(r);
    return NULL;
}
