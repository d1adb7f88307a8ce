/*
 * Tables replaced in a loop while clients append, publish, find and read, beside stretches in which they are
 * left alone.
 *
 * Each client is a process with the library. It begins one sequence after another: every second one has a
 * salt that nobody had, so that everything is encoded and published; the others find what was published
 * before. Whatever a sequence reads is compared bit for bit with what the same table gave to a sequence
 * without a daemon. Every call is timed, on a GPU until the work that it queued is done; copies to and from
 * the host are not.
 */
#include "tools/bench/bench_service_swap.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/sort.h"
#include "base/cleanup.h"
#include "client/kvcobra-operator.h"
#include "tools/bench/bench_service_link.h"
#include "tools/bench/bench_service_device.h"
#include "tools/bench/bench_service_daemon.h"
#include "tools/command/clock.h"
#include "tools/command/handles.h"

enum { SWAP_EVERY_MS = 10, LAST_STRETCH_S = 20 };

static int service_swap_prepare(struct swap *w, struct errmsg *e)
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
        r = bench_model_init(&w->models[t], &swap_shape, t == 0 ? 1 : 0.9, e);
    if (r == 0)
        r = crew_add(&w->crew, swap_expect, w, e);
    return r < 0 ? r : crew_finish(&w->crew, e);
}

/* ---- the operator ---- */

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
static bool service_swap_is_timed(const struct swap *w, enum phase phase, double since)
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
static int service_swap_drive(struct swap *w, const char *operator_path, unsigned n_stretches,
                              unsigned n_each, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *operator= NULL;
    int r = client_open(operator_path, &operator, e);

    for (unsigned i = 0; r == 0 && i < n_stretches && !crew_failed(&w->crew); i++) {
        double began = clock_seconds();
        bool last = i + 1 == n_stretches;

        w->shared->phase = SWAPPING;
        for (unsigned k = 0; r == 0 && (k < n_each || (last && !service_swap_is_timed(w, SWAPPING, began)));
             k++) {
            r = swap_once(w, operator, ++ w->n_swaps, e); /* table 0 is active */
            (void) poll(NULL, 0, SWAP_EVERY_MS);
        }
        w->shared->phase = QUIET;
        (void) poll(NULL, 0, (int) ((clock_seconds() - began) * 1e3));
        while (last && !service_swap_is_timed(w, QUIET, began))
            (void) poll(NULL, 0, SWAP_EVERY_MS);
    }
    return r;
}

/* ---- all of it ---- */

static size_t service_swap_n_kept(const struct samples *s)
{
    return s->n < SAMPLES_MAX ? s->n : SAMPLES_MAX;
}

/* Of the calls @first to @last over all clients; percentiles by nearest rank. */
static int service_swap_latency(const struct swap *w, enum phase phase, unsigned first, unsigned last,
                                struct swap_latency *ret, struct errmsg *e)
{
    _cleanup_(freep) double *all = NULL;
    size_t n = 0;

    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++)
            n += service_swap_n_kept(&w->shared->clients[i].of[phase][k]);
    all = malloc((n + 1) * sizeof(*all));
    if (!all || n == 0)
        return fail(e, all ? -ENODATA : -ENOMEM, "no calls were timed");
    n = 0;
    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++) {
            const struct samples *s = &w->shared->clients[i].of[phase][k];

            memcpy(all + n, s->seconds, service_swap_n_kept(s) * sizeof(*all));
            n += service_swap_n_kept(s);
        }
    sort_doubles(all, n);
    *ret = (struct swap_latency){
        .n = n,
        .median = all[n / 2],
        .p99 = all[(n * 99 + 99) / 100 - 1],
        .p999 = all[(n * 999 + 999) / 1000 - 1],
        .max = all[n - 1],
    };
    return 0;
}

static int service_swap_all_latencies(const struct swap *w, enum phase phase, struct swap_latencies *ret,
                                      struct errmsg *e)
{
    int r = service_swap_latency(w, phase, 0, SWAP_CALLS - 1, &ret->all, e);

    for (unsigned k = 0; r == 0 && k < SWAP_CALLS; k++)
        r = service_swap_latency(w, phase, k, k, &ret->of[k], e);
    return r;
}

static int service_swap_measure(struct swap *w, const char *operator_path, struct swap_figures *ret,
                                struct errmsg *e)
{
    unsigned n_stretches = w->options->quick ? 2 : 20, n_each = w->options->quick ? 5 : 50;
    int r = 0, ended;

    for (unsigned i = 0; r == 0 && i < w->options->n_clients; i++)
        r = crew_add(&w->crew, swap_client, w, e);
    if (r < 0)
        return r;
    crew_go(&w->crew, w->options->n_clients);
    r = service_swap_drive(w, operator_path, n_stretches, n_each, e);
    w->shared->stop = 1;
    ended = crew_finish(&w->crew, r == 0 ? e : NULL);
    if (r == 0)
        r = ended;
    if (r == 0)
        r = service_swap_all_latencies(w, SWAPPING, &ret->swapping, e);
    if (r == 0)
        r = service_swap_all_latencies(w, QUIET, &ret->quiet, e);
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

static int service_swap_share_memory(struct swap *w, struct errmsg *e)
{
    w->shared_bytes = sizeof(struct shared) + w->options->n_clients * sizeof(struct client_samples);
    w->shared = mmap(NULL, w->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w->shared != MAP_FAILED)
        return 0;
    w->shared = NULL;
    return fail(e, -ENOMEM, "out of memory for samples of %u clients", w->options->n_clients);
}

static void service_swap_clean_up(struct swap *w)
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
    const char *options[16] = {"--pool-bytes=1G", "--quota-bytes=2G", "--arena-bytes=8M"};
    _cleanup_(rig_deinit) struct rig rig = RIG_INIT;
    struct swap w = {.options = o, .socket = rig.socket};
    struct place_arguments more;
    int r;

    place_arguments(o, &more);
    memcpy(options + 3, more.list, sizeof(more.list));
    r = service_swap_share_memory(&w, e);
    if (r == 0)
        r = crew_init(&w.crew, e);
    if (r == 0)
        r = service_swap_prepare(&w, e);
    if (r == 0)
        r = rig_init(&rig, o->daemon, options, e);
    if (r == 0)
        r = link_stage_and_activate(rig.operator_socket, w.models[0].table->bytes, w.models[0].table->n_bytes,
                                    e);
    if (r == 0)
        r = service_swap_measure(&w, rig.operator_socket, ret, e);
    service_swap_clean_up(&w);
    return r;
}
