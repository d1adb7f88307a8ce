/*
 * Beginnings of the texts that a model writes for its calibration: kinds of text, and words that begin
 * texts of a kind. A model continues them in its own words; many kinds make tables that are good on many
 * texts.
 */
#pragma once

#include <stddef.h>

#define CORPUS_KINDS 6

/* A short name of a kind, below CORPUS_KINDS. */
const char *corpus_kind_name(size_t kind);

/* Beginnings of one kind, and their number. */
size_t corpus_openings(size_t kind, const char *const **ret_openings);
