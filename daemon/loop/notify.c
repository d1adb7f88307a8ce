/* See notify.h. */
#include "daemon/loop/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/worker_thread.h"
#include "daemon/loop/log.h"

enum {
    TEXT_BYTES = 160,
    BARRIER_TIMEOUT_US = 5000000,
    FLUSH_MS = 5000,
    TRIES = 3, /* memory or descriptors may be lacking for a moment */
};

enum notify_kind { NOTIFY_STORE, NOTIFY_REMOVE, NOTIFY_STATE, NOTIFY_BARRIER };

struct notify_message {
    struct notify_message *next, *prev;
    enum notify_kind kind;
    char text[TEXT_BYTES]; /* name or state */
    int fd;                /* of NOTIFY_STORE; owned */
    uint64_t due_ms;       /* of a message that is held back */
    int *result; /* of NOTIFY_BARRIER: set to 0 or errno, from 1; on the stack of the thread that waits */
};

struct notify_list {
    struct notify_message *first, *last;
};

struct notify {
    struct notify_send send;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a message was queued or sent, or stopping */
    struct notify_list queue, held;
    struct notify_message *spare; /* of the next state for which there is no memory: READY=1 is sent once */
    bool sending, stopping, failed;
    pthread_t thread;
};

static uint64_t notify_clock_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

/* ---- lists, with the lock held ---- */

static void notify_append(struct notify_list *l, struct notify_message *m)
{
    m->next = NULL;
    m->prev = l->last;
    if (l->last)
        l->last->next = m;
    else
        l->first = m;
    l->last = m;
}

static void notify_unlink(struct notify_list *l, struct notify_message *m)
{
    if (m->prev)
        m->prev->next = m->next;
    else
        l->first = m->next;
    if (m->next)
        m->next->prev = m->prev;
    else
        l->last = m->prev;
}

/* From the newest on: a descriptor that is removed was mostly stored not long ago. */
static struct notify_message *notify_find(const struct notify_list *l, enum notify_kind kind,
                                          const char *text)
{
    struct notify_message *m = l->last;

    while (m && (m->kind != kind || strcmp(m->text, text) != 0))
        m = m->prev;
    return m;
}

static void notify_fill(struct notify_message *m, enum notify_kind kind, const char *text)
{
    *m = (struct notify_message){.kind = kind, .fd = -1};
    (void) snprintf(m->text, sizeof(m->text), "%s", text);
}

static struct notify_message *notify_message_new(enum notify_kind kind, const char *text)
{
    struct notify_message *m = malloc(sizeof(*m));

    if (m)
        notify_fill(m, kind, text);
    return m;
}

static void notify_message_free(struct notify_message *m)
{
    closep(&m->fd);
    free(m);
}

/* Moves messages that are due, or @all, to the queue. */
static void notify_release(struct notify *n, bool all)
{
    uint64_t now = notify_clock_ms();

    while (n->held.first && (all || n->held.first->due_ms <= now)) {
        struct notify_message *m = n->held.first;

        notify_unlink(&n->held, m);
        notify_append(&n->queue, m);
    }
}

/* ---- thread ---- */

static void notify_note_failure(struct notify *n, const char *what, const char *name, int r)
{
    (void) pthread_mutex_lock(&n->lock);
    n->failed = true;
    (void) pthread_mutex_unlock(&n->lock);
    log_event(LOG_ERR, "not-stored",
              "what=%s name=%s message=\"%s\", its part of the pool is lost at the next start", what, name,
              strerror(-r));
}

/* Return: 0 or errno. */
static int notify_send_one(struct notify *n, const struct notify_message *m)
{
    char state[TEXT_BYTES + 64];
    int r;

    switch (m->kind) {
    case NOTIFY_STORE:
        /* FDPOLL=0: systemd must not drop the pidfd of a process that exits while the daemon is down */
        (void) snprintf(state, sizeof(state), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", m->text);
        r = n->send.with_fd(state, m->fd);
        break;
    case NOTIFY_REMOVE:
        (void) snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", m->text);
        /* a descriptor that stays by mistake is not in the journal: the next start removes it */
        (void) n->send.with_fd(state, -1);
        return 0;
    case NOTIFY_STATE:
        (void) n->send.with_fd(m->text, -1);
        return 0;
    default:
        r = n->send.barrier(BARRIER_TIMEOUT_US);
    }

    if (r == 0)
        r = -ENOTCONN;
    if (r < 0)
        notify_note_failure(n, m->kind == NOTIFY_STORE ? "store" : "barrier", m->text, r);
    return r < 0 ? r : 0;
}

/* With the lock held: frees a message, or keeps it as the spare one. */
static void notify_end(struct notify *n, struct notify_message *m)
{
    if (n->spare) {
        notify_message_free(m);
        return;
    }

    closep(&m->fd);
    m->fd = -1;
    n->spare = m;
}

/* Called with the lock held; it is released while the message is sent. */
static void notify_send_first(struct notify *n)
{
    struct notify_message *m = n->queue.first;
    int r;

    notify_unlink(&n->queue, m);
    n->sending = true;
    (void) pthread_mutex_unlock(&n->lock);
    r = notify_send_one(n, m);
    (void) pthread_mutex_lock(&n->lock);
    n->sending = false;
    if (m->result)
        *m->result = r;
    notify_end(n, m);
    (void) pthread_cond_broadcast(&n->changed);
}

static struct timespec notify_time(uint64_t ms)
{
    return (struct timespec){(time_t) (ms / 1000), (long) (ms % 1000) * 1000000};
}

static void *notify_main(void *arg)
{
    struct notify *n = arg;

    (void) pthread_mutex_lock(&n->lock);
    while (!n->stopping) {
        notify_release(n, false);
        if (n->queue.first) {
            notify_send_first(n);
        } else if (n->held.first) {
            struct timespec due = notify_time(n->held.first->due_ms);

            (void) pthread_cond_timedwait(&n->changed, &n->lock, &due);
        } else {
            (void) pthread_cond_wait(&n->changed, &n->lock);
        }
    }
    (void) pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* ---- start and end ---- */

static void notify_destroy(struct notify *n)
{
    for (struct notify_message *m; (m = n->queue.first);) {
        notify_unlink(&n->queue, m);
        notify_message_free(m);
    }
    free(n->spare);
    (void) pthread_cond_destroy(&n->changed);
    (void) pthread_mutex_destroy(&n->lock);
    free(n);
}

int notify_new(const struct notify_send *send, struct notify **ret, struct errmsg *e)
{
    struct notify *n = calloc(1, sizeof(*n));
    pthread_condattr_t attr;
    int r;

    if (n)
        n->spare = notify_message_new(NOTIFY_STATE, "");
    if (!n || !n->spare) {
        free(n);
        return fail(e, -ENOMEM, "out of memory for messages to the service manager");
    }

    n->send = *send;
    (void) pthread_mutex_init(&n->lock, NULL);
    (void) pthread_condattr_init(&attr);
    (void) pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void) pthread_cond_init(&n->changed, &attr);
    (void) pthread_condattr_destroy(&attr);
    r = worker_thread_start(&n->thread, NULL, notify_main, n);
    if (r < 0) {
        notify_destroy(n);
        return fail(e, r, "cannot start a thread for messages to the service manager: %s", strerror(-r));
    }

    *ret = n;
    return 0;
}

int notify_flush(struct notify *n)
{
    struct timespec until = notify_time(notify_clock_ms() + FLUSH_MS);
    int r = 0;

    (void) pthread_mutex_lock(&n->lock);
    notify_release(n, true);
    (void) pthread_cond_broadcast(&n->changed);
    while (r == 0 && (n->queue.first || n->sending))
        r = -pthread_cond_timedwait(&n->changed, &n->lock, &until);
    (void) pthread_mutex_unlock(&n->lock);
    return r;
}

struct notify *notify_free(struct notify *n)
{
    bool hangs;

    if (!n)
        return NULL;

    hangs = notify_flush(n) < 0;
    (void) pthread_mutex_lock(&n->lock);
    n->stopping = true;
    (void) pthread_cond_broadcast(&n->changed);
    (void) pthread_mutex_unlock(&n->lock);
    if (hangs) {
        (void) pthread_detach(n->thread);
        return NULL;
    }

    (void) pthread_join(n->thread, NULL);
    notify_destroy(n);
    return NULL;
}

/* ---- queueing ---- */

/* NULL, with errno: out of memory or descriptors. */
static struct notify_message *notify_store_message(const char *name, int fd)
{
    struct notify_message *m = notify_message_new(NOTIFY_STORE, name);

    if (!m)
        return NULL;

    m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (m->fd >= 0)
        return m;

    free(m);
    return NULL;
}

void notify_store(struct notify *n, const char *name, int fd, unsigned delay_ms)
{
    struct notify_message *m = NULL;

    for (unsigned i = 0; !m && i < TRIES; i++) /* as often as it would be sent */
        m = notify_store_message(name, fd);
    if (!m) {
        notify_note_failure(n, "store", name, -errno);
        return;
    }

    m->due_ms = notify_clock_ms() + delay_ms;
    (void) pthread_mutex_lock(&n->lock);
    notify_append(delay_ms > 0 ? &n->held : &n->queue, m);
    (void) pthread_cond_broadcast(&n->changed);
    (void) pthread_mutex_unlock(&n->lock);
}

void notify_remove(struct notify *n, const char *name)
{
    struct notify_message *remove = notify_message_new(NOTIFY_REMOVE, name), *stored;
    struct notify_list *list = &n->held;

    (void) pthread_mutex_lock(&n->lock);
    stored = notify_find(list, NOTIFY_STORE, name);
    if (!stored) {
        list = &n->queue;
        stored = notify_find(list, NOTIFY_STORE, name);
    }
    if (stored)
        notify_unlink(list, stored);
    else if (remove)
        notify_append(&n->queue, take_ptr(remove));
    (void) pthread_cond_broadcast(&n->changed);
    (void) pthread_mutex_unlock(&n->lock);
    if (stored)
        notify_message_free(stored);
    free(remove); /* without memory for it, the descriptor stays until the next start removes it */
}

bool notify_has_failed(struct notify *n)
{
    bool failed;

    (void) pthread_mutex_lock(&n->lock);
    failed = n->failed;
    (void) pthread_mutex_unlock(&n->lock);
    return failed;
}

void notify_state(struct notify *n, const char *state)
{
    struct notify_message *m = notify_message_new(NOTIFY_STATE, state), *queued;

    (void) pthread_mutex_lock(&n->lock);
    if (!m && n->spare) {
        m = take_ptr(n->spare);
        notify_fill(m, NOTIFY_STATE, state);
    }
    if (!m) { /* two in a row: the next WATCHDOG=1 follows soon */
        (void) pthread_mutex_unlock(&n->lock);
        return;
    }

    queued = notify_find(&n->queue, NOTIFY_STATE, state);
    if (queued)
        notify_unlink(&n->queue, queued);
    notify_append(&n->queue, m);
    (void) pthread_cond_broadcast(&n->changed);
    (void) pthread_mutex_unlock(&n->lock);
    if (queued)
        notify_message_free(queued);
}

int notify_barrier(struct notify *n)
{
    struct timespec until = notify_time(notify_clock_ms() + FLUSH_MS);
    struct notify_message *m = notify_message_new(NOTIFY_BARRIER, "-");
    int result = 1, r = 0;

    if (!m)
        return -ENOMEM;

    (void) pthread_mutex_lock(&n->lock);
    notify_release(n, true);
    m->result = &result;
    notify_append(&n->queue, m);
    (void) pthread_cond_broadcast(&n->changed);
    while (result > 0 && r == 0)
        r = -pthread_cond_timedwait(&n->changed, &n->lock, &until);
    if (result > 0) { /* it is queued, or being sent */
        r = -ETIMEDOUT;
        m->result = NULL;
    }
    (void) pthread_mutex_unlock(&n->lock);
    if (result > 0)
        notify_note_failure(n, "barrier", "-", r);
    return result > 0 ? r : result;
}
