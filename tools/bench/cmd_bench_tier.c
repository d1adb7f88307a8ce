/*
 * kvcobra bench tier: how fast pages go to slower tiers and come back, beside programs that do nothing else.
 *
 * Prompts of synthetic pages go through a real kvcobrad: to a disk tier in a folder of the disk that is
 * measured, and to a redis-server of its own. Each turn measures kvcobrad and the other program once.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/sort.h"
#include "base/cleanup.h"
#include "proto/sealed_page.h"
#include "tools/bench/bench.h"
#include "tools/bench/tier_load.h"
#include "tools/bench/tier_model.h"
#include "tools/bench/tier_place.h"
#include "tools/bench/tier_report.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/operator_pages.h"
#include "tools/command/option.h"
#include "tools/command/progress.h"

enum {
    OPT_DIR = 1,
    OPT_PAGE_BYTES,
    OPT_PAGES,
    OPT_DEPTH,
    OPT_REPEAT,
    OPT_RESTART_PAGES,
    OPT_MODEL,
    OPT_TABLE,
    OPT_PROMPT_FILE,
    OPT_DAEMON
};

enum {
    READY_PAGES = 23, /* 1472 tokens */
    PAGES_MAX = 64,   /* of 8 prompts: so many requests of a tenant wait for a tier at the same time */
    ANSWERS = 3000,   /* p99.9 is the third largest of them */
    REDIS_BYTES = 256 << 20,
    RESTART_PAGE_BYTES = 1024, /* and less */
    RESTART_PROMPT_PAGES = 500,
};

struct bench_tier {
    struct common_options common;
    const char *folder, *daemon_given, *model, *table, *prompt_file;
    char daemon[PATH_MAX];
    uint64_t page_bytes;
    uint32_t n_pages, depth, repeat, restart_pages; /* pages of a prompt */
    struct progress progress;
    double n_done;
    struct tier_results x;
};

static const char doc[] =
    "Measure how fast pages go to the disk tier and to a cluster and come back: as a kvcobrad does it in a "
    "temporary folder, and beside it fio on the same disk and redis-benchmark on the same server, with "
    "blocks of the same size and as many requests at a time; fio moves as many blocks, too. Then how soon "
    "the tokens of a prompt can be "
    "used from each tier, how soon kvcobrad answers others meanwhile, and how long it takes to start with "
    "many pages on the disk.\v"
    "The disk needs room for twice the pages, which are 8 prompts of --pages pages, and for --restart-pages "
    "blocks of 4 KiB. fio, redis-server and redis-benchmark are used if they are installed; what is missing "
    "is said. The server is one redis-server of this machine, which the bench starts.\n\n"
    "With --model, --table and --prompt-file, first tokens of a model are measured too: computed, and with "
    "the prompt in memory, on the disk and in the cluster.\n\n"
    "Examples:\n\n"
    "  kvcobra bench tier --dir /var/lib/kvcobra\n"
    "  kvcobra bench tier --dir /mnt/nvme --page-bytes 1536K --depth 8 --json";

static const struct argp_option options[] = {
    {"dir", OPT_DIR, "FOLDER", 0, "A folder on the disk to be measured (default: the present one)", 1},
    {"page-bytes", OPT_PAGE_BYTES, "SIZE", 0, "Bytes of a page, about, 8K to 2016K (default 264K)", 1},
    {"pages", OPT_PAGES, "N", 0, "Pages of each of the 8 prompts, 1 to 64 (default 32)", 1},
    {"depth", OPT_DEPTH, "N", 0,
     "Pages that are read or written at a time, 1 to 512 (default 32); kvcobrad's buffers bound them, too",
     1},
    {"repeat", OPT_REPEAT, "N", 0, "Turns, 1 to 100 (default 5)", 1},
    {"restart-pages", OPT_RESTART_PAGES, "N", 0,
     "Pages on the disk at a restart, up to 1000000 (default 100000; 0: do not measure it)", 1},
    {"model", OPT_MODEL, "GGUF", 0, "Measure first tokens of this model", 1},
    {"table", OPT_TABLE, "TABLE", 0, "The model's table", 1},
    {"prompt-file", OPT_PROMPT_FILE, "FILE", 0, "The prompt, up to 8192 tokens", 1},
    {"daemon", OPT_DAEMON, "PATH", 0, "The kvcobrad to run (default: beside this program, or in PATH)", 1},
    {0},
};

static error_t bench_tier_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_tier *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_DIR:
        o->folder = arg;
        return 0;
    case OPT_PAGE_BYTES:
        o->page_bytes = option_bytes(state, arg);
        if (o->page_bytes < 8 << 10 || o->page_bytes > 2016 << 10)
            argp_error(state, "--page-bytes takes 8K to 2016K, not '%s'", arg);
        return 0;
    case OPT_PAGES:
        o->n_pages = (uint32_t) option_uint(state, "--pages", arg, 1, PAGES_MAX);
        return 0;
    case OPT_DEPTH:
        o->depth = (uint32_t) option_uint(state, "--depth", arg, 1, 512);
        return 0;
    case OPT_REPEAT:
        o->repeat = (uint32_t) option_uint(state, "--repeat", arg, 1, TIER_REPEAT_MAX);
        return 0;
    case OPT_RESTART_PAGES:
        o->restart_pages = (uint32_t) option_uint(state, "--restart-pages", arg, 0, 1000000);
        return 0;
    case OPT_MODEL:
        o->model = arg;
        return 0;
    case OPT_TABLE:
        o->table = arg;
        return 0;
    case OPT_PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case OPT_DAEMON:
        o->daemon_given = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->model != !o->table || !o->model != !o->prompt_file)
            argp_error(state, "--model, --table and --prompt-file belong together");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_tier_parse, NULL, doc, common_children, NULL, NULL};

/* ---- rates ---- */

static void bench_tier_step(struct bench_tier *o)
{
    progress_update(&o->progress, ++o->n_done);
}

static uint64_t bench_tier_all_bytes(const struct bench_tier *o)
{
    return (uint64_t) TIER_CLIENTS * o->n_pages * o->x.page_bytes;
}

/* Notes a turn of a row. @peer_err: of the other program, with the sentence @why. */
static int bench_tier_note(struct tier_rate *rate, size_t turn, double ours, double theirs, int peer_err,
                           const struct errmsg *why, struct errmsg *e)
{
    rate->n = turn + 1;
    rate->ours[turn] = ours;
    rate->theirs[turn] = peer_err == 0 ? theirs : 0;
    if (peer_err == -ENOENT && turn == 0)
        errmsg_set(&rate->skipped, "%s", why->text);
    return peer_err == 0 || peer_err == -ENOENT ? 0 : fail(e, peer_err, "%s", why->text);
}

/* fio moves as many blocks as kvcobrad did, from rest as well. */
static int bench_tier_note_fio(struct bench_tier *o, struct tier_rate *rate, size_t turn, double ours,
                               enum tier_fio kind, uint32_t n_prompts, struct errmsg *e)
{
    uint64_t block_bytes = seal_bytes(o->x.page_bytes);
    const struct tier_fio_options fio = {.folder = o->folder,
                                         .block_bytes = block_bytes,
                                         .file_bytes = bench_tier_all_bytes(o),
                                         .io_bytes = block_bytes * o->n_pages * n_prompts,
                                         .depth = o->x.depth};
    struct errmsg why = {""};
    double theirs = 0;
    int err = tier_peer_fio(&fio, kind, &theirs, rate->command, &why);

    bench_tier_step(o);
    return bench_tier_note(rate, turn, ours, theirs, err, &why, e);
}

static int bench_tier_note_redis(struct bench_tier *o, struct tier_rate *rate, size_t turn, double ours,
                                 const struct tier_place *p, uint32_t n_clients, struct errmsg *e)
{
    const struct tier_redis_options redis = {.port = p->redis_port,
                                             .value_bytes = seal_bytes(o->x.page_bytes),
                                             .n_clients = n_clients,
                                             .depth = o->n_pages,
                                             .n_requests = (uint32_t) (REDIS_BYTES / o->x.page_bytes)};
    struct errmsg why = {""};
    double theirs = 0;
    int err = tier_peer_redis(&redis, &theirs, rate->command, &why);

    bench_tier_step(o);
    return bench_tier_note(rate, turn, ours, theirs, err, &why, e);
}

/* ---- the disk ---- */

/* All pages in memory are written to an empty disk. */
static int bench_tier_write(struct bench_tier *o, struct tier_place *p, size_t turn, struct errmsg *e)
{
    double began;
    int r = tier_place_drop(p, e);

    began = clock_seconds();
    if (r == 0)
        r = tier_place_wait_written(p, e);
    return r < 0 ? r
                 : bench_tier_note_fio(o, &o->x.rates[TIER_WRITE], turn,
                                       (double) bench_tier_all_bytes(o) / (clock_seconds() - began),
                                       TIER_FIO_WRITE, TIER_CLIENTS, e);
}

static int bench_tier_read(struct bench_tier *o, struct tier_load *l, unsigned n_prompts, double *ret,
                           struct errmsg *e)
{
    double seconds = 1;
    int r = tier_place_evict(l->place, e);

    if (r == 0)
        r = tier_load_match(l, 0, n_prompts, o->n_pages, &seconds, e);
    *ret = (double) n_prompts * o->n_pages * (double) o->x.page_bytes / seconds;
    return r;
}

static int bench_tier_disk_turn(struct bench_tier *o, struct tier_load *l, size_t turn, struct errmsg *e)
{
    double rate;
    int r = bench_tier_write(o, l->place, turn, e);

    if (r == 0)
        r = bench_tier_read(o, l, 1, &rate, e);
    if (r == 0)
        r = bench_tier_note_fio(o, &o->x.rates[TIER_ONE_PROMPT], turn, rate, TIER_FIO_READ, 1, e);
    if (r == 0)
        r = bench_tier_read(o, l, TIER_CLIENTS, &rate, e);
    if (r == 0)
        r = bench_tier_note_fio(o, &o->x.rates[TIER_PROMPTS], turn, rate, TIER_FIO_RANDREAD, TIER_CLIENTS, e);
    return r;
}

/* Until the tokens of a prompt are decoded, by turns. @evicts: memory is emptied before each. */
static int bench_tier_ready(struct bench_tier *o, struct tier_load *l, bool evicts, double *ret_s,
                            struct errmsg *e)
{
    double seconds[TIER_REPEAT_MAX];
    size_t n = o->n_pages < READY_PAGES ? o->n_pages : READY_PAGES;
    int r = 0;

    o->x.ready_tokens = n * CHUNK_TOKENS;
    for (uint32_t i = 0; i < o->repeat && r == 0; i++) {
        if (evicts)
            r = tier_place_evict(l->place, e);
        if (r == 0)
            r = tier_load_read(l, 0, n, &seconds[i], e);
    }
    if (r < 0)
        return r;
    sort_doubles(seconds, o->repeat);
    *ret_s = seconds[o->repeat / 2];
    return 0;
}

static struct tier_answers bench_tier_answers(struct tier_asker *a)
{
    sort_doubles(a->seconds, a->n);
    return (struct tier_answers){.n = a->n,
                                 .median_s = a->seconds[a->n / 2],
                                 .p999_s = a->seconds[(a->n * 999 + 999) / 1000 - 1],
                                 .max_s = a->seconds[a->n - 1]};
}

/* Answers to another client, while nothing else happens, or while all prompts are fetched again and again. */
static int bench_tier_ask(struct bench_tier *o, struct tier_load *l, bool is_busy, struct tier_answers *ret,
                          struct errmsg *e)
{
    static struct tier_asker asker; /* half a megabyte */
    double rate;
    int r = tier_asker_begin(&asker, l->place->daemon.socket, e), ended;

    if (r < 0)
        return r;
    for (double until = clock_seconds() + 60;
         r == 0 && tier_asker_count(&asker) < ANSWERS && clock_seconds() < until;) {
        if (is_busy)
            r = bench_tier_read(o, l, TIER_CLIENTS, &rate, e);
        else
            (void) poll(NULL, 0, 10);
    }
    ended = tier_asker_end(&asker, r < 0 ? NULL : e);
    if (r == 0)
        r = ended;
    if (r == 0)
        *ret = bench_tier_answers(&asker);
    bench_tier_step(o);
    return r;
}

static int bench_tier_publish(struct bench_tier *o, struct tier_load *l, struct errmsg *e)
{
    int r = 0;

    for (uint32_t i = 0; i < TIER_CLIENTS && r == 0; i++)
        r = tier_load_publish(l, i, o->n_pages, e);
    return r == 0 ? tier_place_wait_written(l->place, e) : r;
}

static int bench_tier_count_threads(struct bench_tier *o, struct tier_place *p, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    int r = operator_get_status(p->control, &s, e);

    o->x.n_threads = r == 0 ? s->work_threads : 0;
    return r;
}

static int bench_tier_disk(struct bench_tier *o, const struct bench_shape *shape, struct errmsg *e)
{
    const struct tier_place_options where = {.daemon = o->daemon,
                                             .disk_parent = o->folder,
                                             .page_bytes = o->page_bytes + 8192,
                                             .n_pages = (uint64_t) TIER_CLIENTS * o->n_pages,
                                             .depth = o->x.depth};
    _cleanup_(tier_place_end) struct tier_place place = TIER_PLACE_INIT;
    _cleanup_(tier_load_end) struct tier_load load = {.place = NULL};
    int r = tier_place_begin(&place, &where, e);

    if (r == 0)
        r = tier_load_begin(&load, &place, shape, e);
    if (r < 0)
        return r;

    o->x.page_bytes = tier_load_page_bytes(&load);
    o->x.rates[TIER_WRITE] = (struct tier_rate){.name = "written to the disk", .peer = "fio, write"};
    o->x.rates[TIER_ONE_PROMPT] = (struct tier_rate){.name = "a prompt from the disk", .peer = "fio, read"};
    o->x.rates[TIER_PROMPTS] =
        (struct tier_rate){.name = "8 prompts from the disk", .peer = "fio, random read"};
    r = bench_tier_publish(o, &load, e);
    if (r == 0)
        r = bench_tier_ready(o, &load, false, &o->x.ready_s[TIER_FROM_MEMORY], e);
    for (uint32_t i = 0; i < o->repeat && r == 0; i++)
        r = bench_tier_disk_turn(o, &load, i, e);
    if (r == 0)
        r = bench_tier_ready(o, &load, true, &o->x.ready_s[TIER_FROM_DISK], e);
    if (r == 0)
        r = bench_tier_ask(o, &load, false, &o->x.quiet, e);
    if (r == 0)
        r = bench_tier_ask(o, &load, true, &o->x.busy, e);
    if (r == 0)
        r = bench_tier_count_threads(o, &place, e);
    return r < 0 ? r : tier_load_opening_rate(o->x.page_bytes, o->x.n_threads, &o->x.opening_bytes_per_s, e);
}

/* ---- the cluster ---- */

static int bench_tier_cluster_turn(struct bench_tier *o, struct tier_load *l, size_t turn, struct errmsg *e)
{
    double rate;
    int r = bench_tier_read(o, l, 1, &rate, e);

    if (r == 0)
        r = bench_tier_note_redis(o, &o->x.rates[TIER_SHARED_ONE], turn, rate, l->place, 1, e);
    if (r == 0)
        r = bench_tier_read(o, l, TIER_CLIENTS, &rate, e);
    if (r == 0)
        r = bench_tier_note_redis(o, &o->x.rates[TIER_SHARED_PROMPTS], turn, rate, l->place, TIER_CLIENTS, e);
    return r;
}

static int bench_tier_cluster(struct bench_tier *o, const struct bench_shape *shape, struct errmsg *e)
{
    const struct tier_place_options where = {.daemon = o->daemon,
                                             .has_cluster = true,
                                             .page_bytes = o->page_bytes + 8192,
                                             .n_pages = (uint64_t) TIER_CLIENTS * o->n_pages};
    _cleanup_(tier_place_end) struct tier_place place = TIER_PLACE_INIT;
    _cleanup_(tier_load_end) struct tier_load load = {.place = NULL};
    int r = tier_place_begin(&place, &where, e);

    if (r == 0)
        r = tier_load_begin(&load, &place, shape, e);
    if (r < 0)
        return r;

    o->x.rates[TIER_SHARED_ONE] =
        (struct tier_rate){.name = "a prompt from the cluster", .peer = "redis-benchmark, GET"};
    o->x.rates[TIER_SHARED_PROMPTS] =
        (struct tier_rate){.name = "8 prompts from the cluster", .peer = "redis-benchmark, GET, 8 clients"};
    r = bench_tier_publish(o, &load, e);
    for (uint32_t i = 0; i < o->repeat && r == 0; i++)
        r = bench_tier_cluster_turn(o, &load, i, e);
    return r < 0 ? r : bench_tier_ready(o, &load, true, &o->x.ready_s[TIER_FROM_CLUSTER], e);
}

/* What is missing for a cluster is no failure. */
static int bench_tier_cluster_if_there(struct bench_tier *o, const struct bench_shape *shape,
                                       struct errmsg *e)
{
    char path[PATH_MAX];

    if (find_cluster(path, &o->x.no_cluster) < 0 ||
        find_command("redis-server", "redis-server", path, &o->x.no_cluster) < 0)
        return 0;
    return bench_tier_cluster(o, shape, e);
}

/* ---- a restart ---- */

static int bench_tier_wait_pages(struct tier_place *p, uint64_t n, double began, double *ret_s,
                                 struct errmsg *e)
{
    for (;;) {
        _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *s = NULL;
        int r = tier_place_ask(p, KVCOBRA__TIER_ACTION__TIER_ASK, &s, e);

        if (r < 0)
            return r;
        *ret_s = clock_seconds() - began;
        if (strcmp(s->state, "ready") == 0)
            return s->pages >= n ? 0
                                 : fail(e, -ENODATA, "the disk has %llu of %llu pages after the restart",
                                        (unsigned long long) s->pages, (unsigned long long) n);
        if (strcmp(s->state, "off") == 0)
            return fail(e, -ENODEV, "the disk tier is off after the restart: %s", s->message);
        (void) poll(NULL, 0, 1);
    }
}

static int bench_tier_restart(struct bench_tier *o, struct errmsg *e)
{
    static const struct bench_shape shape = {
        .n_layers = 1, .n_kv_heads = 1, .d = 64, .n_bands = 2, .bits = 1, .no_sinks = true};
    const struct tier_place_options where = {.daemon = o->daemon,
                                             .disk_parent = o->folder,
                                             .page_bytes = RESTART_PAGE_BYTES,
                                             .n_pages = (uint64_t) o->restart_pages + RESTART_PROMPT_PAGES,
                                             .depth = o->depth};
    _cleanup_(tier_place_end) struct tier_place place = TIER_PLACE_INIT;
    _cleanup_(tier_load_end) struct tier_load load = {.place = NULL};
    double began;
    int r = tier_place_begin(&place, &where, e);

    if (r == 0)
        r = tier_load_begin(&load, &place, &shape, e);
    for (uint32_t n = 0; n < o->restart_pages && r == 0; n += RESTART_PROMPT_PAGES) {
        uint32_t left = o->restart_pages - n;

        r = tier_load_publish(&load, n, left < RESTART_PROMPT_PAGES ? left : RESTART_PROMPT_PAGES, e);
    }
    if (r == 0)
        r = tier_place_wait_written(&place, e);
    if (r < 0)
        return r;

    tier_load_end(&load);
    began = clock_seconds();
    r = tier_place_restart(&place, e);
    began = clock_seconds() - place.start_s; /* without the end of the process before */
    if (r == 0)
        r = bench_tier_wait_pages(&place, o->restart_pages, began, &o->x.restart_ready_s, e);
    o->x.restart_serving_s = place.start_s;
    o->x.restart_pages = o->restart_pages;
    bench_tier_step(o);
    return r;
}

/* ---- all ---- */

static int bench_tier_first_tokens(struct bench_tier *o, struct errmsg *e)
{
    const struct tier_model_options first = {.daemon = o->daemon,
                                             .folder = o->folder,
                                             .has_cluster = !o->x.no_cluster.text[0],
                                             .depth = o->depth,
                                             .model = o->model,
                                             .table = o->table,
                                             .prompt_file = o->prompt_file};
    int r = tier_model_measure(&first, &o->x, e);

    bench_tier_step(o);
    return r;
}

static int bench_tier_measure(struct bench_tier *o, struct errmsg *e)
{
    const struct bench_shape shape = tier_load_shape(o->page_bytes);
    char self[PATH_MAX];
    int r = find_daemon(o->daemon_given, self, o->daemon, e);

    o->x.folder = o->folder;
    o->x.n_prompts = TIER_CLIENTS;
    o->x.n_pages = o->n_pages;
    o->x.depth = o->depth < o->n_pages * TIER_CLIENTS ? o->depth : o->n_pages * TIER_CLIENTS;
    if (r == 0)
        r = bench_tier_disk(o, &shape, e);
    if (r == 0)
        r = bench_tier_cluster_if_there(o, &shape, e);
    if (r == 0 && o->restart_pages > 0)
        r = bench_tier_restart(o, e);
    if (r == 0 && o->model)
        r = bench_tier_first_tokens(o, e);
    return r;
}

static int bench_tier_run(int argc, char **argv)
{
    static struct bench_tier o;
    struct errmsg e = {""};
    int r;

    o = (struct bench_tier){.folder = ".",
                            .page_bytes = 264 << 10,
                            .n_pages = 32,
                            .depth = 32,
                            .repeat = 5,
                            .restart_pages = 100000};
    command_parse(&argp, argc, argv, &o);
    progress_start(&o.progress, "measuring tiers", "runs",
                   5.0 * o.repeat + 2 + (o.restart_pages > 0) + (o.model != NULL), o.common.quiet);
    r = bench_tier_measure(&o, &e);
    progress_end(&o.progress);
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : "interrupted");
    return o.common.json ? tier_report_json(&o.x) : tier_report_text(&o.x);
}

const struct command bench_tier = {
    .name = "tier",
    .summary = "pages to and from a disk and a cluster, beside fio and redis-benchmark",
    .run = bench_tier_run,
};
