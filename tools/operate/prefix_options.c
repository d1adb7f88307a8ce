/* See prefix_options.h. */
#include "tools/operate/prefix_options.h"

#include <string.h>

#include "base/errmsg.h"

enum { OPT_TENANT = 0x2001, OPT_TABLE };

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "TENANT", 0,
     "Whose pages: the name of a user, uid-1000, or the name of a section in kvcobrad.conf, with @gpu0 on a "
     "GPU (required for operators)",
     1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "With this table; at least the first six digits of its digest (required)", 1},
    {0},
};

static void prefix_options_check(const struct prefix_options *p, const struct argp_state *state)
{
    if (!p->table || (!p->tenant && !p->may_be_own))
        argp_error(state, p->may_be_own ? "--table is needed" : "--tenant and --table are needed");
}

static error_t prefix_options_parse(int key, char *arg, struct argp_state *state)
{
    struct prefix_options *p = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &p->operator;
        state->child_inputs[1] = &p->prompt;
        return 0;
    case OPT_TENANT:
        p->tenant = arg;
        return 0;
    case OPT_TABLE:
        operator_check_digest(state, "--table", arg);
        p->table = arg;
        return 0;
    case ARGP_KEY_END:
        prefix_options_check(p, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp_child change_children[] = {
    {&operator_argp, 0, NULL, 0}, {&prompt_options_argp, 0, NULL, 0}, {0}};
static const struct argp_child view_children[] = {
    {&operator_view_argp, 0, NULL, 0}, {&prompt_options_argp, 0, NULL, 0}, {0}};
static const struct argp change_argp = {options, prefix_options_parse, NULL, NULL, change_children, NULL,
                                        NULL};
static const struct argp view_argp = {options, prefix_options_parse, NULL, NULL, view_children, NULL, NULL};

const struct argp_child prefix_options_children[] = {{&change_argp, 0, NULL, 0}, {0}};
const struct argp_child prefix_options_view_children[] = {{&view_argp, 0, NULL, 0}, {0}};

int prefix_options_run(struct prefix_options *p, int (*request)(kvc_client *c, void *ctx), void *ctx)
{
    struct errmsg e = {""};
    int code = prompt_options_load(&p->prompt, &e) < 0 ? command_fail("%s", e.text)
                                                       : operator_run(&p->operator, request, ctx);

    prompt_options_deinit(&p->prompt);
    return code;
}

/* ---- tenant and table ---- */

/* A client's own tenant has no name here: kvcobrad knows it. */
static int prefix_options_find_tenant(const struct prefix_options *p, kvc_client *c,
                                      char ret[static TENANT_NAME_BYTES])
{
    ret[0] = '\0';
    if (!p->operator.is_own && !p->tenant)
        return command_fail("--tenant is needed: this user is an operator, who sees all tenants");
    if (p->operator.is_own && p->tenant)
        return command_fail("--tenant is for operators: without it the user's own tenant is looked at");
    return p->tenant ? tenant_name_find(c, p->tenant, ret, NULL) : COMMAND_OK;
}

int prefix_options_find(const struct prefix_options *p, kvc_client *c, struct prefix_subject *ret)
{
    int code = prefix_options_find_tenant(p, c, ret->tenant);

    if (code == COMMAND_OK)
        code = operator_find_table(c, p->table, ret->digest);
    ret->prefix = (Kvcobra__Prefix) KVCOBRA__PREFIX__INIT;
    ret->prefix.tenant = ret->tenant;
    ret->prefix.table_digest = operator_digest(ret->digest);
    ret->prefix.salt =
        (ProtobufCBinaryData){p->prompt.salt ? strlen(p->prompt.salt) : 0, (uint8_t *) p->prompt.salt};
    ret->prefix.first_kv_head = p->prompt.first_head;
    ret->prefix.n_kv_heads = p->prompt.n_heads;
    return code;
}
