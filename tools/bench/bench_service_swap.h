/*
 * The parts of the swap scenario: bench_service_swap.c drives, bench_service_swap_client.c has the sequences.
 * For no one else.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "tools/bench/bench_service.h"
#include "tools/bench/bench_service_clients.h"
#include "tools/bench/bench_service_model.h"

enum {
    N_TABLES = 2,
    LAYERS = 2,
    HEADS = 2,
    DIM = 64,
    TOKENS = 352,
    PIECE = 32,
    ROW = HEADS * DIM,     /* 352: four chunks are packed however it was appended, 96 are exact */
    SAMPLES_MAX = 1 << 17, /* of a client, a call and a kind of stretch; the latest are kept */
};

enum phase { QUIET, SWAPPING, N_PHASES };

struct vectors {
    float of[LAYERS][2][TOKENS * ROW]; /* by side */
};

struct samples {
    _Atomic uint64_t n;
    double seconds[SAMPLES_MAX];
};

struct client_samples {
    struct samples of[N_PHASES][SWAP_CALLS];
};

struct shared {
    _Atomic unsigned phase, stop;
    _Atomic uint64_t n_sequences, n_reads, n_matched, n_published, n_failed, n_wrong;
    struct errmsg failure; /* the first one */
    struct vectors expected[N_TABLES];
    struct client_samples clients[];
};

struct swap {
    const struct service_options *options;
    const char *socket;
    struct bench_model models[N_TABLES];
    struct vectors *input;
    uint32_t tokens[TOKENS];
    struct bench_clients clients;
    struct shared *shared;
    size_t shared_bytes;
    unsigned n_swaps;
};

extern const struct bench_shape swap_shape;

/* Processes of the crew; @ctx: struct swap. The first fills shared->expected, one is enough; the other is a
 * client until it is told to stop. Return: 0; a negative errno with a sentence. */
int swap_expect(void *ctx, unsigned number, struct errmsg *e);
int swap_client(void *ctx, unsigned number, struct errmsg *e);
