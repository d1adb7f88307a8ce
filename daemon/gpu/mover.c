/*
 * See mover.h.
 *
 * Requests form one queue, and only its head is sent to the mover. So a mover that dies loses the work of one
 * request, a timeout counts from the start of the work, and answers arrive in the order of requests. The
 * mover is trusted with GPU memory, not with this process: if an answer does not fit its request, the mover
 * is killed.
 */
#include "daemon/gpu/mover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/gpu/mover_process.h"
#include "daemon/loop/log.h"

enum {
    DEVICES_MAX = 16, /* devices whose OPEN is recorded */
    REOPEN_MS = 1000,
};

struct mover_request {
    struct mover_request *next;
    uint64_t id, timeout_ms;
    Kvcobra__MoverRequest__BodyCase kind;
    uint32_t device;
    bool repeats;    /* an OPEN that is sent again to a new mover */
    mover_done done; /* NULL: the callback was cancelled */
    void *ctx;
    int fds[WIRE_FDS_MAX];
    size_t n_fds, bytes;
    uint8_t packet[];
};

struct mover_open { /* as it was sent; the mover ignores the id */
    uint32_t device;
    bool is_closed;    /* the present mover could not open the device */
    uint64_t retry_ms; /* if is_closed: the OPEN is not sent again before */
    uint64_t timeout_ms;
    size_t bytes;
    uint8_t *packet;
};

struct mover {
    struct ev *ev;
    char *path;
    struct mover_process process;
    struct ev_source *stream; /* NULL: not connected */
    struct ev_source *death;  /* NULL: no process */
    struct ev_source *alarm;
    int timer;
    struct mover_request *queue, **queue_end; /* the head is with the mover if head_sent */
    size_t n_queue;
    bool head_sent;
    struct mover_open opens[DEVICES_MAX];
    size_t n_opens;
    uint64_t next_id, n_starts, started_ms, may_start_ms;
    uint32_t n_failed; /* in a row */
};

/* ---- requests ---- */

static struct mover_request *mover_request_drop(struct mover_request *q)
{
    for (size_t i = 0; q && i < q->n_fds; i++)
        (void) close(q->fds[i]);
    free(q);
    return NULL;
}

static void mover_request_freep(struct mover_request **q)
{
    *q = mover_request_drop(*q);
}

static void mover_append(struct mover *m, struct mover_request *q)
{
    *m->queue_end = q;
    m->queue_end = &q->next;
    m->n_queue++;
}

static struct mover_request *mover_take_head(struct mover *m)
{
    struct mover_request *q = m->queue;

    m->queue = q->next;
    if (!m->queue)
        m->queue_end = &m->queue;
    m->n_queue--;
    return q;
}

static void mover_answer(struct mover_request *q, struct mover_reply *reply)
{
    if (q->done)
        q->done(q->ctx, reply);
    if (reply->fd >= 0)
        (void) close(reply->fd);
}

static void mover_answer_all(struct mover *m, int err, const char *message)
{
    while (m->queue) { /* terminates: requests of callbacks are refused while no mover runs */
        _cleanup_(mover_request_freep) struct mover_request *q = mover_take_head(m);
        struct mover_reply reply = {.err = err, .message = message, .fd = -1};

        mover_answer(q, &reply);
    }
}

static void mover_set_timer(struct mover *m, uint64_t ms)
{
    struct itimerspec t = {
        .it_value = {.tv_sec = (time_t) (ms / 1000), .tv_nsec = (long) (ms % 1000) * 1000000}};

    (void) timerfd_settime(m->timer, 0, &t, NULL); /* zero: off */
}

/* Sends the head if the mover is idle. */
static void mover_send_next(struct mover *m)
{
    struct mover_request *q = m->queue;
    size_t n_fds;

    if (m->head_sent || !q || !m->stream)
        return;

    n_fds = q->n_fds;
    q->n_fds = 0; /* transferred, also on failure */
    m->head_sent = true;
    mover_set_timer(m, q->timeout_ms > 0 ? q->timeout_ms : 1);
    if (ev_stream_send(m->stream, q->packet, q->bytes, q->fds, n_fds) < 0)
        mover_set_timer(m, 1); /* fail from the timer, not here: the caller has not returned yet */
}

/* ---- disconnecting ---- */

/* The wait before the next start counts from when stream and process are both gone. */
static void mover_note_gone(struct mover *m)
{
    uint64_t now = ev_now_ms(m->ev), wait = MOVER_WAIT_FIRST_MS;

    if (m->stream || m->death)
        return;
    if (now - m->started_ms >= MOVER_WAIT_LONGEST_MS)
        m->n_failed = 0;
    m->n_failed++;
    for (uint32_t i = 1; i < m->n_failed && wait < MOVER_WAIT_LONGEST_MS; i++)
        wait *= 2;
    m->may_start_ms = now + (wait < MOVER_WAIT_LONGEST_MS ? wait : MOVER_WAIT_LONGEST_MS);
}

static void mover_disconnect(struct mover *m, const char *why)
{
    struct errmsg e;

    m->stream = ev_source_free(m->stream);
    m->head_sent = false;
    mover_set_timer(m, 0);
    mover_process_kill(&m->process);
    mover_note_gone(m);
    errmsg_set(&e, "the GPU's mover ended: %s; retry later", why);
    mover_answer_all(m, -ECONNRESET, e.text);
}

/* ---- answers ---- */

static struct mover_open *mover_find_open(struct mover *m, uint32_t device)
{
    for (size_t i = 0; i < m->n_opens; i++)
        if (m->opens[i].device == device)
            return &m->opens[i];
    return NULL;
}

/* Records an OPEN for the movers after this one. */
static void mover_remember_open(struct mover *m, const struct mover_request *q)
{
    struct mover_open *o = mover_find_open(m, q->device);
    uint8_t *packet;

    if (!o && m->n_opens == DEVICES_MAX)
        return; /* mover_ask() refused it */

    packet = malloc(q->bytes);
    if (!packet) {
        log_event(LOG_ERR, "mover-open",
                  "device=%" PRIu32 " message=\"out of memory: the next mover will not open it\"", q->device);
        return;
    }

    memcpy(packet, q->packet, q->bytes);
    if (!o) {
        o = &m->opens[m->n_opens++];
        o->packet = NULL;
    }

    free(o->packet);
    *o = (struct mover_open){
        .device = q->device, .timeout_ms = q->timeout_ms, .bytes = q->bytes, .packet = packet};
}

/*
 * This mover cannot open a device that an earlier mover had open. The next request for the device sends the
 * OPEN again.
 */
static void mover_note_closed(struct mover *m, const struct mover_request *q, const char *why)
{
    struct mover_open *o = mover_find_open(m, q->device);

    log_event(LOG_WARNING, "mover-open", "device=%" PRIu32 " message=\"%s\"", q->device, why);
    if (!o)
        return;

    o->is_closed = true;
    o->retry_ms = ev_now_ms(m->ev) + REOPEN_MS;
}

/* Whether the answer fits the head of the queue. */
static bool mover_fits(const struct mover_request *q, const Kvcobra__MoverReply *reply,
                       const struct wire_packet *p)
{
    bool brings_fd = reply->err == 0 && q->kind == KVCOBRA__MOVER_REQUEST__BODY_CREATE;

    return reply->id == q->id && reply->err <= 0 && p->n_fds == (brings_fd ? 1 : 0) &&
           (reply->err < 0 || (int) reply->body_case == (int) q->kind);
}

static void mover_on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct mover *m = ctx;
    Kvcobra__MoverReply *body = NULL;
    int r = mover_reply_unpack(data, p->bytes, &body);

    if (r < 0 || !m->head_sent || !mover_fits(m->queue, body, p)) {
        mover_reply_free(body);
        wire_packet_close_fds(p);
        mover_disconnect(m, r == -EOPNOTSUPP ? wire_refusal(r) : "its answer did not fit the request");
        return;
    }

    {
        _cleanup_(mover_request_freep) struct mover_request *q = mover_take_head(m);
        struct mover_reply reply = {.err = body->err,
                                    .message = body->message,
                                    .fd = p->n_fds > 0 ? p->fds[0] : -1,
                                    .body = body->err == 0 ? body : NULL};

        m->head_sent = false;
        mover_set_timer(m, 0);
        if (q->kind == KVCOBRA__MOVER_REQUEST__BODY_OPEN && body->err == 0)
            mover_remember_open(m, q);
        else if (q->repeats)
            mover_note_closed(m, q, body->message);
        mover_answer(q, &reply);
    }

    mover_reply_free(body);
    mover_send_next(m);
}

/* ---- events ---- */

static void mover_on_end(void *ctx, int err)
{
    mover_disconnect(ctx, err < 0 && err != -EPIPE && err != -ECONNRESET ? strerror(-err)
                                                                         : "the log has the reason");
}

/* The mover's last answers may still be unread, so the stream stays until it ends by itself. */
static void mover_on_death(void *ctx)
{
    struct mover *m = ctx;

    m->death = ev_source_free(m->death); /* before its descriptor is closed */
    mover_process_end(&m->process);
    mover_note_gone(m);
}

static void mover_on_alarm(void *ctx)
{
    struct mover *m = ctx;
    uint64_t n_times;

    if (read(m->timer, &n_times, sizeof(n_times)) != sizeof(n_times) || !m->head_sent)
        return; /* the timer was set again meanwhile */

    log_event(LOG_ERR, "mover-slow",
              "pid=%ld timeout_ms=%" PRIu64 " message=\"it did not answer: killing it\"",
              (long) m->process.pid, m->queue->timeout_ms);
    mover_disconnect(m, "it did not answer in time");
}

static const struct ev_stream_callbacks callbacks = {
    .on_packet = mover_on_packet,
    .on_end = mover_on_end,
    .takes_fds = true,
};

/* ---- starting ---- */

static int mover_new_request(const uint8_t *packet, size_t bytes, struct mover_request **ret)
{
    struct mover_request *q = calloc(1, sizeof(*q) + bytes);

    if (!q)
        return -ENOMEM;

    q->bytes = bytes;
    memcpy(q->packet, packet, bytes);
    *ret = q;
    return 0;
}

static int mover_queue_open(struct mover *m, const struct mover_open *o)
{
    Kvcobra__MoverRequest *request = NULL;
    struct mover_request *q = NULL;
    int r = mover_new_request(o->packet, o->bytes, &q);

    if (r == 0)
        r = mover_request_unpack(o->packet, o->bytes, &request);
    if (r < 0) {
        (void) mover_request_drop(q);
        return r;
    }

    q->kind = KVCOBRA__MOVER_REQUEST__BODY_OPEN;
    q->id = request->id;
    q->device = o->device;
    q->timeout_ms = o->timeout_ms;
    q->repeats = true;
    mover_request_free(request);
    mover_append(m, q);
    return 0;
}

/* Opens the recorded devices before other requests. */
static int mover_queue_opens(struct mover *m)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < m->n_opens; i++) {
        m->opens[i].is_closed = false;
        r = mover_queue_open(m, &m->opens[i]);
    }
    return r;
}

static int mover_start(struct mover *m)
{
    int socket = -1, r;

    if (m->stream && m->death)
        return 0;
    if (m->stream || m->death || ev_now_ms(m->ev) < m->may_start_ms)
        return -EAGAIN;

    m->started_ms = ev_now_ms(m->ev);
    r = mover_process_start(m->path, &m->process, &socket);
    if (r == 0) {
        m->n_starts++;
        r = ev_watch(m->ev, m->process.pidfd, mover_on_death, m, &m->death);
    }
    if (r == 0)
        r = ev_stream_new(m->ev, socket, &callbacks, m, &m->stream);
    else if (socket >= 0)
        (void) close(socket);
    if (r == 0)
        r = mover_queue_opens(m);
    if (r < 0) {
        m->stream = ev_source_free(m->stream);
        m->death = ev_source_free(m->death);
        mover_process_end(&m->process);
        mover_answer_all(m, r, strerror(-r));
        mover_note_gone(m);
        log_event(LOG_ERR, "mover-not-started", "path=%s message=\"%s\"", m->path, strerror(-r));
    }

    return r;
}

/* ---- interface ---- */

int mover_new(struct ev *ev, const char *path, struct mover **ret_mover, struct errmsg *e)
{
    _cleanup_(mover_freep) struct mover *m = calloc(1, sizeof(*m));
    int r;

    if (!m)
        return fail(e, -ENOMEM, "out of memory");

    *m = (struct mover){.ev = ev, .process = {.pidfd = -1}, .timer = -1, .next_id = 1};
    m->queue_end = &m->queue;
    m->path = strdup(path);
    if (!m->path)
        return fail(e, -ENOMEM, "out of memory");

    m->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (m->timer < 0)
        return fail(e, -errno, "cannot create a timer for the GPU's mover: %s", strerror(errno));

    r = ev_watch(ev, m->timer, mover_on_alarm, m, &m->alarm);
    if (r < 0)
        return fail(e, r, "cannot watch a timer for the GPU's mover: %s", strerror(-r));

    *ret_mover = take_ptr(m);
    return 0;
}

struct mover *mover_free(struct mover *m)
{
    if (!m)
        return NULL;

    m->may_start_ms = UINT64_MAX; /* requests of callbacks are refused */
    m->stream = ev_source_free(m->stream);
    m->death = ev_source_free(m->death);
    m->alarm = ev_source_free(m->alarm);
    mover_answer_all(m, -ECANCELED, "the daemon is stopping");
    mover_process_end(&m->process);
    closep(&m->timer);
    for (size_t i = 0; i < m->n_opens; i++)
        free(m->opens[i].packet);
    free(m->path);
    free(m);
    return NULL;
}

static uint32_t mover_device_of(const Kvcobra__MoverRequest *m)
{
    switch (m->body_case) {
    case KVCOBRA__MOVER_REQUEST__BODY_OPEN:
        return m->open->device;
    case KVCOBRA__MOVER_REQUEST__BODY_CREATE:
        return m->create->device;
    case KVCOBRA__MOVER_REQUEST__BODY_CHECK:
        return m->check->device;
    case KVCOBRA__MOVER_REQUEST__BODY_COPY:
        return m->copy->device;
    case KVCOBRA__MOVER_REQUEST__BODY_PROCESSES:
        return m->processes->device;
    default:
        assert(!"a kind of request that the mover does not have");
        return UINT32_MAX;
    }
}

/* Queues the OPEN of a device that this mover could not open. */
static int mover_open_again(struct mover *m, uint32_t device)
{
    struct mover_open *o = mover_find_open(m, device);

    if (!o || !o->is_closed || ev_now_ms(m->ev) < o->retry_ms)
        return 0;

    o->retry_ms = ev_now_ms(m->ev) + REOPEN_MS;
    return mover_queue_open(m, o);
}

int mover_ask(struct mover *m, Kvcobra__MoverRequest *request, const int *fds, size_t n_fds,
              uint64_t timeout_ms, mover_done done, void *ctx)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX]; /* the event loop has one thread */
    _cleanup_(mover_request_freep) struct mover_request *q = NULL;
    ssize_t bytes;
    int r;

    assert(n_fds <= WIRE_FDS_MAX);
    if (m->n_queue >= MOVER_REQUESTS_MAX)
        return -EAGAIN;

    request->id = m->next_id;
    bytes = mover_request_pack(request, packet);
    if (bytes < 0)
        return (int) bytes;

    r = mover_new_request(packet, (size_t) bytes, &q);
    if (r < 0)
        return r;

    q->id = m->next_id++;
    q->timeout_ms = timeout_ms;
    q->kind = request->body_case;
    q->done = done;
    q->ctx = ctx;
    q->device = mover_device_of(request);
    if (q->kind == KVCOBRA__MOVER_REQUEST__BODY_OPEN && m->n_opens == DEVICES_MAX &&
        !mover_find_open(m, q->device))
        return -ENOSPC;

    for (; q->n_fds < n_fds; q->n_fds++) {
        int copy = fcntl(fds[q->n_fds], F_DUPFD_CLOEXEC, 3);

        if (copy < 0)
            return -errno;

        q->fds[q->n_fds] = copy;
    }

    r = mover_start(m);
    if (r == 0 && q->kind != KVCOBRA__MOVER_REQUEST__BODY_OPEN)
        r = mover_open_again(m, q->device);
    if (r < 0)
        return r;

    mover_append(m, take_ptr(q));
    mover_send_next(m);
    return 0;
}

void mover_get_info(const struct mover *m, pid_t *ret_pid, uint64_t *ret_restarts)
{
    *ret_pid = m->process.pid;
    *ret_restarts = m->n_starts > 0 ? m->n_starts - 1 : 0;
}
