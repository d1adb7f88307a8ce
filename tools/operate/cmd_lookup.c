/* kvcobra lookup: where the pages of a prompt are, and why they are not there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "client/kvcobra-operator.h"
#include "client/kvcobra-tiers.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/prefix_options.h"
#include "tools/operate/prompt_places.h"

enum { KINDS = 2 };         /* of attention: not repeatable, and repeatable */
enum { ELSEWHERE_MAX = 8 }; /* other tables, tenants and salts that are named */
enum { TRIES_MAX = 256 };

static const char doc[] =
    "Show which tokens of a prompt have pages in memory, on the disk, in the cluster or nowhere, and why. "
    "Nothing is fetched or counted, and no eviction changes. A client finds the tokens up to the first page "
    "that is nowhere. If "
    "the first page is nowhere, other tables, other tenants and no salt are tried. A user who is no operator "
    "asks about the own tenant, without --tenant.\v" PREFIX_OPTIONS_DOC "\n\n"
    "Of a page that is nowhere, kvcobrad knows that it was evicted, or that its table was retired, as long "
    "as it remembers the key (setting ghosts). Else the page was never published with these "
    "tokens, table, salt and heads, or that was long ago. The newest pages of a running sequence are not "
    "published yet.\n\n"
    "Examples:\n\n"
    "  kvcobra lookup --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt\n"
    "  kvcobra lookup --tenant uid-1000 --table 651ed3 \\\n"
    "      --model model.gguf --prompt-file manual.txt";

static error_t cmd_lookup_parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->input;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {NULL, cmd_lookup_parse, NULL, doc, prefix_options_view_children, NULL, NULL};

/* ---- places ---- */

static const char *cmd_lookup_reason(int reason)
{
    switch (reason) {
    case KVC_MISS_EVICTED:
        return "evicted or flushed";
    case KVC_MISS_RETIRED_TABLE:
        return "table retired";
    default:
        return "never published, or forgotten";
    }
}

/* For JSON: one word. */
static const char *cmd_lookup_reason_key(int reason)
{
    switch (reason) {
    case KVC_MISS_NONE:
        return "";
    case KVC_MISS_EVICTED:
        return "evicted";
    case KVC_MISS_RETIRED_TABLE:
        return "retired_table";
    default:
        return "unknown";
    }
}

static const char *cmd_lookup_where(const kvc_chunk_place *p)
{
    if (p->in_memory)
        return p->on_disk ? "memory and disk" : "memory";
    if (p->on_disk)
        return "disk";
    return p->in_cluster ? "cluster" : "nowhere";
}

/* Whether two chunks stand in one row. The times of pins of one command differ by milliseconds. */
static bool cmd_lookup_is_alike(const kvc_chunk_place *a, const kvc_chunk_place *b)
{
    return a->in_memory == b->in_memory && a->on_disk == b->on_disk && a->in_cluster == b->in_cluster &&
           a->reason == b->reason && (a->holds > 0) == (b->holds > 0) &&
           a->pinned_ms / 10000 == b->pinned_ms / 10000;
}

/* How many tokens of @kind a client finds, also in slower tiers. @places: [n]. */
static uint64_t cmd_lookup_findable(const kvc_chunk_place *places, size_t n, int kind)
{
    size_t i = (size_t) kind;

    while (i < n && prompt_places_is_anywhere(&places[i]))
        i += KINDS;
    return (uint64_t) (i / KINDS) * KVC_CHUNK_TOKENS;
}

/* ---- elsewhere ---- */

struct elsewhere {
    char tenant[TENANT_NAME_BYTES];
    char table[DIGEST_HEX_BYTES];
    bool without_salt;
};

struct lookup {
    const struct prefix_options *options;
    struct prefix_subject subject;
    kvc_chunk_place *places; /* malloc'ed [n] */
    size_t n;
    struct elsewhere elsewhere[ELSEWHERE_MAX];
    size_t n_elsewhere;
    unsigned n_tries;
};

/* Looks for the first page under other circumstances. What cannot be asked there is no failure. */
static void cmd_lookup_try(kvc_client *c, struct lookup *l, const kvc_prefix_options *o)
{
    _cleanup_(freep) kvc_chunk_place *places = NULL;
    size_t n = 0;
    struct elsewhere *e;

    if (l->n_elsewhere == ELSEWHERE_MAX || l->n_tries++ >= TRIES_MAX)
        return;
    if (kvc_lookup(c, o, l->options->document.tokens, KVC_CHUNK_TOKENS, sizeof(*places), &places, &n) < 0)
        return;
    if (n < KINDS || (!prompt_places_is_anywhere(&places[0]) && !prompt_places_is_anywhere(&places[1])))
        return;

    e = &l->elsewhere[l->n_elsewhere++];
    (void) snprintf(e->tenant, sizeof(e->tenant), "%s", o->tenant);
    (void) digest_hex(o->table_digest, e->table);
    e->without_salt = l->subject.options.salt_bytes > 0 && o->salt_bytes == 0;
}

static void cmd_lookup_try_tables(kvc_client *c, struct lookup *l)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    size_t n = 0;

    if (kvc_table_list(c, sizeof(*tables), &tables, &n) < 0)
        return;

    for (size_t i = 0; i < n; i++) {
        kvc_prefix_options o = l->subject.options;

        o.table_digest = tables[i].digest;
        if (tables[i].state != KVC_TABLE_RETIRED &&
            memcmp(tables[i].digest, l->subject.digest, KVC_DIGEST_BYTES) != 0)
            cmd_lookup_try(c, l, &o);
    }
}

static void cmd_lookup_try_tenants(kvc_client *c, struct lookup *l)
{
    const kvc_status_sizes sizes = KVC_STATUS_SIZES;
    kvc_status *s = NULL;

    if (kvc_status_get(c, &sizes, &s) < 0)
        return;

    for (size_t i = 0; i < s->n_tenants; i++) {
        kvc_prefix_options o = l->subject.options;
        char name[TENANT_NAME_BYTES];

        (void) snprintf(name, sizeof(name), "%.*s", (int) sizeof(s->tenants[i].name), s->tenants[i].name);
        o.tenant = name;
        if (strcmp(name, l->subject.tenant) != 0)
            cmd_lookup_try(c, l, &o);
    }
    (void) kvc_status_free(s);
}

static void cmd_lookup_try_all(kvc_client *c, struct lookup *l)
{
    kvc_prefix_options o = l->subject.options;

    if (prompt_places_is_anywhere(&l->places[0]) || prompt_places_is_anywhere(&l->places[1]))
        return;

    o.salt = NULL;
    o.salt_bytes = 0;
    if (l->subject.options.salt_bytes > 0)
        cmd_lookup_try(c, l, &o);
    cmd_lookup_try_tables(c, l);
    cmd_lookup_try_tenants(c, l);
}

/* ---- JSON ---- */

static json_t *cmd_lookup_place_json(const kvc_chunk_place *p)
{
    return json_pack("{s:I, s:I, s:b, s:b, s:b, s:I, s:f, s:s}", "first_token", (json_int_t) p->first_token,
                     "tokens", (json_int_t) KVC_CHUNK_TOKENS, "memory", p->in_memory, "disk", p->on_disk,
                     "cluster", p->in_cluster, "holds", (json_int_t) p->holds, "pinned_seconds",
                     (double) p->pinned_ms * 1e-3, "reason", cmd_lookup_reason_key(p->reason));
}

static json_t *cmd_lookup_kind_json(const struct lookup *l, int kind)
{
    json_t *chunks = json_array();

    for (size_t i = (size_t) kind; chunks && i < l->n; i += KINDS)
        if (json_array_append_new(chunks, cmd_lookup_place_json(&l->places[i])) < 0) {
            json_decref(chunks);
            return NULL;
        }
    return json_pack("{s:I, s:o}", "findable_tokens", (json_int_t) cmd_lookup_findable(l->places, l->n, kind),
                     "chunks", chunks);
}

static int cmd_lookup_print_json(const struct lookup *l)
{
    json_t *elsewhere = json_array();

    for (size_t i = 0; elsewhere && i < l->n_elsewhere; i++) {
        const struct elsewhere *e = &l->elsewhere[i];

        (void) json_array_append_new(elsewhere, json_pack("{s:o, s:s, s:b}", "tenant",
                                                          utf8_json(e->tenant, strlen(e->tenant)), "table",
                                                          e->table, "without_salt", (int) e->without_salt));
    }
    return report_json(json_pack(
        "{s:o, s:I, s:o, s:o, s:o}", "tenant", utf8_json(l->subject.tenant, strlen(l->subject.tenant)),
        "tokens", (json_int_t) prefix_options_tokens(l->options), "plain", cmd_lookup_kind_json(l, 0),
        "repeatable", cmd_lookup_kind_json(l, 1), "elsewhere", elsewhere));
}

/* ---- text ---- */

/* The chunks of one kind from the first one on that are alike. Returns the index behind them. */
static size_t cmd_lookup_add_row(struct report *r, const struct lookup *l, size_t first)
{
    const kvc_chunk_place *p = &l->places[first];
    size_t end = first;
    char pinned[HUMAN_BYTES] = "-";

    while (end < l->n && cmd_lookup_is_alike(p, &l->places[end]))
        end += KINDS;
    if (p->pinned_ms > 0)
        (void) human_seconds((double) p->pinned_ms * 1e-3, pinned);
    report_row(r, "%ju to %ju\t%s\t%s\t%s\t%s", (uintmax_t) p->first_token,
               (uintmax_t) (p->first_token + (end - first) / KINDS * KVC_CHUNK_TOKENS - 1),
               cmd_lookup_where(p), p->holds > 0 ? "yes" : "no", pinned,
               prompt_places_is_anywhere(p) ? "" : cmd_lookup_reason(p->reason));
    return end;
}

static int cmd_lookup_print_kind(const struct lookup *l, int kind)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<tokens\t<where\t<held\t<pinned for\t<why nowhere");

    terminal_print(stdout, 2, "%sclients find %ju of %zu tokens\n",
                   kind == 1 ? "with repeatable attention, " : "",
                   (uintmax_t) cmd_lookup_findable(l->places, l->n, kind), prefix_options_tokens(l->options));
    for (size_t i = (size_t) kind; i < l->n;)
        i = cmd_lookup_add_row(r, l, i);
    return report_print(r, stdout);
}

static bool cmd_lookup_has_any(const struct lookup *l, int kind)
{
    for (size_t i = (size_t) kind; i < l->n; i += KINDS)
        if (prompt_places_is_anywhere(&l->places[i]))
            return true;
    return false;
}

static int cmd_lookup_print_text(const struct lookup *l)
{
    int r = 0;

    for (int kind = 0; kind < KINDS && r == 0; kind++)
        if (kind == 0 || cmd_lookup_has_any(l, kind)) /* few clients use repeatable attention */
            r = cmd_lookup_print_kind(l, kind);
    for (size_t i = 0; i < l->n_elsewhere; i++)
        terminal_print(stdout, 2, "the first page is there for tenant %s with table %.12s%s\n",
                       l->elsewhere[i].tenant, l->elsewhere[i].table,
                       l->elsewhere[i].without_salt ? " without a salt" : "");
    return r < 0 ? command_fail("out of memory for the answer") : COMMAND_OK;
}

/* ---- the request ---- */

static int cmd_lookup_request(kvc_client *c, void *ctx)
{
    struct lookup *l = ctx;
    const struct document *d = &l->options->document;
    int code = prefix_options_find(l->options, c, &l->subject);

    if (code != COMMAND_OK)
        return code;
    if (kvc_lookup(c, &l->subject.options, d->tokens, d->n_tokens, sizeof(*l->places), &l->places, &l->n) < 0)
        return operator_fail(c);

    cmd_lookup_try_all(c, l);
    return l->options->operator.common.json ? cmd_lookup_print_json(l) : cmd_lookup_print_text(l);
}

static int cmd_lookup_run(int argc, char **argv)
{
    struct prefix_options o = {.operator.may_be_own = true, .may_be_own = true};
    struct lookup l = {.options = &o};
    int code;

    command_parse(&argp, argc, argv, &o);
    code = prefix_options_run(&o, cmd_lookup_request, &l);
    free(l.places);
    return code;
}

const struct command cmd_lookup = {"lookup", "show where the pages of a prompt are", cmd_lookup_run};
