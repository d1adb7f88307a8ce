/* See tables_exact.h. */
#include "daemon/tables/tables_exact.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/table_copy.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables_files.h"
#include "daemon/tables/trial.h"

#define EXACT_TITLE "kvcobra exact 1\n"
enum { EXACT_FILE_BYTES_MAX = EXACT_TABLES_MAX * 8192 };

/* ---- the end of an exact table ---- */

void tables_exact_replaced(struct tables *ts)
{
    state_writer_write_later(&ts->state, STATE_EXACT);
}

void tables_exact_withdraw(struct tables *ts, struct table_model *m, uint64_t now_ms)
{
    struct table_entry *t = m->active;

    for (struct tenant *x = NULL; (x = devices_next_tenant(ts->devices, x));)
        control_withdraw(x, m->digest);
    table_model_drop(ts, m);
    t->drain_until_ms = now_ms;
    table_set_state(ts, t, TABLE_DRAINING);
    tables_exact_replaced(ts);
}

/* ---- making ---- */

/* Makes room for one more: withdraws the oldest one that no session uses. */
static int tables_exact_make_room(struct tables *ts, uint64_t now_ms, struct errmsg *e)
{
    uint32_t most = ts->config->tables_max / 2, n = 0;
    struct table_model *oldest = NULL;

    most = most < EXACT_TABLES_MAX ? most : EXACT_TABLES_MAX;
    for (const struct table_entry *t = ts->entries; t; t = t->next)
        n += t->table && table_is_exact(t->table);
    if (n < most)
        return 0;

    for (struct table_model *m = ts->models; m; m = m->next)
        if (table_model_is_exact(m) && m->active->n_refs == 0 &&
            (!oldest || m->active->id < oldest->active->id))
            oldest = m;
    if (!oldest)
        return fail(e, -EDQUOT,
                    "%" PRIu32
                    " exact tables are in use, the maximum: activate calibrated tables, or raise the "
                    "setting tables",
                    n);

    tables_exact_withdraw(ts, oldest, now_ms);
    return 0;
}

static int tables_exact_accept(struct tables *ts, const void *bytes, size_t n_bytes, struct table_entry **ret,
                               struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(closep) int copy = -1;
    int r = table_parse(bytes, n_bytes, &t, e);

    if (r < 0)
        return r;
    if (!table_is_exact(t))
        return fail(e, -EBADMSG, "it is not an exact table");

    r = table_copy_new(t, &copy, e);
    return r < 0 ? r : table_accept(ts, t, take_fd(&copy), ret, e);
}

/* The table becomes the active one of a model that has none. */
static int tables_exact_activate(struct tables *ts, struct table_entry *t, struct table_model **ret,
                                 struct errmsg *e)
{
    struct table_model *m;
    int r = table_model_new(ts, t->model_digest, &m, e);

    if (r < 0)
        return r;

    m->active = t;
    for (struct space *s = t->spaces; s; s = s->next)
        s->leaves_first = false;
    table_set_state(ts, t, TABLE_ACTIVE);
    trial_publish(ts, m);
    *ret = m;
    return 0;
}

static int tables_exact_make(struct tables *ts, const struct exact_request *q, const struct exact_form *form,
                             uint64_t now_ms, struct table_model **ret, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    struct table_entry *t;
    size_t n;
    int r = tables_exact_make_room(ts, now_ms, e);

    if (r == 0)
        r = table_exact_build(q->geometry, q->model_digest, form, &bytes, &n, e);
    if (r == 0)
        r = tables_exact_accept(ts, bytes, n, &t, e);
    if (r == 0)
        r = tables_exact_activate(ts, t, ret, e);
    if (r == 0)
        state_writer_write_later(&ts->state, STATE_EXACT);
    return r;
}

/* ---- opening ---- */

/* Whether an exact table fits the client. Return: 0; -ENODATA with a sentence. */
static int tables_exact_check(const struct exact_request *q, const struct exact_form *form,
                              const struct table *t, struct errmsg *e)
{
    char have[EXACT_FORM_TEXT_BYTES], want[EXACT_FORM_TEXT_BYTES];
    struct errmsg why = {""};

    if (memcmp(form, &t->exact, sizeof(*form)) != 0)
        return fail(e, -ENODATA,
                    "no table is active for this model, and the cache of this client (%s) is not of the form "
                    "that other clients of the model share now (%s): activate a calibrated table",
                    exact_form_print(form, want), exact_form_print(&t->exact, have));
    if (geometry_check_same(q->geometry, &t->geometry, q->n_positions, &why) < 0)
        return fail(e, -ENODATA,
                    "no table is active for this model, and other clients have another geometry: %s",
                    why.text);
    return 0;
}

int tables_exact_open(struct tables *ts, const struct exact_request *q, uint64_t now_ms,
                      struct table_model **ret, struct errmsg *e)
{
    struct table_model *m = table_model_find(ts, q->model_digest);
    struct exact_form form;
    int r;

    if (m && !table_model_is_exact(m)) {
        *ret = m;
        return 0;
    }
    if (q->form == 0 || (!m && !ts->config->exact))
        return fail(
            e, -ENODATA, "no table is active for this model: stage and activate one%s",
            q->form ? ", or set exact = yes in kvcobrad.conf, with which this client's own bytes are shared"
                    : "");
    if (!exact_form_unpack(q->form, &form))
        return fail(e, -EINVAL, "open_model asks for an exact table of the unknown form %" PRIu32, q->form);

    r = m ? tables_exact_check(q, &form, m->active->table, e) : 0;
    if (m && (r == 0 || m->active->n_refs > 0)) {
        *ret = r == 0 ? m : *ret;
        return r;
    }
    if (m)
        tables_exact_withdraw(ts, m, now_ms);
    return tables_exact_make(ts, q, &form, now_ms, ret, e);
}

/* ---- the file ---- */

void tables_exact_print_all(const void *ctx, FILE *f)
{
    const struct tables *ts = ctx;

    (void) fputs(EXACT_TITLE, f);
    for (const struct table_model *m = ts->models; m; m = m->next) {
        const uint8_t *bytes = table_model_is_exact(m) ? m->active->table->bytes : NULL;

        for (size_t i = 0; bytes && i < m->active->table->n_bytes; i++)
            (void) fprintf(f, "%02x", bytes[i]);
        if (bytes)
            (void) fputc('\n', f);
    }
}

static int tables_exact_read_line(struct tables *ts, const char *line, struct errmsg *e)
{
    size_t n_hex = strlen(line), n = 0;
    _cleanup_(freep) uint8_t *bytes = malloc(n_hex / 2 + 1);
    struct table_model *m;
    struct table_entry *t;
    const char *end;
    int r;

    if (!bytes)
        return fail(e, -ENOMEM, "out of memory for an exact table");
    if (sodium_hex2bin(bytes, n_hex / 2 + 1, line, n_hex, NULL, &n, &end) != 0 || *end != '\0')
        return fail(e, -EBADMSG, "bad line \"%.20s...\"", line);

    r = tables_exact_accept(ts, bytes, n, &t, e);
    if (r < 0)
        return r;
    /* a table was activated, and the file could not be written; or the same line twice */
    if (table_model_find(ts, t->model_digest))
        return 0;

    return tables_exact_activate(ts, t, &m, e);
}

static int tables_exact_load_line(void *ctx, const char *path, char *line, struct errmsg *e)
{
    int r = tables_exact_read_line(ctx, line, e);

    if (r == -ENOMEM)
        return r;
    if (r < 0)
        log_event(LOG_ERR, "state-unreadable", "path=%s message=\"%s\", ignoring", path, e->text);
    return 0;
}

int tables_exact_load(struct tables *ts, struct errmsg *e)
{
    static const struct tables_text text = {"exact", EXACT_TITLE, "exact tables", EXACT_FILE_BYTES_MAX};

    return tables_files_read_lines(ts->config, &text, tables_exact_load_line, ts, e);
}
