/* kvcobra lookup: where the pages of a prompt are, and why they are not there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/operator.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/prefix_options.h"
#include "tools/operate/prompt_places.h"

enum { KINDS = OPERATOR_PLACES };
enum { ELSEWHERE_MAX = 8 }; /* other tables, tenants and salts that are named */
enum { TRIES_MAX = 256 };

static const char doc[] =
    "Show which tokens of a prompt have pages in memory, on the disk, in the cluster or nowhere, and why. "
    "Nothing is fetched or counted, and no eviction changes. A client finds the tokens up to the first page "
    "that is nowhere; one whose layers attend to a window needs only the pages of the window before the "
    "token with which it goes on. If "
    "the first page is nowhere, other tables, other tenants and no salt are tried. A user who is no operator "
    "asks about the own tenant, without --tenant.\v" PROMPT_OPTIONS_DOC "\n\n"
    "Of a page that is nowhere, kvcobrad knows that it was evicted, or that its table was retired, as long "
    "as it remembers the key (setting ghosts). Else the page was never published with these "
    "tokens, table, salt and heads, or that was long ago. The newest pages of a running sequence are not "
    "published yet.\n\n"
    "Examples:\n\n"
    "  kvcobra lookup --tenant uid-1000 --table 651ed3 --tokens-file tokens.txt\n"
    "  kvcobra lookup --tenant uid-1000 --table 651ed3 \\\n"
    "      --model model.gguf --prompt-file manual.txt";

static const struct argp argp = {NULL, NULL, NULL, doc, prefix_options_view_children, NULL, NULL};

/* ---- places ---- */

static const char *cmd_lookup_reason(int reason)
{
    switch (reason) {
    case KVCOBRA__MISS_REASON__MISS_EVICTED:
        return "evicted or flushed";
    case KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE:
        return "table retired";
    default:
        return "never published, or forgotten";
    }
}

/* For JSON: one word. */
static const char *cmd_lookup_reason_key(int reason)
{
    switch (reason) {
    case KVCOBRA__MISS_REASON__MISS_NONE:
        return "";
    case KVCOBRA__MISS_REASON__MISS_EVICTED:
        return "evicted";
    case KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE:
        return "retired_table";
    default:
        return "unknown";
    }
}

static const char *cmd_lookup_where(const Kvcobra__ChunkPlace *p)
{
    if (p->in_memory)
        return p->on_disk ? "memory and disk" : "memory";
    if (p->on_disk)
        return "disk";
    return p->in_cluster ? "cluster" : "nowhere";
}

/* Whether two chunks stand in one row. The times of pins of one command differ by milliseconds. */
static bool cmd_lookup_is_alike(const Kvcobra__ChunkPlace *a, const Kvcobra__ChunkPlace *b)
{
    return a->in_memory == b->in_memory && a->on_disk == b->on_disk && a->in_cluster == b->in_cluster &&
           a->reason == b->reason && (a->holds > 0) == (b->holds > 0) &&
           a->pinned_ms / 10000 == b->pinned_ms / 10000;
}

/* The first token of a place. */
static uint64_t cmd_lookup_token(size_t place)
{
    return (uint64_t) (place / KINDS) * KVC_CHUNK_TOKENS;
}

/* How many tokens of @kind a client finds, also in slower tiers. */
static uint64_t cmd_lookup_findable(const Kvcobra__LookupReply *found, int kind)
{
    size_t i = (size_t) kind;

    while (i < found->n_places && prompt_places_is_anywhere(found->places[i]))
        i += KINDS;
    return cmd_lookup_token(i);
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
    Kvcobra__LookupReply *found;
    struct elsewhere elsewhere[ELSEWHERE_MAX];
    size_t n_elsewhere;
    unsigned n_tries;
};

static bool cmd_lookup_has_first(const Kvcobra__LookupReply *found)
{
    return prompt_places_is_anywhere(found->places[0]) || prompt_places_is_anywhere(found->places[1]);
}

/* Looks for the first page under other circumstances. What cannot be asked there is no failure. */
static void cmd_lookup_try(kvc_client *c, struct lookup *l, const Kvcobra__Prefix *p)
{
    _cleanup_(operator_message_freep) Kvcobra__LookupReply *found = NULL;
    struct elsewhere *e;

    if (l->n_elsewhere == ELSEWHERE_MAX || l->n_tries++ >= TRIES_MAX)
        return;
    if (operator_lookup(c, p, l->options->prompt.document.tokens, KVC_CHUNK_TOKENS, false, &found, NULL) < 0)
        return;
    if (!cmd_lookup_has_first(found))
        return;

    e = &l->elsewhere[l->n_elsewhere++];
    (void) snprintf(e->tenant, sizeof(e->tenant), "%s", p->tenant);
    (void) digest_hex(p->table_digest.data, e->table);
    e->without_salt = l->subject.prefix.salt.len > 0 && p->salt.len == 0;
}

static void cmd_lookup_try_tables(kvc_client *c, struct lookup *l)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;

    if (operator_list_tables(c, &list, NULL) < 0)
        return;

    for (size_t i = 0; i < list->n_tables; i++) {
        const Kvcobra__TableInfo *t = list->tables[i];
        Kvcobra__Prefix p = l->subject.prefix;

        p.table_digest = t->digest;
        if (t->state != KVCOBRA__TABLE_STATE__TABLE_RETIRED &&
            memcmp(t->digest.data, l->subject.digest, KVC_DIGEST_BYTES) != 0)
            cmd_lookup_try(c, l, &p);
    }
}

static void cmd_lookup_try_tenants(kvc_client *c, struct lookup *l)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;

    if (operator_get_status(c, &s, NULL) < 0)
        return;

    for (size_t i = 0; i < s->n_tenants; i++) {
        Kvcobra__Prefix p = l->subject.prefix;

        p.tenant = s->tenants[i]->name;
        if (strcmp(p.tenant, l->subject.tenant) != 0)
            cmd_lookup_try(c, l, &p);
    }
}

static void cmd_lookup_try_all(kvc_client *c, struct lookup *l)
{
    Kvcobra__Prefix p = l->subject.prefix;

    if (cmd_lookup_has_first(l->found))
        return;

    p.salt = (ProtobufCBinaryData){0, NULL};
    if (l->subject.prefix.salt.len > 0)
        cmd_lookup_try(c, l, &p);
    cmd_lookup_try_tables(c, l);
    cmd_lookup_try_tenants(c, l);
}

/* ---- JSON ---- */

static json_t *cmd_lookup_place_json(const struct lookup *l, size_t i)
{
    const Kvcobra__ChunkPlace *p = l->found->places[i];

    return json_pack("{s:I, s:I, s:b, s:b, s:b, s:I, s:f, s:s}", "first_token",
                     (json_int_t) cmd_lookup_token(i), "tokens", (json_int_t) KVC_CHUNK_TOKENS, "memory",
                     p->in_memory, "disk", p->on_disk, "cluster", p->in_cluster, "holds",
                     (json_int_t) p->holds, "pinned_seconds", (double) p->pinned_ms * 1e-3, "reason",
                     cmd_lookup_reason_key(p->reason));
}

static json_t *cmd_lookup_kind_json(const struct lookup *l, int kind)
{
    json_t *chunks = json_array();

    for (size_t i = (size_t) kind; chunks && i < l->found->n_places; i += KINDS)
        if (json_array_append_new(chunks, cmd_lookup_place_json(l, i)) < 0) {
            json_decref(chunks);
            return NULL;
        }
    return json_pack("{s:I, s:o}", "findable_tokens", (json_int_t) cmd_lookup_findable(l->found, kind),
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
        "tokens", (json_int_t) prompt_options_tokens(&l->options->prompt), "plain",
        cmd_lookup_kind_json(l, 0), "repeatable", cmd_lookup_kind_json(l, 1), "elsewhere", elsewhere));
}

/* ---- text ---- */

/* The chunks of one kind from the first one on that are alike. Returns the index behind them. */
static size_t cmd_lookup_add_row(struct report *r, const struct lookup *l, size_t first)
{
    const Kvcobra__ChunkPlace *p = l->found->places[first];
    size_t end = first;
    char pinned[HUMAN_BYTES] = "-";

    while (end < l->found->n_places && cmd_lookup_is_alike(p, l->found->places[end]))
        end += KINDS;
    if (p->pinned_ms > 0)
        (void) human_seconds((double) p->pinned_ms * 1e-3, pinned);
    report_row(r, "%ju to %ju\t%s\t%s\t%s\t%s", (uintmax_t) cmd_lookup_token(first),
               (uintmax_t) (cmd_lookup_token(end) - 1), cmd_lookup_where(p), p->holds > 0 ? "yes" : "no",
               pinned, prompt_places_is_anywhere(p) ? "" : cmd_lookup_reason(p->reason));
    return end;
}

static void cmd_lookup_print_kind(const struct lookup *l, int kind)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<tokens\t<where\t<held\t<pinned for\t<why nowhere");

    terminal_print(
        stdout, 2, "%sclients find %ju of %zu tokens\n", kind == 1 ? "with repeatable attention, " : "",
        (uintmax_t) cmd_lookup_findable(l->found, kind), prompt_options_tokens(&l->options->prompt));
    for (size_t i = (size_t) kind; i < l->found->n_places;)
        i = cmd_lookup_add_row(r, l, i);
    report_print(r, stdout);
}

static bool cmd_lookup_has_any(const struct lookup *l, int kind)
{
    for (size_t i = (size_t) kind; i < l->found->n_places; i += KINDS)
        if (prompt_places_is_anywhere(l->found->places[i]))
            return true;
    return false;
}

static int cmd_lookup_print_text(const struct lookup *l)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (kind == 0 || cmd_lookup_has_any(l, kind)) /* few clients use repeatable attention */
            cmd_lookup_print_kind(l, kind);
    for (size_t i = 0; i < l->n_elsewhere; i++)
        terminal_print(stdout, 2, "the first page is there for tenant %s with table %.12s%s\n",
                       l->elsewhere[i].tenant, l->elsewhere[i].table,
                       l->elsewhere[i].without_salt ? " without a salt" : "");
    return COMMAND_OK;
}

/* ---- the request ---- */

static int cmd_lookup_request(kvc_client *c, void *ctx)
{
    struct lookup *l = ctx;
    const struct document *d = &l->options->prompt.document;
    struct errmsg e = {""};
    int code = prefix_options_find(l->options, c, &l->subject);

    if (code != COMMAND_OK)
        return code;
    if (operator_lookup(c, &l->subject.prefix, d->tokens, d->n_tokens, false, &l->found, &e) < 0)
        return command_fail("%s", e.text);

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
    operator_message_freep(&l.found);
    return code;
}

COMMAND(cmd_lookup) = {
    .name = "lookup",
    .summary = "show where the pages of a prompt are",
    .run = cmd_lookup_run,
    .rank = 200,
    .related = "pin flush status",
};
