/* See prefix_options.h. */
#include "tools/operate/prefix_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/stream_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"

enum { OPT_TENANT = 0x2001, OPT_TABLE, OPT_MODEL, OPT_PROMPT_FILE, OPT_TOKENS_FILE, OPT_SALT, OPT_HEADS };
enum { TOKENS_FILE_BYTES_MAX = 64 << 20 };

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "NAME", 0,
     "Whose pages: the name of a user, uid-1000, or the name of a section in kvcobrad.conf, with @gpu0 on a "
     "GPU (required for operators)",
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

static void prefix_options_set_heads(const struct argp_state *state, struct prefix_options *p,
                                     const char *arg)
{
    unsigned long long first, n;
    char end;

    if (sscanf(arg, "%5llu,%5llu%c", &first, &n, &end) != 2 || n == 0)
        argp_error(state, "--heads takes the first KV head and their number, such as 0,4, not '%s'", arg);
    p->first_head = (uint32_t) first;
    p->n_heads = (uint32_t) n;
}

static void prefix_options_check(const struct prefix_options *p, const struct argp_state *state)
{
    if (!p->table || (!p->tenant && !p->may_be_own))
        argp_error(state, p->may_be_own ? "--table is needed" : "--tenant and --table are needed");
    if (!p->prompt_file == !p->tokens_file)
        argp_error(state, "either --prompt-file or --tokens-file is needed");
    if (!p->prompt_file != !p->model)
        argp_error(state, "--prompt-file and --model belong together");
    if (p->salt && strlen(p->salt) > KVC_SALT_BYTES_MAX)
        argp_error(state, "--salt has %zu bytes, at most %d", strlen(p->salt), KVC_SALT_BYTES_MAX);
}

static error_t prefix_options_parse(int key, char *arg, struct argp_state *state)
{
    struct prefix_options *p = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &p->operator;
        return 0;
    case OPT_TENANT:
        p->tenant = arg;
        return 0;
    case OPT_TABLE:
        operator_check_digest(state, "--table", arg);
        p->table = arg;
        return 0;
    case OPT_MODEL:
        p->model = arg;
        return 0;
    case OPT_PROMPT_FILE:
        p->prompt_file = arg;
        return 0;
    case OPT_TOKENS_FILE:
        p->tokens_file = arg;
        return 0;
    case OPT_SALT:
        p->salt = arg;
        return 0;
    case OPT_HEADS:
        prefix_options_set_heads(state, p, arg);
        return 0;
    case ARGP_KEY_END:
        prefix_options_check(p, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp change_argp = {options, prefix_options_parse, NULL, NULL, operator_children, NULL,
                                        NULL};
static const struct argp view_argp = {options, prefix_options_parse, NULL, NULL, operator_view_children, NULL,
                                      NULL};

const struct argp_child prefix_options_children[] = {{&change_argp, 0, NULL, 0}, {0}};
const struct argp_child prefix_options_view_children[] = {{&view_argp, 0, NULL, 0}, {0}};

/* ---- tokens ---- */

/* The numbers of @text, which is @n_bytes long, into @tokens with room for every second byte. */
static int prefix_options_parse_tokens(const char *text, size_t n_bytes, uint32_t *tokens, size_t *ret_n)
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

static int prefix_options_load_tokens(struct prefix_options *p, struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    size_t n_bytes;
    int r = stream_file_read(p->tokens_file, TOKENS_FILE_BYTES_MAX, &text, &n_bytes, e);

    if (r < 0)
        return r;

    p->document.tokens = calloc(n_bytes / 2 + 1, sizeof(*p->document.tokens));
    if (!p->document.tokens)
        return fail(e, -ENOMEM, "out of memory for the tokens of %s", p->tokens_file);

    r = prefix_options_parse_tokens(text, n_bytes, p->document.tokens, &p->document.n_tokens);
    if (r == -ERANGE)
        return fail(e, r, "%s is not a list of token ids: it has a number above 4294967295", p->tokens_file);
    if (r < 0)
        return fail(
            e, r,
            "%s is not a list of token ids: it has other characters than digits, blanks, commas and brackets",
            p->tokens_file);
    return 0;
}

static int prefix_options_load_prompt(struct prefix_options *p, struct errmsg *e)
{
    const struct engine_options eo = {0};
    _cleanup_(engine_freep) struct engine *en = NULL;
    int r = engine_open(p->model, &eo, &en, e);

    if (r == 0)
        r = document_load(en, p->prompt_file, &p->document, e);
    return r < 0 ? r : document_add_bos(en, &p->document, e);
}

int prefix_options_run(struct prefix_options *p, int (*request)(kvc_client *c, void *ctx), void *ctx)
{
    struct errmsg e = {""};
    int code = COMMAND_FAILED;
    int r = p->tokens_file ? prefix_options_load_tokens(p, &e) : prefix_options_load_prompt(p, &e);

    if (r < 0)
        (void) command_fail("%s", e.text);
    else if (p->document.n_tokens < KVC_CHUNK_TOKENS)
        (void) command_fail("the prefix has %zu tokens: pages have %d", p->document.n_tokens,
                            KVC_CHUNK_TOKENS);
    else
        code = operator_run(&p->operator, request, ctx);
    document_deinit(&p->document);
    return code;
}

/* ---- tenant and table ---- */

/* A client's own tenant has no name here: kvcobrad knows it. */
static int prefix_options_find_tenant(const struct prefix_options *p, kvc_client *c,
                                      char ret[static TENANT_NAME_BYTES])
{
    Kvcobra__SetQuotaReply quota;

    ret[0] = '\0';
    if (!p->operator.is_own && !p->tenant)
        return command_fail("--tenant is needed: this user is an operator, who sees all tenants");
    if (p->operator.is_own && p->tenant)
        return command_fail("--tenant is for operators: without it the user's own tenant is looked at");
    return p->tenant ? tenant_name_find(c, p->tenant, ret, &quota) : COMMAND_OK;
}

int prefix_options_find(const struct prefix_options *p, kvc_client *c, struct prefix_subject *ret)
{
    int code = prefix_options_find_tenant(p, c, ret->tenant);

    if (code == COMMAND_OK)
        code = operator_find_table(c, p->table, ret->digest);
    ret->prefix = (Kvcobra__Prefix) KVCOBRA__PREFIX__INIT;
    ret->prefix.tenant = ret->tenant;
    ret->prefix.table_digest = operator_digest(ret->digest);
    ret->prefix.salt = (ProtobufCBinaryData){p->salt ? strlen(p->salt) : 0, (uint8_t *) p->salt};
    ret->prefix.first_kv_head = p->first_head;
    ret->prefix.n_kv_heads = p->n_heads;
    return code;
}
