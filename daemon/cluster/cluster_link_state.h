/*
 * The state of the connection to kvcobra-cluster. For the files of this room: cluster_link.c has the
 * connection, cluster_calls.c the calls on their way.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cluster/cluster_link.h"
#include "daemon/loop/listen.h"
#include "daemon/tier/disk_buffers.h"

struct ev_source;
struct extent;

enum {
    CLUSTER_SENT_MAX = CLUSTER_REQUESTS_MAX - 1, /* one place is left for STATUS */
    CLUSTER_ANSWER_MS = 5000, /* what has no answer so long after its time ends the connection */
};

struct cluster_sent { /* a request without a reply */
    uint64_t id;      /* 0: the place is free */
    enum cluster_kind kind;
    struct cluster_call *call; /* NULL: it ended at its deadline */
    uint8_t *data;             /* its range, which the process may still use; NULL: none */
    uint64_t bytes;
    uint32_t n_names;
    uint64_t deadline_ms;
};

struct cluster_link {
    struct cluster_link_options options;
    struct ev *ev;
    struct listen_socket socket;
    struct ev_source *listener, *stream; /* stream: NULL without a connection */
    int timer_fd;
    struct ev_source *timer;
    uint64_t period_ms; /* of the timer; 0: off */
    struct extent *memory;
    struct disk_buffers ranges;
    uint8_t fleet[CLUSTER_FLEET_BYTES];

    struct cluster_link_status status;
    bool is_greeted;
    uint64_t asked_ms, answered_ms; /* STATUS or HELLO; asked_ms 0: none is on its way */
    uint64_t serial, status_id;
    struct cluster_sent sent[CLUSTER_SENT_MAX];
    uint32_t n_gets, n_exists; /* of them */

    struct fair_queue waiting;
    struct cluster_call *next_get; /* taken out of the queue: no place or no memory for it yet */
    struct cluster_call *calls;    /* all GETs that wait, it too */
    uint32_t n_calls;              /* GETs that have not ended */
};

/* ---- cluster_calls.c ---- */

/* Return: 0; errors of ev_stream_send(). @fds: transferred. */
int cluster_calls_send(struct cluster_link *l, const struct cluster_request *q, const int *fds, size_t n_fds);

/* Sends GETs for which there is room. */
void cluster_calls_pump(struct cluster_link *l);

/* Return: 0; -EPROTO: the reply, which is none to HELLO or STATUS, answers no request. */
int cluster_calls_take_reply(struct cluster_link *l, const struct cluster_reply *r);

void cluster_calls_expire(struct cluster_link *l, uint64_t now_ms);

/* Whether a request has no reply long after its deadline, so that its place and range are lost. */
bool cluster_calls_are_stuck(const struct cluster_link *l, uint64_t now_ms);

/* Ends all calls with -ENODEV; the connection has ended. */
void cluster_calls_end(struct cluster_link *l);

/* How often the timer runs. */
void cluster_calls_set_timer(struct cluster_link *l);
