/* kvcobra pin and unpin: keep the pages of a prompt in memory for some time, or no longer. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/operate/prefix_options.h"

enum { OPT_FOR = 1 };
enum { SECONDS_MAX = 365 * 86400 };

struct pin_options {
    struct prefix_options prefix;
    bool is_pin;
    uint64_t ms; /* 0: unpin */
};

static const char pin_doc[] =
    "Keep the pages of a prompt in memory for some time: they are not evicted while other pages come and "
    "go. Pages that only the disk or the cluster has are fetched first. It is an error if no page can be "
    "pinned; 'kvcobra lookup' shows where pages are. Pages that are published later are not pinned, and "
    "those that are pinned already get the new time. A tenant may have half of its quota pinned, and all "
    "tenants together half of the pool.\v"
    "A pin ends at its time, with 'kvcobra unpin', 'kvcobra flush' and 'kvcobra evict' of these pages, when "
    "their table is retired or its drain time is over, when another tenant needs the memory that it is "
    "guaranteed, and when kvcobrad restarts.\n\n" PROMPT_OPTIONS_DOC "\n\n"
    "Examples:\n\n"
    "  kvcobra pin --tenant uid-1000 --table 651ed3 --for 2h \\\n"
    "      --model model.gguf --prompt-file manual.txt\n"
    "  kvcobra pin --tenant uid-1000 --table 651ed3 --for 30m \\\n"
    "      --tokens-file tokens.txt";

static const char unpin_doc[] = "End the pins of a prompt's pages, which 'kvcobra pin' began. The pages stay "
                                "in memory until others need the room.\v" PROMPT_OPTIONS_DOC "\n\n"
                                "Example:\n\n"
                                "  kvcobra unpin --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt";

static const struct argp_option options[] = {
    {"for", OPT_FOR, "TIME", 0,
     "How long from now on: a number with s, m, h or d behind it, such as 90s or 2h, at most 365d (required)",
     0},
    {0},
};

/* "90s", "30m", "2h", "7d" in seconds. 0: not a time. */
static uint64_t cmd_pin_seconds(const char *text)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    unsigned long long n;
    char unit, end;

    if (text[0] < '0' || text[0] > '9' || sscanf(text, "%9llu%c%c", &n, &unit, &end) != 2)
        return 0;

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (units[i].unit == unit)
            return n <= SECONDS_MAX / units[i].seconds ? n * units[i].seconds : 0;
    return 0;
}

static error_t cmd_pin_parse(int key, char *arg, struct argp_state *state)
{
    struct pin_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->prefix;
        return 0;
    case OPT_FOR:
        o->ms = cmd_pin_seconds(arg) * 1000;
        if (o->ms == 0)
            argp_error(state, "--for takes a time such as 90s, 30m, 2h or 7d, at most 365d, not '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        if (o->is_pin && o->ms == 0)
            argp_error(state, "--for is needed: how long the pages stay, such as 2h");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp pin_argp = {options, cmd_pin_parse, NULL, pin_doc, prefix_options_children,
                                     NULL,    NULL};
static const struct argp unpin_argp = {NULL, cmd_pin_parse, NULL, unpin_doc, prefix_options_children,
                                       NULL, NULL};

static int cmd_pin_print(const struct pin_options *o, const char *tenant, const Kvcobra__PinReply *s)
{
    char time[HUMAN_BYTES], bytes[HUMAN_BYTES], limit[HUMAN_BYTES];

    if (o->prefix.operator.common.json)
        return report_json(json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "tenant", tenant, "tokens",
            (json_int_t) prompt_options_tokens(&o->prefix.prompt), "pages", (json_int_t) s->pages, "missing",
            (json_int_t) s->missing, "seconds", (json_int_t) (o->ms / 1000), "pinned_bytes",
            (json_int_t) s->pinned_bytes, "limit_bytes", (json_int_t) s->limit_bytes));

    if (o->ms > 0)
        terminal_print(stdout, 2, "%ju pages are pinned for %s", (uintmax_t) s->pages,
                       human_seconds((double) o->ms * 1e-3, time));
    else
        terminal_print(stdout, 2, "the pins of these %ju tokens have ended",
                       (uintmax_t) prompt_options_tokens(&o->prefix.prompt));
    terminal_print(stdout, 2, "; tenant %s has %s pinned, at most %s\n", tenant,
                   human_bytes(s->pinned_bytes, bytes), human_bytes(s->limit_bytes, limit));
    if (o->ms > 0 && s->missing > 0)
        terminal_print(
            stdout, 2,
            "%ju of %ju chunks of %d tokens have no page in memory, and none came: 'kvcobra lookup' says "
            "where they are\n",
            (uintmax_t) s->missing, (uintmax_t) (prompt_options_tokens(&o->prefix.prompt) / KVC_CHUNK_TOKENS),
            KVC_CHUNK_TOKENS);
    return COMMAND_OK;
}

static int cmd_pin_request(kvc_client *c, void *ctx)
{
    const struct pin_options *o = ctx;
    const struct document *d = &o->prefix.prompt.document;
    Kvcobra__PinReply reply;
    struct errmsg e = {""};
    struct prefix_subject s;
    int code = prefix_options_find(&o->prefix, c, &s);

    if (code != COMMAND_OK)
        return code;
    if (o->ms > 0 && !operator_confirm(&o->prefix.operator,
                                       "Pages of the first %zu tokens take memory of tenant %s that nothing "
                                       "else gets before the time is over.",
                                       prompt_options_tokens(&o->prefix.prompt), s.tenant))
        return COMMAND_FAILED;
    if (operator_pin(c, &s.prefix, d->tokens, d->n_tokens, o->ms, &reply, &e) < 0)
        return command_fail("%s", e.text);
    if (o->ms > 0 && reply.pages == 0)
        return command_fail(
            "no page of these tokens is in memory, and none came from the disk or the cluster, "
            "so none is pinned: 'kvcobra lookup' says where they are");

    return cmd_pin_print(o, s.tenant, &reply);
}

static int cmd_pin_run(int argc, char **argv)
{
    struct pin_options o = {.is_pin = true};

    command_parse(&pin_argp, argc, argv, &o);
    return prefix_options_run(&o.prefix, cmd_pin_request, &o);
}

static int cmd_unpin_run(int argc, char **argv)
{
    struct pin_options o = {.ms = 0};

    command_parse(&unpin_argp, argc, argv, &o);
    return prefix_options_run(&o.prefix, cmd_pin_request, &o);
}

COMMAND(cmd_pin) = {
    .name = "pin",
    .summary = "keep the pages of a prompt in memory for some time",
    .run = cmd_pin_run,
    .rank = 210,
    .related = "unpin lookup",
};
COMMAND(cmd_unpin) = {
    .name = "unpin",
    .summary = "end the pins of a prompt's pages",
    .run = cmd_unpin_run,
    .rank = 220,
    .related = "pin",
};
