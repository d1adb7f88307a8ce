/*
 * kvcobra bench service: what a daemon does under load, with much in it, while tables change, over a restart.
 */
#include <limits.h>
#include <string.h>

#include "base/errmsg.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_service.h"
#include "tools/bench/bench_service_device.h"
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
    bool wanted[N_SCENARIOS];
    bool any_wanted;
};

static const char doc[] =
    "Start a daemon in a temporary folder, with a synthetic model, and measure; without names all of these:\n"
    "  load      a lease and a commit under load from several processes, beside a bare exchange of packets "
    "with a process that "
    "does nothing else; the lookup of a prefix of 512 chunks in the shared index, also where a system call "
    "would be killed\n"
    "  memory    what the daemon needs beside the pages, for a million pages, 1000 clients and 10000 leases\n"
    "  swap      1000 swaps of tables while clients append and read; every read is compared bit for bit\n"
    "  restart   100000 held pages over five deaths of the daemon, under a supervisor that keeps its "
    "descriptors\v"
    "The load is the same for all: every client does each once per round. 'copy' is what a commit cannot do "
    "without: a copy "
    "of the page and its CRC. What is asked stands last, misses with it.\n\n"
    "With --gpu the sessions of swap and restart lie on a GPU, and these two are what runs: append, commit "
    "and read work on device "
    "memory, and a timed call ends when kvc_client_synchronize() after it has, so that what it queued is "
    "done, as a call on the host's "
    "memory is. Reads are compared with those of a sequence without a daemon on the same GPU. After a "
    "restart also the time "
    "until a session on the GPU has leased its first page is shown: the driver is opened and the page "
    "checked in it. It takes "
    "libcuda.so.1, kernels for the GPU in this build, and kvcobra-mover.";

static const struct argp_option options[] = {
    {"clients", OPT_CLIENTS, "N", 0, "Processes of load and swap, 1 to 64 (default 8)", 1},
    {"rounds", OPT_ROUNDS, "N", 0, "Of each, for load (default 2000)", 1},
    {"quick", OPT_QUICK, NULL, 0, "Small sizes, 20 rounds: only to see that it works", 1},
    {"daemon", OPT_DAEMON, "PATH", 0,
     "The kvcobrad to run (default: the one beside this program, or in PATH)", 1},
    {"gpu", OPT_GPU, "UUID", 0,
     "Sessions of swap and restart on this GPU, as nvidia-smi -L names it, or on the 'first'", 1},
    {"mover", OPT_MOVER, "PATH", 0,
     "The kvcobra-mover that the daemon runs for --gpu (default: the one in ../mover or "
     "../" KVCOBRA_LIBEXECDIR " of this program's folder, or " KVCOBRA_MOVER_PATH ")",
     1},
    {0},
};

static bool bench_service_want(struct bench_service_options *o, const char *name)
{
    for (unsigned i = 0; i < N_SCENARIOS; i++)
        if (strcmp(name, scenario_names[i]) == 0) {
            o->wanted[i] = o->any_wanted = true;
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
        if (o->gpu && (o->wanted[LOAD] || o->wanted[MEMORY]))
            argp_error(
                state,
                "--gpu is for swap and restart: load and memory are about the daemon, which has no GPU");
        if (o->mover && !o->gpu)
            argp_error(state, "--mover is for --gpu");
        return 0;
    case ARGP_KEY_ARG:
        if (!bench_service_want(o, arg))
            argp_error(state, "'%s' is none of load, memory, swap, restart", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, bench_service_parse, "[load|memory|swap|restart]...", doc, common_children, NULL, NULL};

static bool bench_service_wanted(const struct bench_service_options *o, unsigned i)
{
    return o->any_wanted ? o->wanted[i] : !o->gpu || i == SWAP || i == RESTART;
}

struct programs {
    char self[PATH_MAX], daemon[PATH_MAX], mover[PATH_MAX];
    struct bench_gpu device;
};

/* What has to be there, before anything is measured. */
static int bench_service_find_all(struct bench_service_options *o, struct programs *p, struct errmsg *e)
{
    int r = find_daemon(o->daemon, p->self, p->daemon, e);

    o->service.daemon = p->daemon;
    if (r < 0 || !o->gpu)
        return r;

    r = find_mover(o->mover, p->self, p->mover, e);
    if (r == 0)
        r = bench_device_find(o->gpu, true, &p->device, e);
    o->service.mover = p->mover;
    o->service.device = &p->device;
    return r;
}

static int bench_service_run(int argc, char **argv)
{
    struct bench_service_options o = {.service = {.n_clients = 8, .n_rounds = 2000}};
    struct service_figures all = {NULL};
    struct memory_figures memory = {0};
    struct restart_figures restart;
    struct programs programs;
    struct load_figures load;
    struct swap_figures swap;
    struct errmsg e = {""};
    int r;

    command_parse(&argp, argc, argv, &o);
    r = bench_service_find_all(&o, &programs, &e);
    if (r == 0 && bench_service_wanted(&o, LOAD)) {
        r = service_load(&o.service, &load, &e);
        all.load = &load;
    }

    if (r == 0 && bench_service_wanted(&o, MEMORY)) {
        r = service_memory(&o.service, &memory, &e);
        all.memory = &memory;
    }

    if (r == 0 && bench_service_wanted(&o, SWAP)) {
        r = service_swap(&o.service, &swap, &e);
        all.swap = &swap;
    }

    if (r == 0 &&
        bench_service_wanted(
            &o, RESTART)) { /* last: on a GPU it opens the driver, which no process forked later could use */
        r = service_restart(&o.service, &restart, &e);
        all.restart = &restart;
    }

    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : "interrupted");

    return o.common.json ? service_print_json(&all, &o.service) : service_print_text(&all, &o.service);
}

const struct command bench_service = {
    "service", "a daemon under load, full, while tables change, over a restart", bench_service_run};
