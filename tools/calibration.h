/*
 * Calibration on a model: the text cut into windows, statistics of exact passes over them, forward or there and back,
 * and the depth weights (DESIGN 3.1) from passes in which one layer and side is compressed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct errmsg;
struct progress;
struct stats;

#define DEPTH_TOKENS 1024 /* at least; held out: no statistics are made of them */

/* Windows that do not see each other. The last n_held are for depth weights. */
struct corpus {
    uint32_t *tokens;      /* [n_windows + n_held, window] */
    uint64_t *documents;   /* [n_windows + n_held]: hash of what is in a window and where it stood */
    size_t window, n_windows, n_held;
};

static inline const uint32_t *corpus_window(const struct corpus *c, size_t i)
{
    return c->tokens + i * c->window;
}

/* Windows of @window tokens that @n_tokens need, and those held out beside them. */
size_t corpus_windows(size_t n_tokens, size_t window);
size_t corpus_held(size_t window);

/**
 * corpus_from_text() - windows of a text
 * @tokens: [n] of the text; windows start with a BOS in addition if the model wants one
 *
 * A text that is too short for all windows gives fewer. Return: 0; -EINVAL: not even one window and those held out.
 */
int corpus_from_text(const struct engine *en, const uint32_t *tokens, size_t n, size_t n_tokens, size_t window,
                     bool want_held, struct corpus *ret_corpus, struct errmsg *e);

/**
 * corpus_from_model() - windows that the model writes itself, all in lock step
 *
 * Each starts with a random token (after a BOS if the model wants one); the next ones are drawn from the model's own
 * distribution at temperature 1, controls that end or begin a text left out.
 */
int corpus_from_model(struct engine *en, size_t n_tokens, size_t window, bool want_held, uint64_t seed,
                      struct progress *p, struct corpus *ret_corpus, struct errmsg *e);

void corpus_deinit(struct corpus *c);

/* Bytes of memory that corpus_from_model() and calibrate_depth() need beside the model and the statistics. */
uint64_t corpus_model_bytes(const struct engine *en, size_t n_tokens, size_t window, bool want_held);
uint64_t calibrate_depth_bytes(const struct engine *en, size_t window);

/**
 * calibrate_windows() - add the windows that are not held out to @s
 * @gradients: also those of log p(y) by keys and values, for the `fisher` metric; about four times the work
 * @seed:      of the labels y, drawn from the model; a window's labels depend on it and on the window alone
 */
int calibrate_windows(struct engine *en, struct stats *s, const struct corpus *c, bool gradients, uint64_t seed,
                      struct progress *p, struct errmsg *e);

/* Measures every layer and side on the windows held out. @p counts to 1. */
int calibrate_depth(struct engine *en, struct stats *s, const struct corpus *c, uint64_t seed, struct progress *p,
                    struct errmsg *e);
