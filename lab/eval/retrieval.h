/*
 * Keys hidden in long text: a filler text contains a sentence with a five-digit key and ends with a question
 * for it, and the model generates greedily. A key is found if its five digits come first. For `kvcobra eval
 * --retrieval`.
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

enum { RETRIEVAL_LENGTHS_MAX = 8, RETRIEVAL_DEPTHS = 5, RETRIEVAL_ANSWER_TOKENS = 8 };

struct retrieval_options {
    size_t n_keys;
    size_t lengths[RETRIEVAL_LENGTHS_MAX]; /* tokens of the texts with question and answer */
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

/* Position of the sentence at the i-th depth, as a fraction of the filler. */
double retrieval_depth(size_t i);

/* Lengths change fastest, then depths: of four lengths, key @i has length i mod 4, depth i / 4 mod 5. The
 * key has five digits. */
void retrieval_key(const struct retrieval_options *o, size_t i, char ret[static 6]);

/* Whether the generated @text begins with @key, after white space, and not with a longer number. */
bool retrieval_found(const char *text, const char *key);

/**
 * retrieval_run() - ask every subject for every key
 * @tokens: [n_tokens] of the filler; each text takes a part of it
 * @p:      started by the caller, counts tokens of texts read by a subject; see retrieval_tokens()
 * @ret:    [n_subjects]
 *
 * Return: 0; -EINVAL: the filler is shorter than the longest text, or the shortest text has no room for the
 * sentence and the question; sentence in @e.
 */
int retrieval_run(struct engine *en, struct subject *const *subjects, size_t n_subjects,
                  const uint32_t *tokens, size_t n_tokens, const struct retrieval_options *o,
                  struct progress *p, struct retrieval *ret, struct errmsg *e);

/* Tokens of all texts without the answers. */
size_t retrieval_tokens(const struct retrieval_options *o);
