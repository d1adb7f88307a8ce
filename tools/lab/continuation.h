/*
 * Long greedy generations: the same prompts written on by the exact model and by subjects, token by token,
 * from what each wrote itself. Compared are where they part, and how likely the exact model finds what a
 * subject wrote.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct engine;
struct errmsg;
struct progress;
struct subject;

struct continuation_options {
    size_t n_prompts, prompt_tokens; /* cut from the text one after the other */
    size_t n_tokens;                 /* to write for each; end-of-text tokens do not end it */
};

/* Of one subject. */
struct continuation {
    size_t *alike; /* [n_prompts] tokens before the first difference; n_tokens: none */
    double nll;    /* of the exact model on all n_prompts n_tokens, nats */
};

/**
 * continuation_run() - write on
 * @tokens:   at least n_prompts x prompt_tokens; a model that wants a BOS gets it in front of each prompt, in
 * place of the prompt's last token
 * @exact:    the exact model
 * @p:        started by the caller, counts prompts of one subject, the exact model included: total =
 *            (1 + n_subjects) n_prompts
 * @ret:      [1 + n_subjects], the exact model first; alike is allocated by the caller
 *
 * Return: 0 or a negative errno with a sentence.
 */
int continuation_run(struct engine *en, struct subject *exact, struct subject *const *subjects,
                     size_t n_subjects, const uint32_t *tokens, const struct continuation_options *o,
                     struct progress *p, struct continuation *ret, struct errmsg *e);

/* The share @q of @values [n] lies at or below what is returned: 0.25, 0.5 … Sorts @values. Between two
 * values the lower one's, so that a value that says "at least" is never averaged. @n > 0 */
size_t continuation_quantile(size_t *values, size_t n, double q);
