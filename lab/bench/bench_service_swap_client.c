/* Expected vectors of the swap scenario, and the clients that time its calls; see bench_service_swap.h. */
#include "lab/bench/bench_service_swap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/kvcobra.h"
#include "lab/bench/bench_service_device.h"
#include "tools/command/client_model.h"
#include "tools/command/clock.h"

const struct bench_shape swap_shape = {
    .n_layers = LAYERS, .n_kv_heads = HEADS, .d = DIM, .n_bands = 8, .bits = 3};

/* ---- expected vectors ---- */

static int swap_client_append_piece(const struct swap_vectors *v, kvc_seq *s, unsigned layer, size_t first)
{
    return kvc_seq_append(s, layer, KVC_F32, v->of[layer][KVC_K] + first * ROW,
                          v->of[layer][KVC_V] + first * ROW, PIECE);
}

/* Copies the input to the device, and allocates one side of a layer there. */
static int swap_client_upload(const struct swap *w, struct bench_device *p, void **ret_input, void **ret_out,
                              struct errmsg *e)
{
    int r = bench_device_new(p, sizeof(*w->input), ret_input, e);

    if (r < 0)
        return r;

    r = bench_device_upload(p, *ret_input, w->input, sizeof(*w->input), e);
    return r < 0 ? r : bench_device_new(p, sizeof(w->input->of[0][0]), ret_out, e);
}

/* Reads one side of a layer to @out on the device, and copies it to @ret. */
static int swap_client_read_side(struct bench_device *p, kvc_client *c, kvc_seq *s, unsigned i, void *out,
                                 struct swap_vectors *ret, struct errmsg *e)
{
    int r = kvc_seq_read(s, i / 2, (enum kvc_side)(i % 2), 0, TOKENS, out);

    if (r == 0)
        r = bench_device_finish(p, c);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    return bench_device_download(p, ret->of[i / 2][i % 2], out, sizeof(ret->of[0][0]), e);
}

/* Vectors of a sequence without a daemon. */
static int swap_client_expect_of(struct bench_device *p, const struct bench_model *m,
                                 const struct swap_vectors *input, void *out, struct swap_vectors *ret,
                                 struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct geometry g = bench_geometry(&swap_shape);
    kvc_model_id id = bench_model_id(&g);
    kvc_model *model;
    kvc_seq *s;
    int r = bench_device_client(p, NULL, &c, e);

    if (r < 0)
        return r;

    r = kvc_model_open_table(c, &id, m->table->bytes, m->table->n_bytes, &model);
    if (r == 0)
        r = kvc_seq_new(model, NULL, 0, &s);
    for (size_t at = 0; r == 0 && at < TOKENS; at += PIECE)
        for (unsigned l = 0; r == 0 && l < LAYERS; l++)
            r = swap_client_append_piece(input, s, l, at);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    for (unsigned i = 0; r == 0 && i < 2 * LAYERS; i++)
        r = swap_client_read_side(p, c, s, i, out, ret, e);
    return r;
}

/* Runs in a child process: its parent must not open the driver, since it forks again. */
int swap_expect(void *ctx, unsigned number, struct errmsg *e)
{
    struct swap *w = ctx;
    struct bench_device p;
    void *input = NULL, *out = NULL;
    int r = bench_device_open(&p, w->options->device, e);

    (void) number;
    if (r < 0)
        return r;

    r = swap_client_upload(w, &p, &input, &out, e);
    for (unsigned t = 0; r == 0 && t < N_TABLES; t++)
        r = swap_client_expect_of(&p, &w->models[t], input, out, &w->shared->expected[t], e);
    input = bench_device_free(&p, input);
    out = bench_device_free(&p, out);
    bench_device_close(&p);
    return r;
}

/* ---- one client ---- */

struct swap_client_state {
    struct swap *swap;
    struct bench_device device;
    kvc_client *handle;
    kvc_model *model;
    struct swap_client_samples *samples;
    void *input, *out; /* on the device */
    float *read;       /* on the host */
    unsigned number;
    unsigned phase;
    double began;
};

static void swap_client_begin_call(struct swap_client_state *c)
{
    c->phase = c->swap->shared->phase;
    c->began = clock_seconds();
}

/* A call that overlaps both phases counts as during swaps. Return: @r, or the error of its queued work. */
static int swap_client_end_call(struct swap_client_state *c, enum swap_call call, int r)
{
    int finished = r < 0 ? 0 : bench_device_finish(&c->device, c->handle);
    double seconds = clock_seconds() - c->began;
    unsigned phase = c->phase | c->swap->shared->phase;
    struct swap_samples *to;

    r = finished < 0 ? finished : r;
    to = &c->samples->of[phase][call];
    to->seconds[to->n++ % SAMPLES_MAX] = seconds;
    if (r < 0 && atomic_fetch_add(&c->swap->shared->n_failed, 1) == 0)
        (void) fail(&c->swap->shared->failure, r, "%s", kvc_last_error(c->handle));
    return r;
}

/* A sequence and its table: retries until the same table was active before and after the call. */
static int swap_client_new_sequence(struct swap_client_state *c, const void *salt, size_t salt_bytes,
                                    kvc_seq **ret, unsigned *ret_table)
{
    kvc_model_info before = {.struct_bytes = sizeof(before)}, after = {.struct_bytes = sizeof(after)};
    kvc_seq *s = NULL;
    int r;

    do {
        s = kvc_seq_free(s);
        swap_client_begin_call(c);
        r = swap_client_end_call(c, SWAP_BEGIN, kvc_model_get_info(c->model, &before));
        if (r < 0)
            return r;

        swap_client_begin_call(c);
        r = swap_client_end_call(c, SWAP_BEGIN, kvc_seq_new(c->model, salt, salt_bytes, &s));
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

static int swap_client_append_all(struct swap_client_state *c, kvc_seq *s, size_t first)
{
    size_t published = first;
    int r = 0;

    for (size_t at = first; r == 0 && at < TOKENS; at += PIECE) {
        for (unsigned l = 0; r == 0 && l < LAYERS; l++) {
            swap_client_begin_call(c);
            r = swap_client_end_call(c, SWAP_APPEND, swap_client_append_piece(c->input, s, l, at));
        }

        if (r < 0)
            break;

        swap_client_begin_call(c);
        r = swap_client_end_call(c, SWAP_COMMIT, kvc_seq_commit(s, c->swap->tokens, at + PIECE, &published));
    }

    c->swap->shared->n_published += published;
    return r;
}

static int swap_client_read_all(struct swap_client_state *c, kvc_seq *s, unsigned table)
{
    struct swap_shared *sh = c->swap->shared;
    const size_t bytes = sizeof(sh->expected[0].of[0][0]);
    int r = 0;

    for (unsigned i = 0; r == 0 && i < 2 * LAYERS; i++) {
        swap_client_begin_call(c);
        r = swap_client_end_call(c, SWAP_READ,
                                 kvc_seq_read(s, i / 2, (enum kvc_side)(i % 2), 0, TOKENS, c->out));
        sh->n_reads++;
        if (r == 0 && (bench_device_download(&c->device, c->read, c->out, bytes, NULL) < 0 ||
                       memcmp(c->read, sh->expected[table].of[i / 2][i % 2], bytes) != 0))
            sh->n_wrong++;
    }

    return r;
}

/* Failures are counted where they occur; the client continues with the next sequence. */
static void swap_client_one_sequence(struct swap_client_state *c, uint64_t round)
{
    uint64_t salt[2] = {c->number + 1, round};
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    unsigned table;
    size_t n;
    int r;

    if (round % 2)
        salt[0] = salt[1] = 0; /* the salt of all clients */
    r = swap_client_new_sequence(c, salt, sizeof(salt), &s, &table);
    if (r < 0)
        return;

    swap_client_begin_call(c);
    r = swap_client_end_call(c, SWAP_MATCH, kvc_seq_match(s, c->swap->tokens, TOKENS, &n));
    if (r < 0)
        return;

    c->swap->shared->n_matched += n;
    r = swap_client_append_all(c, s, n);
    if (r < 0)
        return;

    r = swap_client_read_all(c, s, table);
    if (r < 0)
        return;

    c->swap->shared->n_sequences++;
}

static int swap_client_run_sequences(struct swap_client_state *c, struct errmsg *e)
{
    struct swap *w = c->swap;
    struct geometry g = bench_geometry(&swap_shape);
    kvc_model_id id = bench_model_id(&g);
    int r = bench_device_client(&c->device, w->socket, &c->handle, e);

    if (r < 0)
        return r;

    r = kvc_model_open(c->handle, &id, &c->model);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c->handle));

    c->read = malloc(sizeof(w->input->of[0][0]));
    r = c->read ? swap_client_upload(w, &c->device, &c->input, &c->out, e)
                : fail(e, -ENOMEM, "out of memory for vectors");
    if (r == 0 && bench_clients_wait_go(&w->clients))
        for (uint64_t round = 0; !w->shared->stop && !bench_clients_failed(&w->clients); round++)
            swap_client_one_sequence(c, round);
    return r;
}

int swap_client(void *ctx, unsigned number, struct errmsg *e)
{
    struct swap *w = ctx;
    struct swap_client_state c = {.swap = w, .number = number, .samples = &w->shared->clients[number]};
    int r = bench_device_open(&c.device, w->options->device, e);

    if (r < 0)
        return r;

    r = swap_client_run_sequences(&c, e);
    c.handle = kvc_client_free(c.handle); /* before its memory and the driver */
    c.input = bench_device_free(&c.device, c.input);
    c.out = bench_device_free(&c.device, c.out);
    bench_device_close(&c.device);
    free(c.read);
    return r;
}
