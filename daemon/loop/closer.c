/* See closer.h. */
#include "daemon/loop/closer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/worker_thread.h"

#ifndef sigev_notify_thread_id /* glibc before 2.40 lacks the name of timer_create(2) */
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum {
    INTERRUPT_MS = 2, /* how long a close may wait for something that a signal ends */
    END_MS = 200,     /* how long closer_free() waits */
    STACK_BYTES = 256 * 1024,
};

struct closer_socket {
    struct closer_socket *next;
    int fd;
};

struct closer_group { /* the sockets of one uid */
    struct closer_group *next;
    uid_t uid;
    uint32_t n; /* waiting, and the one that is being closed */
    bool busy;  /* a thread closes one */
    struct closer_socket *first, **end;
};

struct closer {
    pthread_mutex_t lock;
    pthread_cond_t wanted, ended; /* a socket waits, or stopping; a socket was closed */
    struct closer_group *groups;  /* [n_groups] with sockets only */
    uint32_t n_groups, n_sockets;
    uint32_t n_threads; /* at least one for each group, so that each can wait for a close of its own */
    bool stopping;
};

static void closer_on_signal(int number)
{
    (void) number; /* it only interrupts */
}

int closer_new(struct closer **ret)
{
    struct sigaction action = {.sa_handler = closer_on_signal}; /* without SA_RESTART */
    struct closer *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;

    if (!c)
        return -ENOMEM;

    (void) sigemptyset(&action.sa_mask);
    (void) sigaction(SIGUSR2, &action, NULL);
    (void) pthread_mutex_init(&c->lock, NULL);
    (void) pthread_cond_init(&c->wanted, NULL);
    (void) pthread_condattr_init(&attr);
    (void) pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* a host's clock may be stepped */
    (void) pthread_cond_init(&c->ended, &attr);
    (void) pthread_condattr_destroy(&attr);
    *ret = c;
    return 0;
}

/*
 * Frees the closer with its last thread. Called with the lock held and @c->stopping set; releases the lock.
 */
static void closer_drop(struct closer *c)
{
    bool last = c->n_threads == 0;

    (void) pthread_mutex_unlock(&c->lock);
    if (!last)
        return;

    while (c->groups) {
        struct closer_group *g = c->groups;

        c->groups = g->next;
        while (g->first) { /* their descriptors stay open until the process ends */
            struct closer_socket *s = g->first;

            g->first = s->next;
            free(s);
        }
        free(g);
    }
    (void) pthread_cond_destroy(&c->wanted);
    (void) pthread_cond_destroy(&c->ended);
    (void) pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- threads ---- */

static struct closer_group *closer_find(struct closer *c, uid_t uid)
{
    struct closer_group *g = c->groups;

    while (g && g->uid != uid)
        g = g->next;
    return g;
}

/* A group that no thread works on. It moves to the end of the list, so that the groups take turns. */
static struct closer_group *closer_pick(struct closer *c)
{
    struct closer_group **link = &c->groups, *g;

    while (*link && (*link)->busy)
        link = &(*link)->next;
    g = *link;
    if (!g)
        return NULL;

    *link = g->next;
    while (*link)
        link = &(*link)->next;
    *link = g;
    g->next = NULL;
    return g;
}

static void closer_free_if_empty(struct closer *c, struct closer_group *g)
{
    struct closer_group **link = &c->groups;

    if (g->n > 0)
        return;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    c->n_groups--;
    free(g);
}

/*
 * A timer that sends this thread SIGUSR2. Without one, a close that lingers lasts as long as its owner said.
 */
static bool closer_make_timer(timer_t *ret)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
    sigset_t set;

    event.sigev_notify_thread_id = (pid_t) syscall(SYS_gettid);
    (void) sigemptyset(&set);
    (void) sigaddset(&set, SIGUSR2);
    return pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, ret) == 0;
}

static void closer_close_now(int fd, const timer_t *timer)
{
    const struct timespec period = {.tv_nsec = INTERRUPT_MS * 1000000L};
    struct itimerspec on = {.it_interval = period, .it_value = period}, off = {.it_value = {0}};

    if (timer)
        (void) timer_settime(*timer, 0, &on, NULL);
    (void) close(fd);
    if (timer)
        (void) timer_settime(*timer, 0, &off, NULL);
}

/* Closes one socket of @g. Called with the lock held; it is released meanwhile. */
static void closer_serve(struct closer *c, struct closer_group *g, const timer_t *timer)
{
    struct closer_socket *s = g->first;

    g->busy = true;
    g->first = s->next;
    if (!g->first)
        g->end = &g->first;
    (void) pthread_mutex_unlock(&c->lock);
    closer_close_now(s->fd, timer);
    free(s);
    (void) pthread_mutex_lock(&c->lock);
    g->busy = false;
    g->n--;
    c->n_sockets--;
    closer_free_if_empty(c, g);
    (void) pthread_cond_signal(&c->ended);
}

static void *closer_main(void *arg)
{
    struct closer *c = arg;
    timer_t timer;
    bool timed = closer_make_timer(&timer);

    (void) pthread_mutex_lock(&c->lock);
    while (!c->stopping) {
        struct closer_group *g = closer_pick(c);

        if (g)
            closer_serve(c, g, timed ? &timer : NULL);
        else if (c->n_threads > c->n_groups + 1) /* one thread stays for the next group */
            break;
        else
            (void) pthread_cond_wait(&c->wanted, &c->lock);
    }

    c->n_threads--;
    if (timed)
        (void) timer_delete(timer);
    if (c->stopping)
        closer_drop(c);
    else
        (void) pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int closer_start_thread(struct closer *c)
{
    pthread_attr_t attr;
    pthread_t thread;
    int r;

    (void) pthread_attr_init(&attr);
    (void) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void) pthread_attr_setstacksize(&attr, STACK_BYTES);
    r = worker_thread_start(&thread, &attr, closer_main, c);
    (void) pthread_attr_destroy(&attr);
    c->n_threads += r == 0;
    return r;
}

/* ---- event loop ---- */

static uid_t closer_uid(int fd)
{
    struct ucred peer = {.uid = 0};
    socklen_t bytes = sizeof(peer);

    (void) getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    return peer.uid;
}

/* Called with the lock held. */
static struct closer_group *closer_group_of(struct closer *c, uid_t uid)
{
    struct closer_group *g = closer_find(c, uid);

    if (g)
        return g;
    if (c->n_threads <= c->n_groups && closer_start_thread(c) < 0 && c->n_threads == 0)
        return NULL;

    g = calloc(1, sizeof(*g));
    if (g) {
        *g = (struct closer_group){.next = c->groups, .uid = uid, .end = &g->first};
        c->groups = g;
        c->n_groups++;
    }
    return g;
}

void closer_close(struct closer *c, int fd)
{
    struct closer_socket *s = malloc(sizeof(*s));
    struct closer_group *g;

    (void) pthread_mutex_lock(&c->lock);
    g = s ? closer_group_of(c, closer_uid(fd)) : NULL;
    if (g) {
        *s = (struct closer_socket){.fd = fd};
        *g->end = s;
        g->end = &s->next;
        g->n++;
        c->n_sockets++;
        (void) pthread_cond_signal(&c->wanted);
    }
    (void) pthread_mutex_unlock(&c->lock);
    if (!g) {
        free(s);
        (void) close(fd);
    }
}

uint32_t closer_n_of(struct closer *c, uid_t uid)
{
    const struct closer_group *g;
    uint32_t n;

    (void) pthread_mutex_lock(&c->lock);
    g = closer_find(c, uid);
    n = g ? g->n : 0;
    (void) pthread_mutex_unlock(&c->lock);
    return n;
}

bool closer_is_full(struct closer *c)
{
    bool full;

    (void) pthread_mutex_lock(&c->lock);
    full = c->n_sockets >= CLOSER_SOCKETS_MAX;
    (void) pthread_mutex_unlock(&c->lock);
    return full;
}

struct closer *closer_free(struct closer *c)
{
    struct timespec until;

    if (!c)
        return NULL;

    (void) clock_gettime(CLOCK_MONOTONIC, &until); /* cannot fail for this clock */
    until.tv_nsec += END_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void) pthread_mutex_lock(&c->lock);
    while (c->n_sockets > 0 && pthread_cond_timedwait(&c->ended, &c->lock, &until) == 0)
        ;
    c->stopping = true;
    (void) pthread_cond_broadcast(&c->wanted);
    closer_drop(c);
    return NULL;
}
