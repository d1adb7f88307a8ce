/*
 * The two parts of the swap scenario: bench_service_swap.c has the operator and the report,
 * bench_service_swap_client.c the clients. Not for other files.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "lab/bench/bench_service.h"
#include "lab/bench/bench_service_clients.h"
#include "tools/bench/bench_service_model.h"

enum {
    N_TABLES = 2,
    LAYERS = 2,
    HEADS = 2,
    DIM = 64,
    TOKENS = 352, /* of a sequence: 256 are packed and 96 are exact, for any division into appends */
    PIECE = 32,
    ROW = HEADS * DIM,
    SAMPLES_MAX = 1 << 17, /* of a client, a call and a phase; the latest are stored */
};

enum phase { QUIET, SWAPPING, N_PHASES };

struct swap_vectors {
    float of[LAYERS][2][TOKENS * ROW]; /* by side */
};

struct swap_samples {
    _Atomic uint64_t n;
    double seconds[SAMPLES_MAX];
};

struct swap_client_samples {
    struct swap_samples of[N_PHASES][SWAP_CALLS];
};

struct swap_shared {
    _Atomic unsigned phase, stop;
    _Atomic uint64_t n_sequences, n_reads, n_matched, n_published, n_failed, n_wrong;
    struct errmsg failure; /* the first one */
    struct swap_vectors expected[N_TABLES];
    struct swap_client_samples clients[];
};

struct swap {
    const struct service_options *options;
    const char *socket;
    struct bench_model models[N_TABLES];
    struct swap_vectors *input;
    uint32_t tokens[TOKENS];
    struct bench_clients clients;
    struct swap_shared *shared;
    size_t shared_bytes;
    unsigned n_swaps;
};

extern const struct bench_shape swap_shape;

/* Functions of the client processes; @ctx: struct swap. swap_expect() fills shared->expected and runs once;
 * swap_client() is a client until shared->stop is set. Return: 0; a negative errno with a sentence. */
int swap_expect(void *ctx, unsigned number, struct errmsg *e);
int swap_client(void *ctx, unsigned number, struct errmsg *e);
