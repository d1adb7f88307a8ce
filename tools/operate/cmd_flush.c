/* kvcobra flush: makes a prefix, and what continues it, unfindable for the clients of a tenant. */
#include <stdio.h>

#include "client/kvcobra-tiers.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/operate/prefix_options.h"

static const char doc[] =
    "Make a prefix unfindable: no client of the tenant finds its last page of 64 tokens in memory, on the "
    "disk or in the cluster, nor anything that continues it. Pages of the tokens before that stay, since "
    "other prompts begin "
    "with them. Running sequences keep the pages that they hold. A pin of the page ends.\v" PREFIX_OPTIONS_DOC
    " If a client computes and publishes the prefix again, what continued it and was not evicted since is "
    "found again: 'kvcobra evict' removes pages themselves.\n\n"
    "Examples:\n\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 \\\n"
    "      --model model.gguf --prompt-file manual.txt";

static error_t cmd_flush_parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->input;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {NULL, cmd_flush_parse, NULL, doc, prefix_options_children, NULL, NULL};

static int cmd_flush_print(const struct prefix_options *o, const char *tenant, const kvc_flush_state *s)
{
    if (o->operator.common.json)
        return report_json(json_pack("{s:s, s:I, s:I, s:I}", "tenant", tenant, "tokens",
                                     (json_int_t) s->tokens, "pages", (json_int_t) s->pages, "held",
                                     (json_int_t) s->held));

    if (s->pages == 0)
        terminal_print(stdout, 2, "no page of these %ju tokens was in memory; none is found now\n",
                       (uintmax_t) s->tokens);
    else
        terminal_print(stdout, 2, "the %ju tokens and what continues them are not found now%s\n",
                       (uintmax_t) s->tokens, s->held > 0 ? "; sequences that hold the page keep it" : "");
    return COMMAND_OK;
}

static int cmd_flush_request(kvc_client *c, void *ctx)
{
    const struct prefix_options *o = ctx;
    const struct document *d = &o->document;
    kvc_flush_state state = {.struct_bytes = sizeof(state)};
    struct prefix_subject s;
    int code = prefix_options_find(o, c, &s);

    if (code != COMMAND_OK)
        return code;

    if (!operator_confirm(
            &o->operator,
            "Clients of %s no longer find the first %zu tokens of the prefix, nor what continues them.",
            s.tenant, prefix_options_tokens(o)))
        return COMMAND_FAILED;

    if (kvc_flush(c, &s.options, d->tokens, d->n_tokens, &state) < 0)
        return operator_fail(c);

    return cmd_flush_print(o, s.tenant, &state);
}

static int cmd_flush_run(int argc, char **argv)
{
    struct prefix_options o = {.tenant = NULL};

    command_parse(&argp, argc, argv, &o);
    return prefix_options_run(&o, cmd_flush_request, &o);
}

const struct command cmd_flush = {"flush", "make a prefix unfindable for a tenant's clients", cmd_flush_run};
