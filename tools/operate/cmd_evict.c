/* kvcobra evict: removes unheld pages from a daemon's pool, of one tenant, one table, or all. */
#include <stdbool.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/operator_pages.h"
#include "tools/command/report.h"
#include "tools/command/tenant_name.h"

enum { OPT_TENANT = 1, OPT_TABLE };

struct evict_options {
    struct operator_options operator;
    const char *tenant, *table;
};

static const char doc[] = "Remove the pages that no client holds from a daemon's pool, pinned ones too. "
                          "Running sequences keep the pages they hold; "
                          "clients compute removed pages again when they need them.\vExample:\n\n"
                          "  kvcobra evict --tenant uid-1000 --yes";

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "TENANT", 0,
     "Only pages of this tenant: the name of a user, uid-1000, or the name of a section in kvcobrad.conf, "
     "with "
     "@gpu0 on a GPU (default: all tenants)",
     1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "Only pages of this table; at least the first six digits of its digest (default: all tables)", 1},
    {0},
};

static error_t cmd_evict_parse(int key, char *arg, struct argp_state *state)
{
    struct evict_options *o = state->input;

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
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_evict_parse, NULL, doc, operator_children, NULL, NULL};

/* A tenant that has something to evict, or may get it. */
static int cmd_evict_find_tenant(kvc_client *c, const char *text, char ret[static TENANT_NAME_BYTES])
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    int code = tenant_name_find(c, text, ret, &s);

    if (code != COMMAND_OK)
        return code;
    if (s->tenants[0]->sessions == 0 && s->tenants[0]->used_bytes == 0)
        return command_fail("tenant %s has no sessions and no pages", ret);
    return COMMAND_OK;
}

static int cmd_evict_request(kvc_client *c, void *ctx)
{
    const struct evict_options *o = ctx;
    uint8_t digest[KVC_DIGEST_BYTES];
    char size[HUMAN_BYTES], tenant[TENANT_NAME_BYTES] = "";
    Kvcobra__EvictReply evicted;
    struct errmsg e = {""};
    int code;

    if (o->tenant) {
        code = cmd_evict_find_tenant(c, o->tenant, tenant);
        if (code != COMMAND_OK)
            return code;
    }

    if (o->table) {
        code = operator_find_table(c, o->table, digest);
        if (code != COMMAND_OK)
            return code;
    }

    if (!operator_confirm(&o->operator, "All unheld pages of %s and %s%.12s are removed.",
                          o->tenant ? tenant : "all tenants", o->table ? "table " : "all tables",
                          o->table ? o->table : ""))
        return COMMAND_FAILED;

    if (operator_evict(c, o->tenant ? tenant : NULL, o->table ? digest : NULL, &evicted, &e) < 0)
        return command_fail("%s", e.text);

    if (o->operator.common.json)
        return report_json(json_pack("{s:I, s:I}", "pages", (json_int_t) evicted.pages, "bytes",
                                     (json_int_t) evicted.bytes));

    printf("%ju pages removed, %s\n", (uintmax_t) evicted.pages, human_bytes(evicted.bytes, size));
    return COMMAND_OK;
}

static int cmd_evict_run(int argc, char **argv)
{
    struct evict_options o = {0};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_evict_request, &o);
}

COMMAND(cmd_evict) = {
    .name = "evict",
    .summary = "remove unheld pages from a daemon's pool",
    .run = cmd_evict_run,
    .rank = 250,
    .related = "quota status",
};
