/*
 * Tables replaced in a loop while clients append, publish, find and read, beside stretches in which they are left alone.
 *
 * Each client is a process with the library. It begins one sequence after another: every second one has a salt that nobody
 * had, so that everything is encoded and published; the others find what was published before. Whatever a sequence reads
 * is compared bit for bit with what the same table gave to a sequence without a daemon. Every call is timed, on a GPU until
 * the work that it queued is done; copies to and from the host are not.
 */
#include "tools/bench_service.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/sort.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra.h"
#include "tools/bench_service_crew.h"
#include "tools/bench_service_link.h"
#include "tools/bench_service_model.h"
#include "tools/bench_service_place.h"
#include "tools/bench_service_rig.h"
#include "tools/clock.h"
#include "tools/handles.h"

enum {
    N_TABLES = 2, LAYERS = 2, HEADS = 2, DIM = 64,
    TOKENS = 352, PIECE = 32, ROW = HEADS * DIM, /* 352: four chunks are packed however it was appended, 96 are exact */
    SAMPLES_MAX = 1 << 17,                       /* of a client, a call and a kind of stretch; the latest are kept */
    SWAP_EVERY_MS = 10, LAST_STRETCH_S = 20,
};

enum phase { QUIET, SWAPPING, N_PHASES };

static const struct bench_shape shape = { .n_layers = LAYERS, .n_kv_heads = HEADS, .d = DIM, .n_bands = 8, .bits = 3 };

struct vectors {
    float of[LAYERS][2][TOKENS * ROW]; /* by side */
};

struct samples {
    _Atomic uint64_t n;
    double seconds[SAMPLES_MAX];
};

struct client_samples {
    struct samples of[N_PHASES][SWAP_CALLS];
};

struct shared {
    _Atomic unsigned phase, stop;
    _Atomic uint64_t n_sequences, n_reads, n_matched, n_published, n_failed, n_wrong;
    struct errmsg failure; /* the first one */
    struct vectors expected[N_TABLES];
    struct client_samples clients[];
};

struct swap {
    const struct service_options *options;
    const char *socket;
    struct bench_model models[N_TABLES];
    struct vectors *input;
    uint32_t tokens[TOKENS];
    struct crew crew;
    struct shared *shared;
    size_t shared_bytes;
    unsigned n_swaps;
};

/* ---- what is appended, and what must come back ------------------------------------------------------------------- */

static kvc_model_id model_id(const struct geometry *g)
{
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry = { .struct_bytes = sizeof(id.geometry), .n_layers = g->n_layers, .n_heads = g->n_heads,
                      .n_kv_heads = g->n_kv_heads, .head_dim = g->d, .n_rot = g->n_rot, .attn_scale = g->attn_scale,
                      .rope_freq = g->freq },
    };

    memcpy(id.model_digest, bench_model_digest, sizeof(id.model_digest));
    return id;
}

static int append_piece(const struct vectors *v, kvc_seq *s, unsigned layer, size_t first)
{
    return kvc_seq_append(s, layer, KVC_F32, v->of[layer][KVC_K] + first * ROW, v->of[layer][KVC_V] + first * ROW, PIECE);
}

/* What is appended, and room for a side of a layer, where sequences lie. */
static int upload(const struct swap *w, struct place *p, void **ret_input, void **ret_out, struct errmsg *e)
{
    int r = place_new(p, sizeof(*w->input), ret_input, e);

    if (r == 0)
        r = place_put(p, *ret_input, w->input, sizeof(*w->input), e);
    return r < 0 ? r : place_new(p, sizeof(w->input->of[0][0]), ret_out, e);
}

/* Reads one side of a layer to @out, which is there, and copies it to @ret. */
static int read_side(struct place *p, kvc_client *c, kvc_seq *s, unsigned i, void *out, struct vectors *ret, struct errmsg *e)
{
    int r = kvc_seq_read(s, i / 2, (enum kvc_side)(i % 2), 0, TOKENS, out);

    if (r == 0)
        r = place_finish(p, c);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    return place_get(p, ret->of[i / 2][i % 2], out, sizeof(ret->of[0][0]), e);
}

/* A sequence of its own, without a daemon. */
static int expect_of(struct place *p, const struct bench_model *m, const struct vectors *input, void *out, struct vectors *ret,
                     struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct geometry g = bench_geometry(&shape);
    kvc_model_id id = model_id(&g);
    kvc_model *model;
    kvc_seq *s;
    int r = place_client(p, NULL, &c, e);

    if (r < 0)
        return r;
    r = kvc_model_open_table(c, &id, m->table->bytes, m->table->n_bytes, &model);
    if (r == 0)
        r = kvc_seq_new(model, NULL, 0, &s);
    for (size_t at = 0; r == 0 && at < TOKENS; at += PIECE)
        for (unsigned l = 0; r == 0 && l < LAYERS; l++)
            r = append_piece(input, s, l, at);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    for (unsigned i = 0; r == 0 && i < 2 * LAYERS; i++)
        r = read_side(p, c, s, i, out, ret, e);
    return r;
}

/* A process of its own: this one must be able to fork after that. */
static int expect(void *ctx, unsigned number, struct errmsg *e)
{
    struct swap *w = ctx;
    struct place p;
    void *input = NULL, *out = NULL;
    int r = place_open(&p, w->options->device, e);

    (void) number;
    if (r < 0)
        return r;
    r = upload(w, &p, &input, &out, e);
    for (unsigned t = 0; r == 0 && t < N_TABLES; t++)
        r = expect_of(&p, &w->models[t], input, out, &w->shared->expected[t], e);
    input = place_free(&p, input);
    out = place_free(&p, out);
    place_close(&p);
    return r;
}

static int prepare(struct swap *w, struct errmsg *e)
{
    uint64_t state = 1;
    float *x;
    int r = 0;

    w->input = malloc(sizeof(*w->input));
    if (!w->input)
        return fail(e, -ENOMEM, "out of memory for vectors");
    x = &w->input->of[0][0][0];
    for (size_t i = 0; i < sizeof(*w->input) / sizeof(*x); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float) (int32_t) (state >> 32) * 0x1p-30f; /* -2 to 2 */
    }
    for (uint32_t i = 0; i < TOKENS; i++)
        w->tokens[i] = i;
    for (unsigned t = 0; r == 0 && t < N_TABLES; t++)
        r = bench_model_init(&w->models[t], &shape, t == 0 ? 1 : 0.9, e);
    if (r == 0)
        r = crew_add(&w->crew, expect, w, e);
    return r < 0 ? r : crew_finish(&w->crew, e);
}

/* ---- one client -------------------------------------------------------------------------------------------------- */

struct client {
    struct swap *swap;
    struct place place;
    kvc_client *handle;
    kvc_model *model;
    struct client_samples *samples;
    void *input, *out; /* where the sequences lie */
    float *read;       /* what came out */
    unsigned number;
    unsigned phase;
    double began;
};

static void begin_call(struct client *c)
{
    c->phase = c->swap->shared->phase;
    c->began = clock_seconds();
}

/* A call that saw both kinds of stretch counts where tables were swapped. Return: @r, or what its work came to. */
static int end_call(struct client *c, enum swap_call call, int r)
{
    int finished = r < 0 ? 0 : place_finish(&c->place, c->handle);
    double seconds = clock_seconds() - c->began;
    unsigned phase = c->phase | c->swap->shared->phase;
    struct samples *to;

    r = finished < 0 ? finished : r;
    to = &c->samples->of[phase][call];
    to->seconds[to->n++ % SAMPLES_MAX] = seconds;
    if (r < 0 && atomic_fetch_add(&c->swap->shared->n_failed, 1) == 0)
        (void) fail(&c->swap->shared->failure, r, "%s", kvc_last_error(c->handle));
    return r;
}

/* A sequence, and the number of the table that it uses: the one in force before and after it began. */
static int new_sequence(struct client *c, const void *salt, size_t salt_bytes, kvc_seq **ret, unsigned *ret_table)
{
    kvc_model_info before = { .struct_bytes = sizeof(before) }, after = { .struct_bytes = sizeof(after) };
    kvc_seq *s = NULL;
    int r;

    do {
        s = kvc_seq_free(s);
        begin_call(c);
        r = end_call(c, SWAP_BEGIN, kvc_model_get_info(c->model, &before));
        if (r < 0)
            return r;
        begin_call(c);
        r = end_call(c, SWAP_BEGIN, kvc_seq_new(c->model, salt, salt_bytes, &s));
        if (r < 0)
            return r;
        r = kvc_model_get_info(c->model, &after);
        if (r < 0) {
            s = kvc_seq_free(s);
            return r;
        }
    } while (before.revision != after.revision);
    *ret_table = memcmp(after.table_digest, c->swap->models[0].table->digest, KVC_DIGEST_BYTES) == 0 ? 0 : 1;
    *ret = s;
    return 0;
}

static int append_all(struct client *c, kvc_seq *s, size_t first)
{
    size_t published = first;
    int r = 0;

    for (size_t at = first; r == 0 && at < TOKENS; at += PIECE) {
        for (unsigned l = 0; r == 0 && l < LAYERS; l++) {
            begin_call(c);
            r = end_call(c, SWAP_APPEND, append_piece(c->input, s, l, at));
        }
        if (r < 0)
            break;
        begin_call(c);
        r = end_call(c, SWAP_COMMIT, kvc_seq_commit(s, c->swap->tokens, at + PIECE, &published));
    }
    c->swap->shared->n_published += published;
    return r;
}

static int read_all(struct client *c, kvc_seq *s, unsigned table)
{
    struct shared *sh = c->swap->shared;
    const size_t bytes = sizeof(sh->expected[0].of[0][0]);
    int r = 0;

    for (unsigned i = 0; r == 0 && i < 2 * LAYERS; i++) {
        begin_call(c);
        r = end_call(c, SWAP_READ, kvc_seq_read(s, i / 2, (enum kvc_side)(i % 2), 0, TOKENS, c->out));
        sh->n_reads++;
        if (r == 0 && (place_get(&c->place, c->read, c->out, bytes, NULL) < 0 ||
                       memcmp(c->read, sh->expected[table].of[i / 2][i % 2], bytes) != 0))
            sh->n_wrong++;
    }
    return r;
}

/* Failures are counted where they are met; the client goes on with the next sequence. */
static void one_sequence(struct client *c, uint64_t round)
{
    uint64_t salt[2] = { c->number + 1, round };
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    unsigned table;
    size_t n;
    int r;

    if (round % 2)
        salt[0] = salt[1] = 0; /* everybody's */
    r = new_sequence(c, salt, sizeof(salt), &s, &table);
    if (r < 0)
        return;
    begin_call(c);
    r = end_call(c, SWAP_MATCH, kvc_seq_match(s, c->swap->tokens, TOKENS, &n));
    if (r == 0) {
        c->swap->shared->n_matched += n;
        r = append_all(c, s, n);
    }
    if (r == 0)
        r = read_all(c, s, table);
    if (r == 0)
        c->swap->shared->n_sequences++;
}

static int client(struct client *c, struct errmsg *e)
{
    struct swap *w = c->swap;
    struct geometry g = bench_geometry(&shape);
    kvc_model_id id = model_id(&g);
    int r = place_client(&c->place, w->socket, &c->handle, e);

    if (r < 0)
        return r;
    r = kvc_model_open(c->handle, &id, &c->model);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c->handle));
    c->read = malloc(sizeof(w->input->of[0][0]));
    r = c->read ? upload(w, &c->place, &c->input, &c->out, e) : fail(e, -ENOMEM, "out of memory for vectors");
    if (r == 0 && crew_wait_go(&w->crew))
        for (uint64_t round = 0; !w->shared->stop && !crew_failed(&w->crew); round++)
            one_sequence(c, round);
    return r;
}

static int run_client(void *ctx, unsigned number, struct errmsg *e)
{
    struct swap *w = ctx;
    struct client c = { .swap = w, .number = number, .samples = &w->shared->clients[number] };
    int r = place_open(&c.place, w->options->device, e);

    if (r < 0)
        return r;
    r = client(&c, e);
    c.handle = kvc_client_free(c.handle); /* before its memory and the driver */
    c.input = place_free(&c.place, c.input);
    c.out = place_free(&c.place, c.out);
    place_close(&c.place);
    free(c.read);
    return r;
}

/* ---- the operator ------------------------------------------------------------------------------------------------ */

/* A table that nobody used for a moment has retired: it is staged anew. */
static int swap_once(struct swap *w, kvc_client *operator, unsigned n, struct errmsg *e)
{
    const struct table *t = w->models[n % N_TABLES].table;
    uint8_t digest[KVC_DIGEST_BYTES];
    uint64_t revision;
    int r = kvc_table_stage(operator, t->bytes, t->n_bytes, digest);

    if (r >= 0)
        r = kvc_table_activate(operator, digest, 0, &revision);
    return r < 0 ? fail(e, r, "the %u th swap: %s", n, kvc_last_error(operator)) : 0;
}

/* Whether there is a figure for every call: the last stretch of a kind lasts until then, on a slow device. */
static bool is_timed(const struct swap *w, enum phase phase, double since)
{
    for (unsigned k = 0; k < SWAP_CALLS; k++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < w->options->n_clients; i++)
            n += w->shared->clients[i].of[phase][k].n;
        if (n == 0 && !crew_failed(&w->crew) && clock_seconds() - since < LAST_STRETCH_S)
            return false;
    }
    return true;
}

/* Stretches with and without swaps in turn, equally long. */
static int drive(struct swap *w, const char *operator_path, unsigned n_stretches, unsigned n_each, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *operator = NULL;
    int r = client_open(operator_path, &operator, e);

    for (unsigned i = 0; r == 0 && i < n_stretches && !crew_failed(&w->crew); i++) {
        double began = clock_seconds();
        bool last = i + 1 == n_stretches;

        w->shared->phase = SWAPPING;
        for (unsigned k = 0; r == 0 && (k < n_each || (last && !is_timed(w, SWAPPING, began))); k++) {
            r = swap_once(w, operator, ++w->n_swaps, e); /* table 0 is active */
            (void) poll(NULL, 0, SWAP_EVERY_MS);
        }
        w->shared->phase = QUIET;
        (void) poll(NULL, 0, (int) ((clock_seconds() - began) * 1e3));
        while (last && !is_timed(w, QUIET, began))
            (void) poll(NULL, 0, SWAP_EVERY_MS);
    }
    return r;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static size_t n_kept(const struct samples *s)
{
    return s->n < SAMPLES_MAX ? s->n : SAMPLES_MAX;
}

/* Of the calls @first to @last over all clients; percentiles by nearest rank. */
static int latency(const struct swap *w, enum phase phase, unsigned first, unsigned last, struct swap_latency *ret,
                   struct errmsg *e)
{
    _cleanup_(freep) double *all = NULL;
    size_t n = 0;

    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++)
            n += n_kept(&w->shared->clients[i].of[phase][k]);
    all = malloc((n + 1) * sizeof(*all));
    if (!all || n == 0)
        return fail(e, all ? -ENODATA : -ENOMEM, "no calls were timed");
    n = 0;
    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++) {
            const struct samples *s = &w->shared->clients[i].of[phase][k];

            memcpy(all + n, s->seconds, n_kept(s) * sizeof(*all));
            n += n_kept(s);
        }
    sort_doubles(all, n);
    *ret = (struct swap_latency) {
        .n = n, .median = all[n / 2], .p99 = all[(n * 99 + 99) / 100 - 1], .p999 = all[(n * 999 + 999) / 1000 - 1],
        .max = all[n - 1],
    };
    return 0;
}

static int all_latencies(const struct swap *w, enum phase phase, struct swap_latencies *ret, struct errmsg *e)
{
    int r = latency(w, phase, 0, SWAP_CALLS - 1, &ret->all, e);

    for (unsigned k = 0; r == 0 && k < SWAP_CALLS; k++)
        r = latency(w, phase, k, k, &ret->of[k], e);
    return r;
}

static int measure(struct swap *w, const char *operator_path, struct swap_figures *ret, struct errmsg *e)
{
    unsigned n_stretches = w->options->quick ? 2 : 20, n_each = w->options->quick ? 5 : 50;
    int r = 0, ended;

    for (unsigned i = 0; r == 0 && i < w->options->n_clients; i++)
        r = crew_add(&w->crew, run_client, w, e);
    if (r < 0)
        return r;
    crew_go(&w->crew, w->options->n_clients);
    r = drive(w, operator_path, n_stretches, n_each, e);
    w->shared->stop = 1;
    ended = crew_finish(&w->crew, r == 0 ? e : NULL);
    if (r == 0)
        r = ended;
    if (r == 0)
        r = all_latencies(w, SWAPPING, &ret->swapping, e);
    if (r == 0)
        r = all_latencies(w, QUIET, &ret->quiet, e);
    ret->n_swaps = w->n_swaps;
    ret->n_sequences = w->shared->n_sequences;
    ret->n_reads = w->shared->n_reads;
    ret->n_matched = w->shared->n_matched;
    ret->n_published = w->shared->n_published;
    ret->n_failed = w->shared->n_failed;
    ret->n_wrong = w->shared->n_wrong;
    ret->failure = w->shared->failure;
    return r;
}

static int share_memory(struct swap *w, struct errmsg *e)
{
    w->shared_bytes = sizeof(struct shared) + w->options->n_clients * sizeof(struct client_samples);
    w->shared = mmap(NULL, w->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w->shared != MAP_FAILED)
        return 0;
    w->shared = NULL;
    return fail(e, -ENOMEM, "out of memory for samples of %u clients", w->options->n_clients);
}

static void clean_up(struct swap *w)
{
    crew_deinit(&w->crew);
    if (w->shared)
        (void) munmap(w->shared, w->shared_bytes);
    free(w->input);
    for (unsigned t = 0; t < N_TABLES; t++)
        bench_model_deinit(&w->models[t]);
}

int service_swap(const struct service_options *o, struct swap_figures *ret, struct errmsg *e)
{
    const char *options[16] = { "--pool-bytes=1G", "--quota-bytes=2G", "--arena-bytes=8M" };
    _cleanup_(rig_deinit) struct rig rig = RIG_INIT;
    struct swap w = { .options = o, .socket = rig.socket };
    struct place_arguments more;
    int r;

    place_arguments(o, &more);
    memcpy(options + 3, more.list, sizeof(more.list));
    r = share_memory(&w, e);
    if (r == 0)
        r = crew_init(&w.crew, e);
    if (r == 0)
        r = prepare(&w, e);
    if (r == 0)
        r = rig_init(&rig, o->daemon, options, e);
    if (r == 0)
        r = link_stage_and_activate(rig.operator_socket, w.models[0].table->bytes, w.models[0].table->n_bytes, e);
    if (r == 0)
        r = measure(&w, rig.operator_socket, ret, e);
    clean_up(&w);
    return r;
}
