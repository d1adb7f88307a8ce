/* kvcobra tier: slower tiers of a daemon: status; flush, resume and drop of the disk tier. */
#include <poll.h>
#include <string.h>

#include "client/kvcobra-operator.h"
#include "client/kvcobra-tiers.h"
#include "tools/command/clock.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/option.h"
#include "tools/command/report.h"

enum { OPT_TENANT = 1, OPT_TABLE, OPT_WITHIN };
enum { POLL_MS = 50 };

struct tier_options {
    struct operator_options operator;
    const char *action, *tenant, *table;
    double within; /* seconds */
};

static const char doc[] =
    "Look after the disk tier of a daemon, which keeps pages that leave memory.\v"
    "  status   show its state, and that of the cluster tier, which shares pages between hosts\n"
    "  flush    write all pages that are in memory only, and return when that is done. While the disk is "
    "full, only pages that were used again are written\n"
    "  resume   open a tier that is off; kvcobrad does so by itself, too\n"
    "  drop     drop pages from the disk. Pages in memory stay and may be written again: run 'kvcobra evict' "
    "first\n\n"
    "Example, before the host is switched off:\n\n"
    "  kvcobra tier flush";

static const struct argp_option options[] = {
    {"tenant", OPT_TENANT, "NAME", 0,
     "drop: only pages of this tenant: uid-1000, or the name of a section in kvcobrad.conf (default: all "
     "tenants)",
     1},
    {"table", OPT_TABLE, "DIGEST", 0,
     "drop: only pages of this table; at least the first six digits of its digest (default: all tables)", 1},
    {"within", OPT_WITHIN, "SECONDS", 0,
     "flush: fail if pages still wait to be written after this time (default 60)", 1},
    {0},
};

static bool cmd_tier_is_action(const char *text)
{
    static const char *const actions[] = {"status", "flush", "resume", "drop"};

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
        if (o->action || !cmd_tier_is_action(arg))
            argp_error(state, "'%s' is not one action of status, flush, resume and drop", arg);
        o->action = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->action)
            argp_error(state, "give an action: status, flush, resume or drop");
        else if ((o->tenant || o->table) && strcmp(o->action, "drop") != 0)
            argp_error(state, "--tenant and --table need drop");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {
    options, cmd_tier_parse, "status|flush|resume|drop", doc, operator_children, NULL, NULL};

/* ---- output ---- */

static json_t *cmd_tier_cluster_json(const kvc_tier_state *s)
{
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "state",
        s->cluster_state, "message", s->cluster_message, "nodes", (json_int_t) s->cluster_nodes,
        "nodes_ready", (json_int_t) s->cluster_nodes_ready, "waiting", (json_int_t) s->cluster_waiting,
        "asked", (json_int_t) s->cluster_asked, "found", (json_int_t) s->cluster_found, "read_pages",
        (json_int_t) s->cluster_read_pages, "read_bytes", (json_int_t) s->cluster_read_bytes, "missed",
        (json_int_t) s->cluster_missed, "unopened", (json_int_t) s->cluster_unopened, "written_pages",
        (json_int_t) s->cluster_written_pages, "written_bytes", (json_int_t) s->cluster_written_bytes,
        "failed", (json_int_t) s->cluster_failed, "dropped", (json_int_t) s->cluster_dropped, "late",
        (json_int_t) s->cluster_late, "refreshed", (json_int_t) s->cluster_refreshed);
}

static int cmd_tier_print_json(const kvc_tier_state *s)
{
    return report_json(json_pack(
        "{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, "
        "s:I, s:I, s:I, s:o}",
        "state", s->state, "message", s->message, "folder", s->folder, "flushed", s->flushed != 0, "locked",
        s->locked != 0, "segment_bytes", (json_int_t) s->segment_bytes, "segments", (json_int_t) s->segments,
        "segments_max", (json_int_t) s->segments_max, "physical_bytes", (json_int_t) s->physical_bytes,
        "pages", (json_int_t) s->pages, "writing", (json_int_t) s->writing, "fetching",
        (json_int_t) s->fetching, "written_pages", (json_int_t) s->written_pages, "written_bytes",
        (json_int_t) s->written_bytes, "read_pages", (json_int_t) s->read_pages, "read_bytes",
        (json_int_t) s->read_bytes, "missed", (json_int_t) s->missed, "refused", (json_int_t) s->refused,
        "timeouts", (json_int_t) s->timeouts, "failed", (json_int_t) s->failed, "unopened",
        (json_int_t) s->unopened, "discarded", (json_int_t) s->discarded, "lost", (json_int_t) s->lost,
        "cluster", cmd_tier_cluster_json(s)));
}

static void cmd_tier_print_cluster(const kvc_tier_state *s)
{
    char written[HUMAN_BYTES], back[HUMAN_BYTES];

    printf("cluster: %s%s%s, %ju of %ju nodes answer\n", s->cluster_state, s->cluster_message[0] ? ": " : "",
           s->cluster_message, (uintmax_t) s->cluster_nodes_ready, (uintmax_t) s->cluster_nodes);
    printf("written %ju pages, %s, %ju wait; read %ju pages, %s\n", (uintmax_t) s->cluster_written_pages,
           human_bytes(s->cluster_written_bytes, written), (uintmax_t) s->cluster_waiting,
           (uintmax_t) s->cluster_read_pages, human_bytes(s->cluster_read_bytes, back));
    printf("looked for %ju, found %ju, did not come %ju, did not open %ju, not taken %ju, dropped %ju, timed "
           "out "
           "%ju, refreshed %ju\n",
           (uintmax_t) s->cluster_asked, (uintmax_t) s->cluster_found, (uintmax_t) s->cluster_missed,
           (uintmax_t) s->cluster_unopened, (uintmax_t) s->cluster_failed, (uintmax_t) s->cluster_dropped,
           (uintmax_t) s->cluster_late, (uintmax_t) s->cluster_refreshed);
}

static void cmd_tier_print_disk(const kvc_tier_state *s)
{
    char used[HUMAN_BYTES], most[HUMAN_BYTES], written[HUMAN_BYTES], back[HUMAN_BYTES];

    printf("%s: %s%s%s\n", s->folder, s->state, s->message[0] ? ": " : "", s->message);
    printf("%ju pages, %s of at most %s on the disk%s\n", (uintmax_t) s->pages,
           human_bytes(s->physical_bytes, used), human_bytes(s->segments_max * s->segment_bytes, most),
           s->locked ? "" : "; its buffers are not locked in memory: see LimitMEMLOCK= of the unit");
    printf("written %ju pages, %s; read %ju pages, %s\n", (uintmax_t) s->written_pages,
           human_bytes(s->written_bytes, written), (uintmax_t) s->read_pages,
           human_bytes(s->read_bytes, back));
    printf("not found %ju, refused %ju, timed out %ju, failed %ju, did not open %ju, replaced %ju, evicted "
           "before they were written %ju\n",
           (uintmax_t) s->missed, (uintmax_t) s->refused, (uintmax_t) s->timeouts, (uintmax_t) s->failed,
           (uintmax_t) s->unopened, (uintmax_t) s->discarded, (uintmax_t) s->lost);
}

static int cmd_tier_print(const struct tier_options *o, const kvc_tier_state *s)
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

static int cmd_tier_flush(const struct tier_options *o, kvc_client *c, kvc_tier_state *s)
{
    double until = clock_seconds() + o->within;

    if (kvc_tier_control(c, KVC_TIER_FLUSH, NULL, NULL, s) < 0)
        return operator_fail(c);

    while (!s->flushed && clock_seconds() < until) {
        (void) poll(NULL, 0, POLL_MS);
        if (kvc_tier_control(c, KVC_TIER_ASK, NULL, NULL, s) < 0)
            return operator_fail(c);
    }

    if (strcmp(s->state, "ready") != 0)
        return command_fail("the disk tier is %s: %s", s->state, s->message);
    if (!s->flushed)
        return command_fail("after %g seconds pages still wait to be written", o->within);
    return COMMAND_OK;
}

static int cmd_tier_drop(const struct tier_options *o, kvc_client *c, kvc_tier_state *s)
{
    uint8_t digest[KVC_DIGEST_BYTES];

    /* before the announcement of what cannot be done */
    if (kvc_tier_control(c, KVC_TIER_ASK, NULL, NULL, s) < 0)
        return operator_fail(c);
    if (s->message[0] && strcmp(s->state, "ready") != 0) /* off, or being opened again */
        return command_fail("the disk tier is %s: %s", s->state, s->message);
    if (o->table) {
        int code = operator_find_table(c, o->table, digest);

        if (code != COMMAND_OK)
            return code;
    }

    if (!operator_confirm(&o->operator, "The pages of %s and %s%.12s on the disk are dropped.",
                          o->tenant ? o->tenant : "all tenants", o->table ? "table " : "all tables",
                          o->table ? o->table : ""))
        return COMMAND_FAILED;

    if (kvc_tier_control(c, KVC_TIER_DROP, o->tenant, o->table ? digest : NULL, s) < 0)
        return operator_fail(c);
    return COMMAND_OK;
}

static int cmd_tier_request(kvc_client *c, void *ctx)
{
    const struct tier_options *o = ctx;
    kvc_tier_state s = {.struct_bytes = sizeof(s)};
    int code = COMMAND_OK;

    if (strcmp(o->action, "flush") == 0)
        code = cmd_tier_flush(o, c, &s);
    else if (strcmp(o->action, "drop") == 0)
        code = cmd_tier_drop(o, c, &s);
    else if (kvc_tier_control(c, strcmp(o->action, "resume") == 0 ? KVC_TIER_RESUME : KVC_TIER_ASK, NULL,
                              NULL, &s) < 0)
        code = operator_fail(c);
    return code == COMMAND_OK ? cmd_tier_print(o, &s) : code;
}

static int cmd_tier_run(int argc, char **argv)
{
    struct tier_options o = {.within = 60};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_tier_request, &o);
}

const struct command cmd_tier = {"tier", "show a daemon's slower tiers and manage its disk", cmd_tier_run};
