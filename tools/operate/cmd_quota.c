/* kvcobra quota: sets the maximum and the guaranteed memory of a tenant. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-operator.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"

enum { OPT_MAX = 1, OPT_GUARANTEE };

struct quota_options {
    struct operator_options operator;
    const char *tenant;
    uint64_t max_bytes, guarantee_bytes; /* KVC_QUOTA_KEEP: not given */
};

static const char doc[] =
    "Set a tenant's maximum of pages and arenas together, and the part of the pool that it is guaranteed "
    "whatever other tenants do. A lower maximum evicts unheld pages at once; held pages stay, and the tenant "
    "gets no new memory until it is below the maximum. A guarantee counts whole extents; other tenants may "
    "borrow the unused part of it and return it on request.\vSIZE is a number of bytes, or a number followed "
    "by K, M, G or T. A daemon with a state folder stores both values; the configuration file sets the "
    "values that every tenant starts with. A tenant has separate quotas per device: uid-1000 in host memory, "
    "uid-1000@gpu0 on the first GPU.\n\n"
    "Example:\n\n"
    "  kvcobra quota uid-1000 --max 8G --guarantee 2G";

static const struct argp_option options[] = {
    {"max", OPT_MAX, "SIZE", 0, "Maximum of pages and arenas", 1},
    {"guarantee", OPT_GUARANTEE, "SIZE", 0, "Guaranteed part of the pool; 0: none", 1},
    {0},
};

static uint64_t cmd_quota_read_bytes(const struct argp_state *state, const char *arg)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end = (char *) arg;
    unsigned shift = 0;
    uint64_t v = 0;

    errno = 0;
    if (*arg >= '0' && *arg <= '9')
        v = strtoull(arg, &end, 10);

    if (end != arg && *end != '\0') {
        unit = end[1] == '\0' ? strchr(units, *end) : NULL;
        shift = unit ? 10 * (unsigned) (unit - units + 1) : 64;
    }

    if (end == arg || errno == ERANGE || shift == 64 || v >= UINT64_MAX >> shift)
        argp_error(state, "'%s' is not a size such as 65536, 64K, 64M or 2G", arg);
    return v << (shift & 63);
}

static error_t cmd_quota_parse(int key, char *arg, struct argp_state *state)
{
    struct quota_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case OPT_MAX:
        o->max_bytes = cmd_quota_read_bytes(state, arg);
        if (o->max_bytes == 0)
            argp_error(state, "--max must be above 0");
        return 0;
    case OPT_GUARANTEE:
        o->guarantee_bytes = cmd_quota_read_bytes(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->tenant)
            argp_error(state, "'%s' is one argument too many", arg);
        o->tenant = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->tenant || (o->max_bytes == KVC_QUOTA_KEEP && o->guarantee_bytes == KVC_QUOTA_KEEP))
            argp_error(state, "a tenant, and --max or --guarantee, are needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_quota_parse, "TENANT", doc, operator_children, NULL, NULL};

static bool cmd_quota_confirm(const struct quota_options *o)
{
    char max[HUMAN_BYTES + 96] = "", guarantee[HUMAN_BYTES + 64] = "", size[HUMAN_BYTES];
    bool both = o->max_bytes != KVC_QUOTA_KEEP && o->guarantee_bytes != KVC_QUOTA_KEEP;

    if (o->max_bytes != KVC_QUOTA_KEEP)
        (void) snprintf(max, sizeof(max),
                        "maximum %s of pages and arenas (unheld pages above it are evicted now)",
                        human_bytes(o->max_bytes, size));
    if (o->guarantee_bytes != KVC_QUOTA_KEEP)
        (void) snprintf(guarantee, sizeof(guarantee), "%s of the pool guaranteed",
                        human_bytes(o->guarantee_bytes, size));

    return operator_confirm(&o->operator, "New limits of tenant %s: %s%s%s.", o->tenant, max,
                            both ? ", " : "", guarantee);
}

static int cmd_quota_print(const struct quota_options *o, const kvc_quota_state *q)
{
    char max[HUMAN_BYTES], old_max[HUMAN_BYTES], guarantee[HUMAN_BYTES], old_guarantee[HUMAN_BYTES],
        in_use[HUMAN_BYTES];

    if (o->operator.common.json)
        return report_json(
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "tenant", o->tenant, "quota_bytes",
                      (json_int_t) q->max_bytes, "previous_bytes", (json_int_t) q->previous_max_bytes,
                      "guarantee_bytes", (json_int_t) q->guarantee_bytes, "previous_guarantee_bytes",
                      (json_int_t) q->previous_guarantee_bytes, "used_bytes", (json_int_t) q->used_bytes));

    printf("%s: maximum %s (was %s), guaranteed %s (was %s), in use %s\n", o->tenant,
           human_bytes(q->max_bytes, max), human_bytes(q->previous_max_bytes, old_max),
           human_bytes(q->guarantee_bytes, guarantee),
           human_bytes(q->previous_guarantee_bytes, old_guarantee), human_bytes(q->used_bytes, in_use));
    return COMMAND_OK;
}

static int cmd_quota_request(kvc_client *c, void *ctx)
{
    const struct quota_options *o = ctx;
    kvc_quota_state q = {.struct_bytes = sizeof(q)};

    if (!cmd_quota_confirm(o))
        return COMMAND_FAILED;

    if (kvc_quota_set(c, o->tenant, o->max_bytes, o->guarantee_bytes, &q) < 0)
        return operator_fail(c);

    return cmd_quota_print(o, &q);
}

static int cmd_quota_run(int argc, char **argv)
{
    struct quota_options o = {.max_bytes = KVC_QUOTA_KEEP, .guarantee_bytes = KVC_QUOTA_KEEP};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_quota_request, &o);
}

const struct command cmd_quota = {"quota", "set a tenant's maximum and guaranteed memory", cmd_quota_run};
