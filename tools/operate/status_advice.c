/* See status_advice.h. */
#include "tools/operate/status_advice.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "tools/command/human.h"
#include "tools/command/tenant_name.h"

enum { CELL = 16 };

/* "61 %", or "-" of nothing. */
static const char *status_advice_percent(uint64_t part, uint64_t all, char ret[static CELL])
{
    if (all == 0)
        return "-";
    (void) snprintf(ret, CELL, "%.0f %%", 100 * ((double) part / (double) all));
    return ret;
}

/* @a: NULL: the daemon keeps none for this tenant. */
static bool status_advice_is_empty(const Kvcobra__Advice *a)
{
    return !a || (a->lookups == 0 && a->day_lookups == 0);
}

/* ---- rows ---- */

static void status_advice_add_windows(struct report *r, const char *name, const Kvcobra__Advice *a)
{
    char hour[CELL], hour_most[CELL], day[CELL], day_most[CELL];

    report_row(r, "%s\t%ju\t%s\t%s\t%ju\t%s\t%s", name, (uintmax_t) a->hour_lookups,
               status_advice_percent(a->hour_found, a->hour_lookups, hour),
               status_advice_percent(a->hour_lookups - a->hour_distinct, a->hour_lookups, hour_most),
               (uintmax_t) a->day_lookups, status_advice_percent(a->day_found, a->day_lookups, day),
               status_advice_percent(a->day_lookups - a->day_distinct, a->day_lookups, day_most));
}

static void status_advice_add_sizes(struct report *r, const char *name, const Kvcobra__Advice *a)
{
    char capacity[HUMAN_BYTES], half[CELL], same[CELL], x2[CELL], x4[CELL], x8[CELL];

    report_row(r, "%s\t%s\t%s\t%s\t%s\t%s\t%s", name, human_bytes(a->capacity_bytes, capacity),
               status_advice_percent(a->hits_pool_half, a->lookups, half),
               status_advice_percent(a->hits_pool_same, a->lookups, same),
               status_advice_percent(a->hits_pool_2x, a->lookups, x2),
               status_advice_percent(a->hits_pool_4x, a->lookups, x4),
               status_advice_percent(a->hits_pool_8x, a->lookups, x8));
}

static void status_advice_add_bits(struct report *r, const char *name, const Kvcobra__Advice *a)
{
    char b16[CELL], b4[CELL], b3[CELL], b2[CELL];

    report_row(r, "%s\t%.2f\t%s\t%s\t%s\t%s", name, (double) a->millibits * 1e-3,
               status_advice_percent(a->hits_bits_16, a->lookups, b16),
               status_advice_percent(a->hits_bits_4_5, a->lookups, b4),
               status_advice_percent(a->hits_bits_3, a->lookups, b3),
               status_advice_percent(a->hits_bits_2, a->lookups, b2));
}

/* ---- tables ---- */

typedef void status_advice_add_fn(struct report *r, const char *name, const Kvcobra__Advice *a);

/* A row per device, whose tenants it adds up, and one per tenant. */
static void status_advice_print_table(const Kvcobra__StatusReply *s, const char *columns,
                                      status_advice_add_fn *add, FILE *f)
{
    _cleanup_(report_freep) struct report *r = report_new(columns);
    char name[TENANT_NAME_BYTES];

    for (size_t i = 0; i < s->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = s->devices[i];

        (void) snprintf(name, sizeof(name), s->n_devices > 1 ? "all (%s)" : "all", d->name);
        if (!status_advice_is_empty(d->advice))
            add(r, name, d->advice);
    }
    for (size_t i = 0; i < s->n_tenants; i++) {
        const Kvcobra__TenantStatus *t = s->tenants[i];

        if (!status_advice_is_empty(t->advice))
            add(r, tenant_name_show(t->name, name), t->advice);
    }

    (void) fputc('\n', f);
    report_print(r, f);
}

void status_advice_print(const Kvcobra__StatusReply *s, FILE *f)
{
    bool empty = true;

    for (size_t i = 0; i < s->n_devices; i++)
        empty = empty && status_advice_is_empty(s->devices[i]->advice);
    if (empty)
        return;

    status_advice_print_table(s, "<hits\t>last hour\t>found\t>at most\t>last day\t>found\t>at most",
                              status_advice_add_windows, f);
    status_advice_print_table(s, "<hits with\t>capacity\t>half\t>same\t>2x\t>4x\t>8x",
                              status_advice_add_sizes, f);
    status_advice_print_table(s, "<hits with\t>bits now\t>16 bits\t>4.5 bits\t>3 bits\t>2 bits",
                              status_advice_add_bits, f);
}

/* ---- JSON ---- */

#define ADD_number(all, a, field, json) json_object_set_new(all, json, json_integer((json_int_t) (a)->field))
#define ADD_own(all, a, field, json) 0

json_t *status_advice_json(const Kvcobra__Advice *a)
{
    json_t *all;
    int r;

    if (status_advice_is_empty(a))
        return json_null();

    all = json_object();
    r = json_object_set_new(all, "bits_per_number", json_real((double) a->millibits * 1e-3));
#define STATUS_ADVICE(how, field, type, unit, metric, json, column, help) r |= ADD_##how(all, a, field, json);
#include "proto/status_fields.def"
    if (r == 0)
        return all;
    json_decref(all);
    return NULL;
}
