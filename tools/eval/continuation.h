/*
 * Long greedy generations: the exact model and subjects continue the same prompts, each from its own tokens.
 * The results are the number of equal tokens before the first difference, the likelihood of a subject's
 * tokens under the exact model, and the KL along the exact model's text. For `kvcobra eval --generate`.
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
    size_t n_tokens;                 /* to generate for each; end-of-text tokens do not end it */
};

/*
 * Generated tokens 1 to 64, 65 to 256, 257 to 1024, 1025 to 4096 and the rest: KL may grow along a text,
 * since a subject's keys and values come from hidden states that its own errors changed.
 */
enum { CONTINUATION_PARTS = 5 };

/* First token of a part and the token after its last one, from 0, within @n_tokens; equal for an empty part.
 */
void continuation_part(size_t part, size_t n_tokens, size_t *ret_first, size_t *ret_end);

/* The result of one subject. */
struct continuation {
    size_t *alike; /* [n_prompts] tokens before the first difference; n_tokens: none */
    double nll;    /* of the exact model on all n_prompts n_tokens, nats */
    /* Mean KL(exact || subject) of the distributions of these tokens, when both read the exact model's text.
     */
    double kl[CONTINUATION_PARTS];
};

/**
 * continuation_run() - continue all prompts
 * @tokens:   at least n_prompts x prompt_tokens; a model with a BOS gets it before each prompt, in place of
 * the prompt's last token
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

/* The quantile @q of @values [n], @n > 0: 0.25, 0.5 … Sorts @values. Between two values it is the lower one,
 * since the largest value means "at least" and cannot be averaged. */
size_t continuation_quantile(size_t *values, size_t n, double q);
