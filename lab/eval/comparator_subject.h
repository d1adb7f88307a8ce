/* Other formats as subjects of an evaluation. */
#pragma once

#include <stdbool.h>

struct comparator;
struct engine;
struct errmsg;
struct stats;
struct subject;
struct subject_options;

/**
 * comparator_subject_new() - a subject whose caches are coded by @c
 * @stats, @rotated: for calibrated formats, else NULL; used during the call only
 *
 * Return: 0 or a negative errno with a sentence.
 */
int comparator_subject_new(struct engine *en, const struct comparator *c, const struct stats *stats,
                           const struct stats *rotated, const struct subject_options *o, struct subject **ret,
                           struct errmsg *e);
