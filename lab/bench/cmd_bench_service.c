/* kvcobra-lab bench service: a daemon under load, with a full pool, with table swaps, and over a restart. */
#include <limits.h>
#include <string.h>

#include "base/errmsg.h"
#include "lab/bench/bench.h"
#include "lab/bench/bench_service.h"
#include "lab/bench/bench_service_device.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/option.h"

enum { OPT_CLIENTS = 1, OPT_ROUNDS, OPT_QUICK, OPT_DAEMON, OPT_GPU, OPT_MOVER };
enum { LOAD, MEMORY, SWAP, RESTART, N_SCENARIOS };

static const char *const scenario_names[N_SCENARIOS] = {"load", "memory", "swap", "restart"};

struct bench_service_options {
    struct common_options common;
    struct service_options service;
    const char *daemon, *gpu, *mover;
    bool selected[N_SCENARIOS];
    bool any_selected;
};

static const char doc[] =
    "Start a daemon in a temporary folder, with a synthetic model, and measure it. Scenarios (default: "
    "all):\n"
    "  load      leases and commits of several processes, compared with a bare\n"
    "            exchange of packets with another process; the lookup of a prefix\n"
    "            of 512 chunks in the shared index, once where a system call would\n"
    "            kill the process\n"
    "  memory    memory of the daemon beside the pages, with a million pages, 1000\n"
    "            clients and 10000 leases\n"
    "  swap      1000 swaps of tables while clients append and read; every read is\n"
    "            compared bit for bit\n"
    "  restart   100000 held pages over five kills of the daemon, under a\n"
    "            supervisor that stores its descriptors\vEvery client does the same operations once per "
    "round. 'copy' is the part that every commit needs: a copy of the page and its CRC. The report ends with "
    "the limits and which of them were missed.\n\n"
    "With --gpu, swap and restart run with sessions on a GPU, and only these two run. Append, commit and "
    "read use device memory, and the time of a call includes kvc_client_synchronize(), so that its queued "
    "work is done. Reads are compared with those of a sequence without a daemon on the same GPU. For restart "
    "the report also has the time until a session on the GPU has leased its first page, with opening the "
    "driver and checking the page. --gpu needs libcuda.so.1, kernels for the GPU in this build, and "
    "kvcobra-mover.\n\n"
    "Example:\n\n"
    "  kvcobra-lab bench service swap --quick";

static const struct argp_option options[] = {
    {"clients", OPT_CLIENTS, "N", 0, "Client processes of load and swap, 1 to 64 (default 8)", 1},
    {"rounds", OPT_ROUNDS, "N", 0, "Rounds of each client of load (default 2000)", 1},
    {"quick", OPT_QUICK, NULL, 0, "Small sizes and 20 rounds: only to test that the bench works", 1},
    {"daemon", OPT_DAEMON, "PATH", 0, "The kvcobrad to run (default: beside this program, or in PATH)", 1},
    {"gpu", OPT_GPU, "UUID", 0,
     "Run swap and restart on this GPU, named as by nvidia-smi -L, or on the 'first'", 1},
    {"mover", OPT_MOVER, "PATH", 0,
     "With --gpu: the kvcobra-mover of the daemon (default: in ../mover or ../" KVCOBRA_LIBEXECDIR
     " of this program's folder, or " KVCOBRA_MOVER_PATH ")",
     1},
    {0},
};

static bool bench_service_select(struct bench_service_options *o, const char *name)
{
    for (unsigned i = 0; i < N_SCENARIOS; i++)
        if (strcmp(name, scenario_names[i]) == 0) {
            o->selected[i] = o->any_selected = true;
            return true;
        }
    return false;
}

static error_t bench_service_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_service_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_CLIENTS:
        o->service.n_clients = (unsigned) option_uint(state, "--clients", arg, 1, SERVICE_CLIENTS_MAX);
        return 0;
    case OPT_ROUNDS:
        o->service.n_rounds = (unsigned) option_uint(state, "--rounds", arg, 10, 1000000);
        return 0;
    case OPT_QUICK:
        o->service.n_rounds = 20;
        o->service.quick = true;
        return 0;
    case OPT_DAEMON:
        o->daemon = arg;
        return 0;
    case OPT_GPU:
        o->gpu = arg;
        return 0;
    case OPT_MOVER:
        o->mover = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->gpu && (o->selected[LOAD] || o->selected[MEMORY]))
            argp_error(
                state,
                "--gpu is for swap and restart: load and memory measure the daemon, which uses no GPU");
        if (o->mover && !o->gpu)
            argp_error(state, "--mover needs --gpu");
        return 0;
    case ARGP_KEY_ARG:
        if (!bench_service_select(o, arg))
            argp_error(state, "'%s' is none of load, memory, swap, restart", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, bench_service_parse, "[load|memory|swap|restart]...", doc, common_children, NULL, NULL};

static bool bench_service_is_selected(const struct bench_service_options *o, unsigned i)
{
    if (o->any_selected)
        return o->selected[i];

    return !o->gpu || i == SWAP || i == RESTART;
}

struct bench_service_programs {
    char self[PATH_MAX], daemon[PATH_MAX], mover[PATH_MAX];
    struct bench_gpu gpu;
};

/* Finds the programs and the GPU before the measurements. */
static int bench_service_find_all(struct bench_service_options *o, struct bench_service_programs *p,
                                  struct errmsg *e)
{
    int r = find_daemon(o->daemon, p->self, p->daemon, e);

    o->service.daemon = p->daemon;
    if (r < 0 || !o->gpu)
        return r;

    r = find_mover(o->mover, p->self, p->mover, e);
    if (r < 0)
        return r;

    o->service.mover = p->mover;
    o->service.device = &p->gpu;
    return bench_device_find(o->gpu, true, &p->gpu, e);
}

struct bench_service_results {
    struct service_metrics measured; /* pointers to the results below that were measured */
    struct load_metrics load;
    struct memory_metrics memory;
    struct swap_metrics swap;
    struct restart_metrics restart;
};

static int bench_service_measure(const struct bench_service_options *o, struct bench_service_results *x,
                                 struct errmsg *e)
{
    int r = 0;

    if (bench_service_is_selected(o, LOAD)) {
        r = service_load(&o->service, &x->load, e);
        x->measured.load = &x->load;
    }
    if (r == 0 && bench_service_is_selected(o, MEMORY)) {
        r = service_memory(&o->service, &x->memory, e);
        x->measured.memory = &x->memory;
    }
    if (r == 0 && bench_service_is_selected(o, SWAP)) {
        r = service_swap(&o->service, &x->swap, e);
        x->measured.swap = &x->swap;
    }

    /* last: on a GPU it opens the driver, which processes forked later could not use */
    if (r == 0 && bench_service_is_selected(o, RESTART)) {
        r = service_restart(&o->service, &x->restart, e);
        x->measured.restart = &x->restart;
    }

    return r;
}

static int bench_service_run(int argc, char **argv)
{
    struct bench_service_options o = {.service = {.n_clients = 8, .n_rounds = 2000}};
    struct bench_service_results x = {.measured = {NULL}};
    struct bench_service_programs programs;
    struct errmsg e = {""};
    int r;

    command_parse(&argp, argc, argv, &o);
    r = bench_service_find_all(&o, &programs, &e);
    if (r == 0)
        r = bench_service_measure(&o, &x, &e);
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : "interrupted");

    return o.common.json ? service_print_json(&x.measured, &o.service)
                         : service_print_text(&x.measured, &o.service);
}

const struct command bench_service = {
    .name = "service",
    .summary = "a daemon under load, full, during swaps and restarts",
    .run = bench_service_run,
};
