/*
 * The event loop of kvcobrad: one thread, on epoll.
 *
 * Its events are those of the daemon: a connection was made, a packet (with credentials and descriptors)
 * arrived, a descriptor is readable, the timer expired. It sends packets.
 *
 * A source is one descriptor that the loop watches. It may be freed at any time, also from its own
 * callback; no callback runs after that.
 *
 * The kernel only reports which sources have something to do. They wait in a fair queue (fair.h), where all
 * sources of one account are one share. The loop serves one event of one source at a time: a packet, an
 * accepted connection, a callback. It measures the event's time and charges the share. So the event of an
 * account that was idle waits for one event of each other account at most, however many busy connections
 * those have.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct errmsg;
struct ev;
struct ev_source;
struct fair_share;

/* Starts a loop. Return: 0; -ENOMEM, errno of epoll, with a sentence. */
int ev_new(struct ev **ret_ev, struct errmsg *e);

/* All sources were freed before: asserted. */
struct ev *ev_free(struct ev *ev);
static inline void ev_freep(struct ev **ev)
{
    *ev = ev_free(*ev);
}

/* CLOCK_MONOTONIC in milliseconds, read once per pass of the loop, after its wait. */
uint64_t ev_now_ms(const struct ev *ev);

/* Runs until ev_stop(). Return: 0; errno of epoll. */
int ev_run(struct ev *ev);
void ev_stop(struct ev *ev);

/* ---- sources ---- */

/* @fd: the new connection, owned by the callee, CLOEXEC. */
typedef void (*ev_accept_fn)(void *ctx, int fd);

/*
 * @fd: a listening socket, owned by the source from now on, also on failure. One connection is accepted per
 * event.
 */
int ev_listen(struct ev *ev, int fd, ev_accept_fn on_accept, void *ctx, struct ev_source **ret);

struct ev_stream_callbacks {
    /* One packet. The callee owns the descriptors in @p; @data lives until the callback returns. */
    void (*on_packet)(void *ctx, const void *data, struct wire_packet *p);
    /*
     * No packet follows. @err: 0: the peer closed; -EBADMSG: data or control was truncated; -EPERM: a packet
     * has descriptors and the stream takes none; else errno of the socket. The callee frees the source.
     */
    void (*on_end)(void *ctx, int err);
    /*
     * Whether packets may have descriptors. Only peers that the daemon trusts may send some: the last close
     * of a descriptor can wait for as long as its sender likes.
     */
    bool takes_fds;
};

/* @fd: a connected socket, owned by the source from now on, also on failure. @cb: borrowed by the source. */
int ev_stream_new(struct ev *ev, int fd, const struct ev_stream_callbacks *cb, void *ctx,
                  struct ev_source **ret);

/**
 * ev_stream_send() - queue one packet
 * @data: [bytes], copied
 * @fds:  [n_fds], transferred: closed once sent, also on failure
 *
 * Return: 0; -ENOBUFS: the peer does not read and EV_SEND_QUEUE_MAX packets wait; -ENOMEM. on_end() reports
 * errors of the socket.
 */
int ev_stream_send(struct ev_source *s, const void *data, size_t bytes, const int *fds, size_t n_fds);
#define EV_SEND_QUEUE_MAX 16
/*
 * While so many bytes or more wait, nothing is received: a peer that sends requests and reads no long reply
 * costs this and one packet, not EV_SEND_QUEUE_MAX packets.
 */
#define EV_SEND_QUEUE_BYTES 8192

/*
 * Closes a connection that was accepted and gets no stream. Its queue may have descriptors already, so a
 * thread closes it where the kernel does not refuse them (closer.h).
 */
void ev_refuse(struct ev *ev, int fd);

/* Connections of @uid that were ended or refused, and are still open because their close waits. */
uint32_t ev_n_closing(const struct ev *ev, uid_t uid);

/* Whether the peer has read every packet that was queued. */
bool ev_stream_drained(const struct ev_source *s);

/* Calls @on_readable whenever @fd (borrowed) is readable, until the source is freed. */
typedef void (*ev_readable_fn)(void *ctx);
int ev_watch(struct ev *ev, int fd, ev_readable_fn on_readable, void *ctx, struct ev_source **ret);

/* The owner of a watch has more to do: it is called in its turn, also if the descriptor is not readable. */
void ev_watch_rouse(struct ev_source *s);

/* The watch is not served for EV_PAUSE_MS, then once in any case. From its own callback. */
void ev_watch_pause(struct ev_source *s);
#define EV_PAUSE_MS 100

/*
 * Makes @s part of a share; without this call, a source is a share of its own. @share: borrowed until the
 * source is freed. Return: 0; -ENOMEM: @s stays where it is.
 */
int ev_source_set_share(struct ev_source *s, struct fair_share *share);

/* A stream's queued packets are dropped. NULL is allowed; returns NULL. */
struct ev_source *ev_source_free(struct ev_source *s);

/* ---- the timer ---- */

/* One timer: calls @on_tick every @period_ms; 0: off, so that an idle daemon sleeps. */
typedef void (*ev_tick_fn)(void *ctx);
void ev_tick_every(struct ev *ev, uint64_t period_ms, ev_tick_fn on_tick, void *ctx);

/*
 * For code that needs ticks and has no access to the configured period. ev_tick_set_demand() stores a period.
 * ev_tick_demand() starts it, unless a shorter one runs. At the next tick, on_tick() may set another period
 * with ev_tick_every().
 */
void ev_tick_set_demand(struct ev *ev, uint64_t period_ms);
void ev_tick_demand(struct ev *ev);
