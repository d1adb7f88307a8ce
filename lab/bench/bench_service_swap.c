/*
 * Tables are swapped in a loop while clients append, publish, match and read, alternating with phases without
 * swaps.
 *
 * Each client is a process with the library, which begins one sequence after another. Every second sequence
 * has a new salt, so that all its chunks are encoded and published; the others match published chunks. All
 * reads are compared bit for bit with those of a sequence without a daemon and the same table. Every call is
 * timed, on a GPU until its queued work is done; copies to and from the host are not timed.
 */
#include "lab/bench/bench_service_swap.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/math/sort.h"
#include "base/cleanup.h"
#include "tools/bench/bench_service_daemon.h"
#include "lab/bench/bench_service_device.h"
#include "lab/bench/bench_service_link.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_tables.h"
#include "tools/command/clock.h"

enum { SWAP_EVERY_MS = 10, LAST_PHASE_S = 20 };

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
    if (r < 0)
        return r;

    r = bench_clients_add(&w->clients, swap_expect, w, e);
    return r < 0 ? r : bench_clients_finish(&w->clients, e);
}

/* ---- the operator ---- */

/* Stages the table first: it may have retired while no sequence used it. */
static int service_swap_once(struct swap *w, kvc_client *control, unsigned n, struct errmsg *e)
{
    const struct table *t = w->models[n % N_TABLES].table;
    uint8_t digest[KVC_DIGEST_BYTES];
    struct errmsg why = {""};
    int r = operator_stage_table(control, t->bytes, t->n_bytes, digest, &why);

    if (r >= 0)
        r = operator_activate_table(control, digest, 0, NULL, &why);
    return r < 0 ? fail(e, r, "swap %u: %s", n, why.text) : 0;
}

/* Whether every kind of call was timed in @phase: on a slow device the last phases are extended until
 * then. */
static bool service_swap_is_timed(const struct swap *w, enum phase phase, double since)
{
    for (unsigned k = 0; k < SWAP_CALLS; k++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < w->options->n_clients; i++)
            n += w->shared->clients[i].of[phase][k].n;
        if (n == 0 && !bench_clients_failed(&w->clients) && clock_seconds() - since < LAST_PHASE_S)
            return false;
    }

    return true;
}

/* Phases with and without swaps alternate and have equal lengths. */
static int service_swap_drive(struct swap *w, const char *operator_path, unsigned n_phases, unsigned n_each,
                              struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *control = NULL;
    int r = client_open(operator_path, &control, e);

    for (unsigned i = 0; r == 0 && i < n_phases && !bench_clients_failed(&w->clients); i++) {
        double began = clock_seconds();
        bool last = i + 1 == n_phases;

        w->shared->phase = SWAPPING;
        for (unsigned k = 0; r == 0 && (k < n_each || (last && !service_swap_is_timed(w, SWAPPING, began)));
             k++) {
            r = service_swap_once(w, control, ++w->n_swaps, e); /* table 0 is active */
            (void) poll(NULL, 0, SWAP_EVERY_MS);
        }

        w->shared->phase = QUIET;
        (void) poll(NULL, 0, (int) ((clock_seconds() - began) * 1e3));
        while (last && !service_swap_is_timed(w, QUIET, began))
            (void) poll(NULL, 0, SWAP_EVERY_MS);
    }

    return r;
}

/* ---- scenario ---- */

static size_t service_swap_stored(const struct swap_samples *s)
{
    return s->n < SAMPLES_MAX ? s->n : SAMPLES_MAX;
}

/* Latencies of calls @first to @last of all clients; percentiles by nearest rank. */
static int service_swap_latency(const struct swap *w, enum phase phase, unsigned first, unsigned last,
                                struct swap_latency *ret, struct errmsg *e)
{
    _cleanup_(freep) double *all = NULL;
    size_t n = 0;

    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++)
            n += service_swap_stored(&w->shared->clients[i].of[phase][k]);
    all = malloc((n + 1) * sizeof(*all));
    if (!all || n == 0)
        return fail(e, all ? -ENODATA : -ENOMEM, "no calls were timed");

    n = 0;
    for (unsigned i = 0; i < w->options->n_clients; i++)
        for (unsigned k = first; k <= last; k++) {
            const struct swap_samples *s = &w->shared->clients[i].of[phase][k];

            memcpy(all + n, s->seconds, service_swap_stored(s) * sizeof(*all));
            n += service_swap_stored(s);
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

static int service_swap_measure(struct swap *w, const char *operator_path, struct swap_metrics *ret,
                                struct errmsg *e)
{
    unsigned n_phases = w->options->quick ? 2 : 20, n_each = w->options->quick ? 5 : 50;
    int r = 0, ended;

    for (unsigned i = 0; r == 0 && i < w->options->n_clients; i++)
        r = bench_clients_add(&w->clients, swap_client, w, e);
    if (r < 0)
        return r;

    bench_clients_go(&w->clients, w->options->n_clients);
    r = service_swap_drive(w, operator_path, n_phases, n_each, e);
    w->shared->stop = 1;
    ended = bench_clients_finish(&w->clients, r == 0 ? e : NULL);
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
    w->shared_bytes = sizeof(struct swap_shared) + w->options->n_clients * sizeof(struct swap_client_samples);
    w->shared = mmap(NULL, w->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w->shared != MAP_FAILED)
        return 0;

    w->shared = NULL;
    return fail(e, -ENOMEM, "out of memory for samples of %u clients", w->options->n_clients);
}

static void service_swap_deinit(struct swap *w)
{
    bench_clients_deinit(&w->clients);
    if (w->shared)
        (void) munmap(w->shared, w->shared_bytes);
    free(w->input);
    for (unsigned t = 0; t < N_TABLES; t++)
        bench_model_deinit(&w->models[t]);
}

int service_swap(const struct service_options *o, struct swap_metrics *ret, struct errmsg *e)
{
    const char *options[16] = {"--pool-bytes=1G", "--quota-bytes=2G", "--arena-bytes=8M"};
    _cleanup_(bench_daemon_deinit) struct bench_daemon daemon = BENCH_DAEMON_INIT;
    _cleanup_(service_swap_deinit) struct swap w = {.options = o, .socket = daemon.socket};
    struct bench_device_arguments more;
    int r;

    bench_device_arguments(o, &more);
    memcpy(options + 3, more.list, sizeof(more.list));
    r = service_swap_share_memory(&w, e);
    if (r < 0)
        return r;

    r = bench_clients_init(&w.clients, e);
    if (r < 0)
        return r;

    r = service_swap_prepare(&w, e);
    if (r < 0)
        return r;

    r = bench_daemon_init(&daemon, o->daemon, options, e);
    if (r < 0)
        return r;

    r = link_stage_and_activate(daemon.operator_socket, w.models[0].table->bytes, w.models[0].table->n_bytes,
                                e);
    if (r < 0)
        return r;

    return service_swap_measure(&w, daemon.operator_socket, ret, e);
}
