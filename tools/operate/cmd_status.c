/*
 * kvcobra status: what a daemon holds, for whom, and how much still fits.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "client/kvcobra-operator.h"
#include "tools/command/command.h"
#include "tools/command/handles.h"
#include "tools/command/report.h"

enum { OPT_SOCKET = 1 };

struct status_options {
    struct common_options common;
    const char *socket;
};

static const char doc[] = "Show what a daemon holds, for whom, and how many tokens still fit.\v"
                          "The socket is the daemon's operator socket. Example:\n\n"
                          "  kvcobra status --socket /run/kvcobra/operator.sock";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0, "The daemon's operator socket (required)", 1},
    {0},
};

static error_t cmd_status_parse(int key, char *arg, struct argp_state *state)
{
    struct status_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->socket)
            argp_error(state, "--socket is needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_status_parse, NULL, doc, common_children, NULL, NULL};

static void kvc_status_freep(kvc_status **s)
{
    *s = kvc_status_free(*s);
}

static const char *cmd_status_state_name(int state)
{
    return state == KVC_DEVICE_READY         ? "ready"
           : state == KVC_DEVICE_OPENING     ? "opening"
           : state == KVC_DEVICE_UNAVAILABLE ? "unavailable"
                                             : "?";
}

static json_t *cmd_status_text_json(const char *text, size_t room)
{
    return utf8_json(text, strnlen(text, room));
}

static json_t *cmd_status_misses_json(const kvc_tenant_status *t)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "unknown", (json_int_t) t->misses_unknown, "evicted",
                     (json_int_t) t->misses_evicted, "other_table", (json_int_t) t->misses_other_table,
                     "retired_table", (json_int_t) t->misses_retired_table);
}

static json_t *cmd_status_memory_json(const kvc_status *s)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "slot_records", (json_int_t) s->slot_record_bytes, "indexes",
                     (json_int_t) s->index_bytes, "journal", (json_int_t) s->hold_bytes, "process",
                     (json_int_t) s->heap_bytes);
}

static json_t *cmd_status_threads_json(const kvc_status *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "threads", (json_int_t) s->work_threads, "waiting",
                     (json_int_t) s->work_waiting, "done", (json_int_t) s->work_done, "refused",
                     (json_int_t) s->work_refused, "expired", (json_int_t) s->work_expired);
}

static json_t *cmd_status_tenant_json(const kvc_tenant_status *t)
{
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "name",
        utf8_json(t->name, strnlen(t->name, sizeof(t->name))), "first_misses", cmd_status_misses_json(t),
        "guarantee_bytes", (json_int_t) t->guarantee_bytes, "extent_bytes", (json_int_t) t->extent_bytes,
        "asked_back_bytes", (json_int_t) t->asked_back_bytes, "quota_bytes", (json_int_t) t->quota_bytes,
        "used_bytes", (json_int_t) t->used_bytes, "held_bytes", (json_int_t) t->held_bytes, "arena_bytes",
        (json_int_t) t->arena_bytes, "pages", (json_int_t) t->pages, "sessions", (json_int_t) t->sessions,
        "hits", (json_int_t) t->hits, "misses", (json_int_t) t->misses, "evictions",
        (json_int_t) t->evictions, "leases", (json_int_t) t->leases, "isolated", t->isolated != 0);
}

static json_t *cmd_status_space_json(const kvc_space_status *s)
{
    char digest[DIGEST_HEX_BYTES];

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "table",
                     digest_hex(s->table_digest, digest), "first_kv_head", (json_int_t) s->first_kv_head,
                     "n_kv_heads", (json_int_t) s->n_kv_heads, "pages", (json_int_t) s->pages, "page_bytes",
                     (json_int_t) s->page_bytes, "tokens", (json_int_t) s->tokens, "tokens_free",
                     (json_int_t) s->tokens_free, "held_pages", (json_int_t) s->held_pages, "leased",
                     (json_int_t) s->leased, "evictions", (json_int_t) s->evictions);
}

static json_t *cmd_status_device_json(const kvc_device_status *d)
{
    return json_pack("{s:o, s:o, s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                     "name", cmd_status_text_json(d->name, sizeof(d->name)), "uuid",
                     cmd_status_text_json(d->uuid, sizeof(d->uuid)), "product",
                     cmd_status_text_json(d->product, sizeof(d->product)), "state",
                     cmd_status_state_name(d->state), "message",
                     cmd_status_text_json(d->message, sizeof(d->message)), "pool_bytes",
                     (json_int_t) d->pool_bytes, "extent_bytes", (json_int_t) d->extent_bytes, "page_bytes",
                     (json_int_t) d->page_bytes, "waste_bytes", (json_int_t) d->waste_bytes, "held_bytes",
                     (json_int_t) d->held_bytes, "guaranteed_bytes", (json_int_t) d->guaranteed_bytes,
                     "pages", (json_int_t) d->pages, "sessions", (json_int_t) d->sessions, "spare_extents",
                     (json_int_t) d->spare_extents, "retired_extents", (json_int_t) d->retired_extents,
                     "quarantined_slots", (json_int_t) d->quarantined_slots);
}

static json_t *cmd_status_mover_json(const kvc_status *s)
{
    return json_pack("{s:I, s:I}", "pid", (json_int_t) s->mover_pid, "restarts",
                     (json_int_t) s->mover_restarts);
}

/* NULL anywhere (no memory) makes the whole NULL: json_array_append_new() refuses it. */
static json_t *cmd_status_tenants_json(const kvc_status *s)
{
    json_t *all = json_array();

    for (size_t i = 0; i < s->n_tenants; i++) {
        if (json_array_append_new(all, cmd_status_tenant_json(&s->tenants[i])) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *cmd_status_devices_json(const kvc_status *s)
{
    json_t *all = json_array();

    for (size_t i = 0; i < s->n_devices; i++) {
        if (json_array_append_new(all, cmd_status_device_json(&s->devices[i])) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *cmd_status_spaces_json(const kvc_status *s)
{
    json_t *all = json_array();

    for (size_t i = 0; i < s->n_spaces; i++) {
        if (json_array_append_new(all, cmd_status_space_json(&s->spaces[i])) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static int cmd_status_print_json(const kvc_status *s)
{
    return report_json(json_pack(
        "{s:o, s:o, s:I, s:I, s:b, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:o, s:o, "
        "s:o, s:o}",
        "memory", cmd_status_memory_json(s), "work", cmd_status_threads_json(s), "guaranteed_bytes",
        (json_int_t) s->guaranteed_bytes, "pid", (json_int_t) s->pid, "draining", s->draining != 0,
        "evictions", (json_int_t) s->evictions, "uptime_ms", (json_int_t) s->uptime_ms, "version",
        cmd_status_text_json(s->version, sizeof(s->version)), "event_backend",
        cmd_status_text_json(s->event_backend, sizeof(s->event_backend)), "restart",
        cmd_status_text_json(s->restart, sizeof(s->restart)), "pool_bytes", (json_int_t) s->pool_bytes,
        "extent_bytes", (json_int_t) s->extent_bytes, "page_bytes", (json_int_t) s->page_bytes, "waste_bytes",
        (json_int_t) s->waste_bytes, "sessions", (json_int_t) s->sessions, "leases", (json_int_t) s->leases,
        "held_pages", (json_int_t) s->held_pages, "refused_packets", (json_int_t) s->refused_packets,
        "tenants", cmd_status_tenants_json(s), "spaces", cmd_status_spaces_json(s), "devices",
        cmd_status_devices_json(s), "mover", cmd_status_mover_json(s)));
}

static void cmd_status_print_head(const kvc_status *s)
{
    char up[HUMAN_BYTES], pool[HUMAN_BYTES], extents[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES];

    printf("kvcobrad  %.*s, process %ju, up %s, %.*s, restart=%.*s\n", (int) sizeof(s->version), s->version,
           (uintmax_t) s->pid, human_seconds((double) s->uptime_ms * 1e-3, up),
           (int) sizeof(s->event_backend), s->event_backend, (int) sizeof(s->restart), s->restart);
    if (s->draining)
        printf("draining  no new sessions, models and pages; 'kvcobra drain --off' ends that\n");
    printf("pool      %s, %s of it allocated: %s in pages, %s waste\n", human_bytes(s->pool_bytes, pool),
           human_bytes(s->extent_bytes, extents), human_bytes(s->page_bytes, pages),
           human_bytes(s->waste_bytes, waste));
    printf("clients   %ju sessions, %ju leases on %ju pages; %ju packets refused\n", (uintmax_t) s->sessions,
           (uintmax_t) s->leases, (uintmax_t) s->held_pages, (uintmax_t) s->refused_packets);
    if (s->n_devices > 1 && s->mover_pid > 0)
        printf("mover     process %ju, started again %ju times\n", (uintmax_t) s->mover_pid,
               (uintmax_t) s->mover_restarts);
    else if (s->n_devices > 1)
        printf("mover     not running\n");
}

/* The first one is the host's memory, which the head has. */
static int cmd_status_print_devices(const kvc_status *s)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<gpu\t<state\t<product\t>pool\t>allocated\t>pages\t>held\t>waste\t>sessions\t>spare\t>"
                   "retired\t<uuid");

    for (size_t i = 1; i < s->n_devices; i++) {
        const kvc_device_status *d = &s->devices[i];
        char pool[HUMAN_BYTES], extents[HUMAN_BYTES], pages[HUMAN_BYTES], held[HUMAN_BYTES],
            waste[HUMAN_BYTES];

        report_row(r, "%.*s\t%s\t%.*s\t%s\t%s\t%s\t%s\t%s\t%ju\t%u\t%u\t%.*s", (int) sizeof(d->name), d->name,
                   cmd_status_state_name(d->state), (int) sizeof(d->product),
                   d->product[0] ? d->product : "-", human_bytes(d->pool_bytes, pool),
                   human_bytes(d->extent_bytes, extents), human_bytes(d->page_bytes, pages),
                   human_bytes(d->held_bytes, held), human_bytes(d->waste_bytes, waste),
                   (uintmax_t) d->sessions, d->spare_extents, d->retired_extents, (int) sizeof(d->uuid),
                   d->uuid);
    }
    return report_print(r, stdout);
}

static void cmd_status_print_device_notes(const kvc_status *s)
{
    for (size_t i = 1; i < s->n_devices; i++) {
        const kvc_device_status *d = &s->devices[i];

        if (d->message[0])
            printf("%.*s: %.*s\n", (int) sizeof(d->name), d->name, (int) sizeof(d->message), d->message);
        if (d->quarantined_slots > 0)
            printf("%.*s: %ju pages of dead processes wait until their kernels cannot run any more\n",
                   (int) sizeof(d->name), d->name, (uintmax_t) d->quarantined_slots);
    }
}

static int cmd_status_print_tenants(const kvc_status *s)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<tenant\t>quota\t>sure\t>used\t>held\t>arena\t>pages\t>sessions\t>hits\t>misses\t>"
                   "evictions\t<isolation");

    for (size_t i = 0; i < s->n_tenants; i++) {
        const kvc_tenant_status *t = &s->tenants[i];
        char quota[HUMAN_BYTES], sure[HUMAN_BYTES], used[HUMAN_BYTES], held[HUMAN_BYTES], arena[HUMAN_BYTES];

        report_row(r, "%.*s\t%s\t%s\t%s\t%s\t%s\t%ju\t%ju\t%ju\t%ju\t%ju\t%s", (int) sizeof(t->name), t->name,
                   human_bytes(t->quota_bytes, quota), human_bytes(t->guarantee_bytes, sure),
                   human_bytes(t->used_bytes, used), human_bytes(t->held_bytes, held),
                   human_bytes(t->arena_bytes, arena), (uintmax_t) t->pages, (uintmax_t) t->sessions,
                   (uintmax_t) t->hits, (uintmax_t) t->misses, (uintmax_t) t->evictions,
                   t->isolated ? "kernel" : "none");
    }
    return report_print(r, stdout);
}

static int cmd_status_print_spaces(const kvc_status *s)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<table\t<heads\t>pages\t>bytes per page\t>tokens held\t>tokens that still fit");

    for (size_t i = 0; i < s->n_spaces; i++) {
        const kvc_space_status *p = &s->spaces[i];
        char digest[DIGEST_HEX_BYTES];

        report_row(r, "%s\t%u to %u\t%ju\t%ju\t%ju\t%ju", digest_short(p->table_digest, digest),
                   p->first_kv_head, p->first_kv_head + p->n_kv_heads - 1, (uintmax_t) p->pages,
                   (uintmax_t) p->page_bytes, (uintmax_t) p->tokens, (uintmax_t) p->tokens_free);
    }
    return report_print(r, stdout);
}

static int cmd_status_print_text(const kvc_status *s)
{
    cmd_status_print_head(s);
    if (s->n_devices > 1) {
        putchar('\n');
        if (cmd_status_print_devices(s) < 0)
            return command_fail("out of memory");
        cmd_status_print_device_notes(s);
    }
    if (s->n_tenants > 0) {
        putchar('\n');
        if (cmd_status_print_tenants(s) < 0)
            return command_fail("out of memory");
    }
    if (s->n_spaces > 0) {
        putchar('\n');
        if (cmd_status_print_spaces(s) < 0)
            return command_fail("out of memory");
    }
    return COMMAND_OK;
}

static int cmd_status_run(int argc, char **argv)
{
    const kvc_status_sizes sizes = KVC_STATUS_SIZES;
    struct status_options o = {0};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(kvc_status_freep) kvc_status *s = NULL;
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    if (client_open(o.socket, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (kvc_status_get(c, &sizes, &s) < 0)
        return command_fail("%s", kvc_last_error(c));
    return o.common.json ? cmd_status_print_json(s) : cmd_status_print_text(s);
}

const struct command cmd_status = {"status", "what a daemon holds, for whom, and how much still fits",
                                   cmd_status_run};
