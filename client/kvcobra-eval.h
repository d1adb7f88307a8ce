/*
 * libkvcobra for evaluation: sequences that measure what coding costs. For the kvcobra command and the tests
 * of this project.
 *
 * Not installed, and without the promise of kvcobra.h: the symbols are in the version node KVCOBRA_PRIVATE
 * and may change or disappear in any version.
 */
#ifndef KVCOBRA_EVAL_H
#define KVCOBRA_EVAL_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvc_eval_options {
    size_t struct_bytes; /* sizeof(kvc_eval_options); up to n_recent included is accepted too */
    uint32_t n_sink;     /* first tokens that are read exactly, instead of the table's number */
    int32_t n_recent;    /* query m reads n > m - n_recent exactly; 0 = not even its own position;
                            -1 = as a decode step of an ordinary sequence does */
    /* The rest measures the parts of a table separately. All 0: every part is coded, as in an ordinary
     * sequence. */
    uint32_t sides; /* 1 << KVC_K, 1 << KVC_V or both are read from codes, the other side exactly; 0 = both */
    uint32_t first_layer; /* layers first_layer .. first_layer + n_layers - 1 are read from codes, */
    uint32_t n_layers;    /* the others exactly; n_layers 0 = all layers */
    uint32_t post_rope;   /* 1: keys are rotated, coded and rotated back; the table must be of statistics of
                             rotated keys */
} kvc_eval_options;

/**
 * kvc_seq_new_eval() - a sequence that stores every input exactly, beside its codes
 *
 * For measuring: each query of a long append reads what it would have read in a decode step (DESIGN 4). Takes
 * 16 bytes per number. Cannot be published, matched or forked. kvc_usage counts the codes of all tokens, also
 * of those that are read exactly.
 *
 * Return: 0; -EINVAL; -ENOMEM; -EOPNOTSUPP: the client is on a GPU.
 */
KVC_EXPORT int kvc_seq_new_eval(kvc_model *m, const kvc_eval_options *o, kvc_seq **ret_seq);

#ifdef __cplusplus
}
#endif

#endif
