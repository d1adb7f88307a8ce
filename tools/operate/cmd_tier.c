/* kvcobra tier: slower tiers of a daemon: status; write, resume and drop of the disk tier. */
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/clock.h"
#include "tools/command/human.h"
#include "tools/command/message_json.h"
#include "tools/command/operator.h"
#include "tools/command/operator_call.h"
#include "tools/command/option.h"
#include "tools/command/report.h"

enum { OPT_TENANT = 1, OPT_TABLE, OPT_WITHIN };
enum { POLL_MS = 50, RATE_BYTES = HUMAN_BYTES + 8 };

struct tier_options {
    struct operator_options operator;
    const char *action, *tenant, *table;
    double within; /* seconds */
};

static const char doc[] =
    "Look after the disk tier of a daemon, which keeps pages that leave memory.\v"
    "  status   show its state, and that of the cluster tier, which shares pages between hosts\n"
    "  write    write all pages that are in memory only, and return when that is done. While the disk is "
    "full, only pages that were used again are written\n"
    "  resume   open a tier that is off; kvcobrad does so by itself, too\n"
    "  drop     drop pages from the disk. Pages in memory stay and may be written again: run 'kvcobra evict' "
    "first\n\n"
    "Example, before the host is switched off:\n\n"
    "  kvcobra tier write";

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "TENANT", 0,
     "drop: only pages of this tenant: uid-1000, or the name of a section in kvcobrad.conf (default: all "
     "tenants)",
     1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "drop: only pages of this table; at least the first six digits of its digest (default: all tables)", 1},
    {"within", OPT_WITHIN, "SECONDS", 0,
     "write: fail if pages still wait to be written after this time (default 60)", 1},
    {0},
};

static bool cmd_tier_is_action(const char *text)
{
    static const char *const actions[] = {"status", "write", "resume", "drop"};

    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (strcmp(text, actions[i]) == 0)
            return true;
    return false;
}

static error_t cmd_tier_parse(int key, char *arg, struct argp_state *state)
{
    struct tier_options *o = state->input;

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
    case OPT_WITHIN:
        o->within = option_double(state, "--within", arg, 0, 1e6);
        return 0;
    case ARGP_KEY_ARG:
        if (o->action)
            argp_error(state, "'%s' is one argument too many", arg);
        if (!cmd_tier_is_action(arg))
            option_unknown(state, arg, "status, write, resume, drop");
        o->action = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->action)
            argp_error(state, "give an action: status, write, resume or drop");
        else if ((o->tenant || o->table) && strcmp(o->action, "drop") != 0)
            argp_error(state, "--tenant and --table need drop");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, cmd_tier_parse, "status|write|resume|drop", doc, operator_children, NULL, NULL};

/* ---- output ---- */

/* " at 1.2 GB/s", or nothing if it was not measured lately. */
static const char *cmd_tier_rate(uint64_t bytes_per_s, char ret[static RATE_BYTES])
{
    char bytes[HUMAN_BYTES];

    ret[0] = '\0';
    if (bytes_per_s > 0)
        (void) snprintf(ret, RATE_BYTES, " at %s/s", human_bytes(bytes_per_s, bytes));
    return ret;
}

/* The keys are the names of ControlTierReply; those that begin with "cluster_" are an object of their own. */
static int cmd_tier_print_json(const Kvcobra__ControlTierReply *s)
{
    static const char prefix[] = "cluster_";
    const ProtobufCMessageDescriptor *d = s->base.descriptor;
    json_t *all = json_object(), *cluster = json_object();
    int r = json_object_set(all, "cluster", cluster);

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        bool of_cluster = strncmp(f->name, prefix, strlen(prefix)) == 0;

        r |= json_object_set_new(of_cluster ? cluster : all, f->name + (of_cluster ? strlen(prefix) : 0),
                                 message_json_field(&s->base, f));
    }

    json_decref(cluster);
    if (r == 0)
        return report_json(all);
    json_decref(all);
    return report_json(NULL);
}

static void cmd_tier_print_cluster(const Kvcobra__ControlTierReply *s)
{
    char written[HUMAN_BYTES], back[HUMAN_BYTES], rate[RATE_BYTES];

    printf("cluster: %s%s%s, %ju of %ju nodes answer\n", s->cluster_state, s->cluster_message[0] ? ": " : "",
           s->cluster_message, (uintmax_t) s->cluster_nodes_ready, (uintmax_t) s->cluster_nodes);
    printf("written %ju pages, %s, %ju wait; read %ju pages, %s%s; not asked %ju times\n",
           (uintmax_t) s->cluster_written_pages, human_bytes(s->cluster_written_bytes, written),
           (uintmax_t) s->cluster_waiting, (uintmax_t) s->cluster_read_pages,
           human_bytes(s->cluster_read_bytes, back), cmd_tier_rate(s->cluster_read_bytes_per_second, rate),
           (uintmax_t) s->cluster_skipped);
    printf(
        "looked for %ju, found %ju, did not come %ju, did not open %ju, were opened too late %ju, not taken "
        "%ju, dropped %ju, timed out %ju, refreshed %ju, written again %ju\n",
        (uintmax_t) s->cluster_asked, (uintmax_t) s->cluster_found, (uintmax_t) s->cluster_missed,
        (uintmax_t) s->cluster_unopened, (uintmax_t) s->cluster_opened_late, (uintmax_t) s->cluster_failed,
        (uintmax_t) s->cluster_dropped, (uintmax_t) s->cluster_late, (uintmax_t) s->cluster_refreshed,
        (uintmax_t) s->cluster_refilled);
}

static void cmd_tier_print_disk(const Kvcobra__ControlTierReply *s)
{
    char used[HUMAN_BYTES], most[HUMAN_BYTES], written[HUMAN_BYTES], back[HUMAN_BYTES], rate[RATE_BYTES];

    printf("%s: %s%s%s\n", s->folder, s->state, s->message[0] ? ": " : "", s->message);
    printf("%ju pages, %s of at most %s on the disk%s\n", (uintmax_t) s->pages,
           human_bytes(s->physical_bytes, used), human_bytes(s->segments_max * s->segment_bytes, most),
           s->locked || strcmp(s->state, "ready") != 0
               ? ""
               : "; its buffers are not locked in memory: see LimitMEMLOCK= of the unit");
    printf("written %ju pages, %s; read %ju pages, %s%s; not asked %ju times\n", (uintmax_t) s->written_pages,
           human_bytes(s->written_bytes, written), (uintmax_t) s->read_pages,
           human_bytes(s->read_bytes, back), cmd_tier_rate(s->read_bytes_per_second, rate),
           (uintmax_t) s->skipped);
    printf("not found %ju, refused %ju, timed out %ju, failed %ju, did not open %ju, were opened too late "
           "%ju, replaced %ju, evicted before they were written %ju\n",
           (uintmax_t) s->missed, (uintmax_t) s->refused, (uintmax_t) s->timeouts, (uintmax_t) s->failed,
           (uintmax_t) s->unopened, (uintmax_t) s->opened_late, (uintmax_t) s->discarded,
           (uintmax_t) s->lost);
}

static int cmd_tier_print(const struct tier_options *o, const Kvcobra__ControlTierReply *s)
{
    if (o->operator.common.json)
        return cmd_tier_print_json(s);

    if (strcmp(s->state, "none") != 0)
        cmd_tier_print_disk(s);
    if (strcmp(s->cluster_state, "none") != 0)
        cmd_tier_print_cluster(s);
    return COMMAND_OK;
}

/* ---- actions ---- */

/* Replaces *reply by the answer. @action: of kvcobra.proto. Return: an exit code. */
static int cmd_tier_call(kvc_client *c, Kvcobra__TierAction action, const char *tenant, const uint8_t *digest,
                         Kvcobra__ControlTierReply **reply)
{
    Kvcobra__ControlTier control = KVCOBRA__CONTROL_TIER__INIT;
    struct errmsg e = {""};

    control.action = action;
    if (tenant)
        control.tenant = (char *) tenant; /* packing only reads */
    control.table_digest = operator_digest(digest);
    operator_message_freep(reply);
    *reply = NULL;
    if (operator_call(c, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &control.base, reply, &e) < 0)
        return command_fail("%s", e.text);
    return COMMAND_OK;
}

static int cmd_tier_ask(kvc_client *c, Kvcobra__TierAction action, Kvcobra__ControlTierReply **reply)
{
    return cmd_tier_call(c, action, NULL, NULL, reply);
}

static int cmd_tier_write(const struct tier_options *o, kvc_client *c, Kvcobra__ControlTierReply **s)
{
    double until = clock_seconds() + o->within;
    int code = cmd_tier_ask(c, KVCOBRA__TIER_ACTION__TIER_WRITE_ALL, s);

    while (code == COMMAND_OK && !(*s)->all_written && clock_seconds() < until) {
        (void) poll(NULL, 0, POLL_MS);
        code = cmd_tier_ask(c, KVCOBRA__TIER_ACTION__TIER_ASK, s);
    }
    if (code != COMMAND_OK)
        return code;

    if (strcmp((*s)->state, "ready") != 0)
        return command_fail("the disk tier is %s: %s", (*s)->state, (*s)->message);
    if (!(*s)->all_written)
        return command_fail("after %g seconds pages still wait to be written", o->within);
    return COMMAND_OK;
}

static int cmd_tier_drop(const struct tier_options *o, kvc_client *c, Kvcobra__ControlTierReply **s)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    int code =
        cmd_tier_ask(c, KVCOBRA__TIER_ACTION__TIER_ASK, s); /* before what cannot be done is announced */

    if (code != COMMAND_OK)
        return code;
    if ((*s)->message[0] && strcmp((*s)->state, "ready") != 0) /* off, or being opened again */
        return command_fail("the disk tier is %s: %s", (*s)->state, (*s)->message);
    if (o->table) {
        code = operator_find_table(c, o->table, digest);
        if (code != COMMAND_OK)
            return code;
    }

    if (!operator_confirm(&o->operator, "The pages of %s and %s%.12s on the disk are dropped.",
                          o->tenant ? o->tenant : "all tenants", o->table ? "table " : "all tables",
                          o->table ? o->table : ""))
        return COMMAND_FAILED;

    return cmd_tier_call(c, KVCOBRA__TIER_ACTION__TIER_DROP, o->tenant, o->table ? digest : NULL, s);
}

static int cmd_tier_request(kvc_client *c, void *ctx)
{
    _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *s = NULL;
    const struct tier_options *o = ctx;
    int code;

    if (strcmp(o->action, "write") == 0)
        code = cmd_tier_write(o, c, &s);
    else if (strcmp(o->action, "drop") == 0)
        code = cmd_tier_drop(o, c, &s);
    else if (strcmp(o->action, "resume") == 0)
        code = cmd_tier_ask(c, KVCOBRA__TIER_ACTION__TIER_RESUME, &s);
    else
        code = cmd_tier_ask(c, KVCOBRA__TIER_ACTION__TIER_ASK, &s);
    return code == COMMAND_OK ? cmd_tier_print(o, s) : code;
}

static int cmd_tier_run(int argc, char **argv)
{
    struct tier_options o = {.within = 60};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_tier_request, &o);
}

COMMAND(cmd_tier) = {
    .name = "tier",
    .summary = "show a daemon's slower tiers and manage its disk",
    .run = cmd_tier_run,
    .rank = 290,
    .related = "status",
};
