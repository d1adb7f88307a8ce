/* The state of the daemon: kvc_status_get(). Copies the daemon's answer, which comes in pages, into public
 * structs, field by field of proto/status_fields.def. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

/* A status under construction. Lists have items of the caller's size. */
struct status_api_build {
    kvc_status *status;
    struct options_list tenants, spaces, devices;
};

/* Copying a row of status_fields.def, by its type; other code copies the fields of type "own". */
#define COPY_number(to, from, field) (to)->field = (from)->field;
#define COPY_flag(to, from, field) (to)->field = (from)->field;
#define COPY_text(to, from, field) (void) snprintf((to)->field, sizeof((to)->field), "%s", (from)->field);
#define COPY_own(to, from, field)
#define COPY_daemon(to, from, field)

/* @from: NULL: none. */
static kvc_advice status_api_advice(const Kvcobra__Advice *from)
{
    kvc_advice to = {0};

    if (!from)
        return to;

    to.millibits = from->millibits;
#define STATUS_ADVICE(how, field, ...) COPY_##how(&to, from, field)
#include "proto/status_fields.def"
    return to;
}

static int status_api_add_tenants(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_tenants) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_tenants; i++) {
        kvc_tenant_status to = {.advice = status_api_advice(got->tenants[i]->advice)};

#define STATUS_TENANT(how, field, ...) COPY_##how(&to, got->tenants[i], field)
#include "proto/status_fields.def"
        options_list_add(list, &to, sizeof(to));
    }
    return 0;
}

static int status_api_add_spaces(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_spaces) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_spaces; i++) {
        const Kvcobra__SpaceStatus *from = got->spaces[i];
        kvc_space_status to = {.first_kv_head = from->first_head, .n_kv_heads = from->n_heads};

        if (!bytes_are(from->table_digest, KVC_DIGEST_BYTES))
            return -EPROTO;

        memcpy(to.table_digest, from->table_digest.data, KVC_DIGEST_BYTES);
#define STATUS_SPACE(how, field, ...) COPY_##how(&to, from, field)
#include "proto/status_fields.def"
        options_list_add(list, &to, sizeof(to));
    }
    return 0;
}

static int status_api_add_devices(struct options_list *list, const Kvcobra__StatusReply *got)
{
    if (list->item_bytes == 0)
        return 0;
    if (options_list_reserve(list, got->n_devices) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < got->n_devices; i++) {
        kvc_device_status to = {.state = (int) got->devices[i]->state,
                                .advice = status_api_advice(got->devices[i]->advice)};

#define STATUS_DEVICE(how, field, ...) COPY_##how(&to, got->devices[i], field)
#include "proto/status_fields.def"
        options_list_add(list, &to, sizeof(to));
    }
    return 0;
}

static void status_api_read_totals(kvc_status *to, const Kvcobra__StatusReply *from)
{
#define STATUS_TOTAL(how, field, ...) COPY_##how(to, from, field)
#include "proto/status_fields.def"
}

static int status_api_add_page(struct status_api_build *b, uint64_t cursor, const Kvcobra__StatusReply *got)
{
    int r;

    if (cursor == 0)
        status_api_read_totals(b->status, got);

    r = status_api_add_devices(&b->devices, got);
    if (r < 0)
        return r;

    r = status_api_add_tenants(&b->tenants, got);
    if (r < 0)
        return r;

    r = status_api_add_spaces(&b->spaces, got);
    if (r < 0)
        return r;

    return got->next_cursor != 0 && got->n_tenants + got->n_spaces == 0 ? -EPROTO : 0;
}

/* Gets one page; *cursor becomes 0 after the last. */
static int status_api_get_page(kvc_client *c, uint64_t *cursor, struct status_api_build *b)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    int r;

    get.cursor = *cursor;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &get.base, -1, &reply);
    if (r < 0)
        return r;

    r = status_api_add_page(b, *cursor, reply.message->status);
    if (r == -ENOMEM)
        return fail(&c->error, r, "out of memory for kvcobrad's status");
    if (r < 0)
        return fail(&c->error, r, "kvcobrad's answer is not valid: its status has no digest or no end");

    *cursor = reply.message->status->next_cursor;
    return 0;
}

static int status_api_check_list(size_t item_bytes, size_t oldest, const char *name, struct errmsg *e)
{
    return item_bytes == 0 ? 0 : options_check(item_bytes, oldest, name, e);
}

static int status_api_read_sizes(const kvc_status_sizes *from, kvc_status_sizes *ret, struct errmsg *e)
{
    int r;

    r = options_read(ret, sizeof(*ret), from, sizeof(*ret), "kvc_status_sizes", e);
    if (r < 0)
        return r;

    r = options_check(ret->status_bytes, sizeof(kvc_status), "kvc_status", e);
    if (r < 0)
        return r;

    r = status_api_check_list(ret->tenant_bytes, sizeof(kvc_tenant_status), "kvc_tenant_status", e);
    if (r < 0)
        return r;

    r = status_api_check_list(ret->space_bytes, sizeof(kvc_space_status), "kvc_space_status", e);
    if (r < 0)
        return r;

    return status_api_check_list(ret->device_bytes, sizeof(kvc_device_status), "kvc_device_status", e);
}

static void status_api_build_deinit(struct status_api_build *b)
{
    options_list_deinit(&b->tenants);
    options_list_deinit(&b->spaces);
    options_list_deinit(&b->devices);
    free(b->status);
}

/* The finished status, which owns its lists from here on. */
static kvc_status *status_api_take(struct status_api_build *b)
{
    kvc_status *s = take_ptr(b->status);

    s->n_tenants = b->tenants.n;
    s->n_spaces = b->spaces.n;
    s->n_devices = b->devices.n;
    s->tenants = take_ptr(b->tenants.items);
    s->spaces = take_ptr(b->spaces.items);
    s->devices = take_ptr(b->devices.items);
    return s;
}

int kvc_status_get(kvc_client *c, const kvc_status_sizes *sizes, kvc_status **ret_status)
{
    _cleanup_(status_api_build_deinit) struct status_api_build b = {.status = NULL};
    kvc_status_sizes s;
    uint64_t cursor = 0;
    int r;

    r = operator_enter(c, sizes && ret_status, "kvc_status_get: sizes or ret_status is NULL");
    if (r < 0)
        return r;

    r = status_api_read_sizes(sizes, &s, &c->error);
    if (r < 0)
        return r;

    /* as large as the caller's struct or ours: members that this library does not know stay 0 */
    b.status = calloc(1, s.status_bytes > sizeof(*b.status) ? s.status_bytes : sizeof(*b.status));
    if (!b.status)
        return fail(&c->error, -ENOMEM, "out of memory for kvcobrad's status");

    b.status->struct_bytes = s.status_bytes;
    b.tenants.item_bytes = s.tenant_bytes;
    b.spaces.item_bytes = s.space_bytes;
    b.devices.item_bytes = s.device_bytes;
    do {
        r = status_api_get_page(c, &cursor, &b);
        if (r < 0)
            return r;
    } while (cursor != 0);

    *ret_status = status_api_take(&b);
    return 0;
}

kvc_status *kvc_status_free(kvc_status *s)
{
    if (s) {
        free(s->devices);
        free(s->tenants);
        free(s->spaces);
        free(s);
    }
    return NULL;
}
