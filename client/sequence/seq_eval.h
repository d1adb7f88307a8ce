/*
 * Evaluation sequences, for kvc_seq_new_eval(). They store every input exactly, beside the vector that its
 * codes decode to, so that each query of a long append reads the same vectors as in a decode step (DESIGN 4,
 * "Exactness"). They exist on the host only and are never published.
 */
#pragma once

#include "client/kvcobra-eval.h"
#include "client/sequence/seq_ops.h"

extern const struct seq_ops seq_eval_ops;

/* Reads the options of a new sequence and allocates what they need.
 * Return: 0; -EINVAL, -ENOMEM with a sentence. */
int seq_eval_set_options(struct kvc_seq *s, const kvc_eval_options *o);
