/* See texts.h. */
#include "tools/eval/texts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/document.h"
#include "tools/engine/engine.h"

/* KL of the windows of all texts. */
struct texts_windows {
    size_t n_texts;
    size_t *n;       /* [n_texts] windows of each text */
    double **kl;     /* [n_texts] -> [n_subjects, n] */
    double **weight; /* [n_texts] -> [n] tokens of each window */
};

static void texts_windows_deinit(struct texts_windows *w)
{
    for (size_t i = 0; i < w->n_texts; i++) {
        free(w->kl ? w->kl[i] : NULL);
        free(w->weight ? w->weight[i] : NULL);
    }
    free(w->n);
    free(w->kl);
    free(w->weight);
}

void texts_deinit(struct texts *t)
{
    free(t->cells);
    free(t->rows);
    *t = (struct texts){0};
}

static int texts_windows_init(struct texts_windows *w, const struct document *texts, size_t n_texts,
                              size_t n_subjects, const struct evaluation_options *o)
{
    w->n = calloc(n_texts, sizeof(*w->n));
    w->kl = calloc(n_texts, sizeof(*w->kl));
    w->weight = calloc(n_texts, sizeof(*w->weight));
    if (!w->n || !w->kl || !w->weight)
        return -ENOMEM;

    w->n_texts = n_texts;
    for (size_t i = 0; i < n_texts; i++) {
        size_t n_tokens = evaluation_tokens(o, texts[i].n_tokens), room;

        w->n[i] = evaluation_windows(o, texts[i].n_tokens);
        if (!checked_mul(w->n[i], n_subjects, &room))
            return -ENOMEM;

        w->kl[i] = calloc(room, sizeof(**w->kl));
        w->weight[i] = calloc(w->n[i], sizeof(**w->weight));
        if (!w->kl[i] || !w->weight[i])
            return -ENOMEM;
        for (size_t k = 0; k < w->n[i]; k++)
            w->weight[i][k] =
                (double) (n_tokens - k * o->window < o->window ? n_tokens - k * o->window : o->window);
    }

    return 0;
}

size_t texts_tokens(const struct document *texts, size_t n_texts, const struct evaluation_options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < n_texts; i++)
        n += evaluation_tokens(o, texts[i].n_tokens);
    return n;
}

/* Intervals, means and the worst text of one subject. @samples: [n_texts] room. */
static void texts_summarise(struct texts *t, size_t subject, const struct texts_windows *w,
                            struct interval_sample *samples)
{
    struct texts_row *row = &t->rows[subject];

    for (size_t i = 0; i < t->n_texts; i++) {
        struct texts_cell *cell = &t->cells[i * t->n_subjects + subject];

        samples[i] = (struct interval_sample){w->kl[i] + subject * w->n[i], w->weight[i], w->n[i]};
        cell->kl = interval_bootstrap(&samples[i], 1, i);
        if (evaluation_kl(&cell->sum) > evaluation_kl(&texts_cell(t, row->worst, subject)->sum))
            row->worst = i;
    }

    row->kl = interval_mean(samples, t->n_texts);
    row->interval = interval_bootstrap(samples, t->n_texts, t->n_texts);
}

/* KL of @subject minus that of @other: the mean and its interval over the windows that both have read. */
static int texts_compare(struct texts *t, size_t subject, size_t other, const struct texts_windows *w,
                         struct interval_sample *samples)
{
    struct texts_row *row = &t->rows[subject];
    _cleanup_(freep) double *all = NULL;
    size_t n = 0;

    for (size_t i = 0; i < t->n_texts; i++)
        n += w->n[i];
    all = malloc(n * sizeof(*all));
    if (!all)
        return -ENOMEM;

    for (size_t i = 0, at = 0; i < t->n_texts; at += w->n[i++]) {
        for (size_t k = 0; k < w->n[i]; k++)
            all[at + k] = w->kl[i][subject * w->n[i] + k] - w->kl[i][other * w->n[i] + k];
        samples[i] = (struct interval_sample){all + at, w->weight[i], w->n[i]};
    }
    row->more = interval_mean(samples, t->n_texts);
    row->more_interval = interval_bootstrap(samples, t->n_texts, t->n_texts);
    return 0;
}

int texts_run(struct engine *en, struct subject *const *subjects, size_t n_subjects, size_t n_each,
              const struct document *texts, size_t n_texts, const struct evaluation_options *o,
              struct progress *p, struct texts *ret, struct errmsg *e)
{
    _cleanup_(texts_windows_deinit) struct texts_windows w = {0};
    _cleanup_(freep) struct interval_sample *samples = calloc(n_texts, sizeof(*samples));
    int r;

    assert(n_texts > 0 && n_subjects > 0 && n_each > 0);
    *ret = (struct texts){n_texts, n_subjects, calloc(n_texts * n_subjects, sizeof(*ret->cells)),
                          calloc(n_subjects, sizeof(*ret->rows))};
    r = texts_windows_init(&w, texts, n_texts, n_subjects, o);
    if (r < 0 || !samples || !ret->cells || !ret->rows)
        return fail(e, -ENOMEM, "out of memory for %zu texts", n_texts);

    for (size_t i = 0; i < n_texts; i++) {
        struct evaluation_options one = *o;
        _cleanup_(freep) struct evaluation *sums = calloc(n_subjects, sizeof(*sums));

        if (!sums)
            return fail(e, -ENOMEM, "out of memory for %zu texts", n_texts);

        one.window_kl = w.kl[i];
        one.done = (1.0 + (double) n_subjects) * (double) texts_tokens(texts, i, o);
        r = evaluation_run(en, subjects, n_subjects, texts[i].tokens, texts[i].n_tokens, &one, p, sums, e);
        if (r < 0)
            return r;

        for (size_t k = 0; k < n_subjects; k++)
            ret->cells[i * n_subjects + k].sum = sums[k];
    }

    for (size_t k = 0; k < n_subjects; k++) {
        texts_summarise(ret, k, &w, samples);
        if (texts_compare(ret, k, k / n_each * n_each, &w, samples) < 0)
            return fail(e, -ENOMEM, "out of memory for %zu texts", n_texts);
    }
    return 0;
}
