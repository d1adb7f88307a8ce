/*
 * The windows that `kvcobra calibrate` reads: those of the user's texts, and what the model writes beside
 * them or instead of them. Notes tell the user which texts are not used, and why.
 */
#pragma once

#include "tools/calibrate/corpus.h"

struct calibrate_arguments;

/* Windows of the texts; none without --text. Return: 0; a negative errno with a sentence. */
int calibrate_corpus_read(const struct engine *en, const struct calibrate_arguments *a,
                          struct corpus *ret_texts, struct errmsg *e);

/* What the model is to write beside @texts; n_tokens is 0 if that is nothing. */
struct corpus_options calibrate_corpus_own(const struct calibrate_arguments *a, const struct corpus *texts);

/* Lets the model write as @own says, and puts its windows before those of @c. */
int calibrate_corpus_write(struct engine *en, const struct calibrate_arguments *a,
                           const struct corpus_options *own, struct corpus *c, struct errmsg *e);
