/* kvcobra bench capacity: how many more prompts are found when numbers take fewer bits. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/stream_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/bench/bench.h"
#include "tools/bench/capacity_lru.h"
#include "tools/bench/capacity_report.h"
#include "tools/bench/capacity_trace.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/option.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"

enum {
    OPT_TRACE = 1,
    OPT_MEMORY,
    OPT_TOKEN,
    OPT_BITS,
    OPT_CLIENTS,
    OPT_REQUESTS,
    OPT_DAEMON,
    OPT_HTML,
    OPT_BLOCK,
    OPT_DISK
};

#define TOKEN_BYTES (UINT64_C(2) * 2 * 32 * 8 * 128) /* K and V, 32 layers, 8 KV heads, d = 128, 16 bits */

struct bench_capacity_options {
    struct common_options common;
    const char *trace, *daemon, *html;
    uint64_t memory_bytes, token_bytes;
    uint64_t disk_bytes;   /* 0: no disk tier */
    uint32_t block_tokens; /* 0: not given */
    double bits[CAPACITY_POINTS_MAX];
    size_t n_bits;
    unsigned n_clients;
    uint32_t n_requests;
};

static const char doc[] =
    "Replay a trace of requests through a kvcobrad in a temporary folder, with pools that hold as many "
    "tokens as "
    "a large model's cache does at 16, 8, 4.5, 3 and 2 bits per number in the same memory, and count how "
    "many "
    "blocks of prompts are found. With --disk, each replay is repeated with a disk tier.\v"
    "A trace has one request per line, as JSON. \"hash_ids\" are the ids, integers or texts, of the blocks "
    "of "
    "its prompt, as in Mooncake's public traces, whose blocks have 512 tokens, and Alibaba's. If requests "
    "have "
    "\"input_length\", the tokens of a block follow from it. Requests for vLLM have the prompt itself: "
    "\"prompt\", a text or token ids, or \"prompt_token_ids\". It is cut into blocks of 64 tokens or "
    "--block-tokens; 4 bytes of a text count as a token.\n\n"
    "One page of a small model stands for a block, so a replay takes some megabytes and less than a minute; "
    "the disk tier takes 4 KiB of /tmp for each block.\n\n"
    "Example:\n\n"
    "  kvcobra bench capacity --trace conversation.jsonl --memory 250G \\\n"
    "    --disk 2T --html capacity.html";

static const struct argp_option options[] = {
    {"trace", OPT_TRACE, "FILE", 0, "The requests", 1},
    {"memory", OPT_MEMORY, "SIZE", 0, "Memory for the cache of the large model (default 250G)", 1},
    {"disk", OPT_DISK, "SIZE", 0, "Measure also with a disk tier of this size beside the memory", 1},
    {"token-bytes", OPT_TOKEN, "SIZE", 0,
     "Bytes of a token in 16 bits (default 128K: 32 layers, 8 KV heads, head dimension 128)", 1},
    {"block-tokens", OPT_BLOCK, "N", 0,
     "Tokens of a block of the trace (default: by \"input_length\" of the requests, else 512; of prompts: "
     "64)",
     1},
    {"bits", OPT_BITS, "LIST", 0, "Bits per number, 0.5 to 32 each (default 16,8,4.5,3,2)", 1},
    {"clients", OPT_CLIENTS, "N", 0, "Clients, which take turns, 1 to 64 (default 4)", 1},
    {"requests", OPT_REQUESTS, "N", 0, "Replay the first N requests only", 1},
    {"html", OPT_HTML, "FILE", 0, "Write a page with a picture", 1},
    {"daemon", OPT_DAEMON, "PATH", 0, "The kvcobrad to run (default: beside this program, or in PATH)", 1},
    {0},
};

static void bench_capacity_read_bits(const struct argp_state *state, char *list,
                                     struct bench_capacity_options *o)
{
    char *rest = NULL;

    o->n_bits = 0;
    for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        if (o->n_bits == CAPACITY_POINTS_MAX)
            argp_error(state, "--bits takes at most %d numbers", CAPACITY_POINTS_MAX);
        o->bits[o->n_bits++] = option_double(state, "--bits", item, 0.5, 32);
    }
    if (o->n_bits == 0)
        argp_error(state, "--bits needs a number");
}

static error_t bench_capacity_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_capacity_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_TRACE:
        o->trace = arg;
        return 0;
    case OPT_MEMORY:
        o->memory_bytes = option_bytes(state, arg);
        return 0;
    case OPT_DISK:
        o->disk_bytes = option_bytes(state, arg);
        if (o->disk_bytes == 0)
            argp_error(state, "--disk must be above 0");
        return 0;
    case OPT_TOKEN:
        o->token_bytes = option_bytes(state, arg);
        if (o->token_bytes == 0)
            argp_error(state, "--token-bytes must be above 0");
        return 0;
    case OPT_BLOCK:
        o->block_tokens = (uint32_t) option_uint(state, "--block-tokens", arg, 1, CAPACITY_BLOCK_TOKENS_MAX);
        return 0;
    case OPT_BITS:
        bench_capacity_read_bits(state, arg, o);
        return 0;
    case OPT_CLIENTS:
        o->n_clients = (unsigned) option_uint(state, "--clients", arg, 1, 64);
        return 0;
    case OPT_REQUESTS:
        o->n_requests = (uint32_t) option_uint(state, "--requests", arg, 1, UINT32_MAX);
        return 0;
    case OPT_DAEMON:
        o->daemon = arg;
        return 0;
    case OPT_HTML:
        o->html = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->trace)
            argp_error(state, "--trace FILE is needed");
        if (o->html && stream_file_is_standard(o->html) && o->common.json)
            argp_error(state, "--html - and --json both write standard output: give the page a name");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_capacity_parse, NULL, doc, common_children, NULL, NULL};

/* ---- the replays ---- */

/* A guess that changes the results is said. */
static void bench_capacity_choose_block(struct bench_capacity_options *o, const struct capacity_trace *t)
{
    if (t->has_texts)
        command_note(&o->common, "%s: prompts are texts: %d bytes count as a token", o->trace,
                     CAPACITY_TEXT_BYTES);
    if (o->block_tokens > 0)
        return;

    o->block_tokens = t->block_tokens > 0 ? t->block_tokens : CAPACITY_BLOCK_TOKENS;
    if (o->block_tokens != CAPACITY_BLOCK_TOKENS && !t->has_prompts)
        command_note(&o->common,
                     "%s: blocks of %u tokens, by \"input_length\"; --block-tokens sets another number",
                     o->trace, (unsigned) o->block_tokens);
}

/* Blocks whose tokens fit @bytes at @bits per number. */
static uint32_t bench_capacity_blocks(const struct bench_capacity_options *o, uint64_t bytes, double bits)
{
    double tokens = (double) bytes / ((double) o->token_bytes * bits / 16);
    double blocks = tokens / o->block_tokens;

    return blocks < 1 << 26 ? (uint32_t) blocks : 1 << 26;
}

/* A place with room for all blocks and more holds no more of them. */
static uint32_t bench_capacity_useful(const struct capacity_trace *t, uint32_t blocks)
{
    return blocks < 2 * (uint64_t) t->n_distinct + 1024 ? blocks : 2 * t->n_distinct + 1024;
}

static int bench_capacity_replay(const struct bench_capacity_options *o,
                                 const struct capacity_replay_options *base, const struct capacity_trace *t,
                                 const struct capacity_point *p, struct capacity_run *ret,
                                 uint64_t *ret_lru_hits, struct errmsg *e)
{
    struct capacity_replay_options replay = *base;
    struct progress progress;
    char what[64];
    int r;

    replay.progress = &progress;
    (void) snprintf(what, sizeof(what), "replaying at %g bits%s", p->bits,
                    replay.disk_blocks > 0 ? " with a disk" : "");
    progress_start(&progress, what, "requests", t->n_requests, o->common.quiet);
    r = capacity_replay(&replay, t, bench_capacity_useful(t, p->asked), ret, e);
    progress_end(&progress);
    if (r < 0)
        return r;

    return capacity_lru_hits(t, ret->capacity + ret->disk_capacity, ret_lru_hits) < 0
               ? fail(e, -ENOMEM, "out of memory")
               : 0;
}

static int bench_capacity_measure_point(const struct bench_capacity_options *o, const char *daemon,
                                        const struct capacity_trace *t, struct capacity_point *p,
                                        struct errmsg *e)
{
    struct capacity_replay_options replay = {.daemon = daemon, .n_clients = o->n_clients};
    int r;

    p->asked = bench_capacity_blocks(o, o->memory_bytes, p->bits);
    r = bench_capacity_replay(o, &replay, t, p, &p->run, &p->lru_hits, e);
    if (r < 0 || o->disk_bytes == 0)
        return r;

    p->disk_asked = bench_capacity_blocks(o, o->disk_bytes, p->bits);
    replay.disk_blocks = bench_capacity_useful(t, p->disk_asked);
    return bench_capacity_replay(o, &replay, t, p, &p->with_disk, &p->with_disk_lru_hits, e);
}

static int bench_capacity_measure(const struct bench_capacity_options *o, const struct capacity_trace *t,
                                  struct capacity_results *x, struct errmsg *e)
{
    char self[PATH_MAX], daemon[PATH_MAX];
    int r = find_daemon(o->daemon, self, daemon, e);

    if (r == 0 && capacity_lru_hits(t, UINT32_MAX, &x->ceiling_hits) < 0)
        r = fail(e, -ENOMEM, "out of memory");
    for (x->n_points = 0; r == 0 && x->n_points < o->n_bits; x->n_points++) {
        x->points[x->n_points].bits = o->bits[x->n_points];
        r = bench_capacity_measure_point(o, daemon, t, &x->points[x->n_points], e);
    }
    return r;
}

static int bench_capacity_write_page(const char *path, const struct capacity_results *x, struct errmsg *e)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(fclosep) FILE *f = NULL;
    size_t n;
    int r;

    f = open_memstream(&text, &n);
    if (!f)
        return fail(e, -ENOMEM, "out of memory for the page");

    r = capacity_page(f, x);
    if (fclose(take_ptr(f)) != 0 || r < 0)
        return fail(e, -ENOMEM, "out of memory for the page");
    return stream_file_write(path, text, n, e);
}

static int bench_capacity_run(int argc, char **argv)
{
    struct bench_capacity_options o = {
        .memory_bytes = UINT64_C(250) << 30,
        .token_bytes = TOKEN_BYTES,
        .bits = {16, 8, 4.5, 3, 2},
        .n_bits = 5,
        .n_clients = 4,
        .n_requests = UINT32_MAX,
    };
    _cleanup_(capacity_trace_deinit) struct capacity_trace trace = CAPACITY_TRACE_INIT;
    static struct capacity_results x;
    struct errmsg e = {""};
    int r;

    command_parse(&argp, argc, argv, &o);
    r = o.html ? output_check_text(o.html, &o.trace, 1, &e) : 0;
    if (r == 0)
        r = capacity_trace_read(o.trace, o.n_requests, o.block_tokens, &trace, &e);
    bench_capacity_choose_block(&o, &trace);
    x = (struct capacity_results){
        .trace = o.trace,
        .n_requests = trace.n_requests,
        .n_distinct = trace.n_distinct,
        .block_tokens = o.block_tokens,
        .n_blocks = trace.n_blocks,
        .memory_bytes = o.memory_bytes,
        .token_bytes = o.token_bytes,
        .disk_bytes = o.disk_bytes,
        .n_clients = o.n_clients,
    };
    if (r == 0)
        r = bench_capacity_measure(&o, &trace, &x, &e);
    if (r == 0 && o.html)
        r = bench_capacity_write_page(o.html, &x, &e);
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : "interrupted");

    if (o.html && stream_file_is_standard(o.html))
        return COMMAND_OK;
    return o.common.json ? capacity_print_json(&x) : capacity_print_text(&x);
}

const struct command bench_capacity = {
    .name = "capacity",
    .summary = "prompts found with fewer bits in the same memory, from a trace",
    .run = bench_capacity_run,
};
