/*
 * The effect of compressed caches on a model: the exact model and all subjects read the same windows of a
 * text, and their next-token distributions are compared at every position.
 *
 * Every query of a window sees the same tokens as if it were decoded alone; see kvc_seq_new_eval() and
 * comparators/cache.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct errmsg;
struct progress;
struct subject;

struct evaluation_options {
    size_t n_tokens; /* of the text, from its beginning; the last window may be shorter */
    size_t window;   /* tokens of a window; no window sees another */
    /* [n_subjects, evaluation_windows()] receives the mean KL of each window, also before a failure; or NULL
     */
    double *window_kl;
    double done; /* what the progress line counts before this run */
};

struct evaluation {
    uint64_t n_tokens;      /* positions whose distributions were compared */
    uint64_t n_predictions; /* of tokens inside a window: one fewer per window */
    uint64_t n_windows;
    size_t last_window;    /* tokens of the last window, which may be shorter */
    double nll_exact, nll; /* sums over predictions, nats */
    double kl;             /* sum over positions of KL(exact || compressed), nats */
};

/* Tokens that evaluation_run() will run: @available cut to whole windows and a last one of at least two
 * tokens. */
size_t evaluation_tokens(const struct evaluation_options *o, size_t available);

/* Windows of that many tokens. */
size_t evaluation_windows(const struct evaluation_options *o, size_t available);

/* Perplexity of the exact model and of the subject, mean KL in nats per token. */
double evaluation_exact_perplexity(const struct evaluation *v);
double evaluation_perplexity(const struct evaluation *v);
double evaluation_kl(const struct evaluation *v);

/**
 * evaluation_run() - run the exact model and all subjects over a text
 * @subjects: [n_subjects]; the bytes of their caches are added up
 * @tokens:   [n_tokens]; @o->n_tokens of them at most are used. A model with a BOS gets it before each
 * window, in place of the window's last token
 * @p:        started by the caller, counts tokens; each is run by the exact model and by every subject: total
 * = (1 + n_subjects) n
 * @ret:      [n_subjects]
 *
 * Return: 0; a negative errno with a sentence.
 */
int evaluation_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                   const uint32_t *tokens, size_t n_tokens, const struct evaluation_options *o,
                   struct progress *p, struct evaluation *ret, struct errmsg *e);
