/* kvcobra export: writes the pages of a prompt to a file. */
#include <poll.h>
#include <stdbool.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra-tiers.h"
#include "tools/command/client_model.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/operator_tables.h"
#include "tools/command/output_path.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/operate/prompt_options.h"

enum { OPT_TABLE = 1, OPT_REPEATABLE, OPT_SOCKET, OPT_TIMEOUT };
enum { FETCH_MS = 8000 };

struct export_options {
    struct common_options common;
    struct prompt_options prompt;
    const char *output, *table, *socket;
    uint32_t timeout_ms;
    bool repeatable;
};

static const char doc[] =
    "Write the published pages of a prompt to a file, which 'kvcobra import' reads: for another host, or for "
    "later. Pages of the disk and of the cluster are fetched first. The file is as confidential as the "
    "prompt, so its pages are sealed: programs of the same tenant open them, on this host or on one whose "
    "kvcobrad has the same key file and calls the tenant alike.\v" PROMPT_OPTIONS_DOC
    " The pages are those of the model's active table, or of --table. Without --model, --table says which "
    "model it is.\n\n"
    "Examples:\n\n"
    "  kvcobra export --model model.gguf --prompt-file manual.txt -o manual.pages\n"
    "  kvcobra export --model model.gguf --prompt-file manual.txt --table 651ed3 \\\n"
    "      -o manual.pages";

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write the pages here (required)", 1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "Pages of this table; at least the first six digits of its digest (default: the active one)", 1},
    {"repeatable", OPT_REPEATABLE, NULL, 0, "Pages of runs with repeatable attention", 2},
    {"socket", OPT_SOCKET, "PATH", 0,
     "The daemon's socket (default: $KVCOBRA_SOCKET; else the socket of your kvcobrad --user, if it runs; "
     "else "
     "/run/kvcobra/kvcobra.sock)",
     80},
    OPTION_TIMEOUT(OPT_TIMEOUT, 80),
    {0},
};

static void cmd_export_check(const struct export_options *o, const struct argp_state *state)
{
    if (!o->output)
        argp_error(state, "-o is needed: the file to write");
    if (o->prompt.tokens_file && !o->table)
        argp_error(state, "--tokens-file needs --table: token ids do not say which model they are of");
}

static error_t cmd_export_parse(int key, char *arg, struct argp_state *state)
{
    struct export_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->prompt;
        state->child_inputs[1] = &o->common;
        return 0;
    case 'o':
        o->output = arg;
        return 0;
    case OPT_TABLE:
        operator_check_digest(state, "--table", arg);
        o->table = arg;
        return 0;
    case OPT_REPEATABLE:
        o->repeatable = true;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    case ARGP_KEY_END:
        cmd_export_check(o, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp_child children[] = {
    {&prompt_options_argp, 0, NULL, 0}, {&common_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {options, cmd_export_parse, NULL, doc, children, NULL, NULL};

/* ---- model and sequence ---- */

/* The table of --table, and its model. Return: an exit code. */
static int cmd_export_find_table(kvc_client *c, const struct export_options *o,
                                 uint8_t ret_table[KVC_DIGEST_BYTES], uint8_t ret_model[KVC_DIGEST_BYTES])
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    struct errmsg e = {""};
    int code = operator_find_table(c, o->table, ret_table);

    if (code != COMMAND_OK)
        return code;
    if (operator_list_tables(c, &list, &e) < 0)
        return command_fail("%s", e.text);

    for (size_t i = 0; i < list->n_tables; i++)
        if (memcmp(list->tables[i]->digest.data, ret_table, KVC_DIGEST_BYTES) == 0) {
            memcpy(ret_model, list->tables[i]->model_digest.data, KVC_DIGEST_BYTES);
            return COMMAND_OK;
        }
    return command_fail("the daemon no longer has table %s", o->table);
}

/* A sequence that may match the prompt; its model is freed with the client. Return: an exit code. */
static int cmd_export_open(kvc_client *c, const struct export_options *o, kvc_seq **ret)
{
    const struct prompt_options *p = &o->prompt;
    uint8_t table[KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES];
    double freq[KVC_ROPE_FREQ_MAX];
    kvc_model_id id = {.struct_bytes = sizeof(id),
                       .geometry = {.struct_bytes = sizeof(kvc_geometry)},
                       .first_kv_head = p->first_head,
                       .n_kv_heads_here = p->n_heads};
    kvc_seq_options so = {.struct_bytes = sizeof(so),
                          .salt = p->salt,
                          .salt_bytes = p->salt ? strlen(p->salt) : 0,
                          .fetch_ms = FETCH_MS,
                          .flags = KVC_SEQ_COUNTED | (o->repeatable ? KVC_SEQ_REPEATABLE : 0)};
    kvc_model *m;

    if (o->table) {
        int code = cmd_export_find_table(c, o, table, model);

        if (code != COMMAND_OK)
            return code;
        so.table_digest = table;
    }
    memcpy(id.model_digest, p->model ? p->model_digest : model, sizeof(id.model_digest));
    if (kvc_client_get_geometry(c, id.model_digest, &id.geometry, freq) < 0 ||
        kvc_model_open(c, &id, &m) < 0 || kvc_seq_new_with(m, &so, ret) < 0)
        return command_fail("%s", kvc_last_error(c));
    return COMMAND_OK;
}

/* ---- the pages ---- */

/* All whole chunks, also the last one: nothing is computed here. Return: 0; a negative errno. */
static int cmd_export_match(kvc_seq *s, const struct document *d)
{
    kvc_fetch *f;
    size_t n;
    int r = kvc_fetch_start(s, d->tokens, d->n_tokens, 0, &f);

    if (r < 0)
        return r;
    while ((r = kvc_fetch_result(f, &n)) == -EINPROGRESS) {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        (void) poll(&p, 1, -1);
    }
    kvc_fetch_free(f);
    return r;
}

static int cmd_export_print(const struct export_options *o, size_t n_tokens, uint64_t n_bytes)
{
    char size[HUMAN_BYTES];

    if (o->common.json)
        return report_json(json_pack(
            "{s:s, s:I, s:I, s:I, s:I}", "file", o->output, "pages",
            (json_int_t) (n_tokens / KVC_CHUNK_TOKENS), "tokens", (json_int_t) n_tokens, "prompt_tokens",
            (json_int_t) o->prompt.document.n_tokens, "bytes", (json_int_t) n_bytes));

    terminal_print(stdout, 2, "%zu pages with the first %zu of %zu tokens, %s in %s\n",
                   n_tokens / KVC_CHUNK_TOKENS, n_tokens, o->prompt.document.n_tokens,
                   human_bytes(n_bytes, size), o->output);
    return COMMAND_OK;
}

static int cmd_export_write(kvc_client *c, kvc_seq *s, const struct export_options *o)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.stream = NULL, .fd = -1};
    struct errmsg e = {""};
    size_t n_tokens;
    off_t n_bytes;
    int r = atomic_file_start(o->output, &f, &e);

    if (r < 0)
        return command_fail("%s", e.text);

    r = kvc_seq_export(s, f.fd, &n_tokens);
    if (r == -ENODATA)
        return command_fail("no page of this prompt is found for this user: 'kvcobra lookup' says why");
    if (r < 0)
        return command_fail("%s: %s", o->output, kvc_last_error(c));

    n_bytes = lseek(f.fd, 0, SEEK_CUR);
    if (atomic_file_commit(&f, &e) < 0)
        return command_fail("%s", e.text);
    return cmd_export_print(o, n_tokens, n_bytes > 0 ? (uint64_t) n_bytes : 0);
}

static int cmd_export_do(const struct export_options *o)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL; /* freed before its client */
    struct errmsg e = {""};
    int code;

    if (client_open_at(KVC_SOCKET_CLIENTS, o->socket, o->timeout_ms, &c, &e) < 0)
        return command_fail("%s", e.text);

    code = cmd_export_open(c, o, &s);
    if (code != COMMAND_OK)
        return code;
    if (cmd_export_match(s, &o->prompt.document) < 0)
        return command_fail("%s", kvc_last_error(c));
    return cmd_export_write(c, s, o);
}

static int cmd_export_run(int argc, char **argv)
{
    struct export_options o = {.output = NULL};
    struct errmsg e = {""};
    int code;

    command_parse(&argp, argc, argv, &o);
    const char *const inputs[] = {o.prompt.model, o.prompt.prompt_file, o.prompt.tokens_file};
    if (output_check(o.output, inputs, sizeof(inputs) / sizeof(*inputs), &e) < 0 ||
        prompt_options_load(&o.prompt, &e) < 0)
        code = command_fail("%s", e.text);
    else
        code = cmd_export_do(&o);
    prompt_options_deinit(&o.prompt);
    return code;
}

COMMAND(cmd_export) = {
    .name = "export",
    .summary = "write the pages of a prompt to a file",
    .run = cmd_export_run,
    .rank = 230,
    .related = "import lookup",
};
