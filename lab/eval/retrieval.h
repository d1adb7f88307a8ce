/*
 * Keys hidden in long text: a filler text contains sentences that give names five-digit keys, and ends with a
 * question for each of them. A key is found if the model's likeliest tokens are its five digits and then no
 * digit, as if it wrote them greedily. For `kvcobra-lab eval --retrieval`.
 *
 * Several keys in one text share its reading, which is nearly all of the time. Their questions follow each
 * other, each with the right answer, so that every subject reads the same tokens and no question depends on
 * what a subject answered before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/eval/interval.h"

struct engine;
struct errmsg;
struct progress;
struct subject;

enum { RETRIEVAL_LENGTHS_MAX = 8, RETRIEVAL_DEPTHS = 5, RETRIEVAL_TOGETHER_MAX = 20 };

struct retrieval_options {
    size_t n_keys;                         /* a multiple of n_together */
    size_t n_together;                     /* keys in one text, 1 .. RETRIEVAL_TOGETHER_MAX */
    size_t lengths[RETRIEVAL_LENGTHS_MAX]; /* tokens of the texts with questions and answers */
    size_t n_lengths;
    uint64_t seed; /* of the keys and of the beginning of the filler */
};

struct retrieval_share {
    size_t found, asked;
};

struct retrieval {
    struct retrieval_share all, by_length[RETRIEVAL_LENGTHS_MAX], by_depth[RETRIEVAL_DEPTHS];
    /* the same keys asked of the first subject and of this one */
    struct interval_pairs pairs, pairs_by_length[RETRIEVAL_LENGTHS_MAX];
};

/* Middle of the i-th fifth of the filler, as a fraction of it. */
double retrieval_depth(size_t i);

/* Where the sentence of key @i is: its depth as a fraction of the filler. Texts take the lengths in turn. A
 * text with one key has it at one of the five depths, in turn; several keys of a text are spread over it. */
double retrieval_place(const struct retrieval_options *o, size_t i);

/* The key has five digits. */
void retrieval_key(const struct retrieval_options *o, size_t i, char ret[static 6]);

/**
 * retrieval_run() - ask every subject for every key
 * @tokens: [n_tokens] of the filler; each text takes a part of it
 * @p:      started by the caller, counts tokens of texts read by a subject; see retrieval_tokens()
 * @ret:    [n_subjects]
 *
 * Return: 0; -EINVAL: the filler is shorter than the longest text, or the shortest text has no room for its
 * sentences and questions; sentence in @e.
 */
int retrieval_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                  const uint32_t *tokens, size_t n_tokens, const struct retrieval_options *o,
                  struct progress *p, struct retrieval *ret, struct errmsg *e);

/* Tokens of all texts. */
size_t retrieval_tokens(const struct retrieval_options *o);
