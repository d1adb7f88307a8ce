/*
 * A trace replayed through a real kvcobrad by real clients, for `kvcobra bench capacity`. One page of a small
 * model stands for a block of the trace, so that a pool of some megabytes holds as many blocks as a large
 * model's pool of hundreds of gigabytes. A disk tier of such a size beside it has 4 KiB per block.
 */
#pragma once

#include <stdint.h>

#include "base/errmsg.h"
#include "tools/bench/capacity_trace.h"
#include "tools/bench/timing.h"

struct progress;

struct capacity_replay_options {
    const char *daemon; /* path of kvcobrad */
    unsigned n_clients;
    uint32_t disk_blocks;      /* that the disk tier has room for; 0: there is none */
    struct progress *progress; /* counts requests */
};

struct capacity_run {
    uint32_t capacity;             /* blocks that the pool has room for: at most what was asked */
    uint32_t disk_capacity;        /* the same of the disk */
    uint64_t hits;                 /* blocks that requests found, from their beginning on */
    uint64_t n_evicted;            /* pages */
    uint64_t n_read, n_lost;       /* pages from the disk; evicted before they were written */
    uint64_t n_unpublished;        /* blocks that the daemon refused */
    struct errmsg why_unpublished; /* the first of them */
    struct timing request;         /* seconds: match, append of the blocks that were not found, commit */
    double seconds;                /* of the replay */
};

/**
 * capacity_replay() - start a daemon and send it all requests, in the order of the trace
 * @capacity: blocks that the pool has room for, rounded down to whole spans
 *
 * The clients take turns, one request each. With a disk, requests wait while it has less than memory: a
 * replay has no time between requests. Return: 0; -ERANGE: a capacity is too small; other negative errno;
 * each with a sentence, or without one if a signal arrived.
 */
int capacity_replay(const struct capacity_replay_options *o, const struct capacity_trace *t,
                    uint32_t capacity, struct capacity_run *ret, struct errmsg *e);
