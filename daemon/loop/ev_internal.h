/* The interface between ev.c and its two backends. Only ev*.c includes this file. */
#pragma once

#include <sys/socket.h>

#include "daemon/loop/ev.h"

enum ev_kind { EV_KIND_LISTENER, EV_KIND_STREAM, EV_KIND_WATCH };

struct ev_out { /* one packet to send */
    struct ev_out *next;
    size_t bytes, n_fds;
    int fds[WIRE_FDS_MAX];
    struct iovec iov;
    struct msghdr msg;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
    uint8_t data[];
};

struct ev_source {
    struct ev *ev;
    enum ev_kind kind;
    int fd;
    bool dead;     /* freed by its owner: no callback runs */
    bool ended;    /* nothing more is sent or received; on_end() was called if the source is a stream */
    unsigned busy; /* callbacks on the stack and operations in the kernel; the memory lives while non-zero */
    void *ctx;
    ev_accept_fn on_accept;
    ev_readable_fn on_readable;
    const struct ev_stream_callbacks *cb;
    struct ev_out *out, **out_end; /* queue; the head is being sent */
    unsigned n_out;
    bool receiving, sending;       /* armed in the backend */
    struct ev_source *paused_next; /* listeners that wait for a free descriptor */
    bool paused;
};

struct ev_ops {
    const char *name;
    int (*start)(struct ev *ev, struct errmsg *e);
    void (*stop)(struct ev *ev);
    int (*add)(struct ev_source *s);     /* begins to accept, receive or watch */
    int (*send)(struct ev_source *s);    /* sends the head of the queue; called when !sending */
    int (*resume)(struct ev_source *s);  /* a listener that was paused */
    void (*remove)(struct ev_source *s); /* ends every operation of a dead source */
    /* Reads the clock and dispatches events. @timeout_ms: negative: no limit. */
    int (*wait)(struct ev *ev, int64_t timeout_ms);
};

struct ev {
    const struct ev_ops *ops;
    void *backend;
    bool stopping;
    int failed; /* negative: why the loop cannot continue */
    unsigned n_sources;
    struct ev_source *paused;
    uint64_t now_ms, period_ms, next_tick_ms;
    uint64_t demand_ms; /* period that ev_tick_demand() starts; 0: none */
    ev_tick_fn on_tick;
    void *tick_ctx;
};

extern const struct ev_ops ev_uring_ops, ev_epoll_ops;

/*
 * Called after the kernel's wait and before any callback. Otherwise events after a long sleep, and deadlines
 * counted from them, would have the time at which the sleep began.
 */
void ev_read_clock(struct ev *ev);

/* Delivery, in ev.c. Each one keeps the source alive while its owner's callback runs. */
void ev_deliver_accept(struct ev_source *s, int fd);
void ev_deliver_packet(struct ev_source *s, const void *data, struct wire_packet *p);
void ev_deliver_end(struct ev_source *s, int err);
void ev_deliver_readable(struct ev_source *s);

/*
 * accept() failed because no descriptor or memory is left, and the backend stopped listening on @s. The loop
 * resumes it after EV_PAUSE_MS, so that it does not spin.
 */
enum { EV_PAUSE_MS = 100 };
void ev_pause_accept(struct ev_source *s);

/* The head was sent or dropped: removes it from the queue. */
void ev_sent(struct ev_source *s);

void ev_source_hold(struct ev_source *s);
void ev_source_drop(struct ev_source *s); /* frees a dead source when its last user is done */
