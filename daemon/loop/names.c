/* See names.h. */
#include "daemon/loop/names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_identity.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/work.h"

enum { NAMES_PERIOD_S = 1 };

struct name {
    struct name *next;
    const char *what, *remedy;
    char *path;
    int fd; /* of the file: while it is open, no other file gets the same inode */
    struct file_identity identity;
    bool is_lost; /* as logged */
    int err;      /* of the last comparison; the thread's while it runs */
    struct errmsg why;
};

struct names {
    struct work_item item; /* first member */
    struct work_share share;
    struct work *work;
    struct name *first;
    int timer_fd;
    struct ev_source *timer;
    bool is_busy;
    uint32_t n_lost;
};

/* On a thread: the file system of a name may not answer. */
static bool names_compare(struct work_item *i)
{
    const struct names *n = (const struct names *) i;

    for (struct name *x = n->first; x; x = x->next)
        x->err = file_identity_check(&x->identity, AT_FDCWD, x->path, 0, x->path, &x->why);
    return false;
}

static void names_log(struct name *x)
{
    x->is_lost = x->err < 0;
    if (x->is_lost)
        log_event(LOG_WARNING, "name-lost", "what=\"%s\" path=%s message=\"%s: %s\"", x->what, x->path,
                  x->why.text, x->remedy);
    else
        log_event(LOG_NOTICE, "name-found", "what=\"%s\" path=%s message=\"it is there again\"", x->what,
                  x->path);
}

static void names_on_done(struct work_item *i)
{
    struct names *n = (struct names *) i;

    n->is_busy = false;
    if (i->expired) /* the daemon ends */
        return;

    n->n_lost = 0;
    for (struct name *x = n->first; x; x = x->next) {
        if ((x->err < 0) != x->is_lost)
            names_log(x);
        n->n_lost += x->is_lost;
    }
}

static void names_on_timer(void *ctx)
{
    struct names *n = ctx;
    uint64_t count;

    if (read(n->timer_fd, &count, sizeof(count)) != sizeof(count) || n->is_busy)
        return;
    n->is_busy = work_submit(n->work, &n->share, &n->item) == 0; /* else the next second tries again */
}

static struct name *name_free(struct name *x)
{
    if (!x)
        return NULL;

    closep(&x->fd);
    free(x->path);
    free(x);
    return NULL;
}

static void name_freep(struct name **x)
{
    *x = name_free(*x);
}

int names_add(struct names *n, const char *what, const char *path, int fd, const char *remedy,
              struct errmsg *e)
{
    _cleanup_(name_freep) struct name *x = calloc(1, sizeof(*x));
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for the name %s", path);

    *x = (struct name){.next = n->first, .what = what, .remedy = remedy, .path = strdup(path)};
    x->fd = fd < 0 ? open(path, O_PATH | O_CLOEXEC) : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    r = x->fd < 0 ? -errno : file_identity_of(x->fd, &x->identity);
    if (r == 0 && !x->path)
        r = -ENOMEM;
    if (r < 0)
        return fail(e, r, "cannot watch the %s %s: %s", what, path, strerror(-r));

    n->first = take_ptr(x);
    return 0;
}

uint32_t names_n_lost(const struct names *n)
{
    return n ? n->n_lost : 0;
}

int names_new(struct ev *ev, struct work *work, struct names **ret, struct errmsg *e)
{
    const struct timespec period = {.tv_sec = NAMES_PERIOD_S};
    struct names *n = calloc(1, sizeof(*n));
    int r = 0;

    if (!n)
        return fail(e, -ENOMEM, "out of memory for the names of files");

    *n = (struct names){.work = work, .item = {.run = names_compare, .done = names_on_done}};
    n->item.deadline_ms = UINT64_MAX;
    n->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (n->timer_fd < 0 ||
        timerfd_settime(n->timer_fd, 0, &(const struct itimerspec){period, period}, NULL) < 0)
        r = -errno;
    if (r == 0)
        r = ev_watch(ev, n->timer_fd, names_on_timer, n, &n->timer);
    if (r < 0) {
        (void) names_free(n);
        return fail(e, r, "cannot create a timer: %s", strerror(-r));
    }

    *ret = n;
    return 0;
}

struct names *names_free(struct names *n)
{
    struct name *x;

    if (!n)
        return NULL;

    n->timer = ev_source_free(n->timer);
    closep(&n->timer_fd);
    while ((x = n->first)) {
        n->first = x->next;
        (void) name_free(x);
    }
    free(n);
    return NULL;
}
