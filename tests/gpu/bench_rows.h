/* The measurements of tests/gpu/bench_attend.c: one table and one size at a time. */
#pragma once

#include "tests/gpu/bench_subject.h"
#include "tools/bench/timing.h"

enum { BENCH_KV_HEADS_MAX = 8, BENCH_GROUP = 4, BENCH_D = 128 };

struct bench_options {
    size_t batches[2], tokens[2]; /* of every sequence */
    size_t n_batches, n_tokens;
    uint32_t n_kv_heads;
    size_t samples, cold_mib;
    double seconds; /* for the samples of one row */
    int compute;    /* of the newest kernels to use, 10 * major + minor */
    bool json;
    const char *json_file;  /* NULL: JSON goes to stdout */
    const char *table_file; /* NULL: synthetic tables only */
};

/* Caches of random content on the GPU, as large as the largest size that
 * fits; every row reads a part of them. */
struct bench_pools {
    cu_ptr packed, k, v;
    size_t packed_bytes, f16_bytes; /* f16_bytes: of k and of v each */
};

struct attend_row {
    const char *name, *kernel;
    bool v_from_k, fits;
    double must, aim;                              /* target ratios; 0: none */
    size_t batch, tokens, packed_bytes, f16_bytes; /* packed_bytes, f16_bytes: bytes that one call reads */
    unsigned packed_splits, f16_splits;
    struct timing packed, f16, ratio; /* seconds of a call; ratio: binary16 divided by packed */
    /* with prediction: relative to the median ratio without it; 0: not measured */
    double share;
};

struct codec_row {
    const char *name;
    bool v_from_k;
    size_t batch, tokens, vector_bytes,
        packed_bytes;      /* [tokens] of all KV heads, both sides, in binary16 and as codes */
    struct timing prefill; /* seconds of packing and storing @tokens tokens */
    struct timing read;    /* seconds of reading both sides */
    /* seconds of appending one token: of 64, with a chunk packed before one of them */
    struct timing step;
    /* seconds of appending one token to each of @batch sequences in one call;
     * each packs its chunk at another step */
    struct timing batch_step;
    struct timing crc; /* seconds of the checksums of their pages */
};

/* Allocates what the rows of @o, and of a table or NULL, need, but at most
 * MEMORY_SHARE of the GPU's memory; filled. */
int bench_pools_init(struct bench_gpu *g, const struct bench_options *o, const struct table *of_file,
                     struct bench_pools *ret_pools, struct errmsg *e);

/**
 * bench_attend_row() - measure packed attention and the binary16 baseline alternately
 *
 * The calls of both use, in rotation, as many caches as make 'cold_mib' of packed pages, like the
 * layers of a model, so that none is found in the cache of the GPU; a table of a file has its own
 * layers. Both use the best of a few numbers of splits, all multiples of what fills the GPU, as
 * far as 'seconds' allow to try them.
 *
 * Return: 0, also if the size does not fit (ret_row->fits is false then); as cuda_fail(); -EBADMSG: an
 * output that is not finite.
 */
int bench_attend_row(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p,
                     const struct source *source, size_t batch, size_t tokens, struct attend_row *ret_row,
                     struct errmsg *e);

/* Measures appending @tokens of binary16, reading keys and values of their pages as binary32, and the
 * checksums of the pages. */
int bench_codec_row(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p,
                    const struct source *source, size_t tokens, struct codec_row *ret_row, struct errmsg *e);
