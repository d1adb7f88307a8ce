/*
 * Runs of tokens that a text has for the first time. Calibration leaves out windows that repeat earlier ones:
 * copies of a page weigh as much as other text, and say nothing that the first copy did not say.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define NOVELTY_RUN 16 /* tokens. Natural text rarely repeats so many; text in copies repeats all of them */

struct novelty {
    void *runs; /* a tree of hashes; NULL: none */
};

void novelty_deinit(struct novelty *s);

/**
 * novelty_add() - remember the runs of NOVELTY_RUN tokens of a window
 * @ret_new: number of runs that no earlier window and no earlier place of this one had; a window of n tokens
 *           has n - NOVELTY_RUN + 1 runs, and none if it is shorter
 *
 * Return: 0; -ENOMEM.
 */
int novelty_add(struct novelty *s, const uint32_t *tokens, size_t n, size_t *ret_new);
