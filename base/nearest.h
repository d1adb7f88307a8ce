/*
 * The known name that a mistyped one probably means: "did you mean 'calibrate'?". Used for commands, options
 * and settings.
 */
#pragma once

#include <stddef.h>

struct nearest {
    const char *typed, *best; /* best: NULL while no candidate is near */
    size_t distance;          /* of best; candidates must be nearer */
};

/* @typed: borrowed. A name of which more than half of the letters differ is not near. */
void nearest_init(struct nearest *n, const char *typed);

/* Considers one known name; borrowed. */
void nearest_try(struct nearest *n, const char *name);
