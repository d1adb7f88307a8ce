/* kvcobra generate: continues a prompt with the exact cache, a table file, or the pool of a daemon. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/utf8.h"
#include "tools/command/client_model.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/generation.h"
#include "tools/command/human.h"
#include "tools/command/option.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/demo/chat_prompt.h"
#include "tools/engine/engine.h"
#include "tools/engine/tokenizer.h"

enum {
    OPT_PROMPT = 1,
    OPT_PROMPT_FILE,
    OPT_QUESTION,
    OPT_TABLE,
    OPT_SHARE,
    OPT_SOCKET,
    OPT_TIMEOUT,
    OPT_REPEATABLE,
    OPT_EXACT,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_IGNORE_EOS,
    OPT_LABEL,
    OPT_REPORT,
    OPT_MOMENTS
};

enum { DEFAULT_TOKENS = 128 };

struct generate_options {
    struct common_options common;
    const char *model, *prompt, *prompt_file, *question, *table, *label;
    const char *socket; /* NULL: without a daemon; "": found by kvc_socket_path() */
    bool exact, repeatable, ignore_eos, moments;
    double report; /* percent of new chunks */
    size_t n_tokens;
    float temperature;
    uint64_t seed;
    uint32_t timeout_ms; /* 0: not given */
};

/* Destination of new tokens: stdout at once, or the JSON document at the end. */
struct cmd_generate_output {
    const struct tokenizer *tokenizer;
    bool stream;
    char *text; /* with --json */
    size_t n_text;
    struct progress progress;
};

static const char doc[] =
    "Continue a prompt and measure the speed.\vWith --share, tokens that another process published are not "
    "computed again, and tokens computed here are published. The summary on standard error has the time to "
    "the first token (with opening the cache, without loading the model), tokens per second, prompt tokens "
    "found, and bytes shared.\n\n"
    "A run that finds tokens of its prompt may print another text than one that computes all of them: the "
    "latter reads the keys and values of the piece that it computes exactly, the former reads decoded ones, "
    "so the two differ by the error of the codes. With --repeatable both print the same text: every token "
    "reads its own chunk of 64 tokens exactly and all earlier ones from codes. Runs with --repeatable find "
    "only tokens that such runs published. kvcobra eval --hits measures the difference.\n\n"
    "Examples:\n\n"
    "  kvcobra generate model.gguf --prompt 'The capital of France is'\n"
    "  kvcobra generate model.gguf --prompt-file manual.txt --table model-3.table\n"
    "  kvcobra generate model.gguf --prompt-file manual.txt --share\n"
    "  kvcobra generate model.gguf --prompt-file manual.txt --share --repeatable \\\n"
    "      --question 'What is this about?'";

static const struct argp_option options[] = {
    {"prompt", OPT_PROMPT, "TEXT", 0,
     "The text to continue; control tokens such as <|im_start|> are recognised", 1},
    {"prompt-file", OPT_PROMPT_FILE, "FILE", 0,
     "A file with the text to continue; control tokens in it are plain text", 1},
    {"question", OPT_QUESTION, "TEXT", 0,
     "With --prompt-file: answer this question about the text of the file, in the model's form of a chat", 1},
    {"exact", OPT_EXACT, NULL, 0, "Do not compress keys and values (default)", 2},
    {"table", OPT_TABLE, "TABLE", 0, "Compress with this table file, without a daemon", 2},
    {"share", OPT_SHARE, NULL, 0, "Compress with the active table of a daemon, and share pages", 2},
    {"socket", OPT_SOCKET, "PATH", 0,
     "--share with the daemon at this socket (default: $KVCOBRA_SOCKET; else the socket of your kvcobrad "
     "--user, if it runs; else /run/kvcobra/kvcobra.sock)",
     2},
    OPTION_TIMEOUT(OPT_TIMEOUT, 2),
    {"repeatable", OPT_REPEATABLE, NULL, 0,
     "With --table or --share: print the same text whether or not tokens of the prompt are found; slower", 2},
    {"report", OPT_REPORT, "PERCENT", 0,
     "With --share: measure the error on this share of new chunks and report sums of errors to the daemon "
     "(no text and no vectors)",
     2},
    {"moments", OPT_MOMENTS, NULL, 0,
     "With --report: also report second moments of keys and values, for kvcobra recalibrate", 2},
    {"tokens", OPT_TOKENS, "N", 0, "Maximum number of tokens to generate (default 128)", 3},
    {"temperature", OPT_TEMPERATURE, "T", 0,
     "Temperature of sampling; 0: always the likeliest token (default 0)", 3},
    {"seed", OPT_SEED, "N", 0, "Seed of sampling at a temperature above 0 (default 0)", 3},
    {"label", OPT_LABEL, "NAME", 0, "Begin the summary with this name, to distinguish several runs", 3},
    {"ignore-eos", OPT_IGNORE_EOS, NULL, 0, "Continue after the model's end-of-text token", 3},
    {0},
};

static void cmd_generate_check(const struct generate_options *o, const struct argp_state *state)
{
    if (!o->model)
        argp_error(state, "a MODEL is needed");
    if (!o->prompt == !o->prompt_file)
        argp_error(state, "either --prompt or --prompt-file is needed");
    if (o->question && !o->prompt_file)
        argp_error(state, "--question is about the text of --prompt-file");
    if ((o->table != NULL) + (o->socket != NULL) + o->exact > 1)
        argp_error(state, "--table, --share (or --socket) and --exact exclude each other");
    if (o->repeatable && !o->table && !o->socket)
        argp_error(state, "--repeatable needs --table or --share");
    if (o->timeout_ms > 0 && !o->socket)
        argp_error(state, "--timeout needs --share");
    if (o->report > 0 && !o->socket)
        argp_error(state, "--report needs --share");
    if (o->moments && o->report <= 0)
        argp_error(state, "--moments needs --report");
}

static error_t cmd_generate_parse_prompt(struct generate_options *o, int key, char *arg)
{
    switch (key) {
    case OPT_PROMPT:
        o->prompt = arg;
        return 0;
    case OPT_PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case OPT_QUESTION:
        o->question = arg;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static error_t cmd_generate_parse(int key, char *arg, struct argp_state *state)
{
    struct generate_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_TABLE:
        o->table = arg;
        return 0;
    case OPT_SHARE:
        o->socket = o->socket ? o->socket : ""; /* found by the library */
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    case OPT_REPEATABLE:
        o->repeatable = true;
        return 0;
    case OPT_EXACT:
        o->exact = true;
        return 0;
    case OPT_TOKENS:
        o->n_tokens = option_uint(state, "--tokens", arg, 1, (uint64_t) 1 << 24);
        return 0;
    case OPT_TEMPERATURE:
        o->temperature = (float) option_double(state, "--temperature", arg, 0, 100);
        return 0;
    case OPT_SEED:
        o->seed = option_uint(state, "--seed", arg, 0, UINT64_MAX);
        return 0;
    case OPT_LABEL:
        o->label = arg;
        return 0;
    case OPT_REPORT:
        o->report = option_double(state, "--report", arg, 0, 100);
        return 0;
    case OPT_MOMENTS:
        o->moments = true;
        return 0;
    case OPT_IGNORE_EOS:
        o->ignore_eos = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model)
            argp_error(state, "one MODEL only; '%s' is one argument too many", arg);
        o->model = arg;
        return 0;
    case ARGP_KEY_END:
        cmd_generate_check(o, state);
        return 0;
    }

    return cmd_generate_parse_prompt(o, key, arg);
}

static const struct argp argp = {options, cmd_generate_parse, "MODEL", doc, common_children, NULL, NULL};

static int cmd_generate_append_text(struct cmd_generate_output *out, const char *piece, size_t bytes)
{
    char *text = realloc(out->text, out->n_text + bytes + 1);

    if (!text)
        return -ENOMEM;

    memcpy(text + out->n_text, piece, bytes);
    out->text = text;
    out->n_text += bytes;
    out->text[out->n_text] = '\0';
    return 0;
}

static int cmd_generate_emit(void *ctx, uint32_t token)
{
    struct cmd_generate_output *out = ctx;
    size_t bytes;
    const char *piece = tokenizer_piece(out->tokenizer, token, &bytes);

    progress_end(&out->progress); /* the progress line must not mix with the text */
    if (!piece)                   /* padding of the vocabulary */
        return 0;
    if (!out->stream)
        return cmd_generate_append_text(out, piece, bytes);
    if (fwrite(piece, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return -errno; /* a closed pipe or a full disk; the exit prints the sentence */

    return 0;
}

static void cmd_generate_prompt_progress(void *ctx, size_t n_done)
{
    struct cmd_generate_output *out = ctx;

    progress_update(&out->progress, (double) n_done);
}

/* On a terminal, the end of the prompt in grey, so that the text does not begin in the middle; or the
 * question. */
static void cmd_generate_show_prompt(const struct engine *en, const struct generate_options *o,
                                     const struct document *prompt)
{
    enum { SHOWN_TOKENS = 16 };
    size_t first = prompt->n_tokens > SHOWN_TOKENS ? prompt->n_tokens - SHOWN_TOKENS : 0;

    if (o->common.json || terminal_width(stdout) == 0)
        return;

    printf("\033[2m%s", first > 0 || o->question ? "... " : "");
    if (o->question)
        printf("%s\n", o->question);
    for (size_t i = first; !o->question && i < prompt->n_tokens; i++) {
        size_t bytes = 0;
        const char *piece = tokenizer_piece(engine_tokenizer(en), prompt->tokens[i], &bytes);

        for (size_t k = 0; piece && k < bytes; k++)
            putchar(iscntrl((unsigned char) piece[k]) ? ' ' : piece[k]);
    }
    printf("\033[0m");
    (void) fflush(stdout);
}

/* Turns reports to the daemon on if the options ask for them. */
static int cmd_generate_enable_reports(kvc_client *c, kvc_model *m, const struct generate_options *o,
                                       struct errmsg *e)
{
    kvc_report_options ro = {
        .struct_bytes = sizeof(ro),
        .share_ppm = (uint32_t) lround(o->report * 1e4),
        .moments = o->moments,
    };
    int r = o->report > 0 ? kvc_model_report(m, &ro) : 0;

    return r < 0 ? fail(e, r, "%s", kvc_last_error(c)) : 0;
}

/* The prompt, with a BOS in front if the model has one. */
static int cmd_generate_load_prompt(const struct engine *en, const struct generate_options *o,
                                    struct document *ret, struct errmsg *e)
{
    const struct engine_info *info = engine_info(en);
    _cleanup_(document_deinit) struct document d = {0};
    int r;

    if (o->prompt && utf8_error(o->prompt, strlen(o->prompt)) < strlen(o->prompt))
        return fail(e, -EINVAL, "the prompt is not UTF-8 text");
    if (o->question && utf8_error(o->question, strlen(o->question)) < strlen(o->question))
        return fail(e, -EINVAL, "the question is not UTF-8 text");
    if (o->prompt_file)
        r = document_load(en, o->prompt_file, &d, e);
    else
        r = tokenizer_encode(engine_tokenizer(en), o->prompt, strlen(o->prompt), true, &d.tokens, &d.n_tokens,
                             e);
    if (r == 0 && o->question)
        r = chat_prompt_make(en, o->question, &d, e);
    if (r == 0)
        r = document_add_bos(en, &d, e);
    if (r < 0)
        return r;
    if (d.n_tokens == 0)
        return fail(e, -EINVAL, "the prompt is empty");
    if (d.n_tokens + o->n_tokens > info->n_context)
        return fail(e, -EINVAL, "the prompt has %zu tokens; with %zu more it exceeds the %u that %s can read",
                    d.n_tokens, o->n_tokens, info->n_context, o->model);

    *ret = d;
    d = (struct document){0};
    return 0;
}

static int cmd_generate_run_exact(struct engine *en, const struct document *prompt,
                                  const struct generate_options *o, const struct generation_options *go,
                                  struct generation *ret, struct errmsg *e)
{
    _cleanup_(exact_cache_freep) struct exact_cache *exact = NULL;
    struct kv_cache cache;
    int r;

    r = exact_cache_new(engine_geometry(en), prompt->n_tokens + o->n_tokens, &exact, e);
    if (r < 0)
        return r;

    cache = exact_cache_ops(exact);
    return generation_run(en, &cache, NULL, NULL, prompt->tokens, prompt->n_tokens, go, ret, e);
}

static int cmd_generate_run_compressed(struct engine *en, const struct document *prompt,
                                       const struct generate_options *o, const struct generation_options *go,
                                       struct generation *ret, kvc_usage *ret_usage, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL; /* freed before its client */
    double start = clock_seconds();
    const kvc_seq_options so = {.struct_bytes = sizeof(so), .flags = o->repeatable ? KVC_SEQ_REPEATABLE : 0};
    kvc_usage usage = {.struct_bytes = sizeof(usage)};
    struct generation g;
    struct kv_cache cache;
    kvc_model *m;
    int r;

    r = o->socket ? client_open_at(KVC_SOCKET_CLIENTS, o->socket, o->timeout_ms, &c, e)
                  : client_open(NULL, &c, e);
    if (r < 0)
        return r;

    r = model_open(c, en, o->table, &m, e);
    if (r < 0)
        return r;

    r = cmd_generate_enable_reports(c, m, o, e);
    if (r < 0)
        return r;

    r = kvc_seq_new_with(m, &so, &s);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    start = clock_seconds() - start; /* duration of opening */
    cache = kvcobra_cache_ops(c, s);
    r = generation_run(en, &cache, c, s, prompt->tokens, prompt->n_tokens, go, &g, e);
    if (r != 0)
        return r;

    r = kvc_seq_get_usage(s, &usage);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    g.first_seconds += start;
    *ret = g;
    *ret_usage = usage;
    return 0;
}

static double cmd_generate_tokens_per_second(const struct generation *g)
{
    return g->n_generated > 1 && g->rest_seconds > 0 ? (double) (g->n_generated - 1) / g->rest_seconds : 0;
}

static void cmd_generate_print_summary(const struct generate_options *o, const struct document *prompt,
                                       const struct generation *g, const kvc_usage *u)
{
    char first[HUMAN_BYTES], held[HUMAN_BYTES], exact[HUMAN_BYTES], shared[HUMAN_BYTES];
    const char *label = o->label ? o->label : "", *colon = o->label ? ": " : "";

    command_note(&o->common,
                 "%s%sfirst token after %s, then %.1f tokens/s; prompt of %zu tokens, %zu of them found in "
                 "shared pages",
                 label, colon, human_seconds(g->first_seconds, first), cmd_generate_tokens_per_second(g),
                 prompt->n_tokens, g->n_matched);
    if (u->tokens > 0)
        command_note(&o->common, "%s%scache of %ju tokens: %s (binary16: %s), %s of it shared", label, colon,
                     (uintmax_t) u->tokens, human_bytes(usage_bytes(u), held),
                     human_bytes(u->numbers * 2, exact), human_bytes(u->shared_bytes, shared));
    if (g->publish_err < 0)
        command_note(&o->common, "%s%spublishing ended early: %s", label, colon, g->publish_text);
}

static int cmd_generate_print_json(const struct cmd_generate_output *out, const struct document *prompt,
                                   const struct generation *g, const kvc_usage *u)
{
    /* utf8_json(): the text may end inside a character */
    json_t *text = utf8_json(out->text ? out->text : "", out->n_text);

    return report_json(json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:I, s:I, s:I, s:s}", "text", text, "prompt_tokens",
        (json_int_t) prompt->n_tokens, "matched_tokens", (json_int_t) g->n_matched, "generated_tokens",
        (json_int_t) g->n_generated, "published_tokens", (json_int_t) g->n_published, "ended", g->ended,
        "first_token_seconds", g->first_seconds, "tokens_per_second", cmd_generate_tokens_per_second(g),
        "bytes", (json_int_t) usage_bytes(u), "bytes_binary16", (json_int_t) u->numbers * 2, "shared_bytes",
        (json_int_t) u->shared_bytes, "not_published_because", g->publish_text));
}

static int cmd_generate_and_print(struct engine *en, const struct document *prompt,
                                  const struct generate_options *o, struct cmd_generate_output *out)
{
    const struct generation_options go = {
        .n_tokens = o->n_tokens,
        .temperature = o->temperature,
        .seed = o->seed,
        .ignore_eos = o->ignore_eos,
        .piece_tokens = o->repeatable ? KVC_CHUNK_TOKENS : 0,
        .emit = cmd_generate_emit,
        .progress = cmd_generate_prompt_progress,
        .ctx = out,
    };
    struct errmsg e = {""};
    struct generation g;
    kvc_usage usage = {0};
    int r;

    progress_start(&out->progress, "reading the prompt", "tokens", (double) prompt->n_tokens,
                   o->common.quiet);
    if (o->table || o->socket)
        r = cmd_generate_run_compressed(en, prompt, o, &go, &g, &usage, &e);
    else
        r = cmd_generate_run_exact(en, prompt, o, &go, &g, &e);
    progress_end(&out->progress);
    if (r < 0 && ferror(stdout))
        return COMMAND_FAILED; /* the exit prints the sentence */
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : strerror(-r));
    if (o->common.json)
        return cmd_generate_print_json(out, prompt, &g, &usage);

    putchar('\n');
    (void) fflush(stdout);
    cmd_generate_print_summary(o, prompt, &g, &usage);
    return COMMAND_OK;
}

static int cmd_generate_run(int argc, char **argv)
{
    struct generate_options o = {.n_tokens = DEFAULT_TOKENS};
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(document_deinit) struct document prompt = {0};
    struct errmsg e = {""};
    struct cmd_generate_output out;
    int r;

    command_parse(&argp, argc, argv, &o);
    r = engine_open(o.model, &eo, &en, &e);
    if (r == 0)
        r = cmd_generate_load_prompt(en, &o, &prompt, &e);
    if (r < 0)
        return command_fail("%s", e.text);

    cmd_generate_show_prompt(en, &o, &prompt);
    out = (struct cmd_generate_output){.tokenizer = engine_tokenizer(en), .stream = !o.common.json};
    r = cmd_generate_and_print(en, &prompt, &o, &out);
    free(out.text);
    return r;
}

COMMAND(cmd_generate) = {
    .name = "generate",
    .summary = "continue a prompt, also with the shared pages of a daemon",
    .run = cmd_generate_run,
    .rank = 70,
    .related = "table",
};
