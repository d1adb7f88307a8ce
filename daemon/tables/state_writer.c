/* See state_writer.h. */
#include "daemon/tables/state_writer.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "daemon/tables/state_folder.h"

struct state_text {
    struct state_text *next;
    enum state_file file;
    struct state_change *change; /* NULL: no change waits */
    char *path, *text;
    size_t n_bytes;
    int err;
    struct errmsg why;
};

static const char *const state_writer_names[STATE_FILES_MAX] = {
    [STATE_ACTIVE] = "active", [STATE_TRIALS] = "trials", [STATE_ALIASES] = "aliases",
    [STATE_QUOTAS] = "quotas", [STATE_EXACT] = "exact",
};

void state_writer_set_printer(struct state_writer *w, enum state_file f,
                              void (*print)(const void *ctx, FILE *f), const void *ctx)
{
    w->printers[f] = (struct state_printer){print, ctx};
}

/* ---- texts ---- */

static struct state_text *state_writer_free_text(struct state_text *t)
{
    if (!t)
        return NULL;

    free(t->path);
    free(t->text);
    free(t);
    return NULL;
}

static void state_writer_free_textp(struct state_text **t)
{
    *t = state_writer_free_text(*t);
}

/* Return: 0; -ENOMEM: the text is as before. */
static int state_writer_print(const struct state_writer *w, struct state_text *t)
{
    const struct state_printer *p = &w->printers[t->file];
    _cleanup_(freep) char *text = NULL;
    size_t n_bytes;
    FILE *f = open_memstream(&text, &n_bytes);

    if (!f)
        return -ENOMEM;

    p->print(p->ctx, f);
    if (fclose(f) != 0)
        return -ENOMEM;

    free(t->text);
    t->text = take_ptr(text);
    t->n_bytes = n_bytes;
    return 0;
}

/* The present text of a file. Return: 0; -ENOMEM with a sentence. */
static int state_writer_new_text(const struct state_writer *w, enum state_file f, struct state_text **ret,
                                 struct errmsg *e)
{
    _cleanup_(state_writer_free_textp) struct state_text *t = calloc(1, sizeof(*t));

    if (!t)
        return fail(e, -ENOMEM, "out of memory for the file \"%s\"", state_writer_names[f]);

    t->file = f;
    if (asprintf(&t->path, "%s/%s", w->folder, state_writer_names[f]) < 0) {
        t->path = NULL;
        return fail(e, -ENOMEM, "out of memory for the file \"%s\"", state_writer_names[f]);
    }
    if (state_writer_print(w, t) < 0)
        return fail(e, -ENOMEM, "out of memory for the file \"%s\"", state_writer_names[f]);

    *ret = take_ptr(t);
    return 0;
}

static void state_writer_write_text(const struct state_writer *w, struct state_text *t)
{
    t->err = state_folder_check(w->open, &t->why);
    if (t->err == 0)
        t->err = atomic_file_write(t->path, t->text, t->n_bytes, &t->why);
}

/* ---- the queue ---- */

static bool state_writer_run(struct work_item *i)
{
    const struct state_writer *w = (const struct state_writer *) i;

    state_writer_write_text(w, w->first);
    return false;
}

/* Gives the first text to a thread. If the threads' queue is full, the next tick tries again. */
static void state_writer_submit(struct state_writer *w)
{
    if (!w->first || w->is_busy)
        return;
    w->is_busy = work_submit(w->work, &w->share, &w->item) == 0;
}

static void state_writer_append(struct state_writer *w, struct state_text *t)
{
    if (w->last)
        w->last->next = t;
    else
        w->first = t;
    w->last = t;
}

/* Takes the first text, which is written, and tells who waits for it. */
static void state_writer_conclude(struct state_writer *w)
{
    _cleanup_(state_writer_free_textp) struct state_text *t = w->first;
    struct state_change *c = t->change;

    w->first = t->next;
    if (!w->first)
        w->last = NULL;
    if (c) {
        c->results[t->file].err = t->err;
        c->results[t->file].why = t->why;
        c->done(c);
    } else if (t->err < 0) {
        log_event(LOG_ERR, "not-stored", "path=%s message=\"%s\"", t->path, t->why.text);
    }
}

static void state_writer_on_done(struct work_item *i)
{
    struct state_writer *w = (struct state_writer *) i;

    w->is_busy = false;
    if (i->expired) /* the daemon ends */
        return;

    state_writer_conclude(w);
    if (w->work)
        state_writer_submit(w);
}

void state_writer_start(struct state_writer *w, struct work *work)
{
    w->work = work;
    w->item.run = state_writer_run;
    w->item.done = state_writer_on_done;
    w->item.deadline_ms = UINT64_MAX;
}

void state_writer_end_threads(struct state_writer *w)
{
    w->work = NULL;
    while (w->first) {
        state_writer_write_text(w, w->first);
        state_writer_conclude(w);
    }
}

void state_writer_tick(struct state_writer *w)
{
    if (w->work)
        state_writer_submit(w);
}

/* ---- changes ---- */

void state_writer_begin(struct state_writer *w, struct state_change *c)
{
    assert(!w->is_running && (!w->change || w->change == c));
    w->change = c;
    w->is_running = true;
}

/* After a change that failed, its files say what is not true. */
void state_writer_end(struct state_writer *w, int r)
{
    struct state_change *c = w->change;

    w->is_running = false;
    if (r == -EINPROGRESS)
        return;

    w->change = NULL;
    for (unsigned f = 0; r < 0 && f < STATE_FILES_MAX; f++)
        if (c->results[f].is_written && c->results[f].err == 0)
            state_writer_write_later(w, (enum state_file) f);
}

static int state_writer_write_now(const struct state_writer *w, enum state_file f, struct errmsg *e)
{
    _cleanup_(state_writer_free_textp) struct state_text *t = NULL;
    int r = state_folder_check(w->open, e);

    if (r < 0)
        return r;

    r = state_writer_new_text(w, f, &t, e);
    return r < 0 ? r : atomic_file_write(t->path, t->text, t->n_bytes, e);
}

int state_writer_write(struct state_writer *w, enum state_file f, struct errmsg *e)
{
    struct state_text *t = NULL;
    struct state_result *result;
    int r;

    if (!w->folder)
        return 0;
    if (!w->is_running)
        return state_writer_write_now(w, f, e);

    result = &w->change->results[f];
    if (result->is_written)
        return result->err < 0 ? fail(e, result->err, "%s", result->why.text) : 0;
    if (!w->work) {
        r = state_writer_write_now(w, f, e);
        result->is_written = r == 0;
        return r;
    }

    r = state_writer_new_text(w, f, &t, e);
    if (r < 0)
        return r;

    t->change = w->change;
    *result = (struct state_result){.is_written = true};
    state_writer_append(w, t);
    state_writer_submit(w);
    return -EINPROGRESS;
}

/* A text of that file that the thread has not begun with, and for which no change waits. */
static struct state_text *state_writer_find_waiting(const struct state_writer *w, enum state_file f)
{
    for (struct state_text *t = w->is_busy ? w->first->next : w->first; t; t = t->next)
        if (t->file == f && !t->change)
            return t;
    return NULL;
}

void state_writer_write_later(struct state_writer *w, enum state_file f)
{
    struct state_text *t = NULL;
    struct errmsg e;
    int r;

    if (!w->folder)
        return;

    if (w->change) /* its text is older than this one: it must be written again */
        w->change->results[f].is_written = false;
    if (!w->work) {
        r = state_writer_write_now(w, f, &e);
    } else if ((t = state_writer_find_waiting(w, f))) {
        r = state_writer_print(w, t);
        errmsg_set(&e, "out of memory");
    } else {
        r = state_writer_new_text(w, f, &t, &e);
        if (r == 0) {
            state_writer_append(w, t);
            state_writer_submit(w);
        }
    }

    if (r < 0)
        log_event(LOG_ERR, "not-stored", "path=%s/%s message=\"%s\"", w->folder, state_writer_names[f],
                  e.text);
}
