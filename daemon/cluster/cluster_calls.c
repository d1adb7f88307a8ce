/*
 * Calls to kvcobra-cluster: places of requests without a reply, GETs that wait for one, replies, deadlines.
 * See cluster_link.h.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/timerfd.h>

#include "daemon/cluster/cluster_link_state.h"
#include "daemon/loop/ev.h"

enum {
    GETS_MAX = 96,        /* of the places; so that other requests find one */
    EXISTS_MAX = 24,      /* of the places, which a late one keeps until its reply */
    EXISTS_SHARE_MAX = 8, /* of an account */
    BURST = 8,            /* GETs at a time: half of what the loop queues for a stream, EV_SEND_QUEUE_MAX */
    WAITING_MAX = 1024,   /* GETs that have not ended */
    STATUS_MS = 1000,     /* between two ticks; less before the process has joined */
    JOINING_MS = 200,
    BUSY_MS = 10,
};

/* ---- the timer ---- */

void cluster_calls_set_timer(struct cluster_link *l)
{
    uint64_t ms = 0;
    struct timespec t;

    if (l->stream && (l->status.n_sent > 0 || l->calls))
        ms = BUSY_MS;
    else if (l->stream)
        ms = cluster_link_is_ready(l) ? STATUS_MS : JOINING_MS;
    if (ms == l->period_ms)
        return;

    t = (struct timespec){.tv_sec = (time_t) (ms / 1000), .tv_nsec = (long) (ms % 1000) * 1000000};
    l->period_ms = ms;
    (void) timerfd_settime(l->timer_fd, 0, &(const struct itimerspec){t, t},
                           NULL); /* cannot fail with these */
}

/* ---- calls ---- */

static void cluster_calls_unlist(struct cluster_link *l, struct cluster_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        l->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = c->prev = NULL;
    l->status.n_waiting--;
}

/* The call leaves the link. */
static void cluster_calls_end_one(struct cluster_link *l, struct cluster_call *c, int result)
{
    if (c->kind == CLUSTER_GET) {
        l->n_calls--;
        c->share->n_requests--;
        (void) fair_leave(&l->waiting, &c->share->waiting);
    } else if (c->kind == CLUSTER_EXISTS && c->share) {
        c->share->n_looks--;
    }
    l->status.n_late += result == -ETIMEDOUT;
    c->result = result;
    if (result < 0)
        c->data = NULL; /* the link has the range */
    c->done(c);
}

/* A GET that was not sent. */
static void cluster_calls_end_waiting(struct cluster_link *l, struct cluster_call *c, int result)
{
    if (c == l->next_get)
        l->next_get = NULL;
    else
        fair_remove(&l->waiting, &c->item);
    cluster_calls_unlist(l, c);
    cluster_calls_end_one(l, c, result);
}

static void cluster_calls_free_place(struct cluster_link *l, struct cluster_sent *s)
{
    l->n_gets -= s->kind == CLUSTER_GET;
    l->n_exists -= s->kind == CLUSTER_EXISTS;
    l->status.n_sent--;
    *s = (struct cluster_sent){.id = 0};
}

/* ---- sending ---- */

int cluster_calls_send(struct cluster_link *l, const struct cluster_request *q, const int *fds, size_t n_fds)
{
    uint8_t packet[CLUSTER_REQUEST_BYTES_MAX];
    size_t bytes = cluster_request_encode(q, packet);

    return ev_stream_send(l->stream, packet, bytes, fds, n_fds);
}

static struct cluster_sent *cluster_calls_place(struct cluster_link *l)
{
    for (uint32_t i = 0; i < CLUSTER_SENT_MAX; i++)
        if (l->sent[i].id == 0)
            return &l->sent[i];
    return NULL;
}

/* Return: 0; -EAGAIN: no place, or the process does not read; -ENOMEM. */
static int cluster_calls_send_one(struct cluster_link *l, struct cluster_call *c)
{
    struct cluster_sent *s = cluster_calls_place(l);
    uint64_t now_ms = ev_now_ms(l->ev);
    struct cluster_request q = {.kind = c->kind,
                                /* what is left after a GET has waited here: the process ends it in time */
                                .timeout_ms =
                                    c->deadline_ms > now_ms ? (uint32_t) (c->deadline_ms - now_ms) : 1,
                                .ttl_ms = c->ttl_ms,
                                .n_names = c->n_names,
                                .names = (const uint8_t(*)[CLUSTER_NAME_BYTES]) c->names};
    int r;

    if (!s)
        return -EAGAIN;

    /* the place follows from the id, and no id is used twice */
    q.id = ++l->serial * CLUSTER_REQUESTS_MAX + (uint64_t) (s - l->sent);
    if (c->data) {
        q.offset = (uint64_t) (c->data - l->ranges.memory);
        q.bytes = c->bytes;
    }
    r = cluster_calls_send(l, &q, NULL, 0);
    if (r < 0)
        return r == -ENOBUFS ? -EAGAIN : r;

    *s = (struct cluster_sent){.id = q.id,
                               .kind = c->kind,
                               .call = c,
                               .data = c->data,
                               .bytes = c->bytes,
                               .n_names = c->n_names,
                               .deadline_ms = c->deadline_ms};
    l->status.n_sent++;
    l->n_gets += c->kind == CLUSTER_GET;
    l->n_exists += c->kind == CLUSTER_EXISTS;
    return 0;
}

/* Sends the GET whose turn it is. Return: 0; -EAGAIN: not now. */
static int cluster_calls_send_get(struct cluster_link *l)
{
    struct cluster_call *c;
    int r;

    if (!l->next_get)
        l->next_get = (struct cluster_call *) fair_take(&l->waiting);
    c = l->next_get;
    if (!c || l->n_gets >= GETS_MAX)
        return -EAGAIN;

    c->data = disk_buffers_take(&l->ranges, c->bytes, false);
    if (!c->data)
        return -EAGAIN;

    r = cluster_calls_send_one(l, c);
    if (r < 0) {
        disk_buffers_give_back(&l->ranges, c->data);
        c->data = NULL;
        return -EAGAIN;
    }

    fair_charge(&l->waiting, &c->share->waiting, c->bytes);
    l->next_get = NULL;
    cluster_calls_unlist(l, c);
    return 0;
}

void cluster_calls_pump(struct cluster_link *l)
{
    for (unsigned n = 0; n < BURST && cluster_link_is_ready(l) && cluster_calls_send_get(l) == 0;)
        n++;
    cluster_calls_set_timer(l);
}

/* ---- replies ---- */

/* The place of the request that the reply answers. NULL: there is no such request. */
static struct cluster_sent *cluster_calls_match(struct cluster_link *l, const struct cluster_reply *r)
{
    uint64_t place = r->id % CLUSTER_REQUESTS_MAX;
    struct cluster_sent *s = place < CLUSTER_SENT_MAX ? &l->sent[place] : NULL;

    if (!s || s->id != r->id || s->kind != r->kind || r->bytes > s->bytes ||
        (cluster_kind_has_bits(r->kind) && r->n_bits != s->n_names))
        return NULL;
    return s;
}

static void cluster_calls_conclude(struct cluster_link *l, struct cluster_sent *place,
                                   const struct cluster_reply *r)
{
    struct cluster_sent s = *place;
    bool keeps = s.call && s.kind == CLUSTER_GET && r->result == 0;

    cluster_calls_free_place(l, place);
    if (s.data && !keeps)
        disk_buffers_give_back(&l->ranges, s.data);
    if (s.call) {
        s.call->data = keeps ? s.data : NULL;
        s.call->value_bytes = r->bytes;
        s.call->reply = r->n_bits > 0 ? r : NULL;
        cluster_calls_end_one(l, s.call, r->result);
    }
}

int cluster_calls_take_reply(struct cluster_link *l, const struct cluster_reply *r)
{
    struct cluster_sent *s = cluster_calls_match(l, r);

    if (!s)
        return -EPROTO;
    cluster_calls_conclude(l, s, r);
    return 0;
}

/* ---- the end ---- */

void cluster_calls_end(struct cluster_link *l)
{
    for (uint32_t i = 0; i < CLUSTER_SENT_MAX; i++) {
        struct cluster_sent s = l->sent[i];

        if (s.id == 0)
            continue;
        cluster_calls_free_place(l, &l->sent[i]);
        if (s.data)
            disk_buffers_give_back(&l->ranges, s.data);
        if (s.call)
            cluster_calls_end_one(l, s.call, -ENODEV);
    }
    while (l->calls)
        cluster_calls_end_waiting(l, l->calls, -ENODEV);
}

void cluster_calls_expire(struct cluster_link *l, uint64_t now_ms)
{
    struct cluster_call *c;

    for (uint32_t i = 0; i < CLUSTER_SENT_MAX; i++) {
        struct cluster_call *late = l->sent[i].call;

        if (!late || late->deadline_ms > now_ms)
            continue;
        l->sent[i].call = NULL; /* the range stays: the process may still write to it */
        cluster_calls_end_one(l, late, -ETIMEDOUT);
    }
    c = l->calls;
    while (c) {
        struct cluster_call *next = c->next;

        if (c->deadline_ms <= now_ms) {
            cluster_calls_end_waiting(l, c, -ETIMEDOUT);
            next = l->calls; /* done() may have ended or added others */
        }
        c = next;
    }
}

bool cluster_calls_are_stuck(const struct cluster_link *l, uint64_t now_ms)
{
    for (uint32_t i = 0; i < CLUSTER_SENT_MAX; i++)
        if (l->sent[i].id != 0 && now_ms > l->sent[i].deadline_ms + CLUSTER_ANSWER_MS)
            return true;
    return false;
}

/* ---- for callers ---- */

bool cluster_link_fits(const struct cluster_link *l, uint64_t bytes)
{
    return bytes > 0 &&
           (bytes + DISK_BUFFER_UNIT_BYTES - 1) / DISK_BUFFER_UNIT_BYTES <= l->ranges.n_units / 2;
}

uint8_t *cluster_link_take(struct cluster_link *l, uint64_t bytes)
{
    return disk_buffers_take(&l->ranges, bytes, true);
}

void cluster_link_give_back(struct cluster_link *l, uint8_t *data)
{
    disk_buffers_give_back(&l->ranges, data);
}

static int cluster_calls_put_get(struct cluster_link *l, struct cluster_call *c)
{
    struct tier_share *s = c->share;
    int r;

    if (!cluster_link_fits(l, c->bytes))
        return -EFBIG;
    if (s->n_requests >= WAITING_MAX - l->n_calls)
        return -EAGAIN;

    r = fair_join(&l->waiting, &s->waiting);
    if (r < 0)
        return r;

    c->data = NULL;
    c->item.in = NULL;
    c->next = l->calls;
    c->prev = NULL;
    if (c->next)
        c->next->prev = c;
    l->calls = c;
    s->n_requests++;
    l->n_calls++;
    l->status.n_waiting++;
    fair_put(&l->waiting, &s->waiting, &c->item);
    cluster_calls_pump(l);
    return 0;
}

int cluster_link_submit(struct cluster_link *l, struct cluster_call *c)
{
    int r;

    assert(c->done && c->n_names > 0 && c->n_names <= CLUSTER_NAMES_MAX && c->timeout_ms > 0);
    if (!cluster_link_is_ready(l))
        return -ENODEV;

    c->deadline_ms = ev_now_ms(l->ev) + c->timeout_ms;
    c->result = 0;
    c->reply = NULL;
    c->value_bytes = 0;
    if (c->kind == CLUSTER_GET)
        return cluster_calls_put_get(l, c);

    if (c->kind == CLUSTER_EXISTS &&
        (l->n_exists >= EXISTS_MAX || (c->share && c->share->n_looks >= EXISTS_SHARE_MAX)))
        return -EAGAIN;
    if (c->kind != CLUSTER_PUT)
        c->data = NULL;
    r = cluster_calls_send_one(l, c);
    if (r == 0 && c->kind == CLUSTER_EXISTS && c->share)
        c->share->n_looks++;
    cluster_calls_set_timer(l);
    return r;
}
