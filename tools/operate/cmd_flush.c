/* kvcobra flush: makes a prefix, and what continues it, unfindable for the clients of a tenant. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"
#include "tools/command/tenant_name.h"
#include "tools/command/terminal.h"
#include "tools/engine/engine.h"

enum { OPT_TENANT = 1, OPT_TABLE, OPT_MODEL, OPT_PROMPT_FILE, OPT_TOKENS_FILE, OPT_SALT, OPT_HEADS };
enum { TOKENS_FILE_BYTES_MAX = 64 << 20 };

struct flush_options {
    struct operator_options operator;
    const char *tenant, *table, *model, *prompt_file, *tokens_file, *salt;
    uint32_t first_head, n_heads; /* n_heads 0: all */
    struct document prefix;
};

static const char doc[] =
    "Make a prefix unfindable: no client of the tenant finds its last page of 64 tokens in memory, on the "
    "disk or in the cluster, "
    "nor anything that continues it. Pages of the tokens before that stay, since other prompts begin with "
    "them. "
    "Running sequences keep the pages that they hold.\vThe prefix is that of a prompt file, as 'kvcobra "
    "generate "
    "MODEL --prompt-file' reads it, or a file of token ids: numbers with blanks, commas or line ends between "
    "them. Tokens beyond the last whole 64 are not looked at. If a client computes and publishes the prefix "
    "again, "
    "what continued it and was not evicted since is found again: 'kvcobra evict' removes pages "
    "themselves.\n\n"
    "Examples:\n\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt\n"
    "  kvcobra flush --tenant uid-1000 --table 651ed3 \\\n"
    "      --model model.gguf --prompt-file manual.txt";

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "NAME", 0,
     "Whose pages: the name of a user, uid-1000, or the name of a section in kvcobrad.conf, with @gpu0 on a "
     "GPU "
     "(required)",
     1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "With this table; at least the first six digits of its digest (required)", 1},
    {"model", OPT_MODEL, "MODEL", 0, "With --prompt-file: the GGUF file whose tokeniser reads it", 1},
    {"prompt-file", OPT_PROMPT_FILE, "FILE", 0, "The text of the prefix", 1},
    {"tokens-file", OPT_TOKENS_FILE, "FILE", 0, "The token ids of the prefix", 1},
    {"salt", OPT_SALT, "TEXT", 0, "The salt of the sequences (default: none)", 1},
    {"heads", OPT_HEADS, "FIRST,N", 0, "The KV heads of the clients' shard (default: all)", 1},
    {0},
};

static void cmd_flush_set_heads(const struct argp_state *state, struct flush_options *o, const char *arg)
{
    unsigned long long first, n;
    char end;

    if (sscanf(arg, "%5llu,%5llu%c", &first, &n, &end) != 2 || n == 0)
        argp_error(state, "--heads takes the first KV head and their number, such as 0,4, not '%s'", arg);
    o->first_head = (uint32_t) first;
    o->n_heads = (uint32_t) n;
}

static void cmd_flush_check(const struct flush_options *o, const struct argp_state *state)
{
    if (!o->tenant || !o->table)
        argp_error(state, "--tenant and --table are needed");
    if (!o->prompt_file == !o->tokens_file)
        argp_error(state, "either --prompt-file or --tokens-file is needed");
    if (!o->prompt_file != !o->model)
        argp_error(state, "--prompt-file and --model belong together");
    if (o->salt && strlen(o->salt) > KVC_SALT_BYTES_MAX)
        argp_error(state, "--salt has %zu bytes, at most %d", strlen(o->salt), KVC_SALT_BYTES_MAX);
}

static error_t cmd_flush_parse(int key, char *arg, struct argp_state *state)
{
    struct flush_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_TENANT:
        o->tenant = arg;
        return 0;
    case OPT_TABLE:
        operator_check_digest(state, "--table", arg);
        o->table = arg;
        return 0;
    case OPT_MODEL:
        o->model = arg;
        return 0;
    case OPT_PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case OPT_TOKENS_FILE:
        o->tokens_file = arg;
        return 0;
    case OPT_SALT:
        o->salt = arg;
        return 0;
    case OPT_HEADS:
        cmd_flush_set_heads(state, o, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case ARGP_KEY_END:
        cmd_flush_check(o, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_flush_parse, NULL, doc, operator_children, NULL, NULL};

/* ---- the prefix ---- */

/* The numbers of @text, which is @n_bytes long, into @tokens with room for every second byte. */
static int cmd_flush_parse_tokens(const char *text, size_t n_bytes, uint32_t *tokens, size_t *ret_n)
{
    uint64_t value = 0;
    size_t n = 0;
    bool is_in_number = false;

    for (size_t i = 0; i <= n_bytes; i++) {
        char c = '\n'; /* ends the last number */

        if (i < n_bytes)
            c = text[i];
        if (c >= '0' && c <= '9') {
            value = value * 10 + (uint64_t) (c - '0');
            is_in_number = true;
            if (value > UINT32_MAX)
                return -ERANGE;
        } else if (c == '\0' || !strchr(" \t\r\n,[]", c)) {
            return -EINVAL;
        } else if (is_in_number) {
            tokens[n++] = (uint32_t) value;
            value = 0;
            is_in_number = false;
        }
    }

    *ret_n = n;
    return 0;
}

static int cmd_flush_load_tokens(struct flush_options *o, struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    size_t n_bytes;
    int r = atomic_file_read(o->tokens_file, TOKENS_FILE_BYTES_MAX, &text, &n_bytes, e);

    if (r < 0)
        return r;

    o->prefix.tokens = calloc(n_bytes / 2 + 1, sizeof(*o->prefix.tokens));
    if (!o->prefix.tokens)
        return fail(e, -ENOMEM, "out of memory for the tokens of %s", o->tokens_file);

    r = cmd_flush_parse_tokens(text, n_bytes, o->prefix.tokens, &o->prefix.n_tokens);
    if (r == -ERANGE)
        return fail(e, r, "%s is not a list of token ids: it has a number above 4294967295", o->tokens_file);
    if (r < 0)
        return fail(
            e, r,
            "%s is not a list of token ids: it has other characters than digits, blanks, commas and brackets",
            o->tokens_file);
    return 0;
}

static int cmd_flush_load_prompt(struct flush_options *o, struct errmsg *e)
{
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    int r = engine_open(o->model, &eo, &en, e);

    if (r == 0)
        r = document_load(en, o->prompt_file, &o->prefix, e);
    return r < 0 ? r : document_add_bos(en, &o->prefix, e);
}

/* ---- the request ---- */

static int cmd_flush_print(const struct flush_options *o, const char *tenant, const kvc_flush_state *s)
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
    const struct flush_options *o = ctx;
    uint8_t digest[KVC_DIGEST_BYTES];
    char tenant[TENANT_NAME_BYTES];
    kvc_flush_state state = {.struct_bytes = sizeof(state)};
    kvc_flush_options fo = {.struct_bytes = sizeof(fo),
                            .tenant = tenant,
                            .table_digest = digest,
                            .salt = o->salt,
                            .salt_bytes = o->salt ? strlen(o->salt) : 0,
                            .first_kv_head = o->first_head,
                            .n_kv_heads = o->n_heads};
    kvc_quota_state quota;
    int code = tenant_name_find(c, o->tenant, tenant, &quota);

    if (code == COMMAND_OK)
        code = operator_find_table(c, o->table, digest);
    if (code != COMMAND_OK)
        return code;

    if (!operator_confirm(
            &o->operator,
            "Clients of %s no longer find the first %zu tokens of the prefix, nor what continues them.",
            tenant, o->prefix.n_tokens / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS))
        return COMMAND_FAILED;

    if (kvc_flush(c, &fo, o->prefix.tokens, o->prefix.n_tokens, &state) < 0)
        return operator_fail(c);

    return cmd_flush_print(o, tenant, &state);
}

static int cmd_flush_run(int argc, char **argv)
{
    struct flush_options o = {.tenant = NULL};
    struct errmsg e = {""};
    int code = COMMAND_FAILED, r;

    command_parse(&argp, argc, argv, &o);
    r = o.tokens_file ? cmd_flush_load_tokens(&o, &e) : cmd_flush_load_prompt(&o, &e);
    if (r < 0)
        (void) command_fail("%s", e.text);
    else if (o.prefix.n_tokens < KVC_CHUNK_TOKENS)
        (void) command_fail("the prefix has %zu tokens: pages have %d", o.prefix.n_tokens, KVC_CHUNK_TOKENS);
    else
        code = operator_run(&o.operator, cmd_flush_request, &o);
    document_deinit(&o.prefix);
    return code;
}

const struct command cmd_flush = {"flush", "make a prefix unfindable for a tenant's clients", cmd_flush_run};
