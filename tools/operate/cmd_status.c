/*
 * kvcobra status: memory of a daemon by device, tenant and table, and how many tokens still fit.
 *
 * JSON keys and columns come from proto/status_fields.def.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/message_json.h"
#include "tools/command/operator.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/report.h"
#include "tools/command/tenant_name.h"
#include "tools/command/terminal.h"
#include "tools/command/utf8_json.h"
#include "tools/operate/status_advice.h"
#include "tools/operate/tier_state.h"

static const char doc[] = "Show the memory of a daemon by device, tenant and table, how many tokens still "
                          "fit, how many of the chunks looked up were found, and how many would be with more "
                          "memory or other bits. A user who is no operator sees the own tenant and the "
                          "active tables.\vExample:\n\n"
                          "  kvcobra status";

static const struct argp argp = {NULL, NULL, NULL, doc, operator_view_children, NULL, NULL};

static const char *cmd_status_state_name(Kvcobra__DeviceState state)
{
    switch (state) {
    case KVCOBRA__DEVICE_STATE__DEVICE_READY:
        return "ready";
    case KVCOBRA__DEVICE_STATE__DEVICE_OPENING:
        return "opening";
    case KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE:
        return "unavailable";
    default:
        return "?";
    }
}

/* ---- fields: proto/status_fields.def as data ---- */

enum status_how { HOW_number, HOW_flag, HOW_text, HOW_own };

struct status_field {
    enum status_how how;
    const char *name, *unit, *json, *column;
    size_t offset, bytes; /* in the struct of the message; 0: code of its own shows it */
};

#define AT_number(type, field) offsetof(type, field), sizeof(((type *) 0)->field)
#define AT_flag AT_number
#define AT_text AT_number
#define AT_own(type, field) 0, 0
#define FIELD(type, how, field, unit, json, column)                                                          \
    {HOW_##how, #field, #unit, json, column, AT_##how(type, field)},

static const struct status_field total_fields[] = {
#define STATUS_TOTAL(how, field, type, unit, metric, json, column, help)                                     \
    FIELD(Kvcobra__StatusReply, how, field, unit, json, column)
#include "proto/status_fields.def"
};

static const struct status_field device_fields[] = {
#define STATUS_DEVICE(how, field, type, unit, metric, json, column, help)                                    \
    FIELD(Kvcobra__DeviceStatus, how, field, unit, json, column)
#include "proto/status_fields.def"
};

static const struct status_field tenant_fields[] = {
#define STATUS_TENANT(how, field, type, unit, metric, json, column, help)                                    \
    FIELD(Kvcobra__TenantStatus, how, field, unit, json, column)
#include "proto/status_fields.def"
};

static const struct status_field space_fields[] = {
#define STATUS_SPACE(how, field, type, unit, metric, json, column, help)                                     \
    FIELD(Kvcobra__SpaceStatus, how, field, unit, json, column)
#include "proto/status_fields.def"
};

#define N_FIELDS(fields) (sizeof(fields) / sizeof((fields)[0]))

static uint64_t cmd_status_number(const struct status_field *f, const void *from)
{
    uint32_t narrow;
    uint64_t wide;

    if (f->bytes == sizeof(narrow)) {
        memcpy(&narrow, (const char *) from + f->offset, sizeof(narrow));
        return narrow;
    }
    memcpy(&wide, (const char *) from + f->offset, sizeof(wide));
    return wide;
}

static const char *cmd_status_text(const struct status_field *f, const void *from)
{
    const char *text;

    memcpy(&text, (const char *) from + f->offset, sizeof(text));
    return text;
}

/* ---- JSON ---- */

/* Sets @path, "key" or "object/key", in @into; @value is transferred. Return: 0; -1: out of memory. */
static int cmd_status_set_json(json_t *into, const char *path, json_t *value)
{
    const char *slash = strchr(path, '/');
    json_t *inner;
    char name[32];

    if (!slash)
        return json_object_set_new(into, path, value);

    (void) snprintf(name, sizeof(name), "%.*s", (int) (slash - path), path);
    inner = json_object_get(into, name);
    if (!inner) {
        inner = json_object();
        if (json_object_set_new(into, name, inner) < 0) {
            json_decref(value);
            return -1;
        }
    }

    return json_object_set_new(inner, slash + 1, value);
}

static json_t *cmd_status_field_json(const ProtobufCMessage *m, const char *name)
{
    return message_json_field(m, protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name));
}

/* An object of all fields except HOW_own. NULL: out of memory. */
static json_t *cmd_status_fields_json(const struct status_field *fields, size_t n, const void *from)
{
    json_t *all = json_object();

    for (size_t i = 0; all && i < n; i++) {
        const struct status_field *f = &fields[i];

        if (f->json[0] == '\0' || f->how == HOW_own)
            continue;
        if (cmd_status_set_json(all, f->json, cmd_status_field_json(from, f->name)) < 0) {
            json_decref(all);
            return NULL;
        }
    }

    return all;
}

/* Drops @object and returns NULL if @r is negative. */
static json_t *cmd_status_checked_json(json_t *object, int r)
{
    if (r == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *cmd_status_tenant_json(const void *row)
{
    const Kvcobra__TenantStatus *t = row;
    json_t *all = cmd_status_fields_json(tenant_fields, N_FIELDS(tenant_fields), t);

    return cmd_status_checked_json(all, json_object_set_new(all, "advice", status_advice_json(t->advice)));
}

static json_t *cmd_status_device_json(const void *row)
{
    const Kvcobra__DeviceStatus *d = row;
    json_t *all = cmd_status_fields_json(device_fields, N_FIELDS(device_fields), d);

    int r = json_object_set_new(all, "state", json_string(cmd_status_state_name(d->state)));

    r |= json_object_set_new(all, "advice", status_advice_json(d->advice));
    return cmd_status_checked_json(all, r);
}

static json_t *cmd_status_space_json(const void *row)
{
    const Kvcobra__SpaceStatus *s = row;
    json_t *all = cmd_status_fields_json(space_fields, N_FIELDS(space_fields), s);
    char digest[DIGEST_HEX_BYTES];
    int r = 0;

    r |= json_object_set_new(all, "table", json_string(digest_hex(s->table_digest.data, digest)));
    r |= json_object_set_new(all, "first_kv_head", json_integer(s->first_head));
    r |= json_object_set_new(all, "n_kv_heads", json_integer(s->n_heads));
    return cmd_status_checked_json(all, r);
}

/* @rows: [n] pointers to messages. NULL anywhere (out of memory) makes the whole NULL:
 * json_array_append_new() refuses it. */
static json_t *cmd_status_list_json(void *rows, size_t n, json_t *(*row_json)(const void *row))
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        if (json_array_append_new(all, row_json(((void **) rows)[i])) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static int cmd_status_print_json(const Kvcobra__StatusReply *s)
{
    json_t *all = cmd_status_fields_json(total_fields, N_FIELDS(total_fields), s);
    int r = 0;

    r |= json_object_set_new(all, "tenants",
                             cmd_status_list_json(s->tenants, s->n_tenants, cmd_status_tenant_json));
    r |= json_object_set_new(all, "spaces",
                             cmd_status_list_json(s->spaces, s->n_spaces, cmd_status_space_json));
    r |= json_object_set_new(all, "devices",
                             cmd_status_list_json(s->devices, s->n_devices, cmd_status_device_json));
    return report_json(cmd_status_checked_json(all, r));
}

/* ---- tables of the text ---- */

enum { CELL_BYTES = TENANT_NAME_BYTES }; /* more than DIGEST_HEX_BYTES */
enum { WIDTH_OF_FILES = 80 };

/* A cell that a field's value alone does not give. Returns @ret or a literal; NULL: the field is shown as it
 * is. */
typedef const char *status_cell_fn(const struct status_field *f, const void *row,
                                   char ret[static CELL_BYTES]);

struct status_list {
    const struct status_field *fields;
    size_t n_fields;
    status_cell_fn *cell;
    bool exact; /* bytes as numbers, not in KiB and the like */
};

static struct report *cmd_status_new_report(const struct status_list *l)
{
    char columns[512];
    size_t n = 0;

    for (size_t i = 0; i < l->n_fields; i++) {
        const struct status_field *f = &l->fields[i];

        if (f->column[0] != '\0' && n < sizeof(columns))
            n += (size_t) snprintf(columns + n, sizeof(columns) - n, "%s%c%s", n > 0 ? "\t" : "",
                                   f->how == HOW_number ? '>' : '<', f->column);
    }
    return report_new(columns);
}

static void cmd_status_add_cell(FILE *line, const struct status_list *l, const struct status_field *f,
                                const void *row)
{
    char own[CELL_BYTES], amount[HUMAN_BYTES];
    const char *text = l->cell(f, row, own);

    if (text)
        fputs(text, line);
    else if (f->how == HOW_text)
        fputs(cmd_status_text(f, row), line);
    else if (strcmp(f->unit, "bytes") == 0 && !l->exact)
        fputs(human_bytes(cmd_status_number(f, row), amount), line);
    else
        fprintf(line, "%ju", (uintmax_t) cmd_status_number(f, row));
}

static void cmd_status_add_row(struct report *r, const struct status_list *l, const void *row)
{
    _cleanup_(freep) char *text = NULL;
    size_t n;
    FILE *line = command_allocated(open_memstream(&text, &n));

    for (size_t i = 0, k = 0; i < l->n_fields; i++) {
        if (l->fields[i].column[0] == '\0')
            continue;
        if (k++ > 0)
            fputc('\t', line);
        cmd_status_add_cell(line, l, &l->fields[i], row);
    }

    (void) command_allocated(fclose(line) == 0 ? text : NULL);
    report_row(r, "%s", text);
}

/* Files and pipes get what fits a terminal too: columns beyond that follow below. */
static unsigned cmd_status_width(void)
{
    unsigned width = terminal_width(stdout);

    return width > 0 ? width : WIDTH_OF_FILES;
}

/* @rows: [n] pointers to messages. */
static void cmd_status_print_list(const struct status_list *l, void *rows, size_t n)
{
    _cleanup_(report_freep) struct report *r = cmd_status_new_report(l);

    for (size_t i = 0; i < n; i++)
        cmd_status_add_row(r, l, ((void **) rows)[i]);
    report_print_width(r, stdout, cmd_status_width());
}

static const char *cmd_status_device_cell(const struct status_field *f, const void *row,
                                          char ret[static CELL_BYTES])
{
    const Kvcobra__DeviceStatus *d = row;

    (void) ret;
    if (f->how == HOW_own)
        return cmd_status_state_name(d->state);
    if (f->how == HOW_text && cmd_status_text(f, row)[0] == '\0')
        return "-";
    return NULL;
}

static const char *cmd_status_tenant_cell(const struct status_field *f, const void *row,
                                          char ret[static CELL_BYTES])
{
    if (f->how == HOW_text)
        return tenant_name_show(cmd_status_text(f, row), ret);
    if (f->how != HOW_flag)
        return NULL;
    return ((const Kvcobra__TenantStatus *) row)->isolated ? "kernel" : "none";
}

static const char *cmd_status_space_cell(const struct status_field *f, const void *row,
                                         char ret[static CELL_BYTES])
{
    const Kvcobra__SpaceStatus *s = row;

    if (f->how != HOW_own)
        return NULL;
    if (strcmp(f->column, "table") == 0)
        return digest_short(s->table_digest.data, ret);
    (void) snprintf(ret, CELL_BYTES, "%u to %u", s->first_head, s->first_head + s->n_heads - 1);
    return ret;
}

/* ---- text ---- */

enum { HEAD_INDENT = 10 };

static void cmd_status_print_head(const Kvcobra__StatusReply *s)
{
    char up[HUMAN_BYTES], pool[HUMAN_BYTES], extents[HUMAN_BYTES], pages[HUMAN_BYTES], waste[HUMAN_BYTES];

    terminal_print(stdout, HEAD_INDENT, "kvcobrad  %s, process %ju, up %s, restart=%s\n", s->version,
                   (uintmax_t) s->pid, human_seconds((double) s->uptime_ms * 1e-3, up), s->restart);
    if (s->draining)
        terminal_print(stdout, HEAD_INDENT,
                       "draining  no new sessions, models and pages until 'kvcobra drain --off'\n");
    if (s->lost_names > 0)
        terminal_print(
            stdout, HEAD_INDENT,
            "names     %u of its sockets, locks and folders were removed or replaced: see event=name-lost "
            "in the log\n",
            (unsigned) s->lost_names);
    terminal_print(stdout, HEAD_INDENT, "pool      %s, %s of it allocated: %s in pages, %s waste\n",
                   human_bytes(s->pool_bytes, pool), human_bytes(s->extent_bytes, extents),
                   human_bytes(s->page_bytes, pages), human_bytes(s->waste_bytes, waste));
    if (tier_state_exists(s->disk_tier) || tier_state_exists(s->cluster_tier))
        terminal_print(stdout, HEAD_INDENT, "tiers     disk %s, cluster %s: see 'kvcobra tier status'\n",
                       tier_state_show(s->disk_tier), tier_state_show(s->cluster_tier));
    terminal_print(stdout, HEAD_INDENT,
                   "clients   %ju sessions, %ju leases on %ju pages; %ju packets refused\n",
                   (uintmax_t) s->sessions, (uintmax_t) s->leases, (uintmax_t) s->held_pages,
                   (uintmax_t) s->refused_packets);
    if (s->n_devices > 1 && s->mover_pid > 0)
        terminal_print(stdout, HEAD_INDENT, "mover     process %ju, %ju restarts\n", (uintmax_t) s->mover_pid,
                       (uintmax_t) s->mover_restarts);
    else if (s->n_devices > 1)
        terminal_print(stdout, HEAD_INDENT, "mover     not running\n");
}

static void cmd_status_print_device_notes(const Kvcobra__StatusReply *s)
{
    for (size_t i = 1; i < s->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = s->devices[i];

        if (d->message[0])
            terminal_print(stdout, HEAD_INDENT, "%s: %s\n", d->name, d->message);
        if (d->quarantined_slots > 0)
            terminal_print(
                stdout, HEAD_INDENT,
                "%s: %ju pages of exited processes are not reused until their kernels have ended\n", d->name,
                (uintmax_t) d->quarantined_slots);
    }
}

static void cmd_status_print_pins(const Kvcobra__StatusReply *s)
{
    char name[CELL_BYTES], bytes[HUMAN_BYTES];

    for (size_t i = 0; i < s->n_tenants; i++)
        if (s->tenants[i]->pinned_bytes > 0)
            terminal_print(stdout, 2, "%s: %s of what is held is pinned by operators\n",
                           tenant_name_show(s->tenants[i]->name, name),
                           human_bytes(s->tenants[i]->pinned_bytes, bytes));
}

static int cmd_status_print_text(const Kvcobra__StatusReply *s)
{
    static const struct status_list devices = {device_fields, N_FIELDS(device_fields), cmd_status_device_cell,
                                               false};
    static const struct status_list tenants = {tenant_fields, N_FIELDS(tenant_fields), cmd_status_tenant_cell,
                                               false};
    static const struct status_list spaces = {space_fields, N_FIELDS(space_fields), cmd_status_space_cell,
                                              true};

    cmd_status_print_head(s);
    if (s->n_devices > 1) { /* the first one is host memory, which the head has */
        putchar('\n');
        cmd_status_print_list(&devices, s->devices + 1, s->n_devices - 1);
        cmd_status_print_device_notes(s);
    }

    if (s->n_tenants > 0) {
        putchar('\n');
        cmd_status_print_list(&tenants, s->tenants, s->n_tenants);
        cmd_status_print_pins(s);
    }

    if (s->n_spaces > 0) {
        putchar('\n');
        cmd_status_print_list(&spaces, s->spaces, s->n_spaces);
    }

    status_advice_print(s, stdout);
    return COMMAND_OK;
}

/* ---- a client's own view ---- */

static int cmd_status_print_own_json(const Kvcobra__StatusReply *s)
{
    return report_json(json_pack("{s:o, s:b, s:o}", "version", utf8_json(s->version, strlen(s->version)),
                                 "draining", s->draining != 0, "tenants",
                                 cmd_status_list_json(s->tenants, s->n_tenants, cmd_status_tenant_json)));
}

/* The connection is one of clients: the daemon tells it about its own tenant. */
static int cmd_status_print_own(kvc_client *c, const struct operator_options *o,
                                const Kvcobra__StatusReply *s)
{
    static const struct status_list tenants = {tenant_fields, N_FIELDS(tenant_fields), cmd_status_tenant_cell,
                                               false};
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    struct errmsg e = {""};

    if (o->common.json)
        return cmd_status_print_own_json(s);
    if (operator_list_tables(c, &list, &e) < 0)
        return command_fail("%s", e.text);

    terminal_print(stdout, HEAD_INDENT, "kvcobrad  %s%s\n", s->version,
                   s->draining ? ", draining: no new sessions, models and pages" : "");
    for (size_t i = 0; i < list->n_tables; i++) {
        const Kvcobra__TableInfo *t = list->tables[i];
        char digest[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES];

        if (t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE)
            terminal_print(stdout, HEAD_INDENT, "active    %s %s of model %s, %.3f bits per number\n",
                           t->exact != 0 ? "exact table" : "table", digest_short(t->digest.data, digest),
                           digest_short(t->model_digest.data, model), t->bpd_code);
    }
    putchar('\n');
    cmd_status_print_list(&tenants, s->tenants, s->n_tenants);
    cmd_status_print_pins(s);
    return COMMAND_OK;
}

static int cmd_status_request(kvc_client *c, void *ctx)
{
    const struct operator_options *o = ctx;
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    struct errmsg e = {""};

    if (operator_get_status(c, &s, &e) < 0)
        return command_fail("%s", e.text);

    if (o->is_own)
        return cmd_status_print_own(c, o, s);
    return o->common.json ? cmd_status_print_json(s) : cmd_status_print_text(s);
}

static int cmd_status_run(int argc, char **argv)
{
    struct operator_options o = {.may_be_own = true};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o, cmd_status_request, &o);
}

COMMAND(cmd_status) = {
    .name = "status",
    .summary = "show the memory of a daemon and how many tokens still fit",
    .run = cmd_status_run,
    .rank = 160,
    .related = "top doctor",
};
