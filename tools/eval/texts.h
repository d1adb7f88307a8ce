/*
 * KL of subjects on several texts: each text with an interval over its windows, the mean of the texts, and
 * the worst one. For `kvcobra eval` with more than one --text or --recent.
 */
#pragma once

#include <stddef.h>

#include "tools/eval/evaluation.h"
#include "tools/eval/interval.h"

struct document;
struct engine;
struct errmsg;
struct progress;
struct subject;

/* One subject on one text. */
struct texts_cell {
    struct evaluation sum;
    struct interval kl; /* of the mean KL, over windows */
};

/* One subject on all texts. */
struct texts_row {
    double kl;                     /* mean of the texts' KL: each text counts once */
    struct interval interval;      /* of that mean, over the windows of each text */
    size_t worst;                  /* the text with the largest KL */
    double more;                   /* KL minus that of the subject it is compared with */
    struct interval more_interval; /* of that difference, over the same windows */
};

struct texts {
    size_t n_texts, n_subjects;
    struct texts_cell *cells; /* [n_texts, n_subjects] */
    struct texts_row *rows;   /* [n_subjects] */
};

static inline const struct texts_cell *texts_cell(const struct texts *t, size_t text, size_t subject)
{
    return &t->cells[text * t->n_subjects + subject];
}

/* Tokens that one subject reads in all texts. */
size_t texts_tokens(const struct document *texts, size_t n_texts, const struct evaluation_options *o);

/**
 * texts_run() - evaluate all subjects on all texts
 * @n_each: subjects are compared in runs of so many, each with the first one of its run
 * @texts: [n_texts]; @o->n_tokens at most of each are used. @o->window_kl is not used
 * @p:     started by the caller, counts tokens: total = (1 + n_subjects) texts_tokens()
 * @ret:   zeroed; free it with texts_deinit(), also after a failure
 *
 * Return: 0 or a negative errno with a sentence.
 */
int texts_run(struct engine *en, struct subject *const *subjects, size_t n_subjects, size_t n_each,
              const struct document *texts, size_t n_texts, const struct evaluation_options *o,
              struct progress *p, struct texts *ret, struct errmsg *e);
void texts_deinit(struct texts *t);
