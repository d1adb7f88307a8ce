/* The results of `kvcobra bench capacity` as text, as JSON and as a page with a picture. */
#pragma once

#include <stdio.h>

#include "tools/bench/capacity_replay.h"

enum { CAPACITY_POINTS_MAX = 32 };

struct capacity_point { /* one width */
    double bits;
    uint32_t asked; /* blocks for which there is memory */
    struct capacity_run run;
    uint64_t lru_hits; /* of a cache with run.capacity blocks */
    /* With a disk tier, if there is one: */
    uint32_t disk_asked; /* blocks for which it has room */
    struct capacity_run with_disk;
    uint64_t with_disk_lru_hits; /* of a cache with the blocks of both */
};

struct capacity_results {
    const char *trace; /* its path */
    uint32_t n_requests, n_distinct, block_tokens;
    uint64_t n_blocks, ceiling_hits; /* hits of a cache that drops nothing */
    uint64_t memory_bytes, token_bytes;
    uint64_t disk_bytes; /* 0: no disk tier */
    unsigned n_clients;
    struct capacity_point points[CAPACITY_POINTS_MAX];
    size_t n_points;
};

/* Return: exit codes of command.h. */
int capacity_print_text(const struct capacity_results *x);
int capacity_print_json(const struct capacity_results *x);

/* The page. Return: 0; -ENOMEM. */
int capacity_page(FILE *f, const struct capacity_results *x);
