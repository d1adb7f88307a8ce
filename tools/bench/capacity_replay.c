/* See capacity_replay.h. */
#include "tools/bench/capacity_replay.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/bench/bench_service_daemon.h"
#include "tools/bench/bench_service_model.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/clock.h"
#include "tools/command/progress.h"
#include "tools/command/temp_folder.h"

enum {
    SPAN_BYTES = 16384,
    SPANS_MIN = 4, /* the first pages of requests have spans of their own */
    EXTENTS_MAX = 256,
    ARENA_BYTES = 256 << 10,
    PIECE_BLOCKS = 64,
    HEAD_DIM = 32,
    CLIENTS_MAX = 64,
    DISK_SLOT_BYTES = 4096, /* of a sealed page, which is smaller */
    DISK_SEGMENT_BYTES = 1 << 20,
    DISK_SEGMENTS_MIN = 4,
    FETCH_MS = 8000, /* a slow disk loses no hit */
    SETTLE_S = 600,
    SETTLE_POLL_MS = 1,
};

/* Without sinks the first page of a sequence has the size of the others. */
static const struct bench_shape shape = {
    .n_layers = 1, .n_kv_heads = 1, .d = HEAD_DIM, .n_bands = 2, .bits = 1, .no_sinks = true};

/* The vectors of all blocks: what they are does not matter, since no page is read. */
static const float vectors[PIECE_BLOCKS * CHUNK_TOKENS * HEAD_DIM];

struct capacity_replay_client {
    kvc_client *handle;
    kvc_model *model;
};

struct capacity_replay_state {
    const struct capacity_trace *trace;
    const struct capacity_replay_options *options;
    struct bench_daemon daemon;
    char folder[64]; /* of the disk tier and its key */
    kvc_client *control;
    uint32_t n_unsettled; /* blocks published since the disk had all */
    struct bench_model model;
    struct capacity_replay_client clients[CLIENTS_MAX];
    uint32_t *tokens; /* of one request, and one more */
    double *seconds;  /* [n_requests] */
    struct capacity_run *run;
};

/* ---- daemon and clients ---- */

struct capacity_replay_args {
    const char *argv[24]; /* ends with NULL */
    char pool[32], extent[32], span[32], arena[32], quota[32], disk_bytes[32];
    char disk[80], state[80];
};

/* A pool of whole extents with at most @capacity pages. Return: 0; -ERANGE. */
static int capacity_replay_size_pool(struct capacity_replay_state *s, struct capacity_replay_args *a,
                                     uint32_t capacity, struct errmsg *e)
{
    uint32_t pages_per_span = (uint32_t) (SPAN_BYTES / s->model.layout.page_bytes[PAGE_REST]);
    uint32_t spans = capacity / pages_per_span, spans_per_extent = spans / EXTENTS_MAX + 1;
    uint32_t n_extents = spans / spans_per_extent;
    const char *const argv[] = {"--pool-bytes",  a->pool, "--extent-bytes", a->extent,
                                "--span-bytes",  a->span, "--arena-bytes",  a->arena,
                                "--quota-bytes", a->quota};

    if (spans < SPANS_MIN)
        return fail(e, -ERANGE,
                    "a pool of %" PRIu32 " blocks is too small to be replayed: at least %" PRIu32
                    " are needed: give more --memory",
                    capacity, SPANS_MIN * pages_per_span);

    s->run->capacity = n_extents * spans_per_extent * pages_per_span;
    (void) snprintf(a->pool, sizeof(a->pool), "%" PRIu64,
                    (uint64_t) n_extents * spans_per_extent * SPAN_BYTES);
    (void) snprintf(a->extent, sizeof(a->extent), "%" PRIu64, (uint64_t) spans_per_extent * SPAN_BYTES);
    (void) snprintf(a->span, sizeof(a->span), "%d", SPAN_BYTES);
    (void) snprintf(a->arena, sizeof(a->arena), "%d", ARENA_BYTES);
    /* the pool limits the pages, not the quota, in which arenas and records count too */
    (void) snprintf(a->quota, sizeof(a->quota), "%" PRIu64,
                    (uint64_t) n_extents * spans_per_extent * SPAN_BYTES * 4 +
                        (uint64_t) (s->options->n_clients + 1) * ARENA_BYTES);
    memcpy(a->argv, argv, sizeof(argv));
    return 0;
}

/* A disk of whole segments with at most as many pages as asked for. Return: 0; -ERANGE. */
static int capacity_replay_size_disk(struct capacity_replay_state *s, struct capacity_replay_args *a,
                                     struct errmsg *e)
{
    uint32_t blocks_per_segment = DISK_SEGMENT_BYTES / DISK_SLOT_BYTES;
    uint32_t segments = s->options->disk_blocks / blocks_per_segment;
    size_t n = 0;
    int r;

    if (s->options->disk_blocks == 0)
        return 0;
    if (segments < DISK_SEGMENTS_MIN)
        return fail(e, -ERANGE,
                    "a disk of %" PRIu32 " blocks is too small to be replayed: at least %" PRIu32
                    " are needed: give more --disk",
                    s->options->disk_blocks, DISK_SEGMENTS_MIN * blocks_per_segment);
    r = temp_folder_make("/tmp", "bench-disk", s->folder, sizeof(s->folder), e);
    if (r < 0)
        return r;

    (void) snprintf(a->disk, sizeof(a->disk), "%s/disk", s->folder);
    (void) snprintf(a->state, sizeof(a->state), "%s/state", s->folder); /* of the key */
    if (mkdir(a->disk, 0700) < 0)
        return fail(e, -errno, "cannot make the folder %s: %s", a->disk, strerror(errno));

    s->run->disk_capacity = segments * blocks_per_segment;
    (void) snprintf(a->disk_bytes, sizeof(a->disk_bytes), "%" PRIu64,
                    (uint64_t) segments * DISK_SEGMENT_BYTES);
    while (a->argv[n])
        n++;
    memcpy(
        &a->argv[n],
        (const char *[]){"--disk-dir", a->disk, "--state-dir", a->state, "--disk-bytes", a->disk_bytes, NULL},
        7 * sizeof(a->argv[0]));
    return 0;
}

static int capacity_replay_start(struct capacity_replay_state *s, uint32_t capacity, struct errmsg *e)
{
    struct capacity_replay_args a = {.argv = {NULL}};
    int r = capacity_replay_size_pool(s, &a, capacity, e);

    if (r == 0)
        r = capacity_replay_size_disk(s, &a, e);
    if (r == 0)
        r = bench_daemon_init(&s->daemon, s->options->daemon, a.argv, e);
    return r == 0 ? client_open(s->daemon.operator_socket, &s->control, e) : r;
}

static int capacity_replay_connect(struct capacity_replay_state *s, struct capacity_replay_client *c,
                                   struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    kvc_model_id id = bench_model_id(&g);
    int r = client_open(s->daemon.socket, &c->handle, e);

    if (r < 0)
        return r;

    r = kvc_model_open(c->handle, &id, &c->model);
    return r < 0 ? fail(e, r, "%s", kvc_last_error(c->handle)) : 0;
}

static int capacity_replay_activate(struct capacity_replay_state *s, struct errmsg *e)
{
    const struct table *t = s->model.table;
    uint8_t digest[KVC_DIGEST_BYTES];
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    int r = client_open(s->daemon.operator_socket, &c, e);

    if (r < 0)
        return r;

    r = operator_stage_table(c, t->bytes, t->n_bytes, digest, e);
    if (r >= 0)
        r = operator_activate_table(c, digest, 0, NULL, e);
    return r < 0 ? r : 0;
}

static int capacity_replay_prepare(struct capacity_replay_state *s, const struct capacity_replay_options *o,
                                   uint32_t capacity, struct errmsg *e)
{
    size_t longest = 0;
    int r = bench_model_init(&s->model, &shape, 1, e);

    for (uint32_t i = 0; i < s->trace->n_requests; i++)
        if (capacity_trace_length(s->trace, i) > longest)
            longest = capacity_trace_length(s->trace, i);
    s->tokens = calloc(longest * CHUNK_TOKENS + 1, sizeof(*s->tokens));
    s->seconds = calloc(s->trace->n_requests, sizeof(*s->seconds));
    if (r == 0 && (!s->tokens || !s->seconds))
        r = fail(e, -ENOMEM, "out of memory");
    if (r == 0)
        r = capacity_replay_start(s, capacity, e);
    if (r == 0)
        r = capacity_replay_activate(s, e);
    for (unsigned i = 0; r == 0 && i < o->n_clients; i++)
        r = capacity_replay_connect(s, &s->clients[i], e);
    return r;
}

static void capacity_replay_deinit(struct capacity_replay_state *s)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        s->clients[i].handle = kvc_client_free(s->clients[i].handle);
    s->control = kvc_client_free(s->control);
    bench_daemon_deinit(&s->daemon);
    temp_folder_remove(s->folder);
    bench_model_deinit(&s->model);
    free(s->tokens);
    free(s->seconds);
}

/* ---- requests ---- */

/* A block of the trace is a chunk whose tokens all have its number. */
static size_t capacity_replay_fill_tokens(struct capacity_replay_state *s, uint32_t request)
{
    const struct capacity_trace *t = s->trace;
    size_t n = 0;

    for (size_t i = t->first[request]; i < t->first[request + 1]; i++)
        for (unsigned k = 0; k < CHUNK_TOKENS; k++)
            s->tokens[n++] = t->blocks[i];
    s->tokens[n] = 0; /* a match ends before the last token, which an engine always computes */
    return n;
}

static int capacity_replay_publish(struct capacity_replay_state *s, const struct capacity_replay_client *c,
                                   kvc_seq *q, size_t from, size_t n)
{
    size_t published = 0;
    int r = 0;

    for (size_t at = from; r == 0 && at < n;) {
        size_t piece = n - at < PIECE_BLOCKS * CHUNK_TOKENS ? n - at : PIECE_BLOCKS * CHUNK_TOKENS;

        r = kvc_seq_append(q, 0, KVC_F32, vectors, vectors, piece);
        at += piece;
        if (r == 0)
            r = kvc_seq_commit(q, s->tokens, at, &published);
    }
    if (r == -ENOSPC || r == -EDQUOT) { /* for example, the request holds the whole pool */
        if (s->run->n_unpublished == 0)
            errmsg_set(&s->run->why_unpublished, "%s", kvc_last_error(c->handle));
        s->run->n_unpublished += (n - published) / CHUNK_TOKENS;
        r = 0;
    }
    return r;
}

static int capacity_replay_request(struct capacity_replay_state *s, const struct capacity_replay_client *c,
                                   uint32_t request)
{
    const kvc_seq_options options = {
        .struct_bytes = sizeof(options), .flags = KVC_SEQ_PUBLISH_ALL, .fetch_ms = FETCH_MS};
    _cleanup_(kvc_seq_freep) kvc_seq *q = NULL;
    size_t n = capacity_replay_fill_tokens(s, request), found = 0;
    int r = kvc_seq_new_with(c->model, &options, &q);

    if (r == 0 && n > 0)
        r = kvc_seq_match(q, s->tokens, n + 1, &found);
    s->run->hits += found / CHUNK_TOKENS;
    s->n_unsettled += (uint32_t) ((n - found) / CHUNK_TOKENS);
    return r < 0 ? r : capacity_replay_publish(s, c, q, found, n);
}

static int capacity_replay_ask_tier(struct capacity_replay_state *s, Kvcobra__ControlTierReply **ret,
                                    struct errmsg *e)
{
    Kvcobra__ControlTier m = KVCOBRA__CONTROL_TIER__INIT;

    m.action = KVCOBRA__TIER_ACTION__TIER_ASK;
    return operator_call(s->control, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &m.base, ret, e);
}

/* Before memory forgets what was published, the disk has it. Return: 0; -ETIMEDOUT; -ENODEV: it is off. */
static int capacity_replay_settle(struct capacity_replay_state *s, struct errmsg *e)
{
    double until = clock_seconds() + SETTLE_S;
    bool has_all = false;

    if (s->options->disk_blocks == 0 || s->n_unsettled < s->run->capacity / 8)
        return 0;

    s->n_unsettled = 0;
    while (!has_all) {
        _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *t = NULL;
        int r = capacity_replay_ask_tier(s, &t, e);

        if (r < 0)
            return r;
        if (strcmp(t->state, "off") == 0)
            return fail(e, -ENODEV, "the disk tier is off: %s", t->message);
        if (clock_seconds() >= until)
            return fail(e, -ETIMEDOUT, "the disk does not have all pages after %d s", SETTLE_S);
        has_all = t->all_written && strcmp(t->state, "ready") == 0;
        if (!has_all)
            (void) poll(NULL, 0, SETTLE_POLL_MS);
    }
    return 0;
}

static int capacity_replay_all(struct capacity_replay_state *s, const struct capacity_replay_options *o,
                               struct errmsg *e)
{
    double began = clock_seconds();

    for (uint32_t i = 0; i < s->trace->n_requests; i++) {
        const struct capacity_replay_client *c = &s->clients[i % o->n_clients];
        double since = clock_seconds();
        int r = capacity_replay_request(s, c, i);

        if (r < 0)
            return fail(e, r, "request %" PRIu32 ": %s", i + 1, kvc_last_error(c->handle));

        s->seconds[i] = clock_seconds() - since;
        progress_update(o->progress, i + 1);
        r = capacity_replay_settle(s, e);
        if (r < 0)
            return r;
    }

    s->run->seconds = clock_seconds() - began;
    s->run->request = timing_of(s->seconds, s->trace->n_requests);
    return 0;
}

static int capacity_replay_count(struct capacity_replay_state *s, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *status = NULL;
    _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *tier = NULL;
    int r = operator_get_status(s->control, &status, e);

    if (r < 0)
        return r;

    s->run->n_evicted = status->evictions;
    if (s->options->disk_blocks == 0)
        return 0;

    r = capacity_replay_ask_tier(s, &tier, e);
    if (r < 0)
        return r;

    s->run->n_read = tier->read_pages;
    s->run->n_lost = tier->lost;
    return 0;
}

int capacity_replay(const struct capacity_replay_options *o, const struct capacity_trace *t,
                    uint32_t capacity, struct capacity_run *ret, struct errmsg *e)
{
    _cleanup_(capacity_replay_deinit) struct capacity_replay_state s = {
        .trace = t, .options = o, .daemon = BENCH_DAEMON_INIT, .run = ret};
    int r;

    *ret = (struct capacity_run){.capacity = 0};
    r = capacity_replay_prepare(&s, o, capacity, e);
    if (r == 0)
        r = capacity_replay_all(&s, o, e);
    return r == 0 ? capacity_replay_count(&s, e) : r;
}
