/*
 * What a compressed cache does to a model: the exact model and the compressed one read the same windows of a text, and
 * their next-token distributions are compared at every position.
 *
 * The compressed side goes through the client library, as a real run would; kvc_seq_new_eval() makes every query of a
 * window see exactly what it would have seen alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"

struct engine;
struct errmsg;
struct progress;

struct evaluation_options {
    size_t n_tokens;       /* of the text, from its beginning; what is left over a whole window makes a shorter one */
    size_t window;         /* tokens of a window; windows do not see each other */
    kvc_eval_options eval; /* exact sinks and newest tokens */
};

struct evaluation {
    uint64_t n_tokens;      /* positions whose distributions were compared */
    uint64_t n_predictions; /* of tokens inside a window: one less per window */
    uint64_t n_windows;
    size_t last_window;     /* tokens of the last one; below the window's length if the text did not fill it */
    double nll_exact, nll;  /* sums over predictions, nats */
    double kl;              /* sum over positions of KL(exact || compressed), nats */
    kvc_usage usage;        /* sums over windows */
};

/* Tokens that evaluate() will run: @available cut to whole windows and a last one of at least two tokens. */
size_t evaluation_tokens(const struct evaluation_options *o, size_t available);

/**
 * evaluate() - run both models over a text
 * @tokens: [n_tokens]; @o->n_tokens of them at most are used. A model that wants a BOS gets it in front of each window,
 *          in place of the window's last token
 * @p:      started by the caller, counts tokens; every token is run twice, once each way: total = 2 n
 *
 * Return: 0; a negative errno with a sentence.
 */
int evaluate(struct engine *en, kvc_client *c, kvc_model *m, const uint32_t *tokens, size_t n_tokens,
             const struct evaluation_options *o, struct progress *p, struct evaluation *ret, struct errmsg *e);
