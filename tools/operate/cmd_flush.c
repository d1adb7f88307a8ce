/* kvcobra flush: makes a prompt, and what continues it, unfindable for the clients of a tenant. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/operator.h"
#include "tools/command/option.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/operate/prefix_options.h"
#include "tools/operate/prompt_places.h"

enum { OPT_FROM = 1 };

static const char doc[] =
    "Make a prompt unfindable: no client of the tenant finds its pages in memory, on the disk or in the "
    "cluster, nor anything that continues it. Pages at its beginning stay if other prompts begin with them, "
    "and the command says which; --from forgets them, too. Layers with a window still find what goes on "
    "for more than the window. Running sequences keep the pages that they hold. Pins of the pages end. The "
    "exit status is 1 if no page was forgotten.\v" PROMPT_OPTIONS_DOC
    " If a client computes and publishes the prompt again, what continued it and was not evicted since is "
    "found again: 'kvcobra evict' removes pages themselves. Prompts that only the cluster or another host "
    "has "
    "are not seen when shared pages are looked for. A disk or a cluster that replays old bytes can bring "
    "flushed pages back: a new index secret in the key file excludes that.\n\n"
    "Examples:\n\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 --from 0 \\\n"
    "      --model model.gguf --prompt-file manual.txt";

static const struct argp_option options[] = {
    {"from", OPT_FROM, "N", 0,
     "Forget all pages from token N on, also those that other prompts share (default: from behind those on)",
     0},
    {0},
};

struct flush_options {
    struct prefix_options prefix;
    bool has_from;
    uint64_t from; /* a token */
};

static error_t cmd_flush_parse(int key, char *arg, struct argp_state *state)
{
    struct flush_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->prefix;
        return 0;
    case OPT_FROM:
        o->from = option_uint(state, "--from", arg, 0, UINT32_MAX);
        o->has_from = true;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_flush_parse, NULL, doc, prefix_options_children, NULL, NULL};

/* ---- what goes ---- */

/* Chunks of the prompt: [first, n) go. */
struct flush_plan {
    size_t first, n;
    size_t n_shared; /* chunks at the beginning with which other prompts begin */
    size_t n_found;  /* up to the last one that has a page */
    size_t n_pages;  /* of the chunks that go */
};

/*
 * A chunk is shared if a later one is, since keys are chained. What continues the last whole chunk of a
 * prompt that ends there contains the whole prompt, which is what shall be forgotten.
 */
static struct flush_plan cmd_flush_plan(const struct flush_options *o, const struct prompt_places *p)
{
    struct flush_plan plan = {.n = p->n_chunks};
    bool is_whole = o->prefix.prompt.document.n_tokens % KVC_CHUNK_TOKENS == 0;

    for (size_t i = 0; i < p->n_chunks; i++) {
        if (prompt_places_is_shared(p, i) && (i + 1 < p->n_chunks || !is_whole))
            plan.n_shared = i + 1;
        if (prompt_places_n_pages(p, i) > 0)
            plan.n_found = i + 1;
    }

    plan.first = o->has_from ? (size_t) (o->from / KVC_CHUNK_TOKENS) : plan.n_shared;
    for (size_t i = plan.first; i < p->n_chunks; i++)
        plan.n_pages += prompt_places_n_pages(p, i);
    return plan;
}

static size_t cmd_flush_tokens(size_t n_chunks)
{
    return n_chunks * KVC_CHUNK_TOKENS;
}

/* ---- the answer ---- */

struct flush_result {
    struct flush_plan plan;
    Kvcobra__FlushReply reply;
    size_t n_forgotten;  /* pages */
    size_t found_tokens; /* that clients still find */
};

static void cmd_flush_print_found(const struct flush_result *f)
{
    if (f->found_tokens == 0) {
        terminal_print(stdout, 2, "nothing of the prompt is found now\n");
        return;
    }

    terminal_print(stdout, 2, "tokens 0 to %zu are still found%s", f->found_tokens - 1,
                   f->found_tokens <= cmd_flush_tokens(f->plan.n_shared)
                       ? ": other prompts begin with them. --from 0 forgets them, too"
                       : "");
    terminal_print(stdout, 2, "\n");
}

static int cmd_flush_print(const struct flush_options *o, const char *tenant, const struct flush_result *f)
{
    if (o->prefix.operator.common.json) {
        int code = report_json(json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "tenant", tenant, "tokens",
            (json_int_t) cmd_flush_tokens(f->plan.n), "from", (json_int_t) cmd_flush_tokens(f->plan.first),
            "forgotten_pages", (json_int_t) f->n_forgotten, "memory_pages", (json_int_t) f->reply.pages,
            "held", (json_int_t) f->reply.held, "found_tokens", (json_int_t) f->found_tokens, "shared_tokens",
            (json_int_t) cmd_flush_tokens(f->plan.n_shared)));

        return code == COMMAND_OK && f->n_forgotten == 0 ? COMMAND_FAILED : code;
    }

    if (f->n_forgotten == 0)
        terminal_print(stdout, 2, "no page was forgotten: %s\n",
                       f->plan.n_found == 0
                           ? "no page of this prompt is in memory, on the disk or in the cluster"
                           : "none of the prompt's own pages is found");
    else
        terminal_print(stdout, 2, "tokens %zu to %zu are forgotten, with what continues them: %zu pages%s\n",
                       cmd_flush_tokens(f->plan.first), cmd_flush_tokens(f->plan.n_found) - 1, f->n_forgotten,
                       f->reply.held > 0 ? "; sequences that hold some of them keep these" : "");
    cmd_flush_print_found(f);
    return f->n_forgotten > 0 ? COMMAND_OK : COMMAND_FAILED;
}

/* ---- the request ---- */

static int cmd_flush_confirm(const struct flush_options *o, const char *tenant, const struct flush_plan *plan)
{
    return operator_confirm(
        &o->prefix.operator,
        "Clients of %s no longer find tokens %zu to %zu of the prompt, nor what continues "
        "them.",
        tenant, cmd_flush_tokens(plan->first), cmd_flush_tokens(plan->n_found) - 1);
}

/* Flushes what the plan says, and looks again: a client may have published pages meanwhile. */
static int cmd_flush_do(kvc_client *c, const struct flush_options *o, const struct prefix_subject *s,
                        struct flush_result *f)
{
    _cleanup_(prompt_places_deinit) struct prompt_places after = {.n_chunks = 0};
    const struct document *d = &o->prefix.prompt.document;
    size_t n_flushed = cmd_flush_tokens(f->plan.n - f->plan.first), n_left = 0;
    struct errmsg e = {""};
    int code;

    if (operator_flush(c, &s->prefix, d->tokens, d->n_tokens, n_flushed, &f->reply, &e) < 0)
        return command_fail("%s", e.text);

    code = prompt_places_load(c, &s->prefix, d, false, &after);
    if (code != COMMAND_OK)
        return code;

    for (size_t i = f->plan.first; i < after.n_chunks; i++)
        n_left += prompt_places_n_pages(&after, i);
    f->n_forgotten = f->plan.n_pages > n_left ? f->plan.n_pages - n_left : 0;
    f->found_tokens = prompt_places_findable(&after);
    return COMMAND_OK;
}

static int cmd_flush_request(kvc_client *c, void *ctx)
{
    _cleanup_(prompt_places_deinit) struct prompt_places places = {.n_chunks = 0};
    const struct flush_options *o = ctx;
    struct flush_result f = {.reply = KVCOBRA__FLUSH_REPLY__INIT};
    struct prefix_subject s;
    int code = prefix_options_find(&o->prefix, c, &s);

    if (code != COMMAND_OK)
        return code;

    code = prompt_places_load(c, &s.prefix, &o->prefix.prompt.document, true, &places);
    if (code != COMMAND_OK)
        return code;

    f.plan = cmd_flush_plan(o, &places);
    f.found_tokens = prompt_places_findable(&places);
    if (f.plan.first >= f.plan.n_found)
        return cmd_flush_print(o, s.tenant, &f);
    if (!cmd_flush_confirm(o, s.tenant, &f.plan))
        return COMMAND_FAILED;

    code = cmd_flush_do(c, o, &s, &f);
    return code == COMMAND_OK ? cmd_flush_print(o, s.tenant, &f) : code;
}

static int cmd_flush_run(int argc, char **argv)
{
    struct flush_options o = {.from = 0};

    command_parse(&argp, argc, argv, &o);
    return prefix_options_run(&o.prefix, cmd_flush_request, &o);
}

COMMAND(cmd_flush) = {
    .name = "flush",
    .summary = "make a prompt unfindable for a tenant's clients",
    .run = cmd_flush_run,
    .rank = 260,
    .related = "lookup evict",
};
