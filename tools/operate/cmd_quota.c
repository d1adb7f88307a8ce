/* kvcobra quota: shows or sets the maximum and the guaranteed memory of a tenant. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/message_json.h"
#include "tools/command/operator.h"
#include "tools/command/tenant_name.h"

enum { OPT_MAX = 1, OPT_GUARANTEE };

struct quota_options {
    struct operator_options operator;
    const char *tenant;
    uint64_t max_bytes, guarantee_bytes; /* OPERATOR_QUOTA_KEEP: not given */
};

static const char doc[] =
    "Show a tenant's limits, or set its maximum of pages and arenas together, and the part of the pool that "
    "it is guaranteed "
    "whatever other tenants do. A lower maximum evicts unheld pages at once; held pages stay, and the tenant "
    "gets no new memory until it is below the maximum. A guarantee counts whole extents; other tenants may "
    "borrow the unused part of it and return it on request.\vWithout --max and --guarantee, the limits are "
    "printed. SIZE is a number of bytes, or a number followed "
    "by K, M, G or T. A daemon with a state folder stores both values, which go before those of the "
    "configuration file. A tenant is a user, as alice or uid-1000, or has the name of a section in that "
    "file. It has separate quotas per device: alice in host memory, alice@gpu0 on the first GPU.\n\n"
    "Examples:\n\n"
    "  kvcobra quota uid-1000\n"
    "  kvcobra quota uid-1000 --max 8G --guarantee 2G";

static const struct argp_option options[] = {
    {"max", OPT_MAX, "SIZE", 0, "Maximum of pages and arenas", 1},
    {"guarantee", OPT_GUARANTEE, "SIZE", 0, "Guaranteed part of the pool; 0: none", 1},
    {0},
};

static error_t cmd_quota_parse(int key, char *arg, struct argp_state *state)
{
    struct quota_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_MAX:
        o->max_bytes = option_bytes(state, arg);
        if (o->max_bytes == 0)
            argp_error(state, "--max must be above 0");
        return 0;
    case OPT_GUARANTEE:
        o->guarantee_bytes = option_bytes(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->tenant)
            argp_error(state, "'%s' is one argument too many", arg);
        o->tenant = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->tenant)
            argp_error(state, "a tenant is needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_quota_parse, "TENANT", doc, operator_children, NULL, NULL};

static bool cmd_quota_only_shows(const struct quota_options *o)
{
    return o->max_bytes == OPERATOR_QUOTA_KEEP && o->guarantee_bytes == OPERATOR_QUOTA_KEEP;
}

/*
 * Compares the new limits with each other, an arena and the pool. @now: the present limits and the device.
 * Return: an exit code; COMMAND_FAILED with a sentence: no client of the tenant could store a page.
 */
static int cmd_quota_check(const struct quota_options *o, const char *tenant, const Kvcobra__StatusReply *now)
{
    const Kvcobra__TenantStatus *t = now->tenants[0];
    uint64_t arena = t->client_arena_bytes, pool = now->devices[0]->pool_bytes;
    uint64_t max = o->max_bytes == OPERATOR_QUOTA_KEEP ? t->quota_bytes : o->max_bytes;
    uint64_t guarantee = o->guarantee_bytes == OPERATOR_QUOTA_KEEP ? t->guarantee_bytes : o->guarantee_bytes;
    char a[HUMAN_BYTES], b[HUMAN_BYTES];

    if (max <= arena)
        return command_fail(
            "a maximum of %s has no room for a page beside one client's arena (%s, arena-bytes of "
            "kvcobrad.conf), so no client of %s could open a model",
            human_bytes(max, a), human_bytes(arena, b), tenant);
    if (guarantee > max)
        return command_fail("a guarantee of %s is more than the maximum of %s of %s",
                            human_bytes(guarantee, a), human_bytes(max, b), tenant);
    if (guarantee > pool)
        return command_fail("a guarantee of %s is more than the pool of %s", human_bytes(guarantee, a),
                            human_bytes(pool, b));

    if (o->max_bytes != OPERATOR_QUOTA_KEEP && max - arena > pool)
        command_note(&o->operator.common,
                     "the maximum of %s is more than the pool of %s: the pool limits the tenant",
                     human_bytes(max, a), human_bytes(pool, b));
    if (o->max_bytes != OPERATOR_QUOTA_KEEP && arena > 0)
        command_note(&o->operator.common, "%s is room for %ju clients with a page each (arenas of %s)",
                     human_bytes(max, a), (uintmax_t) ((max - 1) / arena), human_bytes(arena, b));
    return COMMAND_OK;
}

static bool cmd_quota_confirm(const struct quota_options *o, const char *tenant)
{
    char max[HUMAN_BYTES + 96] = "", guarantee[HUMAN_BYTES + 64] = "", size[HUMAN_BYTES];
    bool both = o->max_bytes != OPERATOR_QUOTA_KEEP && o->guarantee_bytes != OPERATOR_QUOTA_KEEP;

    if (o->max_bytes != OPERATOR_QUOTA_KEEP)
        (void) snprintf(max, sizeof(max),
                        "maximum %s of pages and arenas (unheld pages above it are evicted now)",
                        human_bytes(o->max_bytes, size));
    if (o->guarantee_bytes != OPERATOR_QUOTA_KEEP)
        (void) snprintf(guarantee, sizeof(guarantee), "%s of the pool guaranteed",
                        human_bytes(o->guarantee_bytes, size));

    return operator_confirm(&o->operator, "New limits of tenant %s: %s%s%s.", tenant, max, both ? ", " : "",
                            guarantee);
}

/* @q: of a change, or the present limits as both values. */
static int cmd_quota_print(const struct quota_options *o, const char *tenant, const Kvcobra__SetQuotaReply *q)
{
    char max[HUMAN_BYTES], old_max[HUMAN_BYTES], guarantee[HUMAN_BYTES], old_guarantee[HUMAN_BYTES],
        in_use[HUMAN_BYTES];

    if (o->operator.common.json)
        return message_json_report(json_pack("{s:s}", "tenant", tenant), &q->base);

    if (cmd_quota_only_shows(o)) {
        printf("%s: maximum %s, guaranteed %s, in use %s\n", tenant, human_bytes(q->quota_bytes, max),
               human_bytes(q->guarantee_bytes, guarantee), human_bytes(q->used_bytes, in_use));
        return COMMAND_OK;
    }

    printf("%s: maximum %s (was %s), guaranteed %s (was %s), in use %s\n", tenant,
           human_bytes(q->quota_bytes, max), human_bytes(q->previous_bytes, old_max),
           human_bytes(q->guarantee_bytes, guarantee),
           human_bytes(q->previous_guarantee_bytes, old_guarantee), human_bytes(q->used_bytes, in_use));
    return COMMAND_OK;
}

static int cmd_quota_show(const struct quota_options *o, const char *tenant, const Kvcobra__TenantStatus *t)
{
    Kvcobra__SetQuotaReply q = KVCOBRA__SET_QUOTA_REPLY__INIT;

    q.quota_bytes = q.previous_bytes = t->quota_bytes;
    q.guarantee_bytes = q.previous_guarantee_bytes = t->guarantee_bytes;
    q.used_bytes = t->used_bytes;
    return cmd_quota_print(o, tenant, &q);
}

static int cmd_quota_request(kvc_client *c, void *ctx)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *now = NULL;
    const struct quota_options *o = ctx;
    Kvcobra__SetQuotaReply q;
    struct errmsg e = {""};
    char tenant[TENANT_NAME_BYTES];
    int code = tenant_name_find(c, o->tenant, tenant, &now);

    if (code != COMMAND_OK)
        return code;
    if (cmd_quota_only_shows(o))
        return cmd_quota_show(o, tenant, now->tenants[0]);

    code = cmd_quota_check(o, tenant, now);
    if (code != COMMAND_OK)
        return code;
    if (!cmd_quota_confirm(o, tenant))
        return COMMAND_FAILED;

    if (operator_set_quota(c, tenant, o->max_bytes, o->guarantee_bytes, &q, &e) < 0)
        return command_fail("%s", e.text);

    return cmd_quota_print(o, tenant, &q);
}

static int cmd_quota_run(int argc, char **argv)
{
    struct quota_options o = {.max_bytes = OPERATOR_QUOTA_KEEP, .guarantee_bytes = OPERATOR_QUOTA_KEEP};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_quota_request, &o);
}

COMMAND(cmd_quota) = {
    .name = "quota",
    .summary = "show or set a tenant's maximum and guaranteed memory",
    .run = cmd_quota_run,
    .rank = 270,
    .related = "status",
};
