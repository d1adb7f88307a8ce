/* What ev.c and ev_stream.c share. Only ev*.c includes this file. */
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/fair.h"

struct closer;

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
    struct fair_item ready; /* first member; waits in @share while the source may have something to do */
    struct fair_share own, *share;
    struct ev *ev;
    enum ev_kind kind;
    int fd;
    bool dead;     /* freed by its owner: no callback runs */
    bool ended;    /* nothing more is sent or received; on_end() was called if the source is a stream */
    unsigned busy; /* callbacks on the stack, a pause: the memory lives while non-zero */
    void *ctx;
    ev_accept_fn on_accept;
    ev_readable_fn on_readable;
    const struct ev_stream_callbacks *cb;
    bool peeks;  /* a stream that takes no descriptors, and the kernel does not refuse them */
    int failure; /* negative: errno of the operation that ended the source, before it is served */
    struct ev_out *out, **out_end; /* queue; the head is sent next */
    unsigned n_out;
    size_t out_bytes; /* of the queue */
    bool is_full;     /* nothing is received until the peer has read */
    bool watching;    /* in the epoll set */
    bool sending;     /* the socket is full: reported when the peer has read */
    struct ev_source *paused_next;
    bool paused;
};

#define EV_EVENTS_PER_WAIT 1024 /* all connections, so that no ready one waits for a later pass */

struct ev {
    int epoll_fd;
    struct epoll_event events[EV_EVENTS_PER_WAIT];
    struct closer *closer;
    struct fair_queue ready;
    struct fair_share *served; /* of the source that is being served; NULL: no source, or it left its share */
    bool stopping;
    int failed; /* negative: why the loop cannot continue */
    unsigned n_sources;
    struct ev_source *paused;
    uint64_t resume_ms; /* when they accept again */
    uint64_t now_ms, period_ms, next_tick_ms;
    uint64_t demand_ms; /* period that ev_tick_demand() starts; 0: none */
    ev_tick_fn on_tick;
    void *tick_ctx;
    uint8_t packet[WIRE_PACKET_BYTES_MAX];
};

/* The source may have something to do: it is served in its turn. */
void ev_report(struct ev_source *s);

/* The kernel reports a watch once more, or a stream whose @sending has changed. Return: 0; errno of epoll. */
int ev_want(const struct ev_source *s);

/* Sends until the queue is empty or the socket is full. Return: 0; errno of the socket or of epoll. */
int ev_send_queued(struct ev_source *s);

/* Serve one event of a live source. */
void ev_serve_stream(struct ev_source *s);
void ev_serve_listener(struct ev_source *s);

/* Ends a source. A daemon that cannot accept connections or receive signals must stop. */
void ev_end(struct ev_source *s, int err);

/*
 * Sources that wait for EV_PAUSE_MS: listeners that could not accept, because no descriptor or memory was
 * left or too many connections wait to be closed, so that the loop does not spin; ev_watch_pause().
 */
void ev_pause(struct ev_source *s);
void ev_resume_paused(struct ev *ev);

void ev_drop_unsent(struct ev_source *s);

void ev_source_hold(struct ev_source *s);
void ev_source_drop(struct ev_source *s); /* frees a dead source when its last user is done */
