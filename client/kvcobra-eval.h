/*
 * libkvcobra for evaluation: sequences that measure the error of coding. The kvcobra command and the tests of
 * this project use it.
 *
 * This header is not installed and has no promise like that of kvcobra.h: its symbols are in the version node
 * KVCOBRA_PRIVATE and may change or disappear in any version.
 */
#ifndef KVCOBRA_EVAL_H
#define KVCOBRA_EVAL_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_eval_options {
    size_t struct_bytes; /* sizeof(kvc_eval_options), or the size up to and including n_recent */
    uint32_t n_sink;     /* number of first tokens that are read exactly; replaces the table's number */

    /* The query at position m reads positions n > m - n_recent exactly. 0 = no position, not even m.
     * -1 = the positions that a decode step of an ordinary sequence reads exactly. */
    int32_t n_recent;

    /* The other members measure parts of a table separately. If all are 0, every
     * part is coded, as in an ordinary sequence. */

    /* Sides that are read from codes: 1 << KVC_K, 1 << KVC_V or both;
     * the other side is read exactly. 0 = both. */
    uint32_t sides;

    /* Layers first_layer .. first_layer + n_layers - 1 are read from codes,
     * the others exactly. n_layers 0 = all layers. */
    uint32_t first_layer;
    uint32_t n_layers;

    /* 1: keys are rotated, coded and rotated back. The table must be
     * solved from statistics of rotated keys. */
    uint32_t post_rope;
} kvc_eval_options;

/**
 * kvc_seq_new_eval() - create a sequence that stores every input exactly, beside its codes
 *
 * Each query of a long append reads the same vectors as in a decode step (DESIGN 4). The sequence
 * takes 16 bytes per number. It cannot be published, matched or forked. kvc_usage counts the
 * codes of all tokens, also of those that are read exactly.
 *
 * Return: 0; -EINVAL; -ENOMEM; -EOPNOTSUPP: the client is on a GPU.
 */
KVC_EXPORT int kvc_seq_new_eval(kvc_model *m, const kvc_eval_options *o, kvc_seq **ret_seq);

#ifdef __cplusplus
}
#endif

#endif
