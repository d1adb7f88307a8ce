/*
 * What calibration reads: windows of tokens that do not see each other, cut from texts or written by the
 * model.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/stats.h"

struct document;
struct engine;
struct errmsg;
struct progress;

#define DEPTH_TOKENS 1024  /* at least; held out for depth weights: no statistics are made of them */
#define LINE_TOKENS_MIN 16 /* lines shorter than this are left out: sinks would be most of them */

/* The last n_held windows are for depth weights. */
struct corpus {
    uint32_t *tokens; /* of all windows, one after another */
    size_t *ends;     /* [n_windows + n_held] where each ends */
    uint64_t
        *documents; /* [n_windows + n_held]: hash of what is in a window and where in its text it stood */
    size_t window;  /* most tokens of one */
    size_t n_windows, n_held;
    struct stats_source *sources; /* [n_sources] */
    size_t n_sources;
};

static inline size_t corpus_start(const struct corpus *c, size_t i)
{
    return i > 0 ? c->ends[i - 1] : 0;
}

static inline const uint32_t *corpus_window(const struct corpus *c, size_t i)
{
    return c->tokens + corpus_start(c, i);
}

static inline size_t corpus_length(const struct corpus *c, size_t i)
{
    return c->ends[i] - corpus_start(c, i);
}

/* Tokens of the windows that statistics are made of. */
static inline size_t corpus_tokens(const struct corpus *c)
{
    return corpus_start(c, c->n_windows);
}

struct corpus_options {
    size_t n_tokens; /* at least, of what is not held out; a text that is too short gives fewer */
    size_t window;   /* most tokens of a window, a BOS included if the model wants one */
    bool want_held;  /* hold windows of DEPTH_TOKENS out */
    uint64_t seed;   /* of what the model writes */
};

/**
 * corpus_from_texts() - windows of texts, which take turns window by window
 * @texts: [n]; a raw one is cut into whole windows, each line of the others into windows of at most that many
 * tokens
 *
 * Return: 0; -EINVAL: not even one window and those held out; -ENOMEM.
 */
int corpus_from_texts(const struct engine *en, const struct document *texts, size_t n,
                      const struct corpus_options *o, struct corpus *ret_corpus, struct errmsg *e);

/**
 * corpus_from_model() - windows that the model writes itself, all in lock step
 *
 * Each starts with a token that is likely in text of any kind (after a BOS if the model wants one), another
 * one each; the next ones are drawn from the model's own distribution at temperature 1, controls that end or
 * begin a text left out.
 */
int corpus_from_model(struct engine *en, const struct corpus_options *o, struct progress *p,
                      struct corpus *ret_corpus, struct errmsg *e);

/* Puts the windows of @more, which has none held out, before those of @c; @more becomes empty. Return: 0;
 * -ENOMEM. */
int corpus_join(struct corpus *c, struct corpus *more, struct errmsg *e);

void corpus_deinit(struct corpus *c);

/* Windows of @window tokens that @n_tokens need, and those held out beside them. */
size_t corpus_windows(size_t n_tokens, size_t window);
size_t corpus_held(size_t window);

/* Bytes of memory that corpus_from_model() needs beside the model. */
uint64_t corpus_model_bytes(const struct engine *en, const struct corpus_options *o);

/* ---- for corpus*.c ---- */

/* Room for @n_windows in all, of @n_tokens in all. */
int corpus_init(struct corpus *c, size_t window, size_t n_windows, size_t n_tokens, size_t n_sources,
                struct errmsg *e);

/* One more window: @bos or UINT32_MAX, then @tokens; @place: which one of its text it is. */
void corpus_add(struct corpus *c, uint32_t bos, const uint32_t *tokens, size_t n, uint64_t place);

/* UINT32_MAX: the model wants none. */
uint32_t corpus_bos(const struct engine *en);
